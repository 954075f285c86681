"""Define what is saved of a run, so that a restarted collector continues it: counters, ends, costs. Pure.

Two rows of JSON a run, one a rank process, and the sums of all ranks' collectives in columns. Measurements are not
saved (steps, collectives, clocks: they come anew), nor what every report carries anyway; but the last totals are, for
the report of a run that is over. Times are seconds since 1970: the next collector has another monotonic clock, perhaps
on another machine.
"""

from typing import NamedTuple

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.goodput import Goodput, GoodputSnapshot
from rankscope.collector.runs.last_report import LastReport
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.measure.messages import Goodbye, Hello, RankEnded
from rankscope.measure.records import DeviceSample, Losses, Totals
from rankscope.measure.units import ns_to_s, s_to_ns


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


class SavedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank process: who it is, its counts, and how it ended, as far as it has."""

    hello: Hello
    first_sequence: int
    last_sequence: int
    admitted: int
    duplicates: int
    steps: StepCounts = StepCounts()
    last_report_wall_s: float | None = None
    last_step: int | None = None
    step_ns_median: float | None = None
    totals: Totals = Totals()
    losses: Losses = Losses()
    devices: tuple[DeviceSample, ...] = ()
    said: Goodbye | None = None
    seen: RankEnded | None = None
    is_gone: bool = False
    ended_wall_s: float | None = None

    @property
    def missing(self) -> int:
        """Numbered messages of this rank process that were given up."""
        return self.last_sequence - self.first_sequence + 1 - self.admitted


class LazySavedRank(NamedTuple):
    """Inputs of a saved row, which the thread that writes it builds. `life` is the row without the fields of
    `latest`.
    """

    life: SavedRank
    latest: LastReport

    def build(self) -> SavedRank:
        """Return the row."""
        counted = self.latest.counted
        return msgspec.structs.replace(
            self.life,
            totals=counted.totals,
            losses=counted.losses,
            devices=self.latest.devices,
        )


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its findings and ranks. `attempt` counts its attempts from 0, also those that torchrun does not
    count; `goodput` is settled up to `settled_wall_s`; `step_ns` is the time in steps counted of this attempt;
    `recorded_step` the last step of it in the history; `end` is how the run ended, None while it goes on.
    """

    run: str
    world_size: int
    restart_count: int
    attempt: int
    begun_wall_s: float
    changed_wall_s: float
    settled_wall_s: float
    is_over: bool
    step_ns: int
    recorded_step: int
    goodput: GoodputSnapshot
    lost: tuple[LostSeconds, ...] = ()
    findings_opened: int = 0
    end: RunEnd | None = None


class SavedStory(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a run that seldom change: its findings, open ones last, and the boot ids of its former attempt."""

    findings: tuple[Finding, ...] = ()
    former_boots: tuple[str, ...] = ()


class CarriedGoodput(Goodput):
    """Account of a run that was continued after its collector was restarted: the time before, and the time since."""

    def __init__(self) -> None:
        super().__init__()
        self._carried = GoodputSnapshot()

    def resume(self, carried: GoodputSnapshot, settled_ns: int, *, is_over: bool) -> None:
        """Continue an account that was settled up to `settled_ns`. The time between is settled by the next report."""
        wall_ns = carried.wall_ns - carried.unreported_ns
        self._carried = msgspec.structs.replace(carried, wall_ns=wall_ns, unreported_ns=0)
        self.begin(settled_ns)
        if carried.steps_ns:
            self.add_steps(settled_ns, 0)  # it is past its start-up
        if is_over:
            self.end(settled_ns)

    def snapshot(self, now_ns: int) -> GoodputSnapshot:
        """Return the whole account at this time."""
        since = super().snapshot(now_ns)
        names = GoodputSnapshot.__struct_fields__
        return GoodputSnapshot(**{name: getattr(self._carried, name) + getattr(since, name) for name in names})
