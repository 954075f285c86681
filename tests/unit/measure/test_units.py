"""Check durations as text."""

import pytest

from rankscope.measure.units import format_duration, ns_to_s, s_to_ns


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.0 us"),
        (4_200_000, "4.2 ms"),
        (75_000_000_000, "75.0 s"),
        (-2_500, "-2.5 us"),
    ],
)
def test_a_duration_is_told_in_the_unit_that_fits(nanoseconds: int, text: str) -> None:
    assert format_duration(nanoseconds) == text


def test_seconds_become_the_nearest_nanosecond_and_return() -> None:
    assert (s_to_ns(0.1), ns_to_s(100_000_000)) == (100_000_000, 0.1)
