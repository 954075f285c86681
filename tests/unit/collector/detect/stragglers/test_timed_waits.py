"""What a slow rank and its peers waited in collectives that were timed between windows."""

import dataclasses

import numpy as np

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.witness import TimedWaits, is_contradicted, read_timed_waits
from rankscope.collector.detect.view import Candidate
from rankscope.collector.steps.step_series import StepSeries
from tests.unit.collector.steps.step_series import MS, series_of, slow_of, view_of

SLOW = slow_of(2, (0, 1, 3), own_ms=75.0, peers_ms=35.0, level_from_step=5)


def series_with(*waits_ms: tuple[float, float, float, float], first_row: int = 5) -> StepSeries:
    """Ten steps, in which the waits of the four ranks are known from `first_row` on."""
    waits_ns = {first_row + row: np.array(one) * MS for row, one in enumerate(waits_ms)}
    series = series_of([[35.0, 35.0, 75.0, 35.0]] * 10, own_is_measured=False)
    return dataclasses.replace(series, is_by_device=True, timed_waits_ns=waits_ns)


def test_waits_are_medians_over_the_slow_steps() -> None:
    waits = read_timed_waits(SLOW, series_with((40, 41, 1, 90), (42, 43, 3, 44), (60, 61, 8, 62)))
    # The median of the peers is 41, 43, 61 in these steps.
    assert waits == TimedWaits(steps=3, own_ns=3 * MS, peers_ns=43 * MS)
    assert waits.evidence == {"timed_wait_ns": 3 * MS, "peers_timed_wait_ns": 43 * MS, "timed_wait_steps": 3.0}


def test_steps_before_the_level_do_not_count() -> None:
    assert read_timed_waits(SLOW, series_with((40, 40, 1, 40), first_row=4)) is None


def test_nothing_is_known_without_timed_collectives_or_peers() -> None:
    assert read_timed_waits(SLOW, series_with()) is None
    alone = SLOW._replace(peers=SLOW.peers._replace(ranks=()))
    assert read_timed_waits(alone, series_with((40, 40, 1, 40))) is None
    assert not is_contradicted(SLOW, series_with())


def test_rank_waiting_as_long_as_its_peers_is_not_awaited() -> None:
    assert is_contradicted(SLOW, series_with((10, 10, 10, 10)))
    assert not is_contradicted(SLOW, series_with((10, 10, 9, 10)))


def find(*waits_ms: tuple[float, float, float, float]) -> list[Candidate]:
    own_ms = 100.0 * np.exp(np.random.default_rng(1).normal(0.0, 0.02, (120, 4)))
    own_ms[60:, 2] *= 1.5
    series = series_of(own_ms.tolist(), own_is_measured=False)
    waits_ns = {60 + row: np.array(one) * MS for row, one in enumerate(waits_ms)}
    view = view_of(dataclasses.replace(series, is_by_device=True, timed_waits_ns=waits_ns))
    found = Stragglers(Thresholds()).find(view, ())
    assert not isinstance(found, Abstain)
    return list(found)


def test_slow_rank_that_others_wait_for_has_both_numbers() -> None:
    ((finding, _),) = find((50, 50, 0, 50))
    assert finding.ranks == (2,)
    assert (finding.evidence["timed_wait_ns"], finding.evidence["peers_timed_wait_ns"]) == (0, 50 * MS)
    assert "Waits in the collectives that torch timed: rank 2 0 ns per step, its peers 50.0 ms." in finding.sentence


def test_slow_rank_that_itself_waits_is_not_named() -> None:
    assert find((50, 50, 50, 50)) == []
