"""Compare when the hosts of a slow rank and its peers enqueued their collectives, where torch does not time these.

A second witness, which accuses nobody. In steps in which the host waits for its device, a rank is waited for by as much
as it enqueues any of its collectives later than its peers. A host that runs ahead of its device enqueues a collective
long before the device comes to it: then its lateness says nothing about the device. So it is held to what the rank is
slower by:

    less than ON_TIME_SHARE of that     most of the slowness is not its host's. Where only the host's phases have shown
                                        it, nobody waits for that, and the rank is not named
    up to AHEAD_RATIO times             others wait for its host
    more                                hosts run ahead; nothing follows
    clocks too far apart to tell        nothing follows

The bound of the clocks' errors is strict. A peer's lateness may be off by its own clock's error and the rank's; ranks
of one machine read the same clock. The median over the peers lies between the medians of the lower and of the upper
bounds, and so does the median over the steps.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.steps.step_series import EnqueueSeries, Flags, StepSeries
from rankscope.measure.units import format_duration

ON_TIME_SHARE: Final = 0.25
AHEAD_RATIO: Final = 2.0
STEPS_MIN: Final = 4
"""Slow steps with known times that are needed."""

LATE, ON_TIME, AHEAD, UNKNOWN = "late", "on time", "ahead", "unknown"


class EnqueueLateness(NamedTuple):
    """How much later at most a slow rank enqueues a collective of a step than its peers, to within `error_ns`.
    Medians over `steps` steps. `excess_ns` is what it is slower by in a step, which the device has shown
    (`is_by_device`) or the host's phases.
    """

    steps: int
    late_ns: float
    error_ns: float
    excess_ns: float
    is_by_device: bool

    @property
    def verdict(self) -> str:
        """Return LATE, ON_TIME, AHEAD or UNKNOWN."""
        if self.late_ns + self.error_ns < ON_TIME_SHARE * self.excess_ns:
            return ON_TIME
        if self.late_ns - self.error_ns > AHEAD_RATIO * self.excess_ns:
            return AHEAD
        return LATE if self.late_ns > self.error_ns else UNKNOWN

    @property
    def contradict(self) -> bool:
        """Return whether others do not wait for this rank."""
        return self.verdict == ON_TIME and not self.is_by_device

    @property
    def evidence(self) -> dict[str, float]:
        """Return the numbers for the evidence of a finding."""
        return {
            "enqueue_late_ns": self.late_ns,
            "enqueue_error_ns": self.error_ns,
            "enqueue_steps": float(self.steps),
        }

    def describe(self, rank: int) -> str:
        """Return what that says of this rank."""
        verdict, error = self.verdict, format_duration(self.error_ns)
        if verdict == UNKNOWN:
            return (
                f"collectives not timed; whether rank {rank} enqueues them late not known: clocks within {error} only"
            )
        when = f"up to {format_duration(self.late_ns)} after" if self.late_ns > 0 else "no later than"
        text = f"collectives not timed; rank {rank} enqueues them {when} its peers (clocks within {error})"
        return {
            LATE: text,
            ON_TIME: f"{text}: most of its slowness not its host's",
            AHEAD: f"{text}: hosts ahead of their GPUs, so no sign of who waits for whom",
        }[verdict]


def read_enqueue_lateness(slow: SlowRank, series: StepSeries) -> EnqueueLateness | None:
    """Return the lateness of a slow rank; None where it is known in fewer than STEPS_MIN of its slow steps."""
    found = series.enqueues
    if found is None or not slow.peers.ranks:
        return None
    bounds_ns = _find_bounds(found, slow.rank, slow.peers.ranks, _find_slow(slow, found))
    if len(bounds_ns) < STEPS_MIN:
        return None
    low_ns, late_ns, high_ns = np.median(bounds_ns, axis=0).tolist()
    return EnqueueLateness(
        steps=len(bounds_ns),
        late_ns=late_ns,
        error_ns=max(high_ns - late_ns, late_ns - low_ns),
        excess_ns=slow.excess_ns,
        is_by_device=series.is_by_device,
    )


def _find_slow(slow: SlowRank, found: EnqueueSeries) -> Flags:
    """Return which steps are slow ones, shape (n,). Of a steady slowness those that have left the step table, too."""
    since = found.steps >= slow.level_from_step
    return since & np.isin(found.steps, slow.slow_steps) if slow.pattern == "intermittent" else since


def _find_bounds(found: EnqueueSeries, rank: int, peers: tuple[int, ...], rows: Flags) -> list[tuple[float, ...]]:
    """Return in each of these rows, where it is known, by how much the rank is later than the median peer, between the
    least and the most that it may be, in ns.
    """
    others = np.array(peers, dtype=np.int64)
    is_apart = found.machine[others] != found.machine[rank]
    bounds_ns = []
    for row in np.flatnonzero(rows).tolist():
        apart_ns, near_ns = (errors_ns[row, others] + errors_ns[row, rank] for errors_ns in found.errors_ns)
        errors_ns = np.where(is_apart, apart_ns, near_ns)
        late_ns = found.late_ns[row, rank] - found.late_ns[row, others]
        known = ~np.isnan(late_ns)
        if known.any():
            late_ns, errors_ns = late_ns[known], errors_ns[known]
            bounds_ns.append(tuple(float(np.median(late_ns + by_ns)) for by_ns in (-errors_ns, 0.0, errors_ns)))
    return bounds_ns
