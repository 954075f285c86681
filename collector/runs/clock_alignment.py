"""A rank's host clock -> the collector's clock, from pings, with an error bound.

A ping leaves at `sent` and its answer, carrying the rank's clock, arrives at `received`. The rank read its clock some
time in between, so its offset to ours is known to within half the round trip, whatever the network did. Clocks drift
apart by up to 100 us a second (a poor quartz), from that unknown time on, so the bound grows with the time since the
ping was sent. The sample with the smallest bound is the best of those kept.

A clock may also jump: a machine is suspended, or its virtual one moved to another host. Two samples whose bounds at one
moment have nothing in common cannot both be right about that moment, whatever the drift; so the clock has jumped in
between, and what was known before it is forgotten. A jump that the bounds do not show is not larger than they are.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from rankscope.measure.units import NS_PER_S, CollectorNs, HostNs

SAMPLES_MAX = 16
DRIFT_PER_S_NS = 100_000
READINGS_NS = 2
"""The two readings of the rank's clock behind two samples are whole nanoseconds: each may be up to one off."""

ClockSample = tuple[int, int, int, int]
"""sent, received, and of the moment half way: the offset, and half the round trip. Not a class: 16,384 ranks give 3,000
answers a second, and each is held against the 16 before it."""

PackedSamples = bytes
"""Samples as they are kept, the oldest first: 16 of them as objects are 3.4 KB a rank, packed 0.5."""

_SAMPLE: Final = struct.Struct("<4q")
_CLOCK_NS_MAX: Final = 2**63
"""No clock tells 292 years, and only less can be packed."""


class Alignment(NamedTuple):
    """`host - job = offset_ns`, right to within `error_ns` either way (and the whole nanosecond that clocks tell)."""

    offset_ns: int
    error_ns: int


def latest_arrival_ns(now_collector_ns: int, age_ns: int) -> int:
    """The latest moment, on our clock, at which an answer can have come to a relay that had it for `age_ns` by its own
    clock when it sent it on, and whose batch came to us now. Our clock may have gone slower than the relay's meanwhile.

    >>> latest_arrival_ns(now_collector_ns=10_000_000_000, age_ns=1_000_000_000)
    9000100001
    """
    return now_collector_ns - age_ns + age_ns * DRIFT_PER_S_NS // NS_PER_S + 1 if age_ns else now_collector_ns


class ClockAlignment:
    """The alignment of one rank."""

    def __init__(self) -> None:
        self.samples: PackedSamples = b""
        """What it is found from, once unpacked, by `find_alignment`."""

    def add(self, sent_collector_ns: int, host_ns: int, received_collector_ns: int) -> None:
        """Take in a ping's answer. One that came back before it was sent is no answer to ours and is ignored; so is one
        from before a jump of the clock that has been seen, and one with a time that no clock tells.
        """
        offset_ns = host_ns - (sent_collector_ns + received_collector_ns) // 2
        if received_collector_ns < sent_collector_ns or not -_CLOCK_NS_MAX <= offset_ns < _CLOCK_NS_MAX:
            return
        sample = (
            sent_collector_ns,
            received_collector_ns,
            offset_ns,
            (received_collector_ns - sent_collector_ns + 1) // 2,
        )
        before = unpack_samples(self.samples)
        if _contradicts(before, sample):
            if sent_collector_ns < before[-1][0]:
                return
            self.samples = b""
        kept = self.samples[-_SAMPLE.size * (SAMPLES_MAX - 1) :]
        self.samples = kept + _SAMPLE.pack(*sample)

    def at(self, now_collector_ns: int) -> Alignment | None:
        """The best alignment known now; None before the first answer.

        >>> alignment = ClockAlignment()
        >>> alignment.add(sent_collector_ns=1_000, host_ns=501_500, received_collector_ns=2_000)
        >>> alignment.at(CollectorNs(2_000))
        Alignment(offset_ns=500000, error_ns=501)
        """
        return find_alignment(unpack_samples(self.samples), now_collector_ns)

    def to_collector_time(self, host_ns: int, now_collector_ns: int) -> CollectorNs | None:
        """A moment of the rank's clock on ours; None before the first answer."""
        alignment = self.at(now_collector_ns)
        return None if alignment is None else CollectorNs(HostNs(host_ns) - alignment.offset_ns)


def unpack_samples(packed: PackedSamples) -> list[ClockSample]:
    """The samples, the oldest first."""
    return list(_SAMPLE.iter_unpack(packed))


def _contradicts(before: Iterable[ClockSample], sample: ClockSample) -> bool:
    """Whether a sample and one of those before cannot both be right about the moment when it was received."""
    _, now_collector_ns, offset_ns, _ = sample
    near_ns = _bound(sample, now_collector_ns) + READINGS_NS
    for kept in before:
        apart_ns = abs(kept[2] - offset_ns)
        if apart_ns > near_ns and apart_ns > near_ns + _bound(kept, now_collector_ns):
            return True
    return False


def find_alignment(samples: Iterable[ClockSample], now_collector_ns: int) -> Alignment | None:
    """The best alignment that these samples give at that moment; None when there are none."""
    best: Alignment | None = None
    for sample in samples:
        error_ns = _bound(sample, now_collector_ns)
        if best is None or error_ns <= best.error_ns:
            best = Alignment(sample[2], error_ns)
    return best


def _bound(sample: ClockSample, now_collector_ns: int) -> int:
    """How far off a sample's offset may be at that moment, rounded up."""
    sent_ns, received_ns, _, half_ns = sample
    away_ns = max(now_collector_ns - sent_ns, received_ns - now_collector_ns)
    return half_ns - (-away_ns * DRIFT_PER_S_NS // NS_PER_S)
