"""Traces on one clock and the longest waits, from small traces written by hand."""

from pathlib import Path

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.clock_offsets import BY_COLLECTIVES, BY_ONE_HOST
from rankscope.collector.traces.report import CrossRank, RankWait, SharedClock
from rankscope.collector.traces.shared_clock import WAITS_OF_A_STEP_MAX, find_longest_waits
from rankscope.collector.traces.timeline import merge
from tests.pipelines import MOVE_US, Job, write_traces
from tests.unit.collector.traces.test_trace_timeline import all_reduce, write_trace


def compare(*paths: str) -> CrossRank:
    found = analyze(paths).cross_rank
    assert found is not None
    return found


def clock_of(*paths: str) -> SharedClock:
    clock = compare(*paths).clock
    assert clock is not None
    return clock


def write_pair(folder: Path, hosts: tuple[str | None, str | None], ahead_us: int, elements: int = 256) -> list[str]:
    """Rank 1 enters a 100 us all-reduce 60 us late; its clock is ahead."""
    first = write_trace(folder, 0, [all_reduce(1000, 100), all_reduce(2000, 40)], host=hosts[0])
    late = [all_reduce(ahead_us + 1060, 40, elements=elements), all_reduce(ahead_us + 2000, 40)]
    return [first, write_trace(folder, 1, late, host=hosts[1])]


def test_ranks_of_two_hosts_are_placed_by_their_collectives(tmp_path: Path) -> None:
    clock = clock_of(*write_pair(tmp_path, ("a", "b"), 5_000))
    # Both leave at 1100 us of the first clock; rank 1 began 40 us before that, rank 0 100 us.
    assert (clock.starts_ns, clock.how, clock.refused) == ({"0": 0, "1": 60_000}, BY_COLLECTIVES, None)


def test_offset_of_a_clock_is_that_of_merge(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, ("a", "b"), 5_000)
    first, second = merge(paths, tmp_path / "merged.json").ranks
    clock = clock_of(*paths)
    # The first events are at 1000 and 6060 us of the hosts' own clocks.
    assert clock.starts_ns["1"] - clock.starts_ns["0"] == 5_060_000 - (second.offset_ns - first.offset_ns)


def test_collectives_that_do_not_match_leave_two_hosts_apart(tmp_path: Path) -> None:
    clock = clock_of(*write_pair(tmp_path, ("a", "b"), 0, elements=512))
    assert (clock.starts_ns, clock.how) == ({}, None)
    assert "do not line up" in (clock.refused or "")


def test_one_host_is_one_clock_without_collectives(tmp_path: Path) -> None:
    clock = clock_of(*write_pair(tmp_path, ("a", "a"), 0, elements=512))
    assert (clock.starts_ns, clock.how) == ({"0": 0, "1": 60_000}, BY_ONE_HOST)


def test_records_of_different_times_are_not_placed(tmp_path: Path) -> None:
    clock = clock_of(*write_pair(tmp_path, ("a", "a"), 10_000_000, elements=512))
    assert clock.starts_ns == {}
    assert "recorded at different times" in (clock.refused or "")


def test_rank_waits_for_the_last_to_enter(tmp_path: Path) -> None:
    found = compare(*write_pair(tmp_path, ("a", "b"), 5_000))
    wait = RankWait(
        rank=0, late_rank=1, step=None, op="all_reduce", group="0", start_ns=0, wait_ns=60_000, late_start_ns=0
    )
    assert (found.waits, found.wait_count) == ([wait], 1)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_stage_waits_for_the_sender_of_a_message(tmp_path: Path, backend: str) -> None:
    # The second of two stages has its first input after 2 ms of work and the move.
    write_traces(tmp_path, Job("1F1B", 2, 4, steps=1), backend=backend)
    wait = next(one for one in compare(str(tmp_path)).waits if one.op == "recv" and one.rank == 1)
    assert wait.late_rank == 0
    assert wait.wait_ns == pytest.approx(2_000_000, abs=MOVE_US * 1_000)


def test_longest_waits_of_each_step_are_kept_and_all_counted() -> None:
    def wait(step: int, wait_ns: int) -> RankWait:
        return RankWait(rank=0, late_rank=1, step=step, op="", group=None, start_ns=0, wait_ns=wait_ns, late_start_ns=0)

    kept, count = find_longest_waits([*(wait(1, ns) for ns in range(30)), wait(2, 1)])
    assert [one.wait_ns for one in kept if one.step == 1] == [*range(29, 9, -1)]
    assert (WAITS_OF_A_STEP_MAX, count, len(kept)) == (20, 31, 21)
