"""What the time of a run went into, stretch by stretch since this collector knows it. Pure, exact and bounded.

Every rank reports what it has counted so far: a stretch is the difference of two pictures, summed over the ranks. Once
there are as many stretches as there may be, neighbours are added up: a long run has fewer, longer ones, and none is
lost.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rankscope.collector.state.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import Totals

STRETCHES_MAX: Final = 360
"""More are not told apart on a screen; of a run about 200 KB."""
STRETCH_S_MIN: Final = 2.0
"""A report comes every second or so: shorter stretches would show when it came."""
RANKS_PER_SECOND: Final = 1_024
"""To add up a rank takes about 5 us: at so many of them for each second of a stretch 0.5 % of one core."""


class ShareStretch(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time (s since 1970), all ranks together. `step_ns` is the time in finished steps, of which
    `phases_ns` are parts; `window_ns` that in profiled windows, of which the others are (docs/definitions.md section
    1): (compute - overlap) + overlap + exposed_communication + copy + idle = window.
    """

    begin_wall_s: float
    end_wall_s: float
    steps: int = 0
    step_ns: int = 0
    phases_ns: Mapping[str, int] = {}
    window_ns: int = 0
    compute_ns: int = 0
    overlap_ns: int = 0
    exposed_communication_ns: int = 0
    copy_ns: int = 0
    idle_ns: int = 0


SUMMED: Final = (
    "steps", "step_ns", "window_ns", "compute_ns", "overlap_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
)  # fmt: skip
"""Fields of Totals that a stretch adds up, besides the phases."""


class RunShares:
    """The stretches of one run. Of one thread."""

    def __init__(self, stretches_max: int = STRETCHES_MAX) -> None:
        self._stretches_max = stretches_max
        self._stretches: tuple[ShareStretch, ...] = ()
        self._stretch_s = STRETCH_S_MIN
        self._lives: dict[int, tuple[str, Totals]] = {}
        self._taken_wall_s: float | None = None

    @property
    def stretches(self) -> tuple[ShareStretch, ...]:
        """Oldest first."""
        return self._stretches

    def take(self, run: RunSnapshot, wall_s: float) -> None:
        """Take a picture in, if it is time for one. What a life had counted before it was first seen is in none."""
        begin_wall_s = self._taken_wall_s
        if begin_wall_s is not None and 0.0 <= wall_s - begin_wall_s < self._pause_s(run):
            return
        lives, self._lives = (
            self._lives,
            {rank.identity.rank: (rank.identity.boot_id, rank.totals) for rank in run.ranks if rank.reports_admitted},
        )
        self._taken_wall_s = wall_s
        if begin_wall_s is None:
            return
        stretch = _sum(run.ranks, lives, begin_wall_s, wall_s)
        if not stretch.step_ns and not stretch.window_ns:
            return
        self._stretches = (*self._stretches, stretch)
        if len(self._stretches) > self._stretches_max:
            self._stretches = tuple(_join_neighbours(self._stretches))
            self._stretch_s *= 2

    def _pause_s(self, run: RunSnapshot) -> float:
        return max(self._stretch_s, len(run.ranks) / RANKS_PER_SECOND)


class Shares:
    """Those of all runs that are known at the moment. Written by one thread, read by any."""

    def __init__(self) -> None:
        self._runs: dict[str, RunShares] = {}

    def take(self, runs: Iterable[RunSnapshot], wall_s: float) -> None:
        """The runs as they are now; of those that are not among them nothing is kept."""
        known: dict[str, RunShares] = {}
        for run in runs:
            shares = known[run.run] = self._runs.get(run.run) or RunShares()
            shares.take(run, wall_s)
        self._runs = known

    def of(self, run: str) -> tuple[ShareStretch, ...]:
        """The stretches of a run, oldest first; none of a run that is not known."""
        found = self._runs.get(run)
        return () if found is None else found.stretches


def _sum(
    ranks: Iterable[RankSnapshot], lives: Mapping[int, tuple[str, Totals]], begin_wall_s: float, end_wall_s: float
) -> ShareStretch:
    sums = dict.fromkeys(SUMMED, 0)
    phases_ns: dict[str, int] = {}
    for rank in ranks:
        boot_id, before = lives.get(rank.identity.rank, ("", rank.totals))
        if boot_id != rank.identity.boot_id or before is rank.totals:
            continue
        for name in SUMMED:
            sums[name] += getattr(rank.totals, name) - getattr(before, name)
        for phase, spent_ns in rank.totals.phases_ns.items():
            phases_ns[phase] = phases_ns.get(phase, 0) + spent_ns - before.phases_ns.get(phase, 0)
    return ShareStretch(begin_wall_s=begin_wall_s, end_wall_s=end_wall_s, phases_ns=phases_ns, **sums)


def _join_neighbours(stretches: tuple[ShareStretch, ...]) -> Iterable[ShareStretch]:
    for first in range(0, len(stretches), 2):
        pair = stretches[first : first + 2]
        names = {phase for one in pair for phase in one.phases_ns}
        yield ShareStretch(
            begin_wall_s=pair[0].begin_wall_s,
            end_wall_s=pair[-1].end_wall_s,
            phases_ns={phase: sum(one.phases_ns.get(phase, 0) for one in pair) for phase in sorted(names)},
            **{name: sum(getattr(one, name) for one in pair) for name in SUMMED},
        )
