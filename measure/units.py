"""Define units, and a type for each clock. The only file that knows how many nanoseconds a second has.

Times are integers of nanoseconds on the clock they were read from. Seconds, as floats, appear at the edges only:
configuration, Prometheus and text for users.
"""

from typing import NewType

HostNs = NewType("HostNs", int)
"""Nanoseconds of one machine's monotonic clock. Comparable between processes of that machine, not beyond it."""

CollectorNs = NewType("CollectorNs", int)
"""Nanoseconds of the collector's monotonic clock, to which every machine's clock is aligned."""

WallNs = NewType("WallNs", int)
"""Nanoseconds since 1970-01-01 UTC by a machine's wall clock, which may jump."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def s_to_ns(seconds: float) -> int:
    """Return seconds as whole nanoseconds, rounded to the nearest.

    >>> s_to_ns(0.1)
    100000000
    """
    return round(seconds * NS_PER_S)


def ns_to_s(nanoseconds: float) -> float:
    """Return nanoseconds as seconds.

    >>> ns_to_s(2_500_000_000)
    2.5
    """
    return nanoseconds / NS_PER_S


def format_duration(nanoseconds: float) -> str:
    """Return a duration as text in ns, us, ms or s.

    >>> format_duration(812), format_duration(4_200_000), format_duration(75_000_000_000)
    ('812 ns', '4.2 ms', '75.0 s')
    """
    size = abs(nanoseconds)
    if size < NS_PER_US:
        return f"{nanoseconds:.0f} ns"
    if size < NS_PER_MS:
        return f"{nanoseconds / NS_PER_US:.1f} us"
    if size < NS_PER_S:
        return f"{nanoseconds / NS_PER_MS:.1f} ms"
    return f"{nanoseconds / NS_PER_S:.1f} s"


def format_share(ratio: float, decimals: int = 1) -> str:
    """Return a share of a whole, 0 to 1, as text in percent.

    >>> format_share(0.192), format_share(0.61, 0)
    ('19.2 %', '61 %')
    """
    return f"{100 * ratio:.{decimals}f} %"


_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in its largest binary unit.

    >>> format_bytes(512), format_bytes(3 * 2**29), format_bytes(-(2**20))
    ('512 bytes', '1.5 GiB', '-1.0 MiB')
    """
    for name, unit in _SIZES:
        if abs(count) >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"


_LENGTHS = (("d", 86_400), ("h", 3_600), ("min", 60))


def format_length(seconds: float) -> str:
    """Return a length of time as text, in its largest unit.

    >>> format_length(42), format_length(90), format_length(5_400), format_length(180_000)
    ('42 s', '1.5 min', '1.5 h', '2.1 d')
    """
    for name, unit_s in _LENGTHS:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {name}"
    return f"{seconds:.0f} s"
