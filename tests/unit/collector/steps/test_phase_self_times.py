"""Self times from phases, by hand: two ranks, own parts of 8 ms and 12 ms in backward, a transfer of 1 ms."""

import numpy as np
import pytest

from rankscope.collector.steps.phase_self_times import LEARN_MIN, fill_from_phases
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import MS

APART_MS, BACKWARD_MS, STEP_MS = 8.0, 13.0, 21.0


def fill_ms(own_ms: Floats, step_ms: Floats, phases_ms: dict[str, Floats]) -> Floats:
    return fill_from_phases(MS * own_ms, MS * step_ms, {name: MS * ms for name, ms in phases_ms.items()}) / MS


def steps_of(apart: list[list[float]], backward: list[list[float]], self_ms: list[list[float]]) -> Floats:
    """Return the self times, filled, of LEARN_MIN measured steps as usual followed by these; in ms."""
    usual = np.full((LEARN_MIN, 2), 1.0)
    apart_ms = np.concatenate([usual * APART_MS, np.array(apart)])
    backward_ms = np.concatenate([usual * BACKWARD_MS, np.array(backward)])
    own_ms = np.concatenate([usual * (STEP_MS - 1.0), np.array(self_ms)])
    return fill_ms(own_ms, apart_ms + backward_ms, {"forward": apart_ms, "backward": backward_ms})


UNKNOWN = [[np.nan, np.nan]]


def test_rank_that_is_long_outside_of_backward_is_known() -> None:
    # 68 + 12 + 1 ms are predicted, 81 ms it took: rank 1 needed 80 ms, rank 0, which waited in backward, 20.
    assert steps_of([[8, 68]], [[73, 13]], UNKNOWN)[-1].tolist() == [20.0, 80.0]


def test_stall_in_backward_stays_unknown() -> None:
    assert np.isnan(steps_of([[8, 8]], [[73, 73]], UNKNOWN)[-1]).all()


def test_usual_step_is_known() -> None:
    assert steps_of([[8, 8]], [[13, 13]], UNKNOWN)[-1].tolist() == [20.0, 20.0]


def test_measured_steps_stay_as_they_are() -> None:
    assert steps_of([[8, 8]], [[73, 73]], [[80, 20]])[-1].tolist() == [80.0, 20.0]


@pytest.mark.parametrize("backward", [[[13, np.nan]], [[np.nan, np.nan]]])
def test_step_that_a_rank_lacks_stays_unknown(backward: list[list[float]]) -> None:
    assert np.isnan(steps_of([[8, 8]], backward, UNKNOWN)[-1]).all()


def fill(in_backward_ms: Floats, more: float = 0.0) -> Floats:
    """Return the filled last step, a usual one, after measured steps with these own times in backward."""
    own_ms = np.concatenate([APART_MS + in_backward_ms, np.full((1, 2), np.nan)])
    longest = np.append(own_ms[:-1].max(axis=1) + 1.0, STEP_MS + more)[:, np.newaxis]
    step_ms = np.repeat(longest, 2, axis=1)
    return np.asarray(fill_ms(own_ms, step_ms, {"backward": step_ms - APART_MS})[-1])


def test_nothing_is_known_of_fewer_measured_steps() -> None:
    assert np.isnan(fill(np.full((LEARN_MIN - 1, 2), 12.0))).all()
    assert fill(np.full((LEARN_MIN, 2), 12.0)).tolist() == [20.0, 20.0]


def test_nothing_is_known_of_ranks_that_differ_in_backward() -> None:
    assert np.isnan(fill(np.tile([12.0, 16.0], (LEARN_MIN, 1)))).all()


def test_nothing_is_known_where_backward_varies_by_more_than_half_a_step() -> None:
    varying = np.repeat(np.array([2.0, 40.0, 3.0, 60.0, 2.0, 50.0, 30.0, 1.0])[:, np.newaxis], 2, axis=1)
    assert np.isnan(fill(varying, more=100.0)).all()


def test_nothing_is_known_without_the_phase() -> None:
    own_ms = np.array([[1.0, np.nan]])
    assert fill_from_phases(own_ms, own_ms, {"forward": own_ms}) is own_ms


@pytest.mark.parametrize(("ms", "is_known"), [(4.9, False), (5.0, True)])
def test_nothing_is_known_of_short_steps(ms: float, is_known: bool) -> None:
    step_ms, own_ms = np.full((LEARN_MIN + 1, 2), ms), np.full((LEARN_MIN + 1, 2), ms)
    own_ms[-1] = np.nan
    filled = fill_ms(own_ms, step_ms, {"forward": step_ms / 2, "backward": step_ms / 2})
    assert bool(np.isfinite(filled[-1]).all()) is is_known


def test_self_times_vary_as_the_measured_ones_do() -> None:
    differs_ms = np.array([[1.0, -1.0], [-1.0, 1.0]] * 3)
    own_ms = np.concatenate([20.0 + differs_ms, np.full((2, 2), np.nan)])
    step_ms = np.full((8, 2), 22.0)
    filled = fill_ms(own_ms, step_ms, {"backward": step_ms - APART_MS})
    # 20 ms, and what the first and the second measured step of each rank differed by.
    assert filled[-2:].tolist() == [[21.0, 19.0], [19.0, 21.0]]
