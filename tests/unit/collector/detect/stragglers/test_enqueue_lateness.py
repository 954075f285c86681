"""By how much later a slow rank enqueues its collectives than its peers, and what follows from it."""

import dataclasses

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.enqueue_lateness import (
    AHEAD,
    LATE,
    ON_TIME,
    STEPS_MIN,
    UNKNOWN,
    EnqueueLateness,
    read_enqueue_lateness,
)
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.stragglers.witness import TimedWaits, is_contradicted, read_witness
from rankscope.collector.detect.view import Candidate
from rankscope.collector.steps.step_series import EnqueueSeries, StepSeries
from tests.unit.collector.steps.step_series import MS, series_of, slow_of, view_of

SLOW = slow_of(2, (0, 1, 3), own_ms=75.0, peers_ms=35.0, level_from_step=5)
"""Slower by 40 ms."""
NAN = float("nan")
Row = tuple[float, float, float, float]


def enqueues_of(
    *late_ms: Row, first_step: int = 5, error_ms: Row = (0, 0, 0, 0), near_ms: float = 0, machines: str = "abcd"
) -> EnqueueSeries:
    """Steps from `first_step` on, with the lateness of the four ranks."""
    rows = np.array(late_ms, dtype=np.float32) * MS
    return EnqueueSeries(
        steps=np.arange(first_step, first_step + len(late_ms)),
        late_ns=rows,
        error_ns=np.broadcast_to(np.array(error_ms, dtype=np.float32) * MS, rows.shape),
        near_error_ns=np.full_like(rows, near_ms * MS),
        machine=np.array([ord(one) for one in machines]),
    )


def series_with(enqueues: EnqueueSeries | None, *, is_by_device: bool = True) -> StepSeries:
    series = series_of([[35.0, 35.0, 75.0, 35.0]] * 20, own_is_measured=False)
    return dataclasses.replace(series, is_by_device=is_by_device, enqueues=enqueues)


def read(enqueues: EnqueueSeries) -> EnqueueLateness:
    found = read_enqueue_lateness(SLOW, series_with(enqueues))
    assert found is not None
    return found


def test_lateness_is_over_the_median_peer_and_a_median_of_steps() -> None:
    # Against 1, 0, 2, 0, 4 ms of the median peer.
    found = read(enqueues_of((0, 1, 31, 9), (0, 0, 30, 9), (1, 2, 36, 3), (0, 0, 38, 0), (4, 4, 10, 4)))
    assert found == EnqueueLateness(steps=5, late_ns=30 * MS, error_ns=0, excess_ns=40 * MS, is_by_device=True)
    assert found.evidence == {"enqueue_late_ns": 30 * MS, "enqueue_error_ns": 0, "enqueue_steps": 5.0}


def test_error_is_of_the_ranks_own_clock_and_of_the_median_peers() -> None:
    found = read(enqueues_of(*[(0, 0, 30, 0)] * 4, error_ms=(1, 1, 2, 500)))
    # The worst clock of three does not move the median: two peers are within 1 + 2 ms.
    assert (found.late_ns, found.error_ns) == (30 * MS, 3 * MS)


def test_error_bounds_every_median_that_is_possible() -> None:
    # Against the peers 30, 25, 20: by 26 to 34, 20 to 30, 10 to 30; so the median is 20 to 30.
    found = read(enqueues_of(*[(0, 5, 30, 10)] * 4, error_ms=(1, 2, 3, 7)))
    assert (found.late_ns, found.error_ns) == (25 * MS, 5 * MS)


def test_ranks_of_one_machine_share_a_clock() -> None:
    found = read(enqueues_of(*[(0, 0, 30, 0)] * 4, error_ms=(5, 5, 5, 5), near_ms=0.5, machines="aaaa"))
    assert (found.late_ns, found.error_ns) == (30 * MS, 1 * MS)
    mixed = read(enqueues_of(*[(0, 0, 30, 0)] * 4, error_ms=(5, 5, 5, 5), near_ms=0.5, machines="abab"))
    assert mixed.error_ns == 10 * MS, "two of three peers are elsewhere"


def test_peers_that_are_not_known_do_not_count() -> None:
    assert read(enqueues_of(*[(NAN, 2, 30, NAN)] * 4)).late_ns == 28 * MS


@pytest.mark.parametrize(
    "enqueues",
    [
        None,
        enqueues_of(*[(0, 0, 30, 0)] * (STEPS_MIN - 1)),
        enqueues_of(*[(0, 0, 30, 0)] * STEPS_MIN, first_step=4),  # one is before the level
        enqueues_of(*[(0, 0, NAN, 0)] * STEPS_MIN),
        enqueues_of(*[(NAN, NAN, 30, NAN)] * STEPS_MIN),
    ],
)
def test_nothing_is_known_of_too_few_steps(enqueues: EnqueueSeries | None) -> None:
    assert read_enqueue_lateness(SLOW, series_with(enqueues)) is None
    assert not is_contradicted(SLOW, series_with(enqueues, is_by_device=False))


def test_rank_without_peers_is_not_compared() -> None:
    alone = SLOW._replace(peers=SLOW.peers._replace(ranks=()))
    assert read_enqueue_lateness(alone, series_with(enqueues_of(*[(0, 0, 30, 0)] * STEPS_MIN))) is None


def test_of_a_slowness_now_and_then_only_slow_steps_count() -> None:
    rows: list[Row] = [(0, 0, 30, 0), (0, 0, 0, 0)] * 6
    now_and_then = SLOW._replace(pattern="intermittent", slow_steps=np.arange(5, 17, 2))
    found = read_enqueue_lateness(now_and_then, series_with(enqueues_of(*rows)))
    assert found is not None
    assert (found.steps, found.late_ns) == (6, 30 * MS)


def test_steps_that_have_left_the_step_table_count() -> None:
    enqueues = enqueues_of(*[(0, 0, 30, 0)] * 10, first_step=100)
    assert read(enqueues).steps == 10


@pytest.mark.parametrize(
    ("late_ms", "error_ms", "verdict"),
    [
        (40, 1, LATE),
        (11, 10.5, LATE),
        (10, 0, LATE),
        (9.5, 0.6, LATE),  # it may be a quarter
        (9, 0.9, ON_TIME),
        (0, 9.9, ON_TIME),
        (-300, 1, ON_TIME),  # it is ahead of the others
        (0, 10, UNKNOWN),
        (12, 12, UNKNOWN),
        (300, 301, UNKNOWN),
        (81, 0.9, AHEAD),
        (80, 0, LATE),
        (81, 1, LATE),
    ],
)
def test_verdict_holds_lateness_to_what_the_rank_is_slower_by(late_ms: float, error_ms: float, verdict: str) -> None:
    found = EnqueueLateness(9, late_ms * MS, error_ms * MS, 40.0 * MS, is_by_device=False)
    assert found.verdict == verdict
    assert found.contradict is (verdict == ON_TIME)
    assert not found._replace(is_by_device=True).contradict, "the device may be slow"


def test_timed_collectives_come_first() -> None:
    series = series_with(enqueues_of(*[(0, 0, 30, 0)] * STEPS_MIN))
    timed = dataclasses.replace(series, timed_waits_ns={5: np.array([40, 40, 1, 40]) * MS})
    assert isinstance(read_witness(SLOW, series), EnqueueLateness)
    assert isinstance(read_witness(SLOW, timed), TimedWaits)


SAID = [
    (30, 0.5, "enqueues them up to 30.0 ms after its peers (clocks within 500.0 us)"),
    (-1, 0.5, "no later than its peers (clocks within 500.0 us): most of its slowness not its host's"),
    (300, 0.5, "up to 300.0 ms after its peers (clocks within 500.0 us): hosts ahead of their GPUs"),
    (3, 12, "whether rank 2 enqueues them late not known: clocks within 12.0 ms only"),
]


@pytest.mark.parametrize(("late_ms", "error_ms", "said"), SAID)
def test_lateness_and_error_are_stated(late_ms: float, error_ms: float, said: str) -> None:
    found = EnqueueLateness(9, late_ms * MS, error_ms * MS, 40.0 * MS, is_by_device=True)
    text = found.describe(2)
    assert text.startswith("collectives not timed; ")
    assert said in text


def find(late_ms: float, *, is_by_device: bool) -> list[Candidate]:
    """Return what is found where rank 2 is slower by 50 ms from step 60 on, and enqueues by so much later."""
    own_ms = 100.0 * np.exp(np.random.default_rng(1).normal(0.0, 0.02, (120, 4)))
    own_ms[60:, 2] *= 1.5
    enqueues = enqueues_of(*[(0, 0, late_ms, 0)] * 50, first_step=65, error_ms=(0.1,) * 4)
    series = series_of(own_ms.tolist(), own_is_measured=False)
    view = view_of(dataclasses.replace(series, is_by_device=is_by_device, enqueues=enqueues))
    found = Stragglers(Thresholds()).find(view, ())
    assert not isinstance(found, Abstain)
    return list(found)


@pytest.mark.parametrize("is_by_device", [True, False])
def test_slow_rank_that_enqueues_late_is_named_with_both_numbers(is_by_device: bool) -> None:
    ((finding, _),) = find(50, is_by_device=is_by_device)
    assert finding.ranks == (2,)
    assert finding.evidence["enqueue_late_ns"] == pytest.approx(50 * MS)
    assert finding.evidence["enqueue_error_ns"] == pytest.approx(0.2 * MS, rel=1e-3)
    assert finding.evidence["enqueue_steps"] == 50
    assert "rank 2 enqueues them up to 50.0 ms after its peers (clocks within 200.0 us)." in finding.sentence


def test_slow_phases_of_a_host_that_is_on_time_are_no_slowness() -> None:
    assert find(0, is_by_device=False) == []


def test_slow_device_of_a_host_that_is_on_time_is_named() -> None:
    ((finding, _),) = find(0, is_by_device=True)
    assert "most of its slowness not its host's." in finding.sentence


def test_enqueues_accuse_nobody() -> None:
    enqueues = enqueues_of(*[(0, 0, 50, 0)] * 50, first_step=65)
    own_ms = 100.0 * np.exp(np.random.default_rng(1).normal(0.0, 0.02, (120, 4)))
    series = series_of(own_ms.tolist(), own_is_measured=False)
    assert Stragglers(Thresholds()).find(view_of(dataclasses.replace(series, enqueues=enqueues)), ()) == []
