"""The laws of the search for stragglers: what must not matter does not, and nothing that is missing breaks it."""

import math
from random import Random
from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers, has_recovered
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats, StepSeries
from tests.unit.collector.steps.step_series import view_of

THRESHOLDS = Thresholds()


class Run(NamedTuple):
    """The own times of some ranks, and with whom each is compared."""

    ranks: tuple[int, ...]
    own_ns: Floats
    signatures: dict[int, int]

    @property
    def series(self) -> StepSeries:
        steps = np.arange(len(self.own_ns))
        return StepSeries(steps, self.ranks, self.own_ns, self.own_ns, self.own_ns, {}, own_is_measured=True)

    @property
    def view(self) -> RunView:
        return view_of(self.series, signatures=self.signatures)

    def judge(self) -> tuple[SlowRank, ...] | Abstain:
        return find_stragglers(self.view, THRESHOLDS)


@st.composite
def runs(draw: st.DrawFn, *, missing_ratio_max: float = 0.0) -> Run:
    """Return a few ranks with some noise. Some are slow from some step on; some do other work than the others."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, count = draw(st.integers(0, 80)), draw(st.integers(1, 7))
    spread = draw(st.sampled_from([0.0, 0.02, 0.1, 0.5]))
    own_ns = 1e8 * np.exp(random.normal(0.0, spread, (steps, count)))
    for rank in draw(st.sets(st.integers(0, count - 1), max_size=2)):
        own_ns[draw(st.integers(0, steps)) :, rank] *= draw(st.sampled_from([0.5, 1.05, 1.3, 2.0, 10.0]))
    own_ns[random.random(own_ns.shape) < draw(st.floats(0.0, missing_ratio_max))] = np.nan
    kinds_of_work = draw(st.integers(0, 2))
    signatures = {rank: int(random.integers(kinds_of_work)) for rank in range(count)} if kinds_of_work else {}
    return Run(tuple(range(count)), own_ns, signatures)


def found(run: Run) -> tuple[SlowRank, ...]:
    verdict = run.judge()
    return () if isinstance(verdict, Abstain) else verdict


def as_text(slow: SlowRank) -> str:
    return repr(slow._replace(slow_steps=slow.slow_steps.tolist()))


@given(runs(), st.randoms(use_true_random=False))
def test_order_of_the_ranks_does_not_matter(run: Run, random: Random) -> None:
    order = list(run.ranks)
    random.shuffle(order)
    moved = Run(tuple(order), run.own_ns[:, order], run.signatures)
    numbers = [
        {slow.rank: (slow.since_step, slow.slowdown_ratio, slow.robust_z, slow.own_ns) for slow in found(each)}
        for each in (run, moved)
    ]
    assert numbers[0] == numbers[1]


@given(runs(), st.integers(-6, 30))
def test_unit_of_time_does_not_matter(run: Run, power: int) -> None:
    # Powers of two, so that the scaled numbers are exactly what they were.
    scaled = run._replace(own_ns=run.own_ns * 2.0**power)
    unscaled = [slow._replace(own_ns=slow.own_ns / 2.0**power) for slow in found(scaled)]
    assert [as_text(slow) for slow in unscaled] == [as_text(slow) for slow in found(run)]


@given(runs(missing_ratio_max=1.0))
def test_verdict_is_given_or_abstained_from_whatever_is_missing(run: Run) -> None:
    for slow in found(run):
        numbers = (slow.slowdown_ratio, slow.robust_z, slow.persistence, slow.own_ns, slow.peers_own_ns)
        assert all(math.isfinite(number) for number in numbers)
        assert slow.rank not in slow.peers.ranks


@given(runs(missing_ratio_max=0.5))
def test_whoever_is_named_passes_every_test_that_is_promised(run: Run) -> None:
    view = run.view
    for slow in found(run):
        assert slow.slowdown_ratio >= THRESHOLDS.slowdown_ratio_min * (1 - 1e-12)
        assert slow.robust_z >= THRESHOLDS.robust_z_min
        assert slow.persistence >= THRESHOLDS.persistence_ratio
        assert slow.steps_judged >= THRESHOLDS.steps_min
        assert not has_recovered(view.excess_of(slow.rank), THRESHOLDS)


@given(runs(missing_ratio_max=0.2))
def test_slower_ranks_come_first_and_each_once(run: Run) -> None:
    ratios = [slow.slowdown_ratio for slow in found(run)]
    assert ratios == sorted(ratios, reverse=True)
    assert len({slow.rank for slow in found(run)}) == len(ratios)


@given(runs(missing_ratio_max=0.3))
def test_excess_is_log_ratio_to_peers_beyond_the_usual(run: Run) -> None:
    view = run.view
    for rank in run.ranks:
        mine, others = run.own_ns[:, rank], run.own_ns[:, list(view.peer_groups.of(rank).peers_of(rank).ranks)]
        complete = ~np.isnan(mine) & ~np.isnan(others).any(axis=1) & (others.shape[1] > 0)
        expected = np.log(mine[complete] / np.median(others[complete], axis=1)) if complete.any() else []
        usual = view.usual[run.ranks.index(rank)]
        np.testing.assert_allclose(view.excess_of(rank)[complete] + usual, expected, atol=1e-12)
        assert usual == 0 or not view.peer_groups.of(rank).do_same_work
        assert np.isnan(view.excess_of(rank)[np.isnan(mine)]).all()


@given(runs())
def test_own_times_that_make_no_sense_break_nothing(run: Run) -> None:
    # Waiting may exceed the step it was in.
    for nonsense in (0.0, -1e8):
        found(run._replace(own_ns=np.where(run.own_ns > 1e8, nonsense, run.own_ns)))
