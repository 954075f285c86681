"""Laws of sentences that compare traces: what is said to differ differs, also in the figures that are shown."""

import re
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankscope.collector.traces import analyze
from rankscope.collector.traces.advice_rules_ranks import describe_counts
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

STEP_US = 10_000
STEPS = 4
COUNTED = re.compile(r"(\d+\.\d\d) times as many|doing more work")
DIFFERS = re.compile(r"differs?: (.*), against (.*)$|these traces are of (.*), those to compare with of (.*)$")


@given(st.integers(0, 10_000), st.integers(0, 10_000))
@example(0, 0)
@example(5, 0)
def test_unequal_counts_are_said_of_unequal_numbers_only(count: int, usual: int) -> None:
    said = COUNTED.search(describe_counts(count, usual, "kernels"))
    assert said is None or (count != usual and min(count, usual) > 0 and said.group(1) != "1.00")


def events_of(kernels: int, length_us: int, extra_us: int) -> list[Event]:
    """Return steps of 10 ms with so many kernels of this length and an all-reduce; without kernels a memset works."""
    events = []
    for number in range(STEPS):
        at, call = number * STEP_US, 100 * number
        events.append(event("user_annotation", f"ProfilerStep#{number}", at, STEP_US))
        events += [launch(at + 10 + place, call + place) for place in range(kernels + 1)]
        starts = at + 100
        for place in range(kernels):
            events.append(kernel("sgemm", starts, length_us, correlation=call + place))
            starts += length_us
        work_us = extra_us if not kernels else 0
        if work_us:
            events.append(event("gpu_memset", "Memset (Device)", starts, work_us, stream=7, device=0))
        group = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": number}
        reduce = {"Collective name": "allreduce", "In msg nelems": 9, "Out msg nelems": 9, "dtype": "Float", **group}
        first = max(starts + work_us, at + 200)
        events.append(
            kernel(
                "ncclDevKernel_AllReduce", first, at + 9_000 - first, stream=20, correlation=call + kernels, **reduce
            )
        )
    return events


def write(folder: Path, ranks: dict[int, list[Event]], world: int, device: str) -> str:
    folder.mkdir()
    for rank, events in ranks.items():
        info = {"rank": rank, "world_size": world, "pg_count": 1, "backend": "nccl"}
        head = {"distributedInfo": info, "host_name": "a", "deviceProperties": [{"id": 0, "name": device}]}
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **head))
    return str(folder)


work = st.tuples(st.integers(0, 12), st.integers(1, 600), st.integers(0, 5_000))


@settings(max_examples=15, deadline=None)
@given(work, work)
def test_more_work_is_said_of_a_rank_with_more_kernels_alone(
    first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a", {0: events_of(*first), 1: events_of(*second)}, 2, "A100")
        report = analyze(path)
    counts = (first[0], second[0])
    for one in report.advice:
        if COUNTED.search(one.sentence):
            (rank,) = one.ranks
            assert counts[rank] > counts[1 - rank]


sides = st.tuples(st.sets(st.integers(0, 2), min_size=1), st.integers(3, 4), st.sampled_from(["A100", "H100"]), work)


@settings(max_examples=12, deadline=None)
@given(sides, sides)
def test_two_sides_that_are_said_to_differ_are_shown_to(
    here: tuple[set[int], int, str, tuple[int, int, int]], there: tuple[set[int], int, str, tuple[int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, (ranks, world, device, one) in (("here", here), ("there", there)):
            paths.append(write(Path(folder) / name, dict.fromkeys(ranks, events_of(*one)), world, device))
        comparison = analyze(paths[0], against=paths[1], force=True).comparison
    assert comparison is not None
    for note in comparison.notes:
        for said in DIFFERS.finditer(note):
            left, right = (one for one in said.groups() if one is not None)
            assert left != right
