"""Align a rank's host clock with the collector's clock, from pings, with an error bound; the collector's own clocks.
Pure.

A ping leaves at `sent` and its answer, with the rank's clock, arrives at `received`. The rank read its clock in
between, so its offset is known to within half the round trip, whatever the network did. Clocks drift apart by up to 100
us a second (a poor quartz), so the bound grows with the time since the ping was sent. The sample with the smallest
bound is used.

A clock may also jump: a machine is suspended, or a virtual one moves to another host. Two samples whose bounds do not
overlap cannot both be right, whatever the drift; so the clock has jumped between them, and the samples before are
dropped. A jump that the bounds do not show is not larger than they are.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from rankscope.measure.units import NS_PER_S, CollectorNs, HostNs, ns_to_s, s_to_ns

SAMPLES_MAX = 16
DRIFT_PER_S_NS = 100_000
READINGS_NS = 2
"""Rounding of the two readings of the rank's clock behind two samples, one ns each."""

ClockSample = tuple[int, int, int, int]
"""sent, received, offset half way between them, and half the round trip. A tuple, since 16,384 ranks give 3,000 answers
a second, each compared with the 16 before it."""

_SAMPLE: Final = struct.Struct("<4q")
_CLOCK_NS_MAX: Final = 2**63
"""Bound of an offset and of a time: only less can be packed, and no clock is 292 years off."""


class Clocks(NamedTuple):
    """The collector's monotonic clock and the wall clock, read at one time."""

    collector_ns: int
    wall_s: float

    def to_wall_s(self, collector_ns: int) -> float:
        """Convert a monotonic time to wall time."""
        return self.wall_s - ns_to_s(self.collector_ns - collector_ns)

    def to_collector_ns(self, wall_s: float) -> int:
        """Convert a wall time to monotonic time, negative for one before that clock began. A time in the future, after
        the wall clock was set back, becomes now.
        """
        return self.collector_ns - s_to_ns(max(0.0, self.wall_s - wall_s))


class Alignment(NamedTuple):
    """`host - collector = offset_ns`, right to within `error_ns` (and the nanosecond that clocks are rounded to)."""

    offset_ns: int
    error_ns: int


def latest_arrival_ns(now_collector_ns: int, age_ns: int) -> int:
    """Return the latest time, on the collector's clock, at which an answer can have reached a relay that held it for
    `age_ns` by its own clock, and whose batch arrived now. The relay's clock may have run faster meanwhile.

    >>> latest_arrival_ns(now_collector_ns=10_000_000_000, age_ns=1_000_000_000)
    9000100001
    """
    return now_collector_ns - age_ns + age_ns * DRIFT_PER_S_NS // NS_PER_S + 1 if age_ns else now_collector_ns


class ClockAlignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The alignment of one rank. Never changed: each answer makes another one."""

    #: At most SAMPLES_MAX samples, packed, oldest first: 16 of them are 0.5 KB a rank, as objects 3.4 KB.
    samples: bytes = b""

    def add(self, sent_collector_ns: int, host_ns: int, received_collector_ns: int) -> "ClockAlignment":
        """Return this with a ping's answer. Ignored: one received before it was sent, one from before a known jump of
        the clock, and one whose offset cannot be packed.
        """
        offset_ns = host_ns - (sent_collector_ns + received_collector_ns) // 2
        if received_collector_ns < sent_collector_ns or not -_CLOCK_NS_MAX <= offset_ns < _CLOCK_NS_MAX:
            return self
        sample = (
            sent_collector_ns,
            received_collector_ns,
            offset_ns,
            (received_collector_ns - sent_collector_ns + 1) // 2,
        )
        before, packed = unpack_samples(self.samples), self.samples
        if _contradicts(before, sample):
            if sent_collector_ns < before[-1][0]:
                return self
            packed = b""
        return ClockAlignment(packed[-_SAMPLE.size * (SAMPLES_MAX - 1) :] + _SAMPLE.pack(*sample))

    def at(self, now_collector_ns: int) -> Alignment | None:
        """Return the best alignment known now; None before the first answer.

        >>> alignment = ClockAlignment().add(sent_collector_ns=1_000, host_ns=501_500, received_collector_ns=2_000)
        >>> alignment.at(CollectorNs(2_000))
        Alignment(offset_ns=500000, error_ns=501)
        """
        return find_alignment(unpack_samples(self.samples), now_collector_ns)

    def at_host_time(self, host_ns: int) -> Alignment | None:
        """Return the best alignment for a time of the rank's clock in the past; None where no sample that is left is
        from before it: the clock may have jumped since then.

        >>> alignment = ClockAlignment().add(sent_collector_ns=1_000, host_ns=501_500, received_collector_ns=2_000)
        >>> alignment.at_host_time(502_000), alignment.at_host_time(500_900)
        (Alignment(offset_ns=500000, error_ns=501), None)
        """
        samples = unpack_samples(self.samples)
        if not samples or host_ns - samples[-1][2] < samples[0][0]:
            return None
        return find_alignment(samples, host_ns - samples[-1][2])

    def to_collector_time(self, host_ns: int, now_collector_ns: int) -> CollectorNs | None:
        """Return a time of the rank's clock on the collector's; None before the first answer, and for a time that no
        clock has.
        """
        alignment = self.at(now_collector_ns)
        if alignment is None or abs(host_ns - alignment.offset_ns) >= _CLOCK_NS_MAX:
            return None
        return CollectorNs(HostNs(host_ns) - alignment.offset_ns)


def unpack_samples(packed: bytes) -> list[ClockSample]:
    """Return the samples, oldest first."""
    return list(_SAMPLE.iter_unpack(packed))


def _contradicts(before: Iterable[ClockSample], sample: ClockSample) -> bool:
    """Return whether a sample and one of those before cannot both be right at the time when it was received."""
    _, now_collector_ns, offset_ns, _ = sample
    near_ns = _bound(sample, now_collector_ns) + READINGS_NS
    for kept in before:
        apart_ns = abs(kept[2] - offset_ns)
        if apart_ns > near_ns and apart_ns > near_ns + _bound(kept, now_collector_ns):
            return True
    return False


def find_alignment(samples: Iterable[ClockSample], now_collector_ns: int) -> Alignment | None:
    """Return the best alignment from these samples at that time; None without samples."""
    best: Alignment | None = None
    for sample in samples:
        error_ns = _bound(sample, now_collector_ns)
        if best is None or error_ns <= best.error_ns:
            best = Alignment(sample[2], error_ns)
    return best


def _bound(sample: ClockSample, now_collector_ns: int) -> int:
    """Return how far off a sample's offset may be at that time, rounded up."""
    sent_ns, received_ns, _, half_ns = sample
    away_ns = max(now_collector_ns - sent_ns, received_ns - now_collector_ns)
    return half_ns - (-away_ns * DRIFT_PER_S_NS // NS_PER_S)
