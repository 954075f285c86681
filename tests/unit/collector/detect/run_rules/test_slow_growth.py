"""Growth over thousands of steps, in noise from a seeded generator: what is told, since when, and what is not."""

import dataclasses
import math

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding, close_finding
from rankscope.collector.detect.run_rules.regressions import RunSlowdown
from rankscope.collector.detect.run_rules.slow_growth import find_slow_growth
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_levels import StepLevels
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of

THRESHOLDS = Thresholds()
RUN = RunSlowdown(THRESHOLDS)
KEPT = 256
BEGIN = 500


def noise(steps: int, deviation: float, seed: int = 1, correlation: float = 0.0) -> Floats:
    fresh = np.random.default_rng(seed).normal(0.0, deviation * math.sqrt(1 - correlation**2), steps)
    for step in range(1, steps if correlation else 0):
        fresh[step] += correlation * fresh[step - 1]
    return np.exp(fresh)


def doubling(over: int, steps: int) -> Floats:
    """Steps of 100 ms that grow to 200 over so many steps from BEGIN on."""
    return 100.0 * np.clip(1 + (np.arange(steps) - BEGIN) / over, 1.0, 2.0)


def view_at(step_ms: Floats, end: int, tokens: Floats | None = None) -> RunView:
    """The view after `end` steps, the last 256 of which are kept; levels are of all up to 32 steps ago."""
    levels, known = StepLevels(), end - 32
    step_tokens = np.full(known, np.nan) if tokens is None else tokens[:known]
    levels.add(np.arange(known), step_ms[:known] * 1e6, step_tokens)
    rows = slice(end - KEPT, end)
    of_ranks = None if tokens is None else np.repeat(tokens[rows, np.newaxis], 4, axis=1).tolist()
    times_ms = np.repeat(step_ms[rows, np.newaxis], 4, axis=1).tolist()
    series = series_of(times_ms, first_step=end - KEPT, tokens=of_ranks)
    return dataclasses.replace(view_of(series), levels=levels.read())


def first_found(step_ms: Floats, tokens: Floats | None = None) -> tuple[int, Finding] | None:
    for end in range(KEPT, len(step_ms) + 1, 128):
        for candidate in RUN.find(view_at(step_ms, end, tokens), ()):  # type: ignore[union-attr]
            return end, candidate.finding
    return None


@pytest.mark.parametrize(("over", "deviation"), [(3_000, 0.02), (3_000, 0.1), (10_000, 0.02), (10_000, 0.1)])
def test_growth_over_thousands_of_steps_has_its_begins_range(over: int, deviation: float) -> None:
    steps = BEGIN + over // 2
    found = first_found(doubling(over, steps) * noise(steps, deviation))
    assert found is not None
    end, finding = found
    assert (finding.kind, finding.pattern, finding.ranks) == ("run_slowdown", "drifting", ())
    assert finding.since_range is not None
    earliest, latest = finding.since_range
    assert earliest <= BEGIN <= latest < end
    assert finding.evidence["before_ns"] == pytest.approx(100e6, rel=0.03)
    # The last 64 steps are 32 back in the middle.
    assert finding.slowdown_ratio == pytest.approx(1 + (end - 32 - BEGIN) / over, rel=0.04)
    since = f"about step {finding.since_step} ({earliest}-{latest})"
    assert f"slower than before and getting slower since {since}" in finding.headline
    assert "; began at " in close_finding(finding, until_step=6_000, lasted_s=9.0).headline


def test_found_growth_keeps_its_level_before_and_its_range() -> None:
    step_ms = doubling(10_000, 6_000) * noise(6_000, 0.02)
    found = first_found(step_ms)
    assert found is not None
    (later,) = RUN.find(view_at(step_ms, 5_500), [found[1]])  # type: ignore[misc]
    assert later.finding.evidence["before_ns"] == found[1].evidence["before_ns"]
    assert later.finding.since_range == found[1].since_range
    assert later.finding.slowdown_ratio == pytest.approx(1.5, rel=0.03)
    assert later.finding.why == "steps before it no longer kept when found"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("deviation", "correlation"), [(0.02, 0.0), (0.1, 0.0), (0.25, 0.0), (0.05, 0.9), (0.015, 0.99)]
)
def test_noise_is_no_growth(deviation: float, correlation: float, seed: int) -> None:
    assert first_found(100.0 * noise(3_000, deviation, seed, correlation)) is None


def test_warm_up_that_becomes_faster_is_no_growth() -> None:
    assert first_found(100.0 * (1 + np.exp(-np.arange(3_000) / 300)) * noise(3_000, 0.05)) is None


def test_growth_after_a_slow_warm_up_is_told() -> None:
    steps = 5_000
    warm_up = 1 + np.exp(-np.arange(steps) / 60)
    found = first_found(doubling(6_000, steps) * warm_up * noise(steps, 0.02))
    assert found is not None
    assert found[1].evidence["before_ns"] == pytest.approx(100e6, rel=0.03)


def test_more_tokens_in_each_step_are_no_growth() -> None:
    steps = 6_000
    tokens = np.round(10.0 * doubling(6_000, steps))
    step_ms = tokens / 10.0 * noise(steps, 0.02)
    assert first_found(step_ms, tokens) is None
    assert first_found(step_ms) is not None
    assert first_found(step_ms, np.zeros(steps)) is not None


def test_growth_beyond_more_tokens_is_stated_for_each_token() -> None:
    steps = BEGIN + 1_000
    tokens = np.round(1_000.0 * doubling(1_000, steps))
    view = view_at(tokens / 100_000.0 * doubling(1_000, steps) * noise(steps, 0.02), steps, tokens)
    (candidate,) = RUN.find(view, ())  # type: ignore[misc]
    finding = candidate.finding
    # Twice the tokens, and each takes twice as long; the last steps are a little before.
    assert finding.slowdown_ratio == pytest.approx(2.0, rel=0.05)
    assert finding.evidence["more_tokens_ratio"] == pytest.approx(2.0, rel=0.05)
    assert "for each token" in finding.headline


@pytest.mark.parametrize("over", [400, 1_000])
def test_tokens_that_grow_within_the_kept_steps_are_no_growth(over: int) -> None:
    steps = BEGIN + over
    tokens = np.round(1_000.0 * doubling(over, steps))
    step_ms = tokens / 1_000.0 * noise(steps, 0.02)
    ends = range(KEPT, steps + 1, 32)
    assert [end for end in ends if RUN.find(view_at(step_ms, end, tokens), ())] == []
    # Where the tokens of the last steps are not known, nothing excuses them.
    view = view_at(step_ms, steps, tokens)
    unknown = dataclasses.replace(view.series, tokens=np.full((KEPT, 4), np.nan))
    assert RUN.find(dataclasses.replace(view, series=unknown), ()) != []


def test_what_is_over_or_not_known_is_no_growth() -> None:
    step_ms = doubling(1_500, 4_000) * noise(4_000, 0.02)
    step_ms[3_000:] /= 2
    assert find_slow_growth(view_at(step_ms, 4_000), step_ms[-KEPT:] * 1e6, THRESHOLDS) is None
    grown = view_at(step_ms, 3_000)
    assert find_slow_growth(grown, step_ms[3_000 - KEPT : 3_000] * 1e6, THRESHOLDS) is not None
    assert find_slow_growth(grown, np.full(KEPT, UNKNOWN), THRESHOLDS) is None
    # Two of the last four blocks are short again, though the last steps are long: it does not last.
    step_ms[2_850:2_930] /= 2
    assert find_slow_growth(view_at(step_ms, 3_000), step_ms[3_000 - KEPT : 3_000] * 1e6, THRESHOLDS) is None


def test_old_jump_in_one_step_begins_after_the_last_short_block() -> None:
    step_ms = np.where(np.arange(3_000) < 1_000, 100.0, 120.0) * noise(3_000, 0.02)
    growth = find_slow_growth(view_at(step_ms, 3_000), step_ms[-KEPT:] * 1e6, THRESHOLDS)
    assert growth is not None
    assert growth.since_step in range(992, 1_025)  # of blocks of 32 steps the one from step 992 on is mixed
