"""What is kept of a run, so that a collector that is started again goes on with it: counters, ends, costs. Pure.

Two rows of JSON a run, one a life of a rank, and the counts of all ranks' collectives in columns: each profiler window
changes them for every rank, and to write 16,384 rows took seconds. Measurements are not kept (steps, collectives,
clocks: they come anew), nor what every report carries anyway; but the last totals are, for the report about a run that
is over. Times are seconds since 1970: the next collector has another monotonic clock, perhaps on another machine.
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
    """The collector's two clocks at one moment: its monotonic one, by which runs are told, and the wall's."""

    collector_ns: int
    wall_s: float

    def to_wall_s(self, collector_ns: int) -> float:
        """When that was, by the wall."""
        return self.wall_s - ns_to_s(self.collector_ns - collector_ns)

    def to_collector_ns(self, wall_s: float) -> int:
        """When that was, by the monotonic clock, which may not have been there yet: negative then. A moment that the
        wall's clock says is to come, because it was set back, is now.
        """
        return self.collector_ns - s_to_ns(max(0.0, self.wall_s - wall_s))


class SavedRank(msgspec.Struct, frozen=True, kw_only=True):
    """One life of a rank: who it is, what was counted of it, and how it ended, as far as it has."""

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
        """Numbered messages of this life that were given up."""
        return self.last_sequence - self.first_sequence + 1 - self.admitted


class LazySavedRank(NamedTuple):
    """What a life's row is made from, by the thread that writes it: of 16,384 lives that are saved in one go not all
    rows have to be there at once. `life` is the row without what `latest` holds.
    """

    life: SavedRank
    latest: LastReport

    def build(self) -> SavedRank:
        """The row."""
        counted = self.latest.counted
        return msgspec.structs.replace(
            self.life,
            totals=counted.totals,
            losses=counted.losses,
            devices=self.latest.devices,
        )


class SavedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, all but its findings and its lives. `attempt` counts its attempts from 0, also those that torchrun does
    not; `goodput` is settled up to `settled_wall_s`; `step_ns` is the time in steps that it has taken in of this
    attempt; `recorded_step` the last step of it in the history; `end` is how the run ended, None while
    it goes on.
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
    """What seldom changes of a run: its findings, those that are open last, and the lives of its former attempt."""

    findings: tuple[Finding, ...] = ()
    former_boots: tuple[str, ...] = ()


class CarriedGoodput(Goodput):
    """The account of a run that goes on after its collector was started again: what was before, and what came since."""

    def __init__(self) -> None:
        super().__init__()
        self._carried = GoodputSnapshot()

    def resume(self, carried: GoodputSnapshot, settled_ns: int, *, is_over: bool) -> None:
        """Go on from an account that was settled up to then. What ran on meanwhile comes with the next report."""
        wall_ns = carried.wall_ns - carried.unreported_ns
        self._carried = msgspec.structs.replace(carried, wall_ns=wall_ns, unreported_ns=0)
        self.begin(settled_ns)
        if carried.steps_ns:
            self.take_steps(settled_ns, 0)  # it is past its start-up
        if is_over:
            self.end(settled_ns)

    def snapshot(self, now_ns: int) -> GoodputSnapshot:
        """The whole account at this moment."""
        since = super().snapshot(now_ns)
        names = GoodputSnapshot.__struct_fields__
        return GoodputSnapshot(**{name: getattr(self._carried, name) + getattr(since, name) for name in names})
