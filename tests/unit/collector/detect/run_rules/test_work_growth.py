"""Steps with as many tokens as at present, on counts written down by hand."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.run_rules.work_growth import (
    find_compared,
    find_growth_since,
    find_present_tokens,
    keep_alike,
)
from rankscope.collector.detect.stragglers.regression_cause import Compared
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of

SINCE = 40
LARGE = [1000.0] * 20 + [1500.0] * 40
"""Tokens of a rank in 60 steps, of which the last 40 have 1.5 times as many."""


def look_at(tokens: list[float]) -> RunView:
    """A run of two ranks, of which the second has twice as many tokens."""
    series = series_of(np.full((len(tokens), 2), 100.0).tolist())
    return view_of(dataclasses.replace(series, tokens=np.outer(tokens, [1.0, 2.0])))


def compared(tokens: list[float]) -> Compared:
    return find_compared(look_at(tokens), (0, 1), SINCE, SINCE)


def alike(tokens: list[float]) -> list[int]:
    times_ns: Floats = np.ones(len(tokens))
    return np.flatnonzero(~np.isnan(keep_alike(look_at(tokens), times_ns))).tolist()


def test_steps_with_as_many_tokens_are_the_past_of_a_change() -> None:
    assert compared(LARGE) == Compared(SINCE, from_step=20)
    assert compared([1000.0] * 28 + [1500.0] * 32) == Compared(SINCE, from_step=28)


def test_few_steps_with_as_many_tokens_are_no_past() -> None:
    assert compared([1000.0] * 29 + [1500.0] * 31) == Compared(SINCE, more_work=1.5)
    assert compared([1000.0] * SINCE + [1500.0] * 20) == Compared(SINCE, more_work=1.5)


@pytest.mark.parametrize(
    "tokens",
    [
        [1000.0] * 60,
        [1000.0] * SINCE + [1020.0] * 20,
        [1500.0] * SINCE + [1000.0] * 20,
        [UNKNOWN] * 60,
        [UNKNOWN] * SINCE + [1500.0] * 20,
        [0.0] * SINCE + [1500.0] * 20,
        [1000.0] * SINCE + [UNKNOWN] * 20,
    ],
)
def test_as_many_or_fewer_or_unknown_tokens_are_equal_work(tokens: list[float]) -> None:
    assert compared(tokens) == Compared(SINCE)


@pytest.mark.parametrize("spread", [0.1, 0.2, 0.4])
def test_batches_of_varying_lengths_do_not_grow_by_chance(spread: float) -> None:
    # The bound is two standard errors of the difference: one in 44 exceeds it by chance, and then by little.
    by_chance = []
    for seed in range(400):
        tokens = 1000.0 * np.maximum(0.1, 1.0 + spread * np.random.default_rng(seed).standard_normal(60))
        by_chance.append(compared(tokens.tolist()) != Compared(SINCE))
    assert np.mean(by_chance) < 0.05


def test_varying_batches_that_grow_by_much_are_more_work() -> None:
    tokens = 1000.0 * (1.0 + 0.1 * np.random.default_rng(7).standard_normal(60))
    tokens[SINCE:] *= 1.5
    assert compared(tokens.tolist()).more_work == pytest.approx(1.5, rel=0.1)


def test_tokens_of_one_step_or_mostly_of_none_do_not_vary() -> None:
    finding = remember(Finding(kind="run_slowdown", cause="unattributed"), FindingMemory(tokens=750.0))
    assert find_growth_since(look_at([0.0] * 40 + [1500.0] * 20), finding) == 3.0  # the mean of both is 1.5 times that
    assert find_growth_since(look_at([1000.0]), finding) == 2.0


def test_short_last_batch_of_an_epoch_ends_no_level_of_tokens() -> None:
    tokens = list(LARGE)
    tokens[30] = tokens[31] = tokens[50] = 300.0
    assert alike(tokens) == [step for step in range(20, 60) if step not in (30, 31, 50)]
    assert compared(tokens) == Compared(SINCE, from_step=20)
    tokens[32] = 300.0
    assert alike(tokens) == [step for step in range(33, 60) if step != 50]


def test_all_steps_are_kept_if_equal_tokens_are_few_or_unknown() -> None:
    assert len(alike([1000.0] * 37 + [1500.0] * 23)) == 60
    assert len(alike([1000.0] * 36 + [1500.0] * 24)) == 24
    assert len(alike([UNKNOWN] * 40 + [1500.0] * 20)) == 60
    without = dataclasses.replace(look_at(LARGE), series=series_of(np.full((60, 2), 100.0).tolist()))
    assert not np.isnan(keep_alike(without, np.ones(60))).any()


def test_growth_since_a_finding_is_that_of_its_ranks() -> None:
    finding = remember(Finding(kind="run_slowdown", cause="unattributed"), FindingMemory(tokens=1500.0))
    of_first = remember(Finding(kind="stage_slowdown", ranks=(0, 7), cause=""), FindingMemory(tokens=1200.0))
    unknown = Finding(kind="run_slowdown", cause="unattributed", sentence="")
    # The mean of both ranks is 1.5 times as much as the first has.
    assert find_present_tokens(look_at(LARGE), ()) == 2250.0
    assert find_growth_since(look_at(LARGE), finding) == 1.5
    assert find_growth_since(look_at(LARGE), of_first) == 1.25
    assert find_growth_since(look_at([1000.0] * 60), finding) == 1.0
    assert find_growth_since(look_at([500.0] * 60), finding) == 1.0
    assert find_growth_since(look_at([UNKNOWN] * 60), finding) == 1.0
    assert find_growth_since(look_at(LARGE), unknown) == 1.0
