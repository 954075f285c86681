"""The laws of the search for uneven work: what must not matter does not."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.batch_imbalance import BatchImbalance, find_chance_limit
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import series_of, view_of


@st.composite
def works(draw: st.DrawFn) -> Floats:
    """Draw own times in ms, shape (steps, ranks), with much or little noise; some ranks are slower than the others."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps, ranks = draw(st.sampled_from([40, 130, 160])), draw(st.integers(4, 9))
    own_ms = np.asarray(100 * np.exp(random.normal(0.0, draw(st.sampled_from([0.0, 0.02, 0.2])), (steps, ranks))))
    for rank in draw(st.sets(st.integers(0, ranks - 1), max_size=2)):
        own_ms[:, rank] *= draw(st.sampled_from([0.5, 1.1, 2.0]))
    return own_ms


def found(own_ms: Floats, forward_ms: Floats) -> list[Finding]:
    view = view_of(series_of(own_ms.tolist(), phases_ms={"forward": forward_ms.tolist()}))
    verdict = BatchImbalance(cost_ratio_min=0.1, thresholds=Thresholds()).find(view, ())
    return [] if isinstance(verdict, Abstain) else [candidate.finding for candidate in verdict]


@given(works(), st.integers(-6, 20))
def test_unit_of_time_does_not_matter(own_ms: Floats, power: int) -> None:
    one, other = found(own_ms, own_ms / 4), found(own_ms * 2.0**power, own_ms / 4 * 2.0**power)
    assert [finding.cause for finding in one] == [finding.cause for finding in other]
    for before, after in zip(one, other, strict=True):
        np.testing.assert_allclose(before.evidence["gap_step_ratio"], after.evidence["gap_step_ratio"], rtol=1e-9)


@given(works(), st.randoms(use_true_random=False))
def test_order_of_the_ranks_does_not_matter(own_ms: Floats, random: Random) -> None:
    order = list(range(own_ms.shape[1]))
    random.shuffle(order)
    one, other = found(own_ms, own_ms / 4), found(own_ms[:, order], own_ms[:, order] / 4)
    assert [finding.evidence["gap_ns"] for finding in one] == [finding.evidence["gap_ns"] for finding in other]


@given(works())
def test_nobody_is_blamed_and_the_cost_is_what_was_promised(own_ms: Floats) -> None:
    for finding in found(own_ms, own_ms / 4):
        assert (finding.ranks, finding.nodes) == ((), ())
        assert finding.evidence["gap_step_ratio"] >= 0.1


@given(st.integers(1, 200), st.integers(2, 2_000))
def test_chance_has_a_limit_above_an_equal_share(steps: int, ranks: int) -> None:
    assert steps / ranks < find_chance_limit(steps, ranks) <= steps + 1
