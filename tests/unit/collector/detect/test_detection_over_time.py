"""Detection as an engineer on call sees it: a pass every few steps, over a whole run. Noise is seeded.

Measured over 200 such healthy runs of 8 ranks and 300 steps: findings in 1 % of the runs where 10 % of noise wanders
slowly (correlation 0.9), in none with any of the other kinds of noise.
"""

import math
from collections.abc import Iterator

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.persistent import SlowRank, Thresholds, find_stragglers
from rankscope.collector.runs.events import AskClock, AskSamples, CloseFinding, FindingOpened
from rankscope.collector.steps.step_series import Floats, StepSeries
from tests.unit.collector.runs.run_stories import Story
from tests.unit.collector.steps.step_series import MS, view_of

KEPT = 256
RANKS = 8
STEP_NS = 100.0 * MS
TICK_STEPS = 10


def white(random: np.random.Generator, steps: int, ratio: float) -> Floats:
    """The logarithm of noise of so much, no step like the one before."""
    return random.normal(0.0, ratio, (steps, RANKS))


def wandering(random: np.random.Generator, steps: int, ratio: float, correlation: float) -> Floats:
    """Noise in which each step takes over so much of the one before."""
    fresh, values = white(random, steps, ratio), np.zeros((steps, RANKS))
    for step in range(1, steps):
        values[step] = correlation * values[step - 1] + math.sqrt(1 - correlation**2) * fresh[step]
    return values


def stalling(random: np.random.Generator, steps: int) -> Floats:
    """Three steps in a hundred take ten times as long."""
    return white(random, steps, 0.05) + math.log(10) * (random.random((steps, RANKS)) < 0.03)


def bursting(random: np.random.Generator, steps: int) -> Floats:
    """Every hundred steps each rank takes three times as long for eight."""
    values = white(random, steps, 0.05)
    for rank, begin in enumerate(random.integers(0, 92, RANKS)):
        for step in range(int(begin), steps, 100):
            values[step : step + 8, rank] += math.log(3)
    return values


NOISES = {
    "2 %": lambda random: white(random, 300, 0.02),
    "10 %": lambda random: white(random, 300, 0.10),
    "30 %": lambda random: white(random, 300, 0.30),
    "10 % that wanders": lambda random: wandering(random, 300, 0.10, 0.5),
    "10 % that wanders slowly": lambda random: wandering(random, 300, 0.10, 0.9),
    "30 % that wanders": lambda random: wandering(random, 300, 0.30, 0.8),
    "stalls": lambda random: stalling(random, 300),
    "bursts": lambda random: bursting(random, 300),
}


def verdicts(log_times: Floats, every: int = TICK_STEPS) -> Iterator[tuple[int, tuple[SlowRank, ...]]]:
    """Return which ranks are named after so many steps, judged over the last KEPT of them."""
    everybody = tuple(range(log_times.shape[1]))
    for end in range(every, len(log_times) + 1, every):
        own_ns = STEP_NS * np.exp(log_times[max(0, end - KEPT) : end])
        steps = np.arange(end - len(own_ns), end)
        series = StepSeries(steps, everybody, own_ns, own_ns, own_ns, {}, own_is_measured=True)
        verdict = find_stragglers(view_of(series), Thresholds())
        yield end, () if isinstance(verdict, Abstain) else verdict


def steady(steps: int, seed: int = 1) -> Floats:
    return white(np.random.default_rng(seed), steps, 0.05)


# -- healthy ranks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", NOISES)
def test_healthy_ranks_are_never_named(kind: str, seed: int) -> None:
    assert [end for end, named in verdicts(NOISES[kind](np.random.default_rng(seed))) if named] == []


@pytest.mark.parametrize("seed", [30, 38, 39])
def test_noise_of_peers_counts_when_a_rank_is_quiet_by_chance(seed: int) -> None:
    # By its own noise alone some rank of these runs would be named; the noise of its seven peers prevents it.
    noise = wandering(np.random.default_rng(seed), 300, 0.10, 0.9)
    assert [end for end, named in verdicts(noise) if named] == []


@pytest.mark.parametrize("seed", range(5))
def test_few_quiet_steps_by_chance_name_no_rank(seed: int) -> None:
    # The first verdicts of a run use 12 steps: of 30 % noise their median is off by 11 % often enough.
    noise = white(np.random.default_rng(seed), 40, 0.30)
    assert [end for end, named in verdicts(noise, every=1) if named] == []


# -- a slow rank ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ratio", [1.3, 2.0])
def test_slow_rank_is_named_soon_with_the_step(ratio: float, seed: int) -> None:
    times = steady(300, seed)
    times[150:, 5] += math.log(ratio)
    end, (slow,) = next((end, named) for end, named in verdicts(times) if named)
    assert (slow.rank, slow.change_is_seen) == (5, True)
    assert end <= 180
    assert abs(slow.since_step - 150) <= 2


def test_recovered_rank_is_not_named_again() -> None:
    times = steady(200)
    times[60:140, 5] += math.log(2)
    named_at = [end for end, named in verdicts(times, every=1) if named]
    # From the twelfth slow step, or soon after, until the last two or three steps are clearly healthy again: nobody has
    # kept it here as found, which it would stay until twelve are.
    assert 72 <= named_at[0] <= 75
    assert 140 <= named_at[-1] <= 143
    assert named_at == list(range(named_at[0], named_at[-1] + 1))


def test_slow_rank_becoming_slower_is_slow_since_it_first_was() -> None:
    times = steady(240)
    times[80:160, 5] += math.log(1.3)
    times[160:, 5] += math.log(2.0)
    *_, (_, (slow,)) = verdicts(times)
    assert (slow.since_step, slow.level_from_step, slow.change_is_seen) == (80, 160, True)
    assert slow.slowdown_ratio == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("steps", [3, 5, 8, 11])
def test_rank_slowed_twice_in_few_steps_is_slow_since_the_first(steps: int, seed: int) -> None:
    # The first level lasts for fewer steps than a verdict takes: that is enough to date its begin.
    times = steady(84, seed)
    times[40:, 5] += math.log(3.0)
    times[40 + steps :, 5] += math.log(1.5)
    *_, (_, (slow,)) = verdicts(times)
    assert (slow.level_from_step, slow.change_is_seen) == (40 + steps, True)
    assert abs(slow.since_step - 40) <= 2


def test_small_change_of_a_slow_rank_is_not_its_begin() -> None:
    times = steady(600)
    times[100:, 5] += math.log(2)
    times[450:, 5] += math.log(1.1)
    # A begin that has left the step table is unknown, and no later step replaces it.
    last = [named[0] for end, named in verdicts(times) if end > 100 + KEPT]
    assert {slow.change_is_seen for slow in last} == {False}


def test_spells_of_health_end_the_search_for_the_beginning() -> None:
    times = steady(200)
    times[20:80, 5] += math.log(2)
    times[140:, 5] += math.log(2)
    *_, (_, (slow,)) = verdicts(times)
    assert (slow.since_step, slow.change_is_seen) == (140, True)


# -- many ranks -------------------------------------------------------------------------------------------------------


def test_rank_without_peers_has_no_excess() -> None:
    one = np.full((20, 1), STEP_NS)
    series = StepSeries(np.arange(20), (0,), one, one, one, {}, own_is_measured=True)
    assert np.isnan(view_of(series).excess).all()


# -- as stories of a run ----------------------------------------------------------------------------------------------


def findings_told(story: Story) -> list[type]:
    return [type(effect) for effect in story.effects if not isinstance(effect, AskClock | AskSamples)]


def test_closed_finding_does_not_reopen_from_kept_steps() -> None:
    story = Story(4).join().train(40).train(80, data={2: 50.0})
    for _ in range(70):  # as many healthy steps as had opened it, at most 64
        story.train(1)
    assert findings_told(story) == [FindingOpened, CloseFinding]
    assert [found.since_step for found in story.snapshot().findings] == [40]


def test_finding_keeps_its_begin_while_the_rank_becomes_slower() -> None:
    story = Story(4).join().train(40).train(60, data={2: 50.0}).train(40, data={2: 150.0})
    (finding,) = story.snapshot().open_findings
    assert (finding.since_step, finding.cause) == (40, "data_loading")
    # At its present level: 150 + 10 + 10 ms of work and 5 ms of transfer against 35 ms.
    assert finding.slowdown_ratio == pytest.approx(175 / 35)
    assert finding.evidence["data_excess_ns"] == 140 * MS


def test_finding_keeps_a_begin_that_left_the_step_table() -> None:
    story = Story(4).join().train(40).train(40, data={2: 50.0})
    for _ in range(3):
        story.train(100, data={2: 50.0})
    story.train(60, data={2: 55.0})
    assert [found.since_step for found in story.snapshot().open_findings] == [40]
    assert findings_told(story) == [FindingOpened]


def test_rank_that_is_slow_again_is_named_as_soon_as_at_first() -> None:
    times = steady(300)
    times[80:160, 5] += math.log(1.6)
    times[220:, 5] += math.log(1.3)
    # Its noise is measured about its three levels: as one it would be that of the change.
    named_at = [end for end, named in verdicts(times, every=1) if named and end > 180]
    assert 232 <= named_at[0] <= 236
