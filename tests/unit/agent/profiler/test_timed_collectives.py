"""TimedCollectives: which steps have collectives by a reading of the flight recorder, and when it is read.

Steps last 1,000 ticks on the host clock; the recorder writes wall time, `WALL` ahead of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from rankscope.agent.captures.timed_entries import RecorderReading, TimedEntry
from rankscope.agent.profiler.nccl_timing import COST_NS
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.agent.profiler.timed_collectives import (
    CLOCK_MOVED_NS,
    COST_SHARE,
    INTERVAL_NS_MAX,
    INTERVAL_NS_MIN,
    STEPS_MAX,
    TimedCollectives,
)
from rankscope.measure.clock import OFFSET_ERROR_NS
from rankscope.measure.enqueues import Enqueue, choose
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord
from rankscope.measure.units import NS_PER_S

WALL = 1_700_000_000_000_000_000
LATER = WALL + NS_PER_S
"""After all steps of these tests."""
WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1), backend="nccl")


def entry(created: int, duration_ns: int | None = 50, *, group: str = "0", is_over: bool = True) -> TimedEntry:
    return TimedEntry(group, created, "all_reduce", created + WALL, duration_ns, is_over, 4_000)


def steps(*numbers: int) -> list[StepRecord]:
    return [StepRecord(step=n, start_host_ns=n * 1_000, duration_ns=1_000, phases_ns={}) for n in numbers]


@dataclass
class Rank:
    """The recorder of a rank, which answers at once unless `is_slow`, its clocks, and the count of its readings."""

    entries: Sequence[TimedEntry] = ()
    now_ns: int = 0
    cost_ns: int = 0
    cpu_ns: int = 0
    reads: int = 0
    is_slow: bool = False
    began: bool = True
    groups: Mapping[str, GroupInfo] = field(default_factory=lambda: {"0": WORLD})
    recorded: int = 7
    error: Exception | None = None
    taken_wall_ns: int = LATER
    ring: tuple[int, int] = (1, 0)
    server_ns: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    since_wall_ns: int | None = None
    _thread_ns: int = 0
    _found: RecorderReading | None = None
    timed: TimedCollectives = field(init=False)

    def __post_init__(self) -> None:
        self.timed = TimedCollectives(
            self,
            lambda: self.groups,
            monotonic_ns=lambda: self.now_ns,
            thread_cpu_ns=lambda: self._thread_ns,
        )

    def request(self, since_wall_ns: int) -> bool:
        self.reads += 1
        self._thread_ns += self.cost_ns
        if self.error is not None:
            raise self.error
        if not self.began:
            return False
        self.since_wall_ns = since_wall_ns
        count, ring_ns = self.ring
        self._found = RecorderReading(
            taken_wall_ns=self.taken_wall_ns, entries=list(self.entries), recorded=self.recorded * self.reads,
            ring_entries=count, ring_ns=ring_ns, cpu_ns=self.cpu_ns,
        )  # fmt: skip
        return True

    def collect(self) -> RecorderReading | None:
        if self.is_slow:
            return None
        found, self._found = self._found, None
        return found

    def add_steps(self, *numbers: int, wall: int = WALL, window_from_step: int | None = None) -> list[ReducedWindow]:
        return self.timed.add_steps(steps(*numbers), wall, window_from_step=window_from_step)


def count_reads(rank: Rank, *times_ns: int) -> int:
    """Return the number of readings at these times, in a rank that has been read for long, and at 0 the last time."""
    for rank.now_ns in (-20 * INTERVAL_NS_MAX, 0):
        rank.add_steps(5)
    before = rank.reads
    for rank.now_ns in times_ns:
        rank.add_steps(5)
    return rank.reads - before


def timed(found: list[ReducedWindow]) -> list[tuple[int, int] | None]:
    assert [window.covered_steps for window in found] == [None] * len(found), "no own time follows from them"
    return [window.timed_steps for window in found]


def test_timed_collective_is_in_the_step_that_enqueued_it() -> None:
    (found,) = Rank([entry(5_000), entry(6_300, 70)]).add_steps(5, 6)
    assert found.collectives[1] == CollectiveRecord(
        step=6, group="default_pg", op="all_reduce", start_host_ns=6_300, duration_ns=70, sequence=6_300, bytes=4_000
    )
    assert ([record.step for record in found.collectives], found.timed_steps) == ([5, 6], (5, 6))


def test_steps_before_the_recorders_first_entry_are_left_out() -> None:
    assert timed(Rank([entry(5_300), entry(6_300), entry(7_300)]).add_steps(4, 5, 6, 7)) == [(6, 7)]


def test_collectives_since_the_oldest_open_step_are_asked_for() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(6_400, None, is_over=False)])
    rank.add_steps(5, 6)
    assert rank.since_wall_ns == WALL + 5_000
    rank.now_ns += INTERVAL_NS_MAX
    rank.add_steps(7)
    assert rank.since_wall_ns == WALL + 6_000, "step 5 is known"


def test_steps_with_an_unfinished_collective_come_later() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(6_400, None, is_over=False)])
    assert timed(rank.add_steps(5, 6)) == [(5, 5)]
    rank.entries = [entry(5_000), entry(6_300), entry(6_400), entry(7_100)]
    rank.now_ns += INTERVAL_NS_MAX
    (found,) = rank.add_steps(7)
    assert (found.timed_steps, [record.step for record in found.collectives]) == ((6, 7), [6, 6, 7])


def test_steps_that_ended_after_the_dump_come_later() -> None:
    rank = Rank([entry(5_000), entry(6_300)], is_slow=True, taken_wall_ns=WALL + 6_500)
    assert rank.add_steps(5) == []
    rank.is_slow = False
    assert timed(rank.add_steps(6)) == [(5, 5)], "step 6 may have had another collective after 6,500"


def test_step_is_returned_once() -> None:
    rank = Rank([entry(5_000)])
    assert timed(rank.add_steps(5)) == [(5, 5)]
    rank.now_ns += INTERVAL_NS_MAX
    assert rank.add_steps() == []


def test_step_of_a_window_is_left_to_it() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(7_300)])
    rank.timed.leave_to_window(steps(6))
    assert timed(rank.add_steps(5, 6, 7)) == [(5, 5), (7, 7)]
    assert rank.timed.skipped == {}, "nothing is lost"


def test_steps_of_a_running_window_wait_for_its_end() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(7_300)])
    assert timed(rank.add_steps(5, 6, 7, window_from_step=6)) == [(5, 5)]
    rank.timed.leave_to_window(steps(6))
    rank.now_ns += INTERVAL_NS_MAX
    assert timed(rank.add_steps()) == [(7, 7)]


def test_a_step_without_communication_is_timed() -> None:
    assert timed(Rank([entry(5_000)]).add_steps(5, 6)) == [(5, 6)]


def test_collective_without_a_duration_is_left_out_and_counted() -> None:
    (found,) = (rank := Rank([entry(5_000), entry(6_300, None), entry(6_400)])).add_steps(5, 6)
    assert [(record.step, record.sequence) for record in found.collectives] == [(5, 5_000), (6, 6_400)]
    assert (found.timed_steps, rank.timed.skipped) == ((5, 6), {"timed_unplaced": 1})


def test_collective_of_an_unknown_group_is_left_out_and_counted() -> None:
    (found,) = (rank := Rank([entry(5_000), entry(5_100, group="9"), entry(6_300)])).add_steps(5, 6)
    assert [record.sequence for record in found.collectives] == [5_000, 6_300]
    assert rank.timed.skipped == {"timed_unplaced": 1}


def test_steps_that_the_ring_has_lost_are_counted() -> None:
    rank = Rank([entry(7_000), entry(8_300)])
    assert timed(rank.add_steps(5, 6, 7, 8)) == [(7, 8)]
    assert rank.timed.skipped == {"timed_too_old": 2}


def test_complete_ring_has_the_steps_before_its_first_entry() -> None:
    rank = Rank([entry(7_000), entry(8_300)], ring=(2, 1_300), recorded=2)
    assert timed(rank.add_steps(5, 6, 7, 8)) == [(5, 8)]
    assert rank.timed.skipped == {}


# -- the wall clock is set --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved_ns", [CLOCK_MOVED_NS + 1, -CLOCK_MOVED_NS - 1])
def test_steps_around_a_clock_that_was_set_are_dropped(moved_ns: int) -> None:
    rank = Rank([entry(5_000), entry(6_300)], is_slow=True)
    rank.add_steps(5)
    rank.is_slow = False
    assert rank.add_steps(6, wall=WALL + moved_ns) == []
    assert rank.timed.skipped == {"timed_clock_set": 2}


def test_clock_that_drifts_drops_nothing() -> None:
    rank = Rank([entry(5_000), entry(6_300)], is_slow=True)
    rank.add_steps(5)
    rank.is_slow = False
    (found,) = rank.add_steps(wall=WALL + CLOCK_MOVED_NS)
    assert [record.start_host_ns for record in found.collectives] == [5_000], "by the clock as of the step's report"


def test_entries_out_of_order_are_not_assigned() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(6_200)])
    assert rank.add_steps(5, 6) == []
    assert rank.timed.skipped == {"timed_clock_set": 2}


# -- when it is read --------------------------------------------------------------------------------------------------


def test_empty_recorder_has_nothing_and_keeps_the_steps() -> None:
    rank = Rank()
    assert rank.add_steps(5) == []
    rank.entries, rank.now_ns = [entry(5_000)], INTERVAL_NS_MAX
    assert timed(rank.add_steps()) == [(5, 5)]


def test_the_recorder_is_read_once_an_interval() -> None:
    assert count_reads(Rank([entry(5_000)]), INTERVAL_NS_MAX - 1) == 0
    assert count_reads(Rank([entry(5_000)]), INTERVAL_NS_MAX, INTERVAL_NS_MAX + 1) == 1


def test_first_readings_come_sooner() -> None:
    rank = Rank([entry(5_000)])
    times_s = []
    for second in range(60):
        before, rank.now_ns = rank.reads, second * NS_PER_S
        rank.add_steps(5)
        times_s += [second] * (rank.reads - before)
    assert times_s == [0, 2, 4, 8, 16, 32, 52], "as long after the last as that after the first, 20 s at most"


@pytest.mark.parametrize(
    ("ring", "interval_ns"),
    [
        ((2_000, 10 * NS_PER_S), 8 * NS_PER_S),  # full: eight tenths of the 10 s that it holds
        ((500, NS_PER_S), 3_200_000_000),  # a quarter in 1 s: full in 4 s
        ((2_000, NS_PER_S), INTERVAL_NS_MIN),  # full in 1 s: as often as allowed
        ((20, 2 * NS_PER_S), INTERVAL_NS_MAX),  # full in 200 s
        ((1, 0), INTERVAL_NS_MAX),
        ((0, 0), INTERVAL_NS_MIN),  # empty
    ],
)
def test_recorder_is_read_as_often_as_its_ring_fills(ring: tuple[int, int], interval_ns: int) -> None:
    assert count_reads(Rank([entry(5_000)], ring=ring), interval_ns - 1) == 0
    assert count_reads(Rank([entry(5_000)], ring=ring), interval_ns - 1, interval_ns) == 1


@pytest.mark.parametrize("part", ["cost_ns", "cpu_ns"])
def test_a_recorder_that_costs_more_is_read_less_often(part: str) -> None:
    rank = Rank([entry(5_000)])
    setattr(rank, part, INTERVAL_NS_MAX // 100)  # at the share allowed: once in four intervals
    interval_ns = 4 * INTERVAL_NS_MAX
    assert count_reads(rank, interval_ns - 1, interval_ns) == 1


def test_the_cost_of_a_reading_is_that_of_all_who_made_it() -> None:
    rank = Rank([entry(5_000)], cost_ns=3, cpu_ns=20)
    assert rank.timed.timing_ns is None
    rank.server_ns = 50
    rank.add_steps(5)
    assert (rank.timed.thread_ns, rank.timed.outside_ns) == (3, 70)
    assert rank.timed.timing_ns == 7 * COST_NS, "of the 7 collectives that the recorder has had"


@pytest.mark.parametrize(("share", "left_ns"), [(0.0, NS_PER_S), (COST_SHARE, 99)])
def test_without_budget_nothing_is_read(share: float, left_ns: int) -> None:
    rank = Rank([entry(5_000)], cost_ns=100)
    rank.add_steps(5)
    rank.timed.allow(share, left_ns)
    rank.now_ns = 10 * INTERVAL_NS_MAX
    rank.add_steps(6)
    assert (rank.reads, rank.timed.is_held) == (1, True)
    rank.timed.allow(COST_SHARE, 100)
    rank.add_steps(7)
    assert (rank.reads, rank.timed.is_held) == (2, False)


def test_reading_that_did_not_begin_is_retried_at_next_report() -> None:
    rank = Rank([entry(5_000)], began=False)
    rank.add_steps(5)
    assert not rank.timed.is_used
    rank.began = True
    assert timed(rank.add_steps()) == [(5, 5)]
    assert rank.timed.is_used


def test_failed_reading_has_its_cost() -> None:
    rank = Rank([entry(5_000)], cost_ns=3, error=RuntimeError("torch has changed"))
    with pytest.raises(RuntimeError):
        rank.add_steps(5)
    assert rank.timed.thread_ns == 3
    rank.now_ns += INTERVAL_NS_MIN - 1
    assert rank.add_steps() == [], "it is not repeated before its time"
    rank.now_ns, rank.error = rank.now_ns + 1, None
    assert timed(rank.add_steps()) == [(5, 5)]


def test_reading_without_a_result_is_repeated_as_its_cost_allows() -> None:
    rank = Rank([entry(5_000)], is_slow=True)
    rank.add_steps(5)
    rank.server_ns = INTERVAL_NS_MAX // 100  # at the share allowed: once in four intervals
    rank.add_steps()
    reads = []
    for rank.now_ns in (INTERVAL_NS_MAX, 2 * INTERVAL_NS_MAX - 1, 4 * INTERVAL_NS_MAX):
        rank.add_steps()
        reads.append(rank.reads)
    assert reads == [1, 1, 2]


def test_timing_requested_by_the_job_is_no_cost_of_the_agent() -> None:
    rank = Rank([entry(5_000)])
    rank.timed = TimedCollectives(
        rank, dict, monotonic_ns=lambda: 0, thread_cpu_ns=lambda: 0, timing_is_ours=lambda: False
    )
    rank.add_steps(5)
    assert (rank.timed.is_used, rank.timed.timing_ns) == (True, None)


def test_steps_and_entries_before_a_late_timing_do_not_count() -> None:
    rank = Rank([entry(6_900, None), entry(7_300), entry(8_300)], recorded=500)
    rank.timed = TimedCollectives(
        rank, lambda: {"0": WORLD}, monotonic_ns=lambda: rank.now_ns, thread_cpu_ns=lambda: 0,
        timed_from_step=lambda: 7,
    )  # fmt: skip
    assert timed(rank.add_steps(5, 6, 7, 8)) == [(7, 8)]
    assert rank.since_wall_ns == WALL + 7_000
    assert rank.timed.timing_ns == 3 * COST_NS, "and the last one before; the 497 others were not timed"
    rank.now_ns += INTERVAL_NS_MAX
    rank.add_steps(9)
    assert rank.timed.timing_ns == (1_000 - 497) * COST_NS


def test_nothing_is_read_at_first_if_the_budget_is_used_up() -> None:
    rank = Rank([entry(5_000)])
    rank.timed.allow(0.0, 0)
    rank.add_steps(5)
    assert rank.reads == 0


def test_readings_without_a_result_are_counted_by_reason() -> None:
    assert Rank(skipped={"timed_lost": 2}).timed.skipped == {"timed_lost": 2}


def test_nothing_is_read_for_the_last_report() -> None:
    rank = Rank([entry(5_000)])
    assert rank.timed.add_steps(steps(5), WALL, last=True) == []
    assert rank.reads == 0


def test_without_a_step_nothing_is_read() -> None:
    rank = Rank([entry(5_000)])
    rank.add_steps()
    assert rank.reads == 0


def test_oldest_of_too_many_steps_are_left_out() -> None:
    rank = Rank([entry(0)])
    (found,) = rank.add_steps(*range(STEPS_MAX + 3))
    assert found.timed_steps == (3, STEPS_MAX + 2)
    assert rank.timed.skipped == {"timed_too_old": 3}


# -- collectives that torch does not time ------------------------------------------------------------------------------


def untimed(created: int, *, group: str = "0", is_over: bool = True) -> TimedEntry:
    return entry(created, None, group=group, is_over=is_over)


def enqueued(found: list[ReducedWindow]) -> tuple[list[tuple[int | None, ...]], tuple[tuple[int, int], ...]]:
    """Return rows of step, sequence and time by the host clock, and the ranges of steps."""
    ((collectives, breakdowns, covered, synchronizations, timed_steps, flops, enqueues),) = found
    assert (collectives, breakdowns, covered, synchronizations, timed_steps, flops) == ([], [], None, None, None, None)
    assert enqueues is not None
    assert set(enqueues.groups) <= {"default_pg"}
    columns = [enqueues.table.column(name).tolist() for name in ("step", "sequence", "enqueued_host_ns")]
    return list(zip(*columns, strict=True)), enqueues.steps


def test_without_durations_the_times_of_enqueuing_are_reported() -> None:
    rank = Rank([untimed(5_000), untimed(6_300), untimed(6_400)])
    assert enqueued(rank.add_steps(5, 6)) == ([(5, 5_000, 5_000), (6, 6_300, 6_300), (6, 6_400, 6_400)], ((5, 6),))
    assert rank.timed.skipped == {}


def test_untimed_step_is_known_once_it_has_ended() -> None:
    rank = Rank([untimed(5_000), untimed(6_300), untimed(6_400, is_over=False)])
    assert enqueued(rank.add_steps(5, 6))[1] == ((5, 6),), "though its last collective still runs"
    rank = Rank([untimed(5_000), untimed(6_300)], taken_wall_ns=WALL + 6_500)
    assert enqueued(rank.add_steps(5, 6))[1] == ((5, 5),), "step 6 may have had another collective after 6,500"


def test_while_nothing_is_over_a_duration_may_still_come() -> None:
    rank = Rank([untimed(5_000, is_over=False)])
    assert rank.add_steps(5) == []
    rank.entries, rank.now_ns = [entry(5_000)], INTERVAL_NS_MAX
    assert timed(rank.add_steps()) == [(5, 5)]


def test_untimed_steps_apart_and_without_traffic_are_reported() -> None:
    rank = Rank([untimed(5_000), untimed(8_300)], ring=(2, 3_300), recorded=2)
    rank.timed.leave_to_window(steps(6))
    assert enqueued(rank.add_steps(5, 6, 7, 8)) == ([(5, 5_000, 5_000), (8, 8_300, 8_300)], ((5, 5), (7, 8)))


def test_untimed_collective_of_an_unknown_group_is_counted() -> None:
    rank = Rank([untimed(5_000), untimed(5_100, group="9"), untimed(6_300)])
    assert [row[1] for row in enqueued(rank.add_steps(5, 6))[0]] == [5_000, 6_300]
    assert rank.timed.skipped == {"timed_unplaced": 1}


def test_of_a_coalesced_group_the_first_member_counts() -> None:
    members = [untimed(5_000)._replace(sequence=7), untimed(5_001)._replace(sequence=7)]
    assert enqueued(Rank(members).add_steps(5))[0] == [(5, 7, 5_000)]


def test_of_many_collectives_the_choice_of_all_ranks_is_reported() -> None:
    rank = Rank([untimed(5_000 + number) for number in range(900)])
    rows, ranges = enqueued(rank.add_steps(5))
    assert ranges == ((5, 5),)
    chosen = choose([Enqueue(5, "default_pg", 5_000 + number, 5_000 + number) for number in range(900)])
    assert rows == [(one.step, one.sequence, one.enqueued_host_ns) for one in chosen]


def test_rank_of_a_large_group_reports_fewer_of_them() -> None:
    large = GroupInfo(label="default_pg", description="default_pg", ranks=tuple(range(8_192)), backend="nccl")
    rank = Rank([untimed(5_000 + number) for number in range(200)], groups={"0": large})
    assert len(enqueued(rank.add_steps(5))[0]) == 32


def test_error_of_the_wall_clock_is_what_it_moved_by() -> None:
    def error_ns(found: list[ReducedWindow]) -> int:
        assert found[0].enqueues is not None
        return found[0].enqueues.wall_error_ns

    rank = Rank([untimed(5_000)], is_slow=True)
    rank.add_steps(5)
    rank.add_steps(6, wall=WALL - 300)
    rank.is_slow = False
    assert error_ns(rank.add_steps(7, wall=WALL - 200)) == 300 + OFFSET_ERROR_NS
    rank.now_ns += INTERVAL_NS_MAX
    assert error_ns(rank.add_steps(8, wall=WALL - 200)) == OFFSET_ERROR_NS, "of the steps since then"


def test_no_untimed_step_is_reported_before_it_is_whole() -> None:
    rank = Rank([untimed(5_000)], taken_wall_ns=WALL + 5_500)
    assert rank.add_steps(5) == []
