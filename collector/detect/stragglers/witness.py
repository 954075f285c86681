"""Ask a second witness whether others wait for a slow rank, where own times are not measured.

Collectives that were timed between profiler windows come first. Where the device's own times stand in for own times
(`collector/steps/device_own_times.py`), their durations show who waits: who is late is waited for, and waits less than
the others. A rank that waits as long as its peers is not what they wait for, whatever its own time is.

Where torch times none, when they were enqueued may show it (`enqueue_lateness.py`).
"""

from typing import NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.enqueue_lateness import EnqueueLateness, read_enqueue_lateness
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.units import format_duration


class TimedWaits(NamedTuple):
    """The waiting of a slow rank and of its peers in the collectives of a step, in ns: medians over `steps` of its slow
    steps, of the peers the median of theirs.
    """

    steps: int
    own_ns: float
    peers_ns: float

    @property
    def contradict(self) -> bool:
        """Return whether others do not wait for this rank."""
        return self.own_ns >= self.peers_ns

    @property
    def evidence(self) -> dict[str, float]:
        """Return the numbers for the evidence of a finding."""
        return {
            "timed_wait_ns": self.own_ns,
            "peers_timed_wait_ns": self.peers_ns,
            "timed_wait_steps": float(self.steps),
        }

    def describe(self, rank: int) -> str:
        """Return what that says of this rank."""
        return (
            f"waits in the collectives that torch timed: rank {rank} {format_duration(self.own_ns)} per step, "
            f"its peers {format_duration(self.peers_ns)}"
        )


def read_timed_waits(slow: SlowRank, series: StepSeries) -> TimedWaits | None:
    """Return the waits of a slow rank and its peers; None where no collectives were timed in its slow steps."""
    slow_steps = set(slow.slow_steps.tolist())
    found = [waits_ns for row, waits_ns in series.timed_waits_ns.items() if int(series.steps[row]) in slow_steps]
    if not found or not slow.peers.ranks:
        return None
    peers = np.array(slow.peers.ranks, dtype=np.int64)
    own_ns = [float(waits_ns[slow.rank]) for waits_ns in found]
    peers_ns = [float(np.median(waits_ns[peers])) for waits_ns in found]
    return TimedWaits(len(found), float(np.median(own_ns)), float(np.median(peers_ns)))


Witness = TimedWaits | EnqueueLateness


def read_witness(slow: SlowRank, series: StepSeries) -> Witness | None:
    """Return what is known; None where nothing is."""
    return read_timed_waits(slow, series) or read_enqueue_lateness(slow, series)


def is_contradicted(slow: SlowRank, series: StepSeries) -> bool:
    """Return whether a second witness shows that others do not wait for a slow rank."""
    witness = read_witness(slow, series)
    return witness is not None and witness.contradict
