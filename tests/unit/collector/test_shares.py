"""What the time of a run went into: stretches that add up to what the ranks have counted, whatever happens."""

from itertools import pairwise

import msgspec

from rankscope.collector.publish.shares import RANKS_PER_SECOND, RunShares, Shares
from rankscope.collector.state.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals
from tests.unit.collector.run_snapshots import rank_of

MS = 1_000_000


def counted(steps: int) -> Totals:
    """So many steps of 10 ms, 4 of them data; of the windows half is compute."""
    step_ns = steps * 10 * MS
    phases_ns = {"data": 4 * steps * MS, "forward": 6 * steps * MS}
    return Totals(steps=steps, step_ns=step_ns, phases_ns=phases_ns, window_ns=step_ns, compute_ns=step_ns // 2)


def run_of(*ranks: RankSnapshot, name: str = "bert") -> RunSnapshot:
    return RunSnapshot(run=name, world_size=len(ranks), restart_count=0, ranks=ranks)


def life_of(rank: int, steps: int, life: int = 0) -> RankSnapshot:
    """One life of a rank, which has come so far."""
    found = rank_of(rank, reports_admitted=1, totals=counted(steps))
    return msgspec.structs.replace(found, identity=msgspec.structs.replace(found.identity, boot_id=f"{rank}.{life}"))


def at(*steps: int) -> RunSnapshot:
    """A run whose ranks have come so far."""
    return run_of(*(life_of(rank, made) for rank, made in enumerate(steps)))


def test_stretch_is_what_was_counted_since_the_picture_before() -> None:
    shares = RunShares()
    shares.take(at(100, 100), 50.0)
    assert not shares.stretches
    shares.take(at(103, 104), 52.0)
    (stretch,) = shares.stretches
    assert (stretch.begin_wall_s, stretch.end_wall_s) == (50.0, 52.0)
    assert (stretch.steps, stretch.step_ns) == (7, 70 * MS)
    assert stretch.phases_ns == {"data": 28 * MS, "forward": 42 * MS}
    assert (stretch.window_ns, stretch.compute_ns, stretch.idle_ns) == (70 * MS, 35 * MS, 0)


def test_pictures_that_come_sooner_wait_and_nothing_of_them_is_lost() -> None:
    shares = RunShares()
    for tick in range(21):
        shares.take(at(tick), 100.0 + tick / 10)
    (stretch,) = shares.stretches
    assert (stretch.steps, stretch.end_wall_s) == (20, 102.0)


def test_time_in_which_nobody_finishes_a_step_has_no_stretch() -> None:
    shares = RunShares()
    for wall_s, steps in ((0.0, 5), (2.0, 5), (4.0, 5), (6.0, 8)):
        shares.take(at(steps), wall_s)
    (stretch,) = shares.stretches
    assert (stretch.begin_wall_s, stretch.end_wall_s, stretch.steps) == (4.0, 6.0, 3)


def test_new_life_of_a_rank_counts_from_where_it_is_first_seen() -> None:
    shares = RunShares()
    shares.take(at(50, 50), 0.0)
    shares.take(run_of(life_of(0, 53), life_of(1, 2, life=1)), 2.0)
    shares.take(run_of(life_of(0, 53), life_of(1, 6, life=1)), 4.0)
    assert [stretch.steps for stretch in shares.stretches] == [3, 4]


def test_long_run_has_longer_stretches_and_loses_none() -> None:
    shares = RunShares(stretches_max=8)
    wall_s = 0.0
    for tick in range(1_000):
        shares.take(at(tick), wall_s := tick * 2.0)
        assert len(shares.stretches) <= 8
    stretches = shares.stretches
    assert stretches[0].begin_wall_s == 0.0
    assert all(one.end_wall_s == other.begin_wall_s for one, other in pairwise(stretches))
    told = sum(stretch.steps for stretch in stretches)
    assert told == round(stretches[-1].end_wall_s / 2.0)
    assert wall_s - stretches[-1].end_wall_s < stretches[-1].end_wall_s - stretches[-1].begin_wall_s


def test_large_run_is_added_up_less_often() -> None:
    ranks = 3 * RANKS_PER_SECOND
    shares = RunShares()
    shares.take(at(*[1] * ranks), 0.0)
    shares.take(at(*[2] * ranks), 2.9)
    assert not shares.stretches
    shares.take(at(*[2] * ranks), 3.0)
    assert shares.stretches[0].steps == ranks


def test_clock_that_is_set_back_costs_no_more_than_its_stretch() -> None:
    shares = RunShares()
    shares.take(at(1), 100.0)
    shares.take(at(2), 40.0)
    shares.take(at(5), 42.0)
    assert [stretch.steps for stretch in shares.stretches] == [1, 3]


def test_picture_is_asked_for_only_when_one_is_due() -> None:
    shares = Shares()
    assert shares.is_due(0.0)
    shares.take([at(1)], 100.0)
    assert [shares.is_due(wall_s) for wall_s in (100.0, 101.9, 102.0, 99.0)] == [False, False, True, True]
    large = run_of(*(life_of(rank, 1) for rank in range(4 * RANKS_PER_SECOND)))
    shares.take([large], 200.0)
    assert [shares.is_due(wall_s) for wall_s in (203.9, 204.0)] == [False, True]


def test_collector_without_a_run_looks_for_one() -> None:
    shares = Shares()
    shares.take([], 100.0)
    assert [shares.is_due(wall_s) for wall_s in (101.9, 102.0)] == [False, True]


def test_run_that_is_forgotten_is_forgotten_here_too() -> None:
    shares = Shares()
    shares.take([at(1)], 0.0)
    shares.take([at(3)], 2.0)
    assert [stretch.steps for stretch in shares.of("bert")] == [2]
    shares.take([], 3.0)
    assert shares.of("bert") == ()
