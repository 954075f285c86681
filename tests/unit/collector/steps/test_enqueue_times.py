"""When the hosts of all ranks enqueued the same collectives, by hand: times in us of the true clock."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from rankscope.collector.steps import enqueue_times
from rankscope.collector.steps.enqueue_times import STEPS_KEPT, TIME_NS_MAX, EnqueueTimes
from rankscope.collector.steps.step_series import EnqueueSeries
from rankscope.measure.enqueues import ENQUEUE_COLUMNS, RANGES_MAX, Enqueue, Enqueues, pack_enqueues
from rankscope.measure.table import MISSING, Table

US = 1_000
OFFSET_NS = (5_000_000_000, -7_000, 0, 123_456_789)
"""By how much the clock of each rank is ahead."""
ERROR_NS = (100, 200, 300, 400)
WORLD = "default_pg"


class Job:
    """Four ranks, each on a machine of its own, unless told otherwise."""

    def __init__(self, sizes: Mapping[str, int] | None = None, machines: Sequence[str] = "abcd") -> None:
        self.times = EnqueueTimes(4, {WORLD: 4} if sizes is None else sizes)
        self.machines = machines
        self.unaligned: set[int] = set()
        self.asked: list[tuple[int, int]] = []

    def align(self, rank: int, host_ns: int) -> tuple[int, int] | None:
        self.asked.append((rank, host_ns))
        return None if rank in self.unaligned else (OFFSET_NS[rank], ERROR_NS[rank])

    def report(
        self, rank: int, *enqueues: tuple[int, str, int, float], steps: Sequence[tuple[int, int]], wall: int = 0
    ) -> None:
        """A rank reports rows of step, group, sequence and time."""
        rows = [
            Enqueue(step, group, sequence, OFFSET_NS[rank] + round(at_us * US))
            for step, group, sequence, at_us in enqueues
        ]
        self.add(rank, pack_enqueues(rows, steps, wall_error_ns=wall))

    def add(self, rank: int, enqueues: Enqueues) -> None:
        self.times.add(rank, self.machines[rank], enqueues)
        self.times.match(self.align)

    def step(self, number: int, *at_us: float) -> None:
        """Each rank reports one collective of this step."""
        for rank, time_us in enumerate(at_us):
            self.report(rank, (number, WORLD, number, time_us), steps=[(number, number)])

    def read(self) -> EnqueueSeries:
        found = self.times.read()
        assert found is not None
        return found


def in_us(row: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> list[float]:
    return [round(float(value) / US, 3) for value in row]


def test_lateness_is_over_the_median_member_by_collector_clock() -> None:
    job = Job()
    job.step(7, 1_000, 1_010, 1_020, 4_000)
    found = job.read()
    assert found.steps.tolist() == [7]
    assert in_us(found.late_ns[0]) == [-10, 0, 10, 2_990], "of 1,010 and 1,020 the earlier one is the median"
    assert found.error_ns[0].tolist() == [100, 200, 300, 400]
    assert found.near_error_ns[0].tolist() == [0, 0, 0, 0]
    assert len(set(found.machine.tolist())) == 4


def test_of_several_collectives_the_latest_counts() -> None:
    job = Job()
    for rank in range(4):
        late = (0, 0, 0, 1)[rank]
        at = [(5, WORLD, 1, 100 + 10 * late), (5, WORLD, 2, 200 + 30 * late), (5, WORLD, 3, 300 + 500 * late)]
        job.report(rank, *at, steps=[(5, 5)])
    assert in_us(job.read().late_ns[0]) == [0, 0, 0, 500]


def test_host_waiting_in_its_collectives_is_late_in_the_first() -> None:
    job = Job({WORLD: 4})
    for rank in range(4):
        first = (5, WORLD, 1, 400 if rank == 2 else 100)
        job.report(rank, first, (5, WORLD, 2, 500 + rank), (5, WORLD, 3, 600 - rank), steps=[(5, 5)])
    assert in_us(job.read().late_ns[0]) == [2, 1, 300, 2], "of the third one 598 is the median"


def test_only_collectives_that_all_members_have_chosen_count() -> None:
    job = Job()
    for rank in range(4):
        more = [(5, WORLD, 9, 900)] if rank else []
        job.report(rank, (5, WORLD, 1, 100 + rank), *more, steps=[(5, 5)])
    assert in_us(job.read().late_ns[0]) == [-1, 0, 1, 2]


def test_step_is_matched_once_all_ranks_have_reported_it() -> None:
    job = Job()
    for rank in range(3):
        job.report(rank, (5, WORLD, 1, 100), steps=[(5, 6)])
    assert job.times.read() is None
    job.report(3, (5, WORLD, 1, 100), steps=[(4, 5)])
    assert job.read().steps.tolist() == [5]


def test_members_of_a_smaller_group_are_compared_with_each_other() -> None:
    job = Job({"left": 2, "right": 2})
    for rank, (group, at_us) in enumerate([("left", 100), ("left", 160), ("right", 900), ("right", 900)]):
        job.report(rank, (5, group, 1, at_us), steps=[(5, 5)], wall=rank)
    found = job.read()
    assert in_us(found.late_ns[0]) == [0, 60, 0, 0]
    # A median's error is at most the largest of its members, and does not cancel between groups.
    assert found.error_ns[0].tolist() == [100 + 0 + 201, 200 + 1 + 201, 300 + 2 + 403, 400 + 3 + 403]
    assert found.near_error_ns[0].tolist() == [0 + 1, 1 + 1, 2 + 3, 3 + 3]


def test_rank_without_a_collective_in_common_is_not_known() -> None:
    job = Job({"left": 2})
    for rank in range(4):
        job.report(rank, *([(5, "left", 1, 100 + rank)] if rank < 2 else []), steps=[(5, 5)])
    assert np.isnan(job.read().late_ns[0]).tolist() == [False, False, True, True]


@pytest.mark.parametrize("sizes", [{}, {WORLD: 3}, {WORLD: 5}, {WORLD: 1}])
def test_group_that_is_not_known_as_such_is_not_compared(sizes: dict[str, int]) -> None:
    job = Job(sizes)
    job.step(5, 100, 100, 100, 100)
    assert job.times.read() is None


def test_rank_whose_clock_is_not_known_makes_its_groups_unknown() -> None:
    job = Job()
    job.unaligned = {2}
    job.step(5, 100, 100, 100, 100)
    assert job.times.read() is None
    job.unaligned = {0, 1, 2, 3}
    job.step(6, 100, 100, 100, 100)
    assert job.times.read() is None


def test_ranks_of_one_machine_share_the_best_alignment() -> None:
    job = Job(machines="aabb")
    for rank, at_us in enumerate((100, 110, 100, 110)):
        machine = rank // 2
        host_ns = OFFSET_NS[2 * machine] + at_us * US
        job.add(rank, pack_enqueues([Enqueue(5, WORLD, 1, host_ns)], [(5, 5)], wall_error_ns=10))
    found = job.read()
    # Ranks 1 and 3 have read the clocks of ranks 0 and 2; their own alignments, which are worse, do not matter.
    assert in_us(found.late_ns[0]) == [0, 10, 0, 10]
    assert found.error_ns[0].tolist() == [110, 110, 310, 310]
    assert found.near_error_ns[0].tolist() == [10] * 4
    assert found.machine[0] == found.machine[1] != found.machine[2] == found.machine[3]


def test_of_many_ranks_one_step_is_matched_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_times, "RANKS_AT_ONCE", 3)
    job = Job()
    for rank in range(4):
        rows = [(step, WORLD, step, 100.0) for step in (5, 6, 8)]
        job.times.add(rank, rank, pack_enqueues([Enqueue(*row[:3], OFFSET_NS[rank]) for row in rows], [(4, 8)]))
    for matched in ([5], [5, 6], [5, 6, 8], [5, 6, 8]):
        job.times.match(job.align)
        assert job.read().steps.tolist() == matched


def test_clock_is_asked_for_as_of_the_enqueue() -> None:
    job = Job()
    job.step(5, 100, 100, 100, 100)
    assert job.asked == [(rank, OFFSET_NS[rank] + 100 * US) for rank in range(4)]


def test_as_many_steps_as_allowed_are_kept() -> None:
    job = Job()
    for number in range(STEPS_KEPT + 3):
        job.step(number, 1, 2, 3, 4)
    assert job.read().steps.tolist() == list(range(3, STEPS_KEPT + 3))


def test_oldest_steps_that_wait_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_times, "WAITING_MAX", 3)
    job = Job()
    for rank in range(4):
        job.report(rank, *((step, WORLD, step, 100) for step in range(5)), steps=[(0, 9)] if rank else [(0, 4)])
    # Of a range that no rank sends only the first 3 are read, and of all steps the last 2 wait once there are 4.
    assert sorted(job.read().steps.tolist()) == [0, 1, 2]
    for rank in range(4):
        for step in range(10, 14):
            job.report(rank, (step, WORLD, step, 100), steps=[(step, step)])
    assert sorted(job.read().steps.tolist()) == [0, 1, 2, 12, 13]


def test_steps_of_all_ranks_that_wait_for_one_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_times, "PARTS_MAX", 16)
    job = Job()
    for step in range(20):  # rank 3 reports nothing
        for rank in range(3):
            job.report(rank, (step, WORLD, step, 100), steps=[(step, step)])
    job.report(3, *((step, WORLD, step, 100) for step in range(20)), steps=[(0, 19)])
    # The second part of each step from 5 on is the 17th, and leaves 14: that of step 19 drops step 14. Of the 5 steps
    # that are left 4 wait to be matched.
    assert job.read().steps.tolist() == [16, 17, 18, 19]


def test_report_of_more_steps_than_ranks_make_is_read_in_part() -> None:
    job = Job()
    for rank in range(4):
        ranges = [(i * 10**6, i * 10**6 + 10**5) for i in range(RANGES_MAX)]  # 4 * 10^8 steps in 32 KB
        job.report(rank, (7, WORLD, 1, 100), (10**9, WORLD, 2, 100), steps=ranges)
    assert job.read().steps.tolist() == [7]


@pytest.mark.parametrize("host_ns", [MISSING, TIME_NS_MAX, -TIME_NS_MAX, 2**63 - 1])
def test_time_of_no_clock_is_left_out(host_ns: int) -> None:
    job = Job()
    for rank in range(4):
        at_ns = OFFSET_NS[rank] + rank * US
        columns = [(5, 0, 1, at_ns), (5, 0, 2, host_ns if rank == 1 else at_ns)]
        job.add(rank, Enqueues((WORLD,), Table.from_rows(ENQUEUE_COLUMNS, columns), ((5, 5),)))
    assert in_us(job.read().late_ns[0]) == [-1, 0, 1, 2]


def test_offset_of_no_clock_is_no_alignment() -> None:
    times = EnqueueTimes(4, {WORLD: 4})
    for rank in range(4):
        times.add(rank, rank, pack_enqueues([Enqueue(5, WORLD, 1, 0)], [(5, 5)]))
    times.match(lambda _rank, _host_ns: (TIME_NS_MAX, 1))
    assert times.read() is None


def test_whatever_a_rank_sends_is_no_error() -> None:
    job = Job()
    for rank in range(4):
        rows = [(5, 0, 1, OFFSET_NS[rank]), (5, 0, 1, OFFSET_NS[rank] + 9), (-3, 0, 1, 0), (MISSING, 0, MISSING, 0)]
        enqueues = Enqueues((WORLD, "unused"), Table.from_rows(ENQUEUE_COLUMNS, rows), ((9, 2), (-5, 5), (5, 5)), 7)
        job.add(rank, enqueues)
    assert job.read().steps.tolist() == [5], "of a number that comes twice the first counts, of a report the last"
