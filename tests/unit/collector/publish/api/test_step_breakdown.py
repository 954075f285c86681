"""What the time of a run went into: stretches that add up to what the ranks have counted, whatever happens."""

from collections.abc import Sequence
from itertools import pairwise

from rankscope.collector.publish.api.step_breakdown import RANKS_PER_SECOND, RunTimeBreakdown, Shares
from rankscope.collector.runs.snapshot import RunSnapshot, Snapshot
from rankscope.measure.records import Totals
from tests.lazy_runs import LazyRun
from tests.unit.collector.runs.run_snapshots import rank_of

MS = 1_000_000


def counted(steps: int) -> Totals:
    """So many steps of 10 ms, 4 of them data; of the windows half is compute."""
    step_ns = steps * 10 * MS
    phases_ns = {"data": 4 * steps * MS, "forward": 6 * steps * MS}
    return Totals(steps=steps, step_ns=step_ns, phases_ns=phases_ns, window_ns=step_ns, compute_ns=step_ns // 2)


def at(*steps: int) -> dict[str, Totals]:
    """Ranks that have come so far."""
    return {f"{rank}.0": counted(made) for rank, made in enumerate(steps)}


def snapshot_at(wall_s: float, **steps: Sequence[int]) -> Snapshot:
    """Runs by their name, whose ranks have come so far."""
    return Snapshot(wall_s=wall_s, version="0", runs=[run_of(name, *made) for name, made in steps.items()])


def run_of(name: str, *steps: int) -> RunSnapshot:
    ranks = tuple(rank_of(rank, reports_admitted=1, totals=counted(made)) for rank, made in enumerate(steps))
    return RunSnapshot(run=name, world_size=len(ranks), restart_count=0, ranks=ranks)


def test_stretch_is_what_was_counted_since_the_time_before() -> None:
    shares = RunTimeBreakdown()
    shares.record(at(100, 100), 50.0)
    assert not shares.slices
    shares.record(at(103, 104), 52.0)
    (stretch,) = shares.slices
    assert (stretch.begin_wall_s, stretch.end_wall_s) == (50.0, 52.0)
    assert (stretch.steps, stretch.step_ns) == (7, 70 * MS)
    assert stretch.phases_ns == {"data": 28 * MS, "forward": 42 * MS}
    assert (stretch.window_ns, stretch.compute_ns, stretch.idle_ns) == (70 * MS, 35 * MS, 0)


def test_snapshots_that_come_too_soon_wait_and_lose_nothing() -> None:
    shares = Shares()
    for tick in range(21):
        shares.record(snapshot_at(100.0 + tick / 10, bert=(tick,)))
    (stretch,) = shares.of("bert")
    assert (stretch.steps, stretch.end_wall_s) == (20, 102.0)


def test_time_in_which_nobody_finishes_a_step_has_no_stretch() -> None:
    shares = RunTimeBreakdown()
    for wall_s, steps in ((0.0, 5), (2.0, 5), (4.0, 5), (6.0, 8)):
        shares.record(at(steps), wall_s)
    (stretch,) = shares.slices
    assert (stretch.begin_wall_s, stretch.end_wall_s, stretch.steps) == (4.0, 6.0, 3)


def test_new_life_of_a_rank_counts_from_where_it_is_first_seen() -> None:
    shares = RunTimeBreakdown()
    shares.record(at(50, 50), 0.0)
    shares.record({"0.0": counted(53), "1.1": counted(2)}, 2.0)
    shares.record({"0.0": counted(53), "1.1": counted(6)}, 4.0)
    assert [stretch.steps for stretch in shares.slices] == [3, 4]


def test_long_run_has_longer_stretches_and_loses_none() -> None:
    shares = RunTimeBreakdown(slices_max=8)
    wall_s = 0.0
    for tick in range(1_000):
        wall_s = tick * 2.0
        if shares.is_due(1, wall_s):
            shares.record(at(tick), wall_s)
        assert len(shares.slices) <= 8
    stretches = shares.slices
    assert stretches[0].begin_wall_s == 0.0
    assert all(one.end_wall_s == other.begin_wall_s for one, other in pairwise(stretches))
    told = sum(stretch.steps for stretch in stretches)
    assert told == round(stretches[-1].end_wall_s / 2.0)
    assert wall_s - stretches[-1].end_wall_s < stretches[-1].end_wall_s - stretches[-1].begin_wall_s


def test_large_run_is_added_up_less_often() -> None:
    shares = RunTimeBreakdown()
    assert shares.is_due(3 * RANKS_PER_SECOND, 0.0)
    shares.record(at(1), 0.0)
    assert [shares.is_due(3 * RANKS_PER_SECOND, wall_s) for wall_s in (2.9, 3.0)] == [False, True]
    assert shares.is_due(1, 2.0)


def test_small_run_beside_a_large_one_has_only_its_ranks_read() -> None:
    """Of a large one nothing is, until it is time for it."""
    read: list[str] = []

    class Counted(LazyRun):
        def read_totals(self) -> dict[str, Totals]:
            read.append(self.run)
            return at(len(read))

    shares = Shares()
    for wall_s in range(9):
        runs = [Counted(lambda: run_of("x"), run="large", size=8 * RANKS_PER_SECOND)]
        runs += [Counted(lambda: run_of("x"), run="small", size=8)]
        shares.record(Snapshot(wall_s=float(wall_s), version="0", runs=runs))
        assert not any(run.made for run in runs)
    assert read == ["large", "small", "small", "small", "small", "large", "small"]


def test_clock_that_is_set_back_costs_no_more_than_its_stretch() -> None:
    shares = Shares()
    for wall_s, steps in ((100.0, 1), (40.0, 2), (42.0, 5)):
        shares.record(snapshot_at(wall_s, bert=(steps,)))
    assert [stretch.steps for stretch in shares.of("bert")] == [1, 3]


def test_run_that_is_forgotten_is_forgotten_here_too() -> None:
    shares = Shares()
    shares.record(snapshot_at(0.0, bert=(1,)))
    shares.record(snapshot_at(2.0, bert=(3,)))
    assert [stretch.steps for stretch in shares.of("bert")] == [2]
    shares.record(snapshot_at(3.0))
    assert shares.of("bert") == ()
