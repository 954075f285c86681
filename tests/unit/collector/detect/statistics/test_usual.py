"""Ranks with too few peers: held to what is usual for them beside ranks that do other work. Noise is seeded."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.statistics.excess import find_usual
from rankscope.collector.detect.stragglers.detector import Stragglers, read_usual
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import series_of, view_of

WORK = np.repeat([80.0, 100.0, 100.0, 140.0], 2)
"""Ranks of which no two do the same work, in ms a step."""
STAGES = {rank: rank for rank in range(8)}
DETECTOR = Stragglers(Thresholds())


def times(steps: int = 160, seed: int = 1) -> Floats:
    return WORK * np.exp(np.random.default_rng(seed).normal(0.0, 0.02, (steps, 8)))


def view(own_ms: Floats, known: dict[int, float] | None = None) -> RunView:
    return view_of(series_of(own_ms.tolist()), signatures=STAGES, known_usual=known)


def findings(own_ms: Floats, known: dict[int, float] | None = None) -> list[Finding]:
    found = DETECTOR.find(view(own_ms, known), ())
    assert not isinstance(found, Abstain)
    return [candidate.finding for candidate in found]


@pytest.mark.parametrize("seed", range(10))
def test_other_work_is_no_slowness(seed: int) -> None:
    assert findings(times(seed=seed)) == []


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_rank_slower_than_usual_is_named_with_the_usual_ratio(rank: int) -> None:
    own_ms = times()
    own_ms[100:, rank] *= 1.3
    (finding,) = findings(own_ms)
    assert (finding.ranks, finding.since_step) == ((rank,), 100)
    assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.03)
    assert finding.what == "than usual, compared with the other 7 ranks (none known to do the same work)"
    assert read_usual([finding]) == {rank: pytest.approx(np.log(WORK[rank] / 100.0), abs=0.02)}


def test_what_was_usual_is_kept_when_it_has_left_the_window() -> None:
    own_ms = times()
    own_ms[:, 7] *= 1.3
    assert findings(own_ms) == []
    (finding,) = findings(own_ms, known={7: float(np.log(1.4))})
    assert finding.ranks == (7,)
    assert finding.slowdown_ratio == pytest.approx(1.3, rel=0.03)


def test_intermittent_rank_without_peers_is_found() -> None:
    own_ms = times(steps=200)
    own_ms[60::5, 7] *= 1.6
    assert [(finding.ranks, finding.pattern) for finding in findings(own_ms)] == [((7,), "intermittent")]


def test_usual_is_the_level_before_the_last_change() -> None:
    series = series_of([[100.0, 100.0]] * 80)
    levels = np.repeat([0.1, 0.4], [50, 30])
    excess = np.stack([levels, np.full(80, np.nan)], axis=1)
    usual = find_usual(excess, series, find_peer_groups((0, 1), {0: "a", 1: "b"}), {}, 12)
    assert usual.tolist() == pytest.approx([0.1, 0.0])


def test_first_few_steps_do_not_say_what_is_usual() -> None:
    # A training that warms up: 8 steps with another ratio are fewer than a verdict takes.
    own_ms = times(steps=60)
    own_ms[:8, 7] /= 1.1
    assert findings(own_ms) == []
    own_ms[:12, 7] = times(steps=60)[:12, 7] / 1.1
    (finding,) = findings(own_ms)
    assert (finding.ranks, finding.since_step) == ((7,), 12)
