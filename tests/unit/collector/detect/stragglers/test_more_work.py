"""More work of one rank, by its tokens or bytes in all-to-alls. Eight ranks, self times of 100 ms, seeded noise."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.run_rules.stage_imbalance import StageImbalance
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.workload_signature import Signature
from tests.unit.collector.steps.step_series import series_of, view_of

RANKS = 8
IMBALANCE = StageImbalance(Thresholds(slowdown_ratio_min=1.15), Thresholds())


def noisy(usual: float, steps: int = 40, spread: float = 0.01) -> Floats:
    return usual * np.exp(np.random.default_rng(3).normal(0.0, spread, (steps, RANKS)))


def of_rank(values: Floats, rank: int, ratio: float, since: int = 0) -> Floats:
    more = values.copy()
    more[since:, rank] *= ratio
    return more


def view(self_ms: Floats, *, tokens: Floats | None = None, exchanged: Floats | None = None) -> RunView:
    rows = {
        name: values.tolist()
        for name, values in (("tokens", tokens), ("exchanged_bytes", exchanged))
        if values is not None
    }
    return view_of(series_of(self_ms.tolist(), **rows))


def imbalances(of: RunView) -> list[Finding]:
    found = IMBALANCE.find(of, ())
    return [] if isinstance(found, Abstain) else [one.finding for one in found]


def stragglers(of: RunView) -> list[int | None]:
    found = Stragglers(Thresholds()).find(of, ())
    assert not isinstance(found, Abstain)
    return [one.finding.rank for one in found]


@pytest.mark.parametrize("what", ["tokens", "exchanged"])
def test_rank_with_more_work_is_no_straggler(what: str) -> None:
    seen = view(of_rank(noisy(100), 3, 1.3), **{what: of_rank(noisy(4096, spread=0.1), 3, 1.4)})
    assert stragglers(seen) == []
    (finding,) = imbalances(seen)
    assert (finding.ranks, finding.cause, finding.severity) == ((3,), "more_work", "warning")
    assert finding.evidence["more_work_ratio"] == pytest.approx(1.4, rel=0.1)
    # 130 ms against a mean of (7 x 100 + 130) / 8 = 103.75 ms.
    assert finding.slowdown_ratio == pytest.approx(130 / 103.75, rel=0.02)
    assert finding.run_slowdown_ratio == pytest.approx(130 / 103.75, rel=0.02)


def test_rank_slower_than_its_work_explains_is_a_straggler() -> None:
    # A tenth more tokens explain a tenth of 60 %.
    seen = view(of_rank(noisy(100), 3, 1.6), tokens=of_rank(noisy(4096), 3, 1.1))
    assert stragglers(seen) == [3]
    assert imbalances(seen) == []


def test_slow_rank_with_as_much_work_is_a_straggler() -> None:
    seen = view(of_rank(noisy(100), 3, 1.3), tokens=noisy(4096), exchanged=noisy(1e6))
    assert stragglers(seen) == [3]
    assert imbalances(seen) == []


def test_more_tokens_that_take_no_longer_are_nothing() -> None:
    seen = view(noisy(100), tokens=of_rank(noisy(4096), 3, 1.4))
    assert stragglers(seen) == []
    assert imbalances(seen) == []


def test_growth_of_work_is_dated() -> None:
    seen = view(of_rank(noisy(100, 80), 3, 1.3, 30), exchanged=of_rank(noisy(1e6, 80), 3, 1.4, 30))
    (finding,) = imbalances(seen)
    assert (finding.since_step, finding.since_range) == (30, (30, 30))


def test_few_known_steps_are_enough() -> None:
    seen = view(of_rank(noisy(100, 6), 3, 1.3), exchanged=of_rank(noisy(1e6, 6), 3, 1.4))
    assert [finding.ranks for finding in imbalances(seen)] == [(3,)]
    seen = view(of_rank(noisy(100, 5), 3, 1.3), exchanged=of_rank(noisy(1e6, 5), 3, 1.4))
    assert imbalances(seen) == []


def test_it_passes_once_its_work_takes_no_longer() -> None:
    (finding,) = imbalances(view(of_rank(noisy(100), 3, 1.3), exchanged=of_rank(noisy(1e6), 3, 1.4)))
    still = view(of_rank(noisy(100, 40), 3, 1.3), exchanged=of_rank(noisy(1e6), 3, 1.4))
    over = view(noisy(100), exchanged=noisy(1e6))
    assert not IMBALANCE.has_passed(still, finding, ())
    assert IMBALANCE.has_passed(over, finding, ())


def test_rank_that_only_its_bytes_set_apart_is_compared_with_the_others() -> None:
    usual = Signature((("all_to_all", 8, 1_000_000), ("all_reduce", 8, 500_000)))
    hot = Signature((("all_to_all", 8, 1_400_000), ("all_reduce", 8, 500_000)))
    signatures = {rank: hot if rank == 3 else usual for rank in range(RANKS)}
    groups = find_peer_groups(
        tuple(range(RANKS)), signatures, coarsen=Signature.coarsen, measure_apart=Signature.without_exchanges
    )
    assert groups.ranks_without_peers == (3,)
    assert groups.alike == (tuple(range(RANKS)),)


def test_ranks_with_other_collectives_are_not_alike() -> None:
    usual = Signature((("all_to_all", 8, 1_000_000), ("all_reduce", 8, 500_000)))
    other = Signature((("all_reduce", 8, 500_000),))
    signatures = {rank: other if rank == 3 else usual for rank in range(RANKS)}
    groups = find_peer_groups(
        tuple(range(RANKS)), signatures, coarsen=Signature.coarsen, measure_apart=Signature.without_exchanges
    )
    assert groups.alike == ()
