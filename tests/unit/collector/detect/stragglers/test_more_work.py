"""More work of one rank, by its tokens or bytes in all-to-alls. Eight ranks, own times of 100 ms, seeded noise."""

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.collector.detect.detectors import detect
from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.more_work import MoreWork
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.workload_signature import Signature
from tests.unit.collector.steps.step_series import MS, series_of, view_of

RANKS = 8
MORE_WORK = MoreWork(Thresholds())
DETECTORS = (MORE_WORK, Stragglers(Thresholds()))
SINCE = 40


def noisy(usual: float, steps: int = 80, spread: float = 0.01) -> Floats:
    return usual * np.exp(np.random.default_rng(3).normal(0.0, spread, (steps, RANKS)))


def of_rank(values: Floats, rank: int, ratio: float, since: int = 0) -> Floats:
    more = values.copy()
    more[since:, rank] *= ratio
    return more


def view(
    self_ms: Floats,
    *,
    tokens: Floats | None = None,
    exchanged: Floats | None = None,
    signatures: dict[int, str] | None = None,
) -> RunView:
    series = series_of(
        self_ms.tolist(),
        tokens=None if tokens is None else tokens.tolist(),
        exchanged_bytes=None if exchanged is None else exchanged.tolist(),
    )
    return view_of(series, signatures=signatures)


def found_in(of: RunView) -> dict[str, list[tuple[int, ...]]]:
    """Return the ranks that each kind of finding names, as the detectors of a pass find them."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for result in detect(of, DETECTORS).results:
        for candidate in result.candidates:
            found.setdefault(candidate.finding.kind, []).append(candidate.finding.ranks)
    return found


def more_work(of: RunView, explained: Sequence[Finding] = ()) -> list[Finding]:
    found = MORE_WORK.find(of, explained)
    assert not isinstance(found, Abstain)
    return [one.finding for one in found]


@pytest.mark.parametrize("what", ["tokens", "exchanged"])
def test_rank_with_more_work_is_no_straggler(what: str) -> None:
    more = of_rank(noisy(4096, spread=0.1), 3, 1.4)
    seen = view(of_rank(noisy(100), 3, 1.3), tokens=more if what == "tokens" else None, exchanged=more)
    assert found_in(seen) == {"more_work": [(3,)]}
    (finding,) = more_work(seen)
    assert (finding.cause, finding.severity) == ("more_work", "warning")
    assert finding.evidence["more_work_ratio"] == pytest.approx(1.4, rel=0.1)
    # 130 ms against a mean of (7 x 100 + 130) / 8 = 103.75 ms.
    assert finding.slowdown_ratio == pytest.approx(130 / 103.75, rel=0.02)
    assert finding.run_slowdown_ratio == pytest.approx(130 / 103.75, rel=0.02)


@pytest.mark.parametrize(
    ("time", "work"),
    [(1.6, 1.1), (1.3, 1.0)],
    ids=["a tenth more tokens explain a tenth of 60 %", "as much work"],
)
def test_rank_slower_than_its_work_explains_is_a_straggler(time: float, work: float) -> None:
    assert found_in(view(of_rank(noisy(100), 3, time), tokens=of_rank(noisy(4096), 3, work))) == {"straggler": [(3,)]}


def test_more_tokens_that_take_no_longer_are_nothing() -> None:
    assert found_in(view(noisy(100), tokens=of_rank(noisy(4096), 3, 1.4))) == {}


def test_later_slowness_is_not_excused_by_more_work_in_all_steps() -> None:
    # 1.35 times the tokens take 1.15 times as long; from step 40 on a slow clock makes it 1.5 times.
    self_ms = of_rank(of_rank(noisy(100), 3, 1.15), 3, 1.5 / 1.15, SINCE)
    assert found_in(view(self_ms, tokens=of_rank(noisy(4096), 3, 1.35))) == {"straggler": [(3,)]}


def test_growth_of_work_is_dated() -> None:
    seen = view(of_rank(noisy(100), 3, 1.3, SINCE), exchanged=of_rank(noisy(1e6), 3, 1.4, SINCE))
    (finding,) = more_work(seen)
    assert (finding.since_step, finding.since_range) == (SINCE, (SINCE, SINCE))


def test_begin_of_an_open_finding_stays() -> None:
    seen = view(of_rank(noisy(100), 3, 1.3), exchanged=of_rank(noisy(1e6), 3, 1.4))
    earlier = Finding(kind="more_work", ranks=(3,), since_step=17, since_step_max=17, cause="more_work")
    (finding,) = more_work(seen, [earlier])
    assert finding.since_step == 17


@pytest.mark.parametrize(("steps", "count"), [(5, 0), (6, 1)])
def test_few_known_steps_are_enough(steps: int, count: int) -> None:
    seen = view(of_rank(noisy(100, steps), 3, 1.3), exchanged=of_rank(noisy(1e6, steps), 3, 1.4))
    few = "5 of 6 comparable steps: those with the own times of all 8 ranks"
    assert MORE_WORK.find(seen, ()) == Abstain(few) if not count else len(more_work(seen)) == count


@pytest.mark.parametrize(
    ("time", "work", "has_passed"),
    [(1.3, 1.4, False), (1.0, 1.4, True), (1.3, 1.0, True), (1.3, 1.12, False)],
    ids=["as before", "it takes no longer", "the work is gone", "less explains one that was told"],
)
def test_it_passes_once_the_work_no_longer_explains_it(time: float, work: float, has_passed: bool) -> None:
    (finding,) = more_work(view(of_rank(noisy(100), 3, 1.3), exchanged=of_rank(noisy(1e6), 3, 1.4)))
    now = view(of_rank(noisy(100), 3, time), exchanged=of_rank(noisy(1e6), 3, work))
    is_found = bool(more_work(now, [finding]))
    assert (not is_found and MORE_WORK.has_passed(now, finding, ())) == has_passed


def test_each_step_is_charged_to_the_rank_with_the_most_work() -> None:
    self_ms = of_rank(of_rank(noisy(100, spread=0.001), 3, 1.4), 5, 1.38)
    tokens = of_rank(of_rank(noisy(4096), 3, 1.4), 5, 1.38)
    found = MORE_WORK.find(view(self_ms, tokens=tokens), ())
    assert not isinstance(found, Abstain)
    lost = [float(np.nansum(one.lost_ns)) for one in found]  # type: ignore[arg-type]
    # (140 - (6 x 100 + 140 + 138) / 8) ms in each of 80 steps.
    assert [one.finding.ranks for one in found] == [(3,), (5,)]
    assert lost == [pytest.approx(80 * 30.25 * MS, rel=0.01), 0.0]


def test_rank_of_which_nothing_is_known_hides_no_other() -> None:
    self_ms = of_rank(noisy(100), 3, 1.3)
    self_ms[:, 7] = np.nan
    with np.errstate(all="raise"):
        (finding,) = more_work(view(self_ms, tokens=of_rank(noisy(4096), 3, 1.4)))
    assert (finding.ranks, finding.find_impossible()) == ((3,), "")


def test_tokens_of_one_stage_are_enough_for_its_ranks() -> None:
    stages = {rank: "ab"[rank // 4] for rank in range(RANKS)}
    tokens = of_rank(noisy(4096), 1, 1.4)
    tokens[:, 4:] = np.nan
    assert found_in(view(of_rank(noisy(100), 1, 1.3), tokens=tokens, signatures=stages)) == {"more_work": [(1,)]}


def find_alike(odd: Signature) -> tuple[tuple[int, ...], ...]:
    usual = Signature((("all_to_all", 8, 1_000_000), ("all_reduce", 8, 500_000)))
    signatures = {rank: odd if rank == 3 else usual for rank in range(RANKS)}
    groups = find_peer_groups(
        tuple(range(RANKS)), signatures, coarsen=Signature.coarsen, measure_apart=Signature.without_exchanges
    )
    assert groups.ranks_without_peers == (3,)
    return groups.alike


def test_rank_set_apart_by_its_bytes_only_is_compared() -> None:
    hot = Signature((("all_to_all", 8, 1_400_000), ("all_reduce", 8, 500_000)))
    assert find_alike(hot) == (tuple(range(RANKS)),)


def test_ranks_with_other_collectives_are_not_alike() -> None:
    assert find_alike(Signature((("all_reduce", 8, 500_000),))) == ()
