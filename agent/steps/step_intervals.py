"""Choose intervals of steps that are powers of two, and a step of each, so that those of ranks that compute them alone
agree or nest.

Of each block of as many steps as an interval has, one step is chosen, pseudo-randomly: were it the first one, what
happens every 10th step could fall for good between the steps that are measured. The choice of a block is that of one of
its two halves, so the steps chosen at a longer interval are among those chosen at a shorter one.
"""

HYSTERESIS = 3.125
"""A power of two is kept until it is this many times too large, so that ranks with step times near a limit do not
disagree for long. At least 2, so that one always fits; the step time may vary by 1.5625, half of this."""
UNKNOWN_STEPS = 1 << 62
"""An interval that no run reaches."""
_BITS_64 = (1 << 64) - 1


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


def find_chosen(block: int, interval_steps: int) -> int:
    """Return the step that is chosen of a block: of the steps from block * interval_steps on. Of block 0 it is step 0.

    >>> [find_chosen(block, 8) for block in range(6)]
    [0, 12, 16, 24, 33, 43]
    >>> [find_chosen(block, 16) for block in range(3)]
    [0, 24, 33]
    """
    step = block
    while interval_steps > 1:
        step = 2 * step + _choose_half(step)
        interval_steps //= 2
    return step


def is_chosen(step: int, interval_steps: int) -> bool:
    """Return whether this step is the one that is chosen of its block of so many steps, a power of two."""
    while interval_steps > 1:
        step, half = divmod(step, 2)
        if half != _choose_half(step):
            return False
        interval_steps //= 2
    return True


def find_next_chosen(step: int, interval_steps: int) -> int:
    """Return the first step after this one that is chosen at this interval; neither is negative.

    >>> find_next_chosen(0, 8), find_next_chosen(12, 8), find_next_chosen(13, 8)
    (12, 16, 16)
    """
    block = step // interval_steps
    found = find_chosen(block, interval_steps)
    return found if found > step else find_chosen(block + 1, interval_steps)


def _choose_half(block: int) -> int:
    """Return which half of a block has its choice, 0 or 1: the lowest bit of a hash, the finalizer of SplitMix64
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), which is 0 of 0.
    """
    mixed = ((block ^ block >> 30) * 0xBF58476D1CE4E5B9) & _BITS_64
    mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _BITS_64
    return (mixed ^ mixed >> 31) & 1
