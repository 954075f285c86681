"""Find events whose times cannot be right, so that one of them does not make a window of years.

One profile lasts minutes. An event that begins a day and more from the middle one of the others, or lasts a day, was
written wrongly (a time of 0, counters that wrapped); the middle is that of the different starts, so that many events of
one wrong time count once. A time of exactly 0 is wrong where nothing else is near it. Work of a device is over when its
profiler has stopped: what ends more than a minute after everything that was recorded on the host was written wrongly
too. So is work of no length where there is much of it: a recorder that has lost the ends, and a device that seems idle.
And a stream runs one piece of work after the other: a piece that lasts beyond the whole of the next one on its stream
has a wrong length, and ended by then.
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
ZERO_NS_MIN = 60 * NS_PER_S
"""Least time without anything between events at 0 and all others that shows that 0 is no time. Of device work, which
something on the host has launched, ZERO_WORK_NS_MIN."""
ZERO_WORK_NS_MIN = NS_PER_S
NO_LENGTH_MIN, NO_LENGTH_SHARE_MAX = 10, 0.25
"""Pieces, and share of a device's work, up to which a length of zero is a short one, rounded: 7 % in the trace of
tests/traces that has the most, in whole microseconds."""
ZERO_TIME = "a time of zero"
FAR_START = "a start a day or more from the others"
TOO_LONG = "a length of a day or more"
NO_LENGTH = "device work of no length, of which there is too much to be short"
LATE_WORK = "device work that ends a minute or more after everything on the host"
"""Reasons for leaving out events."""


def find_impossible(start_ns: Ints, duration_ns: Ints, is_device: Bools) -> dict[str, Bools]:
    """Return masks of shape (n,) of the events whose times cannot be right, by reason, where there are any.

    >>> day_ns = 24 * 3600 * 10**9
    >>> start_ns = np.array([0, 3 * day_ns, 3 * day_ns + 5, 3 * day_ns + 9])
    >>> found = find_impossible(start_ns, np.array([1, 1, 2 * day_ns, 1]), np.zeros(4, dtype=bool))
    >>> {reason: mask.tolist() for reason, mask in found.items()}
    {'a time of zero': [True, False, False, False], 'a length of a day or more': [False, False, True, False]}
    """
    if len(start_ns) == 0:
        return {}
    zero = _find_zero(start_ns, duration_ns, is_device)
    far = np.zeros(len(start_ns), dtype=bool)
    if start_ns.max() - start_ns.min() >= PROFILE_NS_MAX:
        far = ~zero & (np.abs(start_ns - find_middle(start_ns)) >= PROFILE_NS_MAX)
    known = ~zero & ~far
    long = known & (duration_ns >= PROFILE_NS_MAX)
    empty = is_device & (duration_ns == 0)
    if empty.sum() < max(NO_LENGTH_MIN, NO_LENGTH_SHARE_MAX * is_device.sum()):
        empty[:] = False
    late = _find_late(start_ns, duration_ns, is_device & known & ~long, ~is_device & known & ~long)
    found = {
        ZERO_TIME: zero,
        FAR_START: far,
        TOO_LONG: long,
        NO_LENGTH: empty & known,
        LATE_WORK: late,
    }
    return {reason: mask for reason, mask in found.items() if mask.any()}


def _find_zero(start_ns: Ints, duration_ns: Ints, is_device: Bools) -> Bools:
    """Return the events that start at 0, if those after them begin long after their ends."""
    zero: Bools = start_ns == 0
    later = start_ns > 0
    if not zero.any() or not later.any():
        return np.zeros(len(start_ns), dtype=bool)
    apart_ns = int(start_ns[later].min()) - duration_ns
    is_launched = is_device & bool((later & ~is_device).any())
    return zero & (apart_ns >= np.where(is_launched, ZERO_WORK_NS_MIN, ZERO_NS_MIN))


def find_middle(start_ns: Ints) -> int:
    """Return the middle one of the different starts (of two the later one): an event itself, so that nothing is
    rounded.

    >>> find_middle(np.array([0, 0, 0, 0, 70, 71]))
    70
    """
    distinct = np.unique(start_ns)
    return int(distinct[len(distinct) // 2])


def _find_late(start_ns: Ints, duration_ns: Ints, device: Bools, host: Bools) -> Bools:
    if not device.any() or not host.any():
        return np.zeros(len(start_ns), dtype=bool)
    end_ns = start_ns + duration_ns
    late: Bools = device & (end_ns - end_ns[host].max() >= DEVICE_AFTER_HOST_NS_MAX)
    return late


def clip_spilled(start_ns: Ints, end_ns: Ints, lane: Ints, call: Ints) -> Ints:
    """Return the ends of device work, shape (n,), where a piece that lasts beyond the whole of the next one of its lane
    (device and stream) ends when that begins. `call` ties work to its launch, below 0 where that is not known: only
    work with a launch of its own is changed, since of a graph branches run at once.

    >>> lane, call = np.zeros(3, dtype=np.int64), np.arange(3)
    >>> clip_spilled(np.array([0, 10, 20]), np.array([900, 15, 30]), lane, call).tolist()
    [10, 15, 30]
    """
    order = np.lexsort((-end_ns, start_ns, lane))
    first, second = order[:-1], order[1:]
    distinct, of_call, counts = np.unique(call, return_inverse=True, return_counts=True)
    is_single = (counts[of_call] == 1) & (distinct[of_call] >= 0)
    spills = (lane[first] == lane[second]) & (start_ns[first] < start_ns[second]) & (end_ns[first] > end_ns[second])
    spills &= is_single[first] & is_single[second]
    clipped = end_ns.copy()
    clipped[first[spills]] = start_ns[second[spills]]
    return clipped
