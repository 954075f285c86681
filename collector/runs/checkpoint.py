"""Define what is saved of a run, so that a restarted collector continues it: counters, ends, costs. Pure.

Two rows of JSON a run, one a rank process, and the sums of all ranks' collectives in columns. Measurements are not
saved (steps, collectives, clocks: they come anew), nor what every report carries anyway; but the last totals are, for
the report of a run that is over. Times are seconds since 1970: the next collector has another monotonic clock, perhaps
on another machine.
"""

import msgspec

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.measure.messages import Goodbye, Hello, RankEnded
from rankscope.measure.records import DeviceSample, Losses, Totals


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
