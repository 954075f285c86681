"""TimedCollectives: which steps the flight recorder's entries cover, and when it is read.

Steps last 1,000 ticks on the host clock; the recorder writes wall time, `WALL` ahead of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rankscope.agent.profiler.process_groups import TimedEntry
from rankscope.agent.profiler.reduced_window import ReducedWindow
from rankscope.agent.profiler.timed_collectives import COST_SHARE_MAX, INTERVAL_NS, STEPS_MAX, TimedCollectives
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord

WALL = 1_700_000_000_000_000_000
WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1), backend="nccl")


def entry(created: int, duration_ns: int | None = 50, *, group: str = "0", is_over: bool = True) -> TimedEntry:
    return TimedEntry(group, created, "all_reduce", created + WALL, duration_ns, is_over, 4_000)


def steps(*numbers: int) -> list[StepRecord]:
    return [StepRecord(step=n, start_host_ns=n * 1_000, duration_ns=1_000, phases_ns={}) for n in numbers]


@dataclass
class Rank:
    """The recorder of a rank, its clocks, and the count of its reads."""

    entries: Sequence[TimedEntry] = ()
    now_ns: int = 0
    cost_ns: int = 0
    reads: int = 0
    _cpu_ns: int = 0
    timed: TimedCollectives = field(init=False)

    def __post_init__(self) -> None:
        self.timed = TimedCollectives(
            self._read, lambda: {"0": WORLD}, monotonic_ns=lambda: self.now_ns, thread_cpu_ns=lambda: self._cpu_ns
        )

    def _read(self) -> list[TimedEntry]:
        self.reads += 1
        self._cpu_ns += self.cost_ns
        return list(self.entries)

    def add_steps(self, *numbers: int) -> list[ReducedWindow]:
        return self.timed.add_steps(steps(*numbers), WALL)


def covered(found: list[ReducedWindow]) -> list[tuple[int, int] | None]:
    return [window.covered_steps for window in found]


def test_timed_collective_is_in_the_step_that_enqueued_it() -> None:
    (found,) = Rank([entry(5_000), entry(6_300, 70)]).add_steps(5, 6)
    assert found.collectives[1] == CollectiveRecord(
        step=6, group="default_pg", op="all_reduce", start_host_ns=6_300, duration_ns=70, sequence=6_300, bytes=4_000
    )
    assert ([record.step for record in found.collectives], found.covered_steps) == ([5, 6], (5, 6))


def test_steps_before_the_recorders_first_entry_are_not_covered() -> None:
    assert covered(Rank([entry(5_300), entry(6_300), entry(7_300)]).add_steps(4, 5, 6, 7)) == [(6, 7)]


def test_steps_with_an_unfinished_collective_come_later() -> None:
    rank = Rank([entry(5_000), entry(6_300), entry(6_400, None, is_over=False)])
    assert covered(rank.add_steps(5, 6)) == [(5, 5)]
    rank.entries = [entry(5_000), entry(6_300), entry(6_400), entry(7_100)]
    rank.now_ns += INTERVAL_NS
    (found,) = rank.add_steps(7)
    assert (found.covered_steps, [record.step for record in found.collectives]) == ((6, 7), [6, 6, 7])


def test_step_is_returned_once() -> None:
    rank = Rank([entry(5_000)])
    assert covered(rank.add_steps(5)) == [(5, 5)]
    rank.now_ns += INTERVAL_NS
    assert rank.add_steps() == []


def test_a_step_without_communication_is_covered() -> None:
    assert covered(Rank([entry(5_000)]).add_steps(5, 6)) == [(5, 6)]


def test_untimed_collective_costs_its_own_step_only() -> None:
    rank = Rank([entry(5_000), entry(6_300, None), entry(7_300)])
    assert covered(rank.add_steps(5, 6, 7)) == [(5, 5), (7, 7)]
    assert rank.timed.unplaced == 1


def test_unknown_group_costs_its_own_step_only() -> None:
    rank = Rank([entry(5_000), entry(5_100, group="9"), entry(6_300)])
    assert (covered(rank.add_steps(5, 6)), rank.timed.unplaced) == ([(6, 6)], 2)


def test_empty_recorder_covers_nothing_and_keeps_the_steps() -> None:
    rank = Rank()
    assert rank.add_steps(5) == []
    rank.entries, rank.now_ns = [entry(5_000)], INTERVAL_NS
    assert covered(rank.add_steps()) == [(5, 5)]


def test_the_recorder_is_read_once_an_interval() -> None:
    rank = Rank([entry(5_000)])
    for now_ns in (0, INTERVAL_NS - 1, INTERVAL_NS, INTERVAL_NS + 1):
        rank.now_ns = now_ns
        rank.add_steps(5)
    assert rank.reads == 2


def test_a_recorder_that_costs_more_is_read_less_often() -> None:
    rank = Rank([entry(5_000)], cost_ns=INTERVAL_NS // 100)  # at the share allowed: once in four intervals
    interval_ns = round(rank.cost_ns / COST_SHARE_MAX)
    for rank.now_ns in (0, interval_ns - 1, interval_ns):
        rank.add_steps(5)
    assert rank.reads == 2


def test_without_a_step_nothing_is_read() -> None:
    rank = Rank([entry(5_000)])
    rank.add_steps()
    assert rank.reads == 0


def test_oldest_of_too_many_steps_are_not_covered() -> None:
    rank = Rank([entry(0)])
    (found,) = rank.add_steps(*range(STEPS_MAX + 3))
    assert found.covered_steps == (3, STEPS_MAX + 2)
