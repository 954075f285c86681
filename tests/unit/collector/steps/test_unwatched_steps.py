"""Own times between profiler windows from phases, which measured steps teach to read."""

import numpy as np
import pytest

from rankscope.collector.steps.predicted_steps import MEASURED_MIN
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.unwatched_steps import fill_from_phases
from tests.unit.collector.steps.step_series import MS

RANKS = 4
DEVICE_MS, DATA_MS, FORWARD_MS, REST_MS = 150.0, 10.0, 40.0, 2.0
USUAL_MS = DEVICE_MS + DATA_MS + FORWARD_MS
LATE_MS = 60.0


class Steps:
    """Steps of ranks whose host waits in `waits_in` for a device that needs DEVICE_MS beyond what the host does, and
    with it for the other ranks. `late_in`: `{step: (rank, phase)}` where one takes LATE_MS longer; the first of the
    steps are measured, as many as `measured`.
    """

    def __init__(
        self,
        steps: int,
        measured: int,
        late_in: dict[int, tuple[int, str]],
        *,
        waits_in: str = "other",
        on_device_ms: Floats | None = None,
        hidden_ms: float = 0.0,
    ) -> None:
        noise = np.random.default_rng(7)
        self.phases_ms = {
            "data": DATA_MS + noise.normal(0, 0.3, (steps, RANKS)),
            "forward": FORWARD_MS + noise.normal(0, 0.3, (steps, RANKS)),
            "backward": np.full((steps, RANKS), 1.0),
            "optimizer": np.full((steps, RANKS), 1.0),
            "other": np.full((steps, RANKS), 1.0),
        }
        for step, (rank, phase) in late_in.items():
            self.phases_ms[phase][step, rank] += LATE_MS
        host_ms = np.sum(list(self.phases_ms.values()), axis=0)
        device_ms = DEVICE_MS if on_device_ms is None else DEVICE_MS + on_device_ms
        self.own_ms = np.maximum(host_ms, host_ms.min() + hidden_ms) + device_ms
        self.step_ms = np.repeat(self.own_ms.max(axis=1, keepdims=True) + REST_MS, RANKS, axis=1)
        self.phases_ms[waits_in] = self.phases_ms[waits_in] + self.step_ms - host_ms
        self.measured_ms = np.where(np.arange(steps)[:, np.newaxis] < measured, self.own_ms, np.nan)

    def fill(self, at_most_ms: Floats | None = None) -> Floats:
        phases_ns = {name: MS * ms for name, ms in self.phases_ms.items()}
        at_most_ns = None if at_most_ms is None else MS * at_most_ms
        return fill_from_phases(MS * self.measured_ms, MS * self.step_ms, phases_ns, at_most_ns) / MS


TAUGHT = {2: (3, "data"), 7: (1, "forward")}


@pytest.mark.parametrize("waits_in", ["other", "optimizer", "backward"])
@pytest.mark.parametrize("phase", ["data", "forward"])
def test_step_of_a_late_rank_is_known_from_measured_steps(waits_in: str, phase: str) -> None:
    steps = Steps(40, 12, {**TAUGHT, 25: (2, phase)}, waits_in=waits_in)
    filled = steps.fill()
    assert np.isfinite(filled).all()
    assert filled[25].argmax() == 2
    assert filled == pytest.approx(steps.own_ms, abs=2.0)


def test_nothing_is_taught_while_ranks_have_not_waited() -> None:
    steps = Steps(40, 12, {25: (2, "data")}, on_device_ms=np.random.default_rng(5).normal(0, 3.0, (40, RANKS)))
    assert np.isnan(steps.fill()[12:]).all()


@pytest.mark.parametrize("waits_in", ["other", "optimizer", "backward"])
def test_always_late_rank_teaches_where_the_others_wait(waits_in: str) -> None:
    # Its device is as noisy as each other's: from step to step the waits vary by that.
    on_device_ms = np.random.default_rng(5).normal(0, 3.0, (40, RANKS))
    late_in = dict.fromkeys(range(30), (2, "data"))
    steps = Steps(40, 12, late_in, waits_in=waits_in, on_device_ms=on_device_ms)
    filled = steps.fill()
    assert np.isfinite(filled[:30]).all()
    assert filled[:30] == pytest.approx(steps.own_ms[:30], abs=12.0)


def test_rank_waiting_in_another_phase_works_no_longer_than_seen() -> None:
    # As in a tree of gloo's broadcast: rank 0 has what it needs early, and waits in backward for the late rank 2.
    steps = Steps(40, 12, dict.fromkeys(range(4, 40), (2, "data")), waits_in="forward")
    waits_ms = np.where(np.arange(40) < 4, 0.0, LATE_MS)
    steps.phases_ms["forward"][:, 0] -= waits_ms
    steps.phases_ms["backward"][:, 0] += waits_ms
    at_most_ms = steps.step_ms.copy()
    at_most_ms[:, 0] -= waits_ms
    filled = steps.fill(at_most_ms)
    assert np.isfinite(filled).all()
    assert filled == pytest.approx(steps.own_ms, abs=5.0)


def test_nothing_is_known_once_a_rank_is_seen_to_wait_elsewhere() -> None:
    # The others learn to wait in `other`; rank 0 waits in backward from step 20 on.
    late_in = TAUGHT | dict.fromkeys(range(20, 40), (2, "data"))
    steps = Steps(40, 20 + MEASURED_MIN, late_in)
    steps.phases_ms["other"][20:, 0] -= LATE_MS
    steps.phases_ms["data"][20:, 0] += LATE_MS
    assert np.isnan(steps.fill()[20 + MEASURED_MIN :]).all()


def test_few_measured_steps_teach_nothing() -> None:
    late = {2: (3, "data"), 25: (2, "data")}
    assert np.isnan(Steps(40, MEASURED_MIN - 1, late).fill()[MEASURED_MIN - 1 :]).all()
    assert np.isfinite(Steps(40, MEASURED_MIN, late).fill()).all()


def test_rank_late_in_the_waiting_phase_leaves_the_step_unknown() -> None:
    steps = Steps(40, 12, {**TAUGHT, 25: (2, "other")})
    filled = steps.fill()
    assert np.isnan(filled[25]).all()
    assert np.isfinite(np.delete(filled, 25, axis=0)).all()


def test_kernels_that_are_slow_for_a_step_leave_it_unknown() -> None:
    on_device_ms = np.zeros((40, RANKS))
    on_device_ms[25, 2] = LATE_MS
    filled = Steps(40, 12, TAUGHT, on_device_ms=on_device_ms).fill()
    assert np.isnan(filled[25]).all()


def test_kernels_that_are_always_slow_on_a_rank_are_its_own() -> None:
    on_device_ms = np.zeros((40, RANKS))
    on_device_ms[:, 1] = 30.0
    steps = Steps(40, 12, TAUGHT, on_device_ms=on_device_ms)
    filled = steps.fill()
    assert np.median(filled[12:, 1]) == pytest.approx(USUAL_MS + 30.0 + 3.0, abs=3.0)
    assert np.isfinite(filled[30:]).all()


def test_loader_that_the_device_hides_teaches_nothing() -> None:
    steps = Steps(40, 12, {step: (step % RANKS, "data") for step in range(0, 40, 3)}, hidden_ms=2 * LATE_MS)
    assert np.isnan(steps.fill()[12:]).all()


def test_all_measured_steps_stay_as_they_are() -> None:
    steps = Steps(20, 20, TAUGHT)
    assert steps.fill() == pytest.approx(steps.own_ms)


def test_wait_in_a_distributed_save_adds_no_own_time() -> None:
    steps = Steps(40, 12, TAUGHT)
    steps.phases_ms["checkpoint_wait"] = np.zeros((40, RANKS))
    steps.phases_ms["checkpoint"] = np.zeros((40, RANKS))
    steps.step_ms[25] += 400.0  # rank 2 writes for as long
    steps.phases_ms["checkpoint_wait"][25] = 400.0
    steps.phases_ms["checkpoint_wait"][25, 2] = 0.0
    steps.phases_ms["checkpoint"][25, 2] = 400.0
    steps.own_ms[25, 2] += 400.0
    assert steps.fill() == pytest.approx(steps.own_ms, abs=2.0)
