"""Intervals of steps that are powers of two, so that ranks which compute them for themselves agree or nest."""

ROOM = 3.125
"""A power stays until it is this much too large, so that a step time near a limit does not make two ranks disagree for
long. At least 2, that there is always one in the room; 1.5625 times that is what the step time may swing by."""
UNKNOWN_STEPS = 1 << 62
"""An interval no job reaches."""


def power_at_least(count: float) -> int:
    """Return the smallest power of two that is at least `count`, UNKNOWN_STEPS at most."""
    power = 1
    while power < min(count, UNKNOWN_STEPS):
        power *= 2
    return power


def nearest_power(wanted: float, present: int) -> int:
    """The power of two nearest to the present one that is at least what is wanted and at most ROOM times that.

    Of two ranks that want different intervals the one that wants the longer never gets the shorter, whatever each had
    before in that order: raising `wanted` or `present` never lowers the result.
    """
    smallest, largest = power_at_least(wanted), power_at_least(ROOM * wanted / 2)
    return smallest if present == UNKNOWN_STEPS else min(max(present, smallest), largest)
