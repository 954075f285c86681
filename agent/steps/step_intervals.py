"""Choose intervals of steps that are powers of two, so that those of ranks that compute them alone agree or nest."""

HYSTERESIS = 3.125
"""A power of two is kept until it is this many times too large, so that ranks with step times near a limit do not
disagree for long. At least 2, so that one always fits; the step time may vary by 1.5625, half of this."""
UNKNOWN_STEPS = 1 << 62
"""An interval that no run reaches."""


def power_at_least(count: float) -> int:
    """Return the smallest power of two that is at least `count`, UNKNOWN_STEPS at most."""
    power = 1
    while power < min(count, UNKNOWN_STEPS):
        power *= 2
    return power


def nearest_power(wanted: float, present: int) -> int:
    """Return the power of two nearest to `present` that is at least `wanted` and at most HYSTERESIS times that.

    Monotonic: raising `wanted` or `present` never lowers the result, so a rank that wants a longer interval than
    another never gets a shorter one.
    """
    smallest, largest = power_at_least(wanted), power_at_least(HYSTERESIS * wanted / 2)
    return smallest if present == UNKNOWN_STEPS else min(max(present, smallest), largest)
