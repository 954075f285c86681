"""Comparison of the steps of two sets of traces, on made runs whose differences are known."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import Comparison, DifferenceRow
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

GPU = ({"id": 0, "name": "A100"},)
HOST_STEP_US = 1_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
US = 1_000

Piece = tuple[str, str, int]
"""Operator, kernel and its length in us; without an operator the device idles for as long."""
FASTER: list[Piece] = [
    ("aten::mm", "gemm", 20),
    ("", "", 15),
    ("record_param_comms", NCCL, 20),
    ("aten::gelu", "gelu", 8),
]
SLOWER: list[Piece] = [
    ("aten::mm", "gemm", 30),
    ("", "", 10),
    ("record_param_comms", NCCL, 20),
    ("aten::relu", "relu", 5),
]


UNKNOWN_WAITS = "how much of the communication is waiting for other ranks is not known of these traces"


def step_of(number: int) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", number * HOST_STEP_US, HOST_STEP_US)


def piece_of(piece: Piece, host_us: int, device_us: int, correlation: int) -> list[Event]:
    operator, name, length_us = piece
    told: dict[str, Any] = {"correlation": correlation}
    if name == NCCL:
        told |= {
            "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Float", "In msg nelems": 500,
            "Out msg nelems": 500,
        }  # fmt: skip
    return [
        event("cpu_op", operator, host_us, 2),
        launch(host_us, correlation),
        kernel(name, device_us, length_us, **told),
    ]


def run_of(pieces: list[Piece], steps: int, first_step: int = 0) -> list[Event]:
    """Return steps whose pieces run one after the other on the device, launched at the step's start."""
    events, device_us = [], first_step * HOST_STEP_US + 100
    for number in range(first_step, first_step + steps):
        events.append(step_of(number))
        for place, piece in enumerate(pieces):
            if piece[0]:
                host_us = number * HOST_STEP_US + 3 * place
                events += piece_of(piece, host_us, device_us, correlation=100 * number + place)
            device_us += piece[2]
    return events


def write(folder: Path, *ranks: list[Event], world: int | None = 2, device: Any = GPU) -> str:
    folder.mkdir()
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": world, "pg_count": 1, "backend": "nccl"}
        head: dict[str, Any] = {"distributedInfo": info, "deviceProperties": device}
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **head))
    return str(folder)


def compare(here: str, there: str, **options: Any) -> Comparison:
    found = analyze(here, against=there, **options).comparison
    assert found is not None
    return found


def differences_of(found: Comparison, key: str) -> dict[tuple[str, str], int]:
    (table,) = [table for table in found.tables if table.key == key]
    return {(row.kind, row.name): row.difference_ns for row in table.rows}


def row_of(found: Comparison, key: str, name: str) -> DifferenceRow:
    (table,) = [table for table in found.tables if table.key == key]
    return next(row for row in table.rows if row.name == name)


@pytest.fixture
def slower(tmp_path: Path) -> str:
    return write(tmp_path / "slower", run_of(SLOWER, 3))


@pytest.fixture
def faster(tmp_path: Path) -> str:
    return write(tmp_path / "faster", run_of(FASTER, 2))


# -- the difference ---------------------------------------------------------------------------------------------------


def test_steps_of_runs_of_other_lengths_are_compared_per_step(slower: str, faster: str) -> None:
    found = compare(slower, faster)
    # 30 + 10 + 20 + 5 us against 20 + 15 + 20 + 8.
    assert (found.clock, found.steps, found.against_steps) == ("device", 3, 2)
    assert (found.step_ns, found.against_step_ns, found.difference_ns) == (65 * US, 63 * US, 2 * US)


def test_kernels_are_matched_by_name_those_of_one_side_too(slower: str, faster: str) -> None:
    assert differences_of(compare(slower, faster), "kernels") == {
        ("compute", "gemm"): 10 * US,
        ("compute", "gelu"): -8 * US,
        ("compute", "relu"): 5 * US,
        ("idle", "idle"): -5 * US,
        ("communication", NCCL): 0,
    }


def test_largest_difference_is_first_with_its_share(slower: str, faster: str) -> None:
    (kernels,) = [table for table in compare(slower, faster).tables if table.key == "kernels"]
    first, second = kernels.rows[:2]
    # +10 us and -8 us of the 2 us that the step takes longer.
    assert (first.name, first.share_ratio, first.step_count, first.against_step_count) == ("gemm", 5.0, 1.0, 1.0)
    assert (second.name, second.share_ratio, second.step_count, second.against_step_count) == ("gelu", -4.0, 0.0, 1.0)


def test_idle_time_has_no_count(slower: str, faster: str) -> None:
    row = row_of(compare(slower, faster), "kernels", "idle")
    assert (row.step_ns, row.step_count, row.against_step_count) == (10 * US, None, None)


def test_collectives_are_told_apart_by_ranks_and_bytes(slower: str, faster: str) -> None:
    row = row_of(compare(slower, faster), "collectives", "all_reduce, 2 ranks, 2,000 bytes")
    assert (row.kind, row.step_ns, row.against_step_ns) == ("communication", 20 * US, 20 * US)


def test_operators_have_the_time_that_they_launched(slower: str, faster: str) -> None:
    found = differences_of(compare(slower, faster), "operators")
    assert (found["compute", "aten::mm"], found["compute", "aten::relu"]) == (10 * US, 5 * US)


def test_matrix_products_of_other_shapes_are_other_operators(tmp_path: Path) -> None:
    def shaped(rows: int) -> list[Event]:
        told = {"Input Dims": [[rows, 4], [4, 4]], "Input type": ["float", "float"]}
        return [step_of(0), event("cpu_op", "aten::mm", 0, 5, **told), launch(1, 1), kernel("k", 50, 10, correlation=1)]

    found = compare(write(tmp_path / "a", shaped(8)), write(tmp_path / "b", shaped(16)))
    assert differences_of(found, "operators") == {
        ("compute", "aten::mm [[8,4],[4,4]]"): 10 * US,
        ("compute", "aten::mm [[16,4],[4,4]]"): -10 * US,
    }


def test_time_of_ranges_has_what_autograd_launched_inside(tmp_path: Path) -> None:
    def ranged(backward_us: int) -> list[Event]:
        engine = event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 60, 10, tid=2)
        return [
            step_of(0), event("user_annotation", "backward", 50, 100), engine, launch(61, 1, tid=2),
            kernel("k", 200, backward_us, correlation=1), launch(160, 2), kernel("k", 300, 10, correlation=2),
        ]  # fmt: skip

    found = compare(write(tmp_path / "a", ranged(40)), write(tmp_path / "b", ranged(30)))
    assert differences_of(found, "ranges") == {
        ("compute", "backward"): 10 * US,
        ("compute", "outside of these ranges"): 0,
        ("idle", "idle"): -10 * US,
    }


def test_time_of_ranges_on_autograds_thread_is_theirs(tmp_path: Path) -> None:
    def ranged(inner_us: int) -> list[Event]:
        engine = event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 60, 30, tid=2)
        return [
            step_of(0), event("user_annotation", "backward", 50, 100), engine, launch(61, 1, tid=2),
            event("user_annotation", "post", 70, 10, tid=2), launch(71, 2, tid=2),
            kernel("k", 200, 40, correlation=1), kernel("k", 300, inner_us, correlation=2),
        ]  # fmt: skip

    found = compare(write(tmp_path / "a", ranged(10)), write(tmp_path / "b", ranged(4)))
    assert differences_of(found, "ranges") == {
        ("compute", "backward"): 0, ("compute", "post"): 6 * US, ("idle", "idle"): 0,
    }  # fmt: skip


def test_time_of_modules_is_that_of_the_innermost(tmp_path: Path) -> None:
    def modular(inner_us: int) -> list[Event]:
        frames = [
            event("python_function", "nn.Module: Net_0", 10, 80, tid=9),
            event("python_function", "nn.Module: Linear_0", 20, 20, tid=9),
        ]
        work = [kernel("k", 100, inner_us, correlation=1), kernel("k", 200, 7, correlation=2)]
        return [step_of(0), *frames, launch(25, 1), launch(50, 2), *work]

    found = compare(write(tmp_path / "a", modular(9)), write(tmp_path / "b", modular(5)))
    assert differences_of(found, "modules") == {
        ("compute", "Linear_0"): 4 * US,
        ("compute", "Net_0"): 0,
        ("idle", "idle"): -4 * US,
    }


def test_idle_time_is_split_by_what_the_launching_host_did(tmp_path: Path) -> None:
    def waiting(item_us: int) -> list[Event]:
        # The device idles from 40 us to 70 us: from 45 us on the host is in aten::item for a while.
        return [
            step_of(0), launch(1, 1), kernel("k", 20, 20, correlation=1), event("cpu_op", "aten::item", 45, item_us),
            launch(66, 2), kernel("k", 70, 10, correlation=2),
        ]  # fmt: skip

    found = compare(write(tmp_path / "a", waiting(20)), write(tmp_path / "b", waiting(8)))
    assert differences_of(found, "operators") == {
        ("compute", "launched by no operator"): 0,
        ("idle", "idle, host in aten::item"): 12 * US,
        ("idle", "idle, host in no operator"): -12 * US,
    }


def test_operators_of_a_cpu_have_their_self_time(tmp_path: Path) -> None:
    def on_cpu(inner_us: int) -> list[Event]:
        return [step_of(0), event("cpu_op", "aten::linear", 10, 50), event("cpu_op", "aten::addmm", 20, inner_us)]

    found = compare(write(tmp_path / "a", on_cpu(30), device=()), write(tmp_path / "b", on_cpu(20), device=()))
    assert (found.clock, [table.key for table in found.tables]) == ("host", ["collectives", "operators"])
    assert differences_of(found, "operators") == {
        ("compute", "aten::addmm"): 10 * US,
        ("compute", "aten::linear"): -10 * US,
        ("idle", "idle"): 0,
    }


def test_hidden_communication_has_no_share_of_the_step(tmp_path: Path) -> None:
    def hidden(communication_us: int) -> list[Event]:
        # Computing from 20 us to 60 us, communicating from 30 us on.
        kernels = [kernel("k", 20, 40, correlation=1), kernel(NCCL, 30, communication_us, stream=9, correlation=2)]
        return [step_of(0), launch(1, 1), launch(3, 2), *kernels]

    found = compare(write(tmp_path / "a", hidden(50)), write(tmp_path / "b", hidden(10)))
    # Until 80 us and until 40 us: 20 us are exposed, and none.
    assert differences_of(found, "kernels") == {
        ("communication", NCCL): 20 * US,
        ("compute", "k"): 0,
    }


def test_rounding_is_the_remainder(tmp_path: Path) -> None:
    def run(lengths_ns: tuple[int, int, int]) -> list[Event]:
        work = [
            kernel(f"k{place % 2}", 100 + 10 * place, ns / US, correlation=place) for place, ns in enumerate(lengths_ns)
        ]
        return [*map(step_of, range(3)), *(launch(number * HOST_STEP_US + 1, number) for number in range(3)), *work]

    found = compare(
        write(tmp_path / "a", run((1_000, 1_001, 1_000))), write(tmp_path / "b", run((1_000, 1_000, 1_000)))
    )
    # Three steps of 21,000 ns in all on both sides. k1 has 1,001 ns, 333 a step, as 1,000 have; the device idles for
    # 17,999 ns, 5,999 a step, against 6,000.
    assert differences_of(found, "kernels") == {("idle", "idle"): -1, ("compute", "k0"): 0, ("compute", "k1"): 0}
    assert (found.difference_ns, found.tables[0].remainder_ns) == (0, 1)


def test_mean_is_over_the_steps_of_all_ranks(tmp_path: Path) -> None:
    here = write(tmp_path / "a", run_of(SLOWER, 3), run_of(FASTER, 1))
    there = write(tmp_path / "b", run_of(FASTER, 1), run_of(FASTER, 1))
    found = compare(here, there)
    # (3 * 65 + 63) / 4 = 64.5 us.
    assert (found.ranks, found.steps, found.step_ns, found.difference_ns) == ([0, 1], 4, 64_500, 1_500)


def test_steps_are_cut_by_the_host_clock_if_one_side_needs_it(tmp_path: Path, faster: str) -> None:
    # The second step launches nothing.
    here = write(tmp_path / "a", [*run_of(SLOWER, 1), step_of(1)])
    found = compare(here, faster)
    assert (found.clock, found.step_ns, found.against_step_ns) == ("host", HOST_STEP_US * US, HOST_STEP_US * US)


def test_choice_of_steps_and_rank_is_for_both_sides(tmp_path: Path) -> None:
    ranks = [run_of(SLOWER, 3), run_of(FASTER, 3)]
    here, there = write(tmp_path / "a", *ranks), write(tmp_path / "b", *ranks)
    found = compare(here, there, steps=(1, 3), rank=1)
    assert (found.ranks, found.against_ranks, found.steps, found.against_steps) == ([1], [1], 2, 2)


def test_shapes_on_one_side_only_are_not_matched_by(tmp_path: Path) -> None:
    def product(**told: Any) -> list[Event]:
        return [step_of(0), event("cpu_op", "aten::mm", 0, 5, **told), launch(1, 1), kernel("k", 50, 10, correlation=1)]

    shapes = {"Input Dims": [[8, 4], [4, 4]], "Input type": ["float", "float"]}
    found = compare(write(tmp_path / "a", product(**shapes)), write(tmp_path / "b", product()))
    assert differences_of(found, "operators") == {("compute", "aten::mm"): 0}
    assert found.notes == ["only these traces have shapes: operators are matched without"]


@pytest.mark.parametrize("asked", ["shapes", "roofline"])
def test_shapes_that_are_asked_for_are_read_on_both_sides(asked: str) -> None:
    path = str(Path(__file__).parents[3] / "traces" / "v100_dlrm_8ranks_r0.json.gz")
    options: dict[str, Any] = {asked: True}
    comparison = analyze(path, against=path, **options).comparison
    assert comparison is not None
    assert [row.difference_ns for table in comparison.tables for row in table.rows if row.difference_ns] == []


def test_broken_shapes_are_none(tmp_path: Path) -> None:
    broken = {"Input Dims": "many", "Input type": ["float"]}
    events = [step_of(0), event("cpu_op", "aten::mm", 0, 5, **broken), launch(1, 1), kernel("k", 50, 10, correlation=1)]
    here = write(tmp_path / "a", events)
    assert ("compute", "aten::mm") in differences_of(compare(here, here), "operators")


def test_collectives_of_runs_of_other_sizes_are_matched_by_bytes(tmp_path: Path, faster: str) -> None:
    there = write(tmp_path / "a", run_of(FASTER, 1), world=4)
    found = differences_of(compare(faster, there, force=True), "collectives")
    assert found["communication", "all_reduce, 2,000 bytes"] == 0


# -- what must not be compared, or only with a note --------------------------------------------------------------------


def test_traces_without_steps_are_refused(tmp_path: Path, faster: str) -> None:
    here = write(tmp_path / "a", [launch(1, 1), kernel("k", 5, 5, correlation=1)])
    found = compare(here, faster)
    assert (
        found.refused == f"{here}/rank0.json of these traces has no steps to compare: call profiler.step() once a step"
    )
    assert (found.tables, found.step_ns) == ([], None)


def test_steps_without_work_are_refused(tmp_path: Path, faster: str) -> None:
    there = write(tmp_path / "a", [step_of(0)])
    refused = compare(faster, there).refused
    assert refused == f"{there}/rank0.json of the traces to compare with has no steps to compare: it shows no work"


def test_device_is_not_compared_with_a_cpu(tmp_path: Path, faster: str) -> None:
    there = write(tmp_path / "a", [step_of(0), event("cpu_op", "aten::mm", 1, 5)], device=())
    told = "the traces to compare with are of a CPU, these traces of a device: different things take their time"
    assert compare(faster, there).refused == told


def test_side_of_cpus_and_devices_is_refused(tmp_path: Path, faster: str) -> None:
    here = write(tmp_path / "a", run_of(FASTER, 1), [step_of(0), event("cpu_op", "aten::mm", 1, 5)])
    assert compare(here, faster).refused == "these traces are of CPUs and of devices"


def test_unknown_device_is_refused(tmp_path: Path, faster: str) -> None:
    here = write(tmp_path / "a", [step_of(0), event("hpu_op", "matmul", 1, 5)])
    told = f"the device of {here}/rank0.json is not known, so nothing of these traces is broken down"
    assert compare(here, faster).refused == told


def test_side_without_a_usable_file_is_refused(tmp_path: Path, faster: str) -> None:
    broken = tmp_path / "broken.json"
    broken.write_bytes(b"no trace")
    report = analyze(faster, against=str(broken))
    assert report.comparison is not None
    assert report.comparison.refused == "none of the traces to compare with can be used"
    assert [error.file for error in report.errors] == [str(broken)]


def test_runs_of_other_sizes_need_to_be_allowed(tmp_path: Path, faster: str) -> None:
    there = write(tmp_path / "a", run_of(SLOWER, 1), world=4)
    told = "the runs have 2 and 4 ranks, which share the work out differently; --force compares them"
    assert compare(faster, there).refused == told
    allowed = compare(faster, there, force=True)
    assert (allowed.refused, allowed.notes) == (None, ["the number of ranks differs: 2, against 4", UNKNOWN_WAITS])


def test_only_ranks_of_both_sides_are_compared(tmp_path: Path) -> None:
    here = write(tmp_path / "a", run_of(FASTER, 1), run_of(SLOWER, 1))
    there = write(tmp_path / "b", run_of(FASTER, 1), run_of(FASTER, 1), run_of(FASTER, 1))
    (Path(there) / "rank0.json").unlink()
    found = compare(here, there)
    note = "these traces are of ranks 0, 1, those to compare with of ranks 1, 2"
    assert (found.ranks, found.against_ranks) == ([1], [1])
    assert found.notes == [f"only the ranks on both sides are compared: {note}"]


def test_sides_of_several_ranks_and_none_in_common_are_refused(tmp_path: Path) -> None:
    here = write(tmp_path / "a", run_of(FASTER, 1), run_of(SLOWER, 1))
    there = write(tmp_path / "b", *[run_of(FASTER, 1)] * 3)
    for rank in (0, 1):
        (Path(there) / f"rank{rank}.json").unlink()
    note = "these traces are of ranks 0, 1, those to compare with of rank 2"
    assert compare(here, there).refused == f"no rank is on both sides: {note}"


def test_single_traces_of_two_ranks_are_compared_with_a_note(tmp_path: Path, faster: str) -> None:
    there = write(tmp_path / "b", run_of(FASTER, 1), run_of(FASTER, 1))
    found = compare(faster, f"{there}/rank1.json")
    assert (found.refused, found.ranks, found.against_ranks) == (None, [0], [1])
    assert found.notes == ["these traces are of rank 0, those to compare with of rank 1", UNKNOWN_WAITS]


def test_warnings_of_both_sides_are_notes_up_to_a_limit(tmp_path: Path, faster: str) -> None:
    unknown = [event(f"other_{number}", "x", 1, 1) for number in range(3)]
    found = compare(faster, write(tmp_path / "a", [*run_of(FASTER, 1), *unknown]))
    told = [f"1 events are not counted: their category 'other_{number}' is not known" for number in range(3)]
    warned = [f"the traces to compare with, 1 of 1 files: {warning}" for warning in told]
    assert found.notes == [*warned, UNKNOWN_WAITS]


def test_warnings_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    def warned(number: int) -> list[Event]:
        return [*run_of(FASTER, 1), event(f"other_{number}", "x", 1, 1)]

    there = write(tmp_path / "b", *map(warned, range(12)))
    notes = compare(write(tmp_path / "a", *[run_of(FASTER, 1)] * 12), there).notes
    assert (len(notes), notes[-1]) == (11, "the traces to compare with: 2 more warnings")


def test_other_devices_and_modules_on_one_side_are_notes(tmp_path: Path, faster: str) -> None:
    frame = event("python_function", "nn.Module: Net_0", 1, 5)
    there = write(tmp_path / "a", [*run_of(FASTER, 1), frame], device=({"id": 0, "name": "H100"},))
    assert compare(faster, there).notes == [
        "the device differs: A100, against H100",
        "only the traces to compare with have modules, which costs time on the host",
        UNKNOWN_WAITS,
    ]
