"""The ratios of a window."""

import pytest

from rankscope.collector.runs import ratios
from rankscope.measure.records import WindowBreakdown


def window_of(**changed: int | None) -> WindowBreakdown:
    """100 ns: 60 of compute and 30 of communication of which 10 were at once, 5 of copies, 15 of nothing."""
    fields: dict[str, int | None] = {
        "first_step": 7, "step_count": 1, "window_ns": 100, "compute_ns": 60, "communication_ns": 30, "overlap_ns": 10,
        "exposed_communication_ns": 20, "copy_ns": 5, "idle_ns": 15, "operator_count": 40,
    }  # fmt: skip
    return WindowBreakdown(**(fields | changed))  # type: ignore[arg-type]


NOTHING_SEEN = window_of(
    window_ns=0, compute_ns=0, communication_ns=0, overlap_ns=0, exposed_communication_ns=0, copy_ns=0, idle_ns=0
)


def test_ratios_are_over_the_window_or_communication() -> None:
    window = window_of()
    assert ratios.compute_ratio(window) == 0.6
    assert ratios.communication_ratio(window) == 0.3
    assert ratios.exposed_communication_ratio(window) == 0.2
    assert ratios.idle_ratio(window) == 0.15
    assert ratios.overlap_ratio(window) == pytest.approx(10 / 30)


def test_measured_nothing_is_zero_and_not_missing() -> None:
    window = window_of(compute_ns=0, overlap_ns=0, exposed_communication_ns=30, idle_ns=65)
    assert (ratios.compute_ratio(window), ratios.overlap_ratio(window)) == (0.0, 0.0)


def test_without_communication_there_is_no_overlap_to_speak_of() -> None:
    window = window_of(communication_ns=0, overlap_ns=0, exposed_communication_ns=0, idle_ns=35)
    assert (ratios.communication_ratio(window), ratios.overlap_ratio(window)) == (0.0, None)


@pytest.mark.parametrize(
    "ratio",
    [
        ratios.compute_ratio,
        ratios.communication_ratio,
        ratios.exposed_communication_ratio,
        ratios.idle_ratio,
        ratios.overlap_ratio,
    ],
)
def test_window_of_no_length_has_no_ratios(ratio: object) -> None:
    assert callable(ratio)
    assert ratio(NOTHING_SEEN) is None
