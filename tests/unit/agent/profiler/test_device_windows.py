"""WindowReduction with windows of a device: the groups of collectives, and the covered steps.

Steps last 1,000 ticks on the host clock, of which the device is 100 behind. Group "0" is the world, "17" two ranks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.profiler.line_sampler import WindowLines
from rankscope.agent.profiler.process_groups import FlightEntry
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.agent.profiler.reduction_process import ReductionProcesses
from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from tests.unit.agent.captures.made_frames import SCRIPT, frame_in
from tests.unit.agent.profiler.older_torch import to_session_events
from tests.unit.agent.traced_activities import PARAM_COMMS, TracedActivity

WALL = 1_700_000_000_000_000_000
STEP = 1_000
MAIN, STREAM = 100, 7
WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1, 2, 3), backend="nccl")
TENSOR = GroupInfo(label="mesh_tp/0-1", description="mesh_tp", ranks=(0, 1), backend="nccl")
GROUPS = {"0": WORLD, "17": TENSOR}
NCCL = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Result:
    """The profiler's result at a window's end."""

    def __init__(self, activities: Sequence[TracedActivity]) -> None:
        self._activities = activities

    def trace_activities(self) -> list[TracedActivity]:
        return list(self._activities)


by_any_torch = pytest.mark.parametrize("result_of", [Result, to_session_events], ids=["2.13", "older"])


def kernel(
    called: int, name: str = "gemm", *, group: str | None = None, op: str = "all_gather"
) -> list[TracedActivity]:
    """A call at this tick and the kernel that it launched, 100 ticks later, for 50 ticks."""
    metadata = (
        f'"Collective name": "{op}", "In msg nelems": 10, "Out msg nelems": 40, "Group size": 4, "dtype": "Float", '
        f'"Process Group Name": "{group}", "Seq": {called}'
    )
    operator = None if group is None else TracedActivity(PARAM_COMMS, "cpu_op", 0, 0, MAIN, metadata=metadata)
    return [
        TracedActivity("cudaLaunchKernel", "cuda_runtime", called + WALL, 1, MAIN, correlation=called),
        TracedActivity(name, "kernel", called + 100 + WALL, 50, STREAM, correlation=called, linked=operator),
    ]


STEPS_5_TO_7 = [*kernel(5_000), *kernel(6_000), *kernel(7_000), *kernel(8_000)]
"""A kernel at the start of each: the three are whole, step 8 only bounds the last of them."""


def reduce(
    activities: list[TracedActivity],
    groups: dict[str, GroupInfo] = GROUPS,
    *,
    enqueued: dict[int, int] | None = None,
    entries_of: str = "",
    result_of: Callable[[Sequence[TracedActivity]], Any] = Result,
    lines: WindowLines | None = None,
) -> tuple[ReducedWindow, dict[str, int]]:
    """`enqueued` are the host's collectives of each group by number, of which 0 has the name `entries_of`."""
    entries = [FlightEntry(0, number, "all_reduce", 0) for number in (1, 2)]
    source = GroupSource(lambda: dict(groups), lambda: (entries, {0: (entries_of, "")}))
    reducing = WindowReduction(
        source,
        ReductionProcesses(),
        events_max=1_000,
        yield_gil=lambda: None,
    )
    steps = [StepRecord(step=n, start_host_ns=n * STEP, duration_ns=STEP, phases_ns={}) for n in range(5, 9)]
    window = RawWindow(True, tuple(steps), result_of(activities), WALL, {}, enqueued or {}, 0, True, lines=lines)
    at_once = reducing.reduce(window)
    assert at_once == ReducedWindow([], [], None), "what it covers is not known yet"
    (later,) = reducing.collect() or reducing.finish()  # a file is read by a child
    return later, reducing.skipped


@by_any_torch
def test_device_collective_has_group_label_sequence_and_size(result_of: Any) -> None:
    reduced, skipped = reduce([*STEPS_5_TO_7, *kernel(6_300, NCCL, group="17")], result_of=result_of)
    assert reduced.collectives == [
        CollectiveRecord(
            step=6,
            group="mesh_tp/0-1",
            op="all_gather",
            start_host_ns=6_400,
            duration_ns=50,
            sequence=6_300,
            bytes=160,  # the gathered size: 40 floats of 4 bytes
            exposed_ns=50,
        )
    ]
    assert (reduced.covered_steps, skipped) == ((5, 7), {})


@by_any_torch
def test_steps_of_a_device_without_communication_are_covered(result_of: Any) -> None:
    reduced, _ = reduce(STEPS_5_TO_7, result_of=result_of)
    assert ([found.first_step for found in reduced.breakdowns], reduced.covered_steps) == ([5, 6, 7], (5, 7))


def test_device_collective_of_unknown_group_covers_no_step() -> None:
    reduced, skipped = reduce([*STEPS_5_TO_7, *kernel(6_300, NCCL, group="99")])
    assert (reduced.collectives, reduced.covered_steps, len(reduced.breakdowns)) == ([], None, 3)
    assert skipped == {"collectives_unplaced": 1}


@pytest.mark.parametrize(("groups", "labels"), [({"0": WORLD}, ["default_pg"]), (GROUPS, [])])
def test_nameless_collective_belongs_to_the_only_group_or_none(groups: dict[str, GroupInfo], labels: list[str]) -> None:
    reduced, _ = reduce([*STEPS_5_TO_7, *kernel(6_300, NCCL)], groups)
    assert [(found.group, found.sequence) for found in reduced.collectives] == [(label, None) for label in labels]


@pytest.mark.parametrize("op", ["send", "recv 0<-1"])
def test_point_to_point_covers_its_step_with_any_group(op: str) -> None:
    unknown, skipped = reduce([*STEPS_5_TO_7, *kernel(6_300, "ncclDevKernel_SendRecv", group="99", op=op)])
    assert (unknown.collectives, unknown.covered_steps, skipped) == ([], (5, 7), {})
    known, _ = reduce([*STEPS_5_TO_7, *kernel(6_300, "ncclDevKernel_SendRecv", group="17", op=op)])
    assert [(found.group, found.op) for found in known.collectives] == [("mesh_tp/0-1", op.partition(" ")[0])]


GLOO = GroupInfo(label="beside", description="beside", ranks=(0, 1, 2, 3), backend="gloo")


@by_any_torch
def test_host_and_device_collectives_are_returned_together(result_of: Any) -> None:
    on_host = [TracedActivity("gloo:all_reduce", "user_annotation", start + WALL, 20, 300) for start in (6_200, 8_200)]
    activities = [*STEPS_5_TO_7, *on_host, *kernel(6_300, NCCL, group="17")]
    groups = {"17": TENSOR, "9": GLOO}
    reduced, skipped = reduce(activities, groups, enqueued={0: 2}, entries_of="9", result_of=result_of)
    assert [(found.group, found.step) for found in reduced.collectives] == [("beside", 6), ("mesh_tp/0-1", 6)]
    assert (reduced.covered_steps, skipped) == ((5, 7), {})


def test_unplaced_host_collectives_cover_no_step() -> None:
    on_host = TracedActivity("gloo:all_reduce", "user_annotation", 6_200 + WALL, 20, 300)
    reduced, skipped = reduce([*STEPS_5_TO_7, on_host], {}, enqueued={0: 1})
    assert (reduced.collectives, reduced.covered_steps, skipped) == ([], None, {"collectives_unplaced": 1})


@by_any_torch
def test_window_with_a_cut_step_covers_no_range(result_of: Any) -> None:
    lost = TracedActivity("cudaLaunchKernel", "cuda_runtime", 6_500 + WALL, 1, MAIN, correlation=99)
    reduced, skipped = reduce([*STEPS_5_TO_7, lost], result_of=result_of)
    assert ([found.first_step for found in reduced.breakdowns], reduced.covered_steps) == ([5, 7], None)
    assert skipped == {"steps_cut": 1}


# -- blocking calls ---------------------------------------------------------------------------------------------------


def wait(at: int, length: int) -> TracedActivity:
    return TracedActivity("cudaStreamSynchronize", "cuda_runtime", at + WALL, length, MAIN)


def make_lines() -> WindowLines:
    return WindowLines(MAIN, (MAIN,), ScriptFiles({}), monotonic_ns=lambda: 0)


def test_blocking_calls_of_whole_steps_have_lines_of_the_window() -> None:
    lines = make_lines()
    lines.add(6_120, frame_in(SCRIPT, line=8, function="main"))
    reduced, skipped = reduce([*STEPS_5_TO_7, wait(6_110, 40), wait(8_110, 40)], lines=lines)
    assert reduced.synchronizations is not None
    (kind,) = reduced.synchronizations.kinds
    assert (kind.count, kind.waits_ns) == (1, 40)  # the kernel of step 6 ends at 6,150
    assert kind.line == "train.py:8 (main)"
    assert skipped == {}


def test_without_samples_blocking_calls_have_no_line() -> None:
    reduced, _ = reduce([*STEPS_5_TO_7, wait(6_110, 40)])
    assert reduced.synchronizations is not None
    assert [kind.line for kind in reduced.synchronizations.kinds] == [None]


def test_sample_added_while_lines_are_packed_does_not_count() -> None:
    lines = make_lines()
    lines.add(6_120, frame_in(SCRIPT, line=8, function="main"))
    lines.times_host_ns.append(6_130)  # the sampler is between its two columns
    reduced, _ = reduce([*STEPS_5_TO_7, wait(6_110, 40)], lines=lines)
    assert reduced.synchronizations is not None
    assert [kind.line is None for kind in reduced.synchronizations.kinds] == [False]


def test_window_with_lines_of_a_part_of_it_is_counted_once() -> None:
    lines = make_lines()
    lines.is_cut = True
    assert reduce(STEPS_5_TO_7, lines=lines)[1] == {"lines_cut": 1}
