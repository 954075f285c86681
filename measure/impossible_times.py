"""Find events whose times cannot be right, so that one of them does not make a window of years.

One profile lasts minutes. An event that begins a day and more from the middle one of the others, or lasts a day, was
written wrongly (a time of 0, counters that wrapped). Work of a device is over when its profiler has stopped: what ends
more than a minute after everything that was recorded on the host was written wrongly too.
"""

import numpy as np
import numpy.typing as npt

from rankscope.measure.kineto import Ints
from rankscope.measure.units import NS_PER_S

Bools = npt.NDArray[np.bool_]

PROFILE_NS_MAX = 24 * 3600 * NS_PER_S
"""Longest time from the middle of a profile to an event, and longest event. Torch keeps all events in memory, so that
profiles last minutes."""
DEVICE_AFTER_HOST_NS_MAX = 60 * NS_PER_S
"""Longest time from the last event on the host to the end of a device's work: the profiler waits for it."""
LATE_WORK = "device work that ends a minute or more after everything on the host"
"""Reason for leaving out what exceeds the latter."""


def find_impossible(start_ns: Ints, duration_ns: Ints, is_device: Bools) -> dict[str, Bools]:
    """Return masks of shape (n,) of the events whose times cannot be right, by reason, where there are any.

    >>> day_ns = 24 * 3600 * 10**9
    >>> start_ns = np.array([0, 3 * day_ns, 3 * day_ns + 5, 3 * day_ns + 9])
    >>> found = find_impossible(start_ns, np.array([1, 1, 2 * day_ns, 1]), np.zeros(4, dtype=bool))
    >>> {reason: mask.tolist() for reason, mask in found.items()}
    {'a start a day or more from the others': [True, False, False, False], 'a length of a day or more': [False, \
False, True, False]}
    """
    if len(start_ns) == 0:
        return {}
    far = np.zeros(len(start_ns), dtype=bool)
    if start_ns.max() - start_ns.min() >= PROFILE_NS_MAX:
        far = np.abs(start_ns - find_middle(start_ns)) >= PROFILE_NS_MAX
    long = ~far & (duration_ns >= PROFILE_NS_MAX)
    late = _find_late(start_ns, duration_ns, is_device & ~far & ~long, ~is_device & ~far & ~long)
    found = {"a start a day or more from the others": far, "a length of a day or more": long, LATE_WORK: late}
    return {reason: mask for reason, mask in found.items() if mask.any()}


def find_middle(start_ns: Ints) -> int:
    """Return the middle one of the starts (of two the later one): an event itself, so that nothing is rounded."""
    return int(np.partition(start_ns, len(start_ns) // 2)[len(start_ns) // 2])


def _find_late(start_ns: Ints, duration_ns: Ints, device: Bools, host: Bools) -> Bools:
    if not device.any() or not host.any():
        return np.zeros(len(start_ns), dtype=bool)
    end_ns = start_ns + duration_ns
    late: Bools = device & (end_ns - end_ns[host].max() >= DEVICE_AFTER_HOST_NS_MAX)
    return late
