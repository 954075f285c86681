"""A rank's host clock -> the collector's clock, from pings, with an error bound.

A ping leaves at `sent` and its answer, carrying the rank's clock, arrives at `received`. The rank read its clock some
time in between, so its offset to ours is known to within half the round trip, whatever the network did. Clocks drift
apart by up to 100 us a second (a poor quartz), from that unknown time on, so the bound grows with the time since the
ping was sent. The sample with the smallest bound is the best of those kept.
"""

from collections import deque
from typing import NamedTuple

from rankscope.measure.units import NS_PER_S, HostNs, JobNs

SAMPLES_MAX = 16
DRIFT_PER_S_NS = 100_000


class Alignment(NamedTuple):
    """`host - job = offset_ns`, right to within `error_ns` either way (and the whole nanosecond that clocks tell)."""

    offset_ns: int
    error_ns: int


class ClockAlignment:
    """The alignment of one rank."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES_MAX)

    def add(self, sent_job_ns: int, host_ns: int, received_job_ns: int) -> None:
        """Take in a ping's answer. One that came back before it was sent is no answer to ours and is ignored."""
        if received_job_ns >= sent_job_ns:
            self._samples.append((sent_job_ns, host_ns, received_job_ns))

    def at(self, now_job_ns: int) -> Alignment | None:
        """The best alignment known now; None before the first answer.

        >>> alignment = ClockAlignment()
        >>> alignment.add(sent_job_ns=1_000, host_ns=501_500, received_job_ns=2_000)
        >>> alignment.at(JobNs(2_000))
        Alignment(offset_ns=500000, error_ns=500)
        """
        best: Alignment | None = None
        for sent_ns, host_ns, received_ns in self._samples:
            apart_ns = max(now_job_ns - sent_ns, received_ns - now_job_ns)
            error_ns = (received_ns - sent_ns + 1) // 2 + apart_ns * DRIFT_PER_S_NS // NS_PER_S
            if best is None or error_ns <= best.error_ns:
                best = Alignment(host_ns - (sent_ns + received_ns) // 2, error_ns)
        return best

    def to_job_time(self, host_ns: int, now_job_ns: int) -> JobNs | None:
        """A moment of the rank's clock on ours; None before the first answer."""
        alignment = self.at(now_job_ns)
        return None if alignment is None else JobNs(HostNs(host_ns) - alignment.offset_ns)
