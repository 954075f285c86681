"""reduce_window: the data read from the profiler, the bounds of a device's steps, and the results.

Windows of a device written by hand are drawn in microseconds. Real ones are the trace files of tests/traces, their
events handed over as live activities.
"""

import gzip
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.agent.profiler.reduce_window import (
    DeviceCollective,
    StepBounds,
    WindowAnswer,
    WindowRequest,
    reduce_window,
)
from rankscope.collector.traces.files import read_chunks
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.records import WindowBreakdown
from rankscope.measure.traced_collectives import find_collectives
from rankscope.measure.window_columns import WindowColumns, to_trace
from tests.unit.agent.profiler.made_windows import (
    MAIN,
    STREAM,
    at,
    metadata_of,
    ran,
    read_columns,
    reduce,
)
from tests.unit.agent.traced_activities import TRACES, read_events, to_activities

# -- the steps of a device --------------------------------------------------------------------------------------------

# host    | step 10   0-100   | step 11  100-200   | step 12  200-300
# calls     10  20  30          110                  210
# device              ...60     90 100-140  150-190  230-270          310-350
QUEUE = [
    *ran(10, 60, 30),
    *ran(20, 100, 40),
    *ran(30, 150, 40, "Memcpy HtoD", kind="gpu_memcpy", call="cudaMemcpyAsync"),
    *ran(110, 230, 40),
    *ran(210, 310, 40),
]
BOUNDS_US = (0, 100, 200, 300)


def test_device_step_ends_at_the_first_work_of_the_next() -> None:
    first, second = reduce(QUEUE, BOUNDS_US).breakdowns
    assert (first.first_step, first.window_ns) == (10, (230 - 60) * 1000)
    assert (first.compute_ns, first.copy_ns, first.idle_ns) == ((30 + 40) * 1000, 40_000, (170 - 110) * 1000)
    assert (second.first_step, second.window_ns, second.compute_ns) == (11, (310 - 230) * 1000, 40_000)


def test_kernels_are_counted_and_copies_are_not() -> None:
    assert [found.operator_count for found in reduce(QUEUE, BOUNDS_US).breakdowns] == [2, 1]


def test_the_last_step_of_a_window_only_bounds_the_one_before() -> None:
    answer = reduce(QUEUE, BOUNDS_US)
    assert ([found.first_step for found in answer.breakdowns], answer.steps_cut) == ([10, 11], 0)


def test_step_with_a_launched_kernel_that_did_not_run_is_cut() -> None:
    queued = at("cuda_runtime", "cudaLaunchKernelExC", 120, 1, MAIN, correlation=10**7)
    answer = reduce([*QUEUE, queued], BOUNDS_US)
    assert ([found.first_step for found in answer.breakdowns], answer.steps_cut) == ([10], 1)


@pytest.mark.parametrize(
    "length_us", [-1, 60_000_001, 2**63 // 1000 - 1], ids=["negative", "over a minute late", "endless"]
)
def test_a_window_with_work_at_impossible_times_is_not_used(length_us: int) -> None:
    answer = reduce([*QUEUE, *ran(215, 300, length_us)], BOUNDS_US)  # the last step ends at 300 us
    assert answer == WindowAnswer(first_step=10, on_device=True, has_impossible_times=True)


def test_work_ending_a_minute_after_the_window_is_possible() -> None:
    answer = reduce([*QUEUE, *ran(215, 300, 60_000_000)], BOUNDS_US)
    assert ([found.first_step for found in answer.breakdowns], answer.has_impossible_times) == ([10, 11], False)


@pytest.mark.parametrize("call", ["cudaMemsetAsync", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaEventRecord"])
def test_a_call_that_may_well_leave_no_work_behind_cuts_no_step(call: str) -> None:
    answer = reduce([*QUEUE, at("cuda_runtime", call, 120, 1, MAIN, correlation=10**7)], BOUNDS_US)
    assert answer.steps_cut == 0


@pytest.mark.parametrize(
    "call",
    ["cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernelEx", "hipLaunchKernel",
     "hipExtModuleLaunchKernel", "cudaGraphLaunch", "urEnqueueKernelLaunch"],
)  # fmt: skip
def test_every_spelling_of_a_launch_is_missed_when_its_work_is(call: str) -> None:
    answer = reduce([*QUEUE, at("cuda_runtime", call, 120, 1, MAIN, correlation=10**7)], BOUNDS_US)
    assert answer.steps_cut == 1


@pytest.mark.parametrize(
    ("call", "launches"), [("cudaGraphLaunch", True), ("hipGraphLaunch", True), ("cudaLaunchKernel", False)]
)
def test_the_launch_of_a_graph_is_reported(call: str, launches: bool) -> None:
    answer = reduce([*QUEUE, at("cuda_runtime", call, 120, 1, MAIN, correlation=10**7)], BOUNDS_US)
    assert answer.launches_graphs is launches


def test_step_without_launches_cuts_itself_and_the_one_before() -> None:
    answer = reduce([*ran(10, 60, 30), *ran(210, 310, 40), *ran(310, 400, 1)], (0, 100, 200, 300, 400))
    assert ([found.first_step for found in answer.breakdowns], answer.steps_cut) == ([12], 2)


def test_work_from_before_the_window_is_in_no_step() -> None:
    before = at("kernel", "gemm", 5, 50, STREAM, correlation=10**7)
    assert reduce([before, *QUEUE], BOUNDS_US).breakdowns == reduce(QUEUE, BOUNDS_US).breakdowns


def test_idle_device_gives_no_results() -> None:
    answer = reduce([at("cpu_op", "aten::add", 10, 50, MAIN)], BOUNDS_US)
    assert answer == WindowAnswer(first_step=10, steps_cut=2, on_device=True)
    assert answer.launches_graphs is None, "nothing of the device was seen"


# -- collectives of a device ------------------------------------------------------------------------------------------

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def test_collective_has_torchs_metadata_and_its_kernels_time() -> None:
    answer = reduce([*QUEUE, *ran(40, 130, 50, NCCL, metadata=metadata_of(9))], BOUNDS_US)
    assert answer.collectives == (
        DeviceCollective(
            step=10,
            op="all_reduce",
            group_name="0",
            sequence=9,
            bytes=4_000,  # 1,000 floats of 4 bytes
            start_host_ns=130_000,
            duration_ns=50_000,
            exposed_ns=40_000,
        ),
    )
    first = answer.breakdowns[0]
    assert (first.communication_ns, first.overlap_ns, first.exposed_communication_ns) == (50_000, 10_000, 40_000)


def test_users_communication_kernel_is_no_collective() -> None:
    # Step 10 lasts from 60 to 230; my_ring runs from 130 to 180, compute until 140 and copies from 150 to 190.
    events = [*QUEUE, *ran(40, 130, 50, "my_ring<float>"), *ran(41, 120, 5, NCCL, metadata=metadata_of(9))]
    usual, own = reduce(events, BOUNDS_US), reduce(events, BOUNDS_US, communication_kernels="^my_ring")
    assert (usual.breakdowns[0].compute_ns, own.breakdowns[0].compute_ns) == ((30 + 80) * 1000, (30 + 40) * 1000)
    assert own.breakdowns[0].communication_ns == (5 + 50) * 1000
    assert own.breakdowns[0].exposed_communication_ns == (180 - 140) * 1000
    assert [found.op for found in own.collectives] == ["all_reduce"]


def test_collective_belongs_to_the_step_that_launched_it() -> None:
    answer = reduce([*QUEUE, *ran(90, 240, 50, NCCL, metadata=metadata_of(9))], BOUNDS_US)
    assert [found.step for found in answer.collectives] == [10]


def test_a_collective_that_ran_as_several_kernels_counts_once() -> None:
    parts = [*ran(40, 120, 10, NCCL, metadata=metadata_of(9)), *ran(41, 140, 20, NCCL, metadata=metadata_of(9))]
    (found,) = reduce([*QUEUE, *parts], BOUNDS_US).collectives
    assert (found.start_host_ns, found.duration_ns) == (120_000, (160 - 120) * 1000)


def test_replayed_collective_has_its_operation_from_its_name() -> None:
    (found,) = reduce([*QUEUE, *ran(40, 120, 10, NCCL, call="cudaGraphLaunch")], BOUNDS_US).collectives
    assert (found.op, found.group_name, found.sequence, found.bytes) == ("all_reduce", None, None, None)


def test_collectives_of_a_cut_step_are_left_out() -> None:
    queued = at("cuda_runtime", "cudaLaunchKernel", 50, 1, MAIN, correlation=10**7)
    answer = reduce([*QUEUE, queued, *ran(40, 120, 10, NCCL, metadata=metadata_of(9))], BOUNDS_US)
    assert (answer.collectives, [found.first_step for found in answer.breakdowns]) == ((), [11])


def test_backend_range_gives_the_operation_without_metadata() -> None:
    enqueue = at("user_annotation", "nccl:_all_gather_base", 39, 5, MAIN)
    (found,) = reduce([*QUEUE, enqueue, *ran(40, 120, 10, "ncclDevKernel_Generic_1")], BOUNDS_US).collectives
    assert found.op == "all_gather"


# -- real traces of devices -------------------------------------------------------------------------------------------

WITH_DEVICE = (
    "a100_nccl_2ranks_r0", "h100_bert_small", "mi250_minitoy", "mi300x_resnet18", "v100_dlrm_8ranks_r0",
    "v100dgxs_resnet50_workers0_a",
)  # fmt: skip
ON_CPU = ("cpu_only_r34", "gloo-2.13/ddp_2r_clean/rank0", "gloo-2.13/fsdp2_2r_clean/rank1")


@cache
def read_both_ways(name: str) -> tuple[RankView, RankView]:
    """Return the view of a trace file, and that of a window with the same events."""
    path = TRACES / f"{name}.json.gz"
    columns = read_columns(to_activities(read_events(path)), on_device=name in WITH_DEVICE)
    return RankView(read_trace(read_chunks(str(path)))), RankView(to_trace(columns))


@pytest.mark.parametrize("name", WITH_DEVICE + ON_CPU)
def test_window_and_trace_file_give_the_same_intervals(name: str) -> None:
    file, live = read_both_ways(name)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(live.sets, file.sets, strict=True))
    assert np.array_equal(live.unit_starts_ns, file.unit_starts_ns)


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_window_and_trace_file_give_the_same_collectives(name: str) -> None:
    file, live = read_both_ways(name)
    # Windows are recorded without shapes: values that an old trace has only in the shapes of its operators are unknown.
    expected = [one if one.group_size else msgspec.structs.replace(one, bytes=None) for one in find_collectives(file)]
    assert find_collectives(live) == expected


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_window_and_trace_file_give_the_same_launches(name: str) -> None:
    file, live = read_both_ways(name)
    assert np.array_equal(live.work_by_call[1], file.work_by_call[1])
    assert np.array_equal(live.work.start_ns[live.work_by_call[0]], file.work.start_ns[file.work_by_call[0]])


@pytest.mark.parametrize("name", ["a100_nccl_2ranks_r0", "v100dgxs_resnet50_workers0_a"])
def test_saved_file_and_columns_give_the_same_breakdown(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    file, _ = read_both_ways(name)
    base_ns = file.trace.head.get("baseTimeNanoseconds", 0)
    in_columns = WindowRequest(
        columns=read_columns(to_activities(read_events(path)), on_device=True),
        steps=tuple(StepBounds(step.number, step.start_ns, step.next_start_ns) for step in file.steps),
        wall_minus_host_ns=0,
        on_device=True,
    )
    in_file = msgspec.structs.replace(
        in_columns,
        columns=WindowColumns(),
        saved=gzip.decompress(path.read_bytes()),
        wall_minus_host_ns=base_ns,  # the steps are on the file's own clock
    )
    answer = reduce_window(in_file)
    assert len(answer.breakdowns) >= 1
    assert answer == reduce_window(in_columns)


@pytest.mark.parametrize("name", ["a100_nccl_2ranks_r0", "v100dgxs_resnet50_workers0_a"])
def test_real_window_steps_are_contiguous_and_hold_all_work(name: str) -> None:
    file, _ = read_both_ways(name)
    steps = tuple(StepBounds(step.number, step.start_ns, step.next_start_ns) for step in file.steps)
    columns = read_columns(to_activities(read_events(TRACES / f"{name}.json.gz")), on_device=True)
    answer = reduce_window(WindowRequest(columns=columns, steps=steps, wall_minus_host_ns=0, on_device=True))
    assert [found.first_step for found in answer.breakdowns] == [step.step for step in steps[:-1]]
    places, call_ns = file.work_by_call
    begins = [int(file.work.start_ns[places[call_ns >= step.start_host_ns]].min()) for step in steps]
    assert sum(found.window_ns for found in answer.breakdowns) == begins[-1] - begins[0]
    kernels = file.work.start_ns[file.work.is_kernel]
    within = int(((kernels >= begins[0]) & (kernels < begins[-1])).sum())
    assert sum(found.operator_count or 0 for found in answer.breakdowns) == within


# -- a real window of the CPU, against sums made without any set of intervals ------------------------------------------


class Swept:
    """The breakdown of a window by a sweep over its events' edges with counters, without the agent's code."""

    def __init__(self, events: Sequence[dict[str, Any]], start_ns: int, end_ns: int) -> None:
        gloo = [event for event in events if event["name"].startswith("gloo:")]
        workers = {event["tid"] for event in gloo}
        operators = [event for event in events if event["cat"] == "cpu_op"]
        computing = [e for e in operators if e["tid"] not in workers and not e["name"].startswith("c10d::")]
        self.tops = sum(start_ns <= begin < end_ns for begin in _begins_of_outermost(computing, operators))
        edges: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        for kind, mine in enumerate((computing, gloo)):
            for event in mine:
                begin, end = _bounds_ns(event)
                edges[min(max(begin, start_ns), end_ns)][kind] += 1
                edges[min(max(end, start_ns), end_ns)][kind] -= 1
        edges[start_ns], edges[end_ns] = edges[start_ns], edges[end_ns]
        self.ns = dict.fromkeys(("idle", "compute", "communication", "both"), 0)
        times = sorted(edges)
        open_now = [0, 0]
        for begin, following in pairwise(times):
            open_now = [now + change for now, change in zip(open_now, edges[begin], strict=True)]
            names = ("idle", "compute", "communication", "both")
            self.ns[names[bool(open_now[0]) + 2 * bool(open_now[1])]] += following - begin


def _bounds_ns(event: dict[str, Any]) -> tuple[int, int]:
    begin = int(event["ts"] * 1000)
    return begin, begin + int(event["dur"] * 1000)


def _begins_of_outermost(computing: list[dict[str, Any]], operators: list[dict[str, Any]]) -> list[int]:
    """Return operators that no operator of their thread encloses, by comparing with those before."""
    found = []
    ours = {id(event) for event in computing}
    by_thread = defaultdict(list)
    for event in operators:
        by_thread[event["tid"]].append((*_bounds_ns(event), id(event)))
    for mine in by_thread.values():
        open_until = -1
        for begin, end, key in sorted(mine, key=lambda one: (one[0], -one[1])):
            if end > open_until:
                open_until = end
                found += [begin] if key in ours else []
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_gloo_breakdown_equals_a_sweep_over_its_edges(rank: int) -> None:
    path = TRACES / f"gloo-2.13/ddp_2r_clean/rank{rank}.json.gz"
    events = read_events(path)
    file = RankView(read_trace(read_chunks(str(path))))
    steps = tuple(StepBounds(step.number, step.start_ns, step.next_start_ns) for step in file.steps)
    columns = read_columns(to_activities(events), on_device=False)
    answer = reduce_window(WindowRequest(columns=columns, steps=steps, wall_minus_host_ns=0, on_device=False))
    assert len(answer.breakdowns) == len(steps) > 1
    for step, found in zip(steps, answer.breakdowns, strict=True):
        swept = Swept(events, step.start_host_ns, step.end_host_ns)
        assert found == WindowBreakdown(
            first_step=step.step,
            step_count=1,
            window_ns=step.end_host_ns - step.start_host_ns,
            compute_ns=swept.ns["compute"] + swept.ns["both"],
            communication_ns=swept.ns["communication"] + swept.ns["both"],
            overlap_ns=swept.ns["both"],
            exposed_communication_ns=swept.ns["communication"],
            copy_ns=0,
            idle_ns=swept.ns["idle"],
            operator_count=swept.tops,
        )
