"""Steps without a window, held against the longest own time that is found for them."""

import numpy as np
import pytest

from rankscope.collector.steps.predicted_steps import fill_as_predicted
from rankscope.collector.steps.step_series import Floats, Ints
from tests.unit.collector.steps.step_series import MS

OWN_MS = (60.0, 80.0)


def filled(step_ms: float, noise_ms: float) -> bool:
    """Return whether a step that should take 90 ms, 10 of them the rest, is known by its own times."""
    own_ns: Floats = np.full((1, 2), np.nan)
    step_ns: Floats = np.full((1, 2), step_ms * MS)

    def find_own_ns(rows: Ints) -> Floats:
        return np.tile(np.array(OWN_MS) * MS, (len(rows), 1))

    found = fill_as_predicted(
        own_ns, step_ns, np.array([0]), find_own_ns, rest_ns=10 * MS, noise_ns=noise_ms * MS, tolerance_ratio=0.05
    )
    return bool(~np.isnan(found).any())


@pytest.mark.parametrize(
    ("step_ms", "noise_ms", "is_known"),
    [(90, 0.1, True), (94, 0.1, True), (98, 0.1, False), (98, 2, True), (112, 2, False), (112, 5, True)],
)
def test_steps_within_the_tolerance_are_known(step_ms: float, noise_ms: float, *, is_known: bool) -> None:
    assert filled(step_ms, noise_ms) is is_known


@pytest.mark.parametrize(("step_ms", "is_known"), [(119, True), (121, False), (200, False)])
def test_noise_of_a_busy_machine_makes_no_step_as_predicted(step_ms: float, *, is_known: bool) -> None:
    assert filled(step_ms, noise_ms=40) is is_known
