"""Builds the messages of a rank: Hello, a Report of each interval, Goodbye. Pure: no thread, no socket."""

import platform
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.steps.model_flops import FlopTotals
from rankscope.measure import __version__
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.clock import Clock
from rankscope.measure.enqueues import Enqueues
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.model_flops import NO_FLOPS, StepFlops
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    CollectiveRecord,
    Collectives,
    Compilations,
    DeviceSample,
    GroupInfo,
    HostSample,
    LayerTimes,
    Losses,
    NodeSample,
    PipelineSchedule,
    SavedLine,
    StepRecord,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
    add_host_copies,
    add_waits,
    collectives_to_table,
    steps_to_table,
)
from rankscope.measure.stalls import GroupStatus, QuietPlace, Stall
from rankscope.measure.text import to_unicode

DETAIL_LENGTH_MAX: Final = 1024
"""Characters of an exception's type and text."""


class ScriptEnd(NamedTuple):
    """The end of the training script. `line` is the line of the script that raised the exception, if any."""

    reason: str
    detail: str = ""
    exit_code: int | None = None
    line: str = ""


class Interval(msgspec.Struct, kw_only=True):
    """The measurements of one rank since the last report."""

    steps: Sequence[StepRecord] = ()
    collectives: Sequence[CollectiveRecord] = ()
    covered_steps: Sequence[tuple[int, int]] = ()
    timed_steps: Sequence[tuple[int, int]] = ()
    breakdowns: Sequence[WindowBreakdown] = ()
    host: HostSample | None = None
    devices: tuple[DeviceSample, ...] = ()
    groups: Mapping[str, GroupInfo] = {}
    losses: Losses = Losses()
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()
    allocator: AllocatorSample | None = None
    progress: tuple[GroupStatus, ...] = ()
    stalled_since_host_ns: int | None = None
    stall: Stall | None = None
    synchronizations: Sequence[WindowSynchronizations] = ()
    node: NodeSample | None = None
    out_of_memory: tuple[OutOfMemory, ...] = ()
    flops: StepFlops = NO_FLOPS
    flop_totals: FlopTotals = FlopTotals()
    enqueues: Enqueues | None = None
    compilations: Compilations | None = None
    saves: tuple[SavedLine, ...] | None = None
    pipeline: PipelineSchedule | None = None
    layers: LayerTimes | None = None
    quiet: tuple[QuietPlace, ...] = ()


REPORTERS_MAX: Final = 8
"""Ranks that report the members of a group. If all did, a run of 16,384 ranks would begin with 800 MB for one group; if
one did, a single lost report would leave the group unknown."""


class ReportBuilder:
    """The builder of one rank process's reports, which numbers them from 1 and keeps totals.

    A group with more than REPORTERS_MAX members is reported by that many of them, evenly spread; without `rank` every
    group is reported.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank
        self._sequence = 0
        self._totals = Totals()
        self._groups_seen: tuple[GroupInfo, ...] = ()
        self._groups: tuple[GroupInfo, ...] = ()
        self._are_groups_reported = False
        self._last_step = -1
        self._covered_later: tuple[tuple[int, int], ...] = ()

    @property
    def totals(self) -> Totals:
        """Totals so far."""
        return self._totals

    def set_last_sequence(self, sequence: int) -> None:
        """Continue numbering after `sequence`. A report that could not be built or sent must leave no gap, since the
        collector admits nothing after a gap.
        """
        self._sequence = sequence

    def resend_groups(self) -> None:
        """Include the process groups in the next report, whether they have changed or not."""
        self._are_groups_reported = False

    def build(self, interval: Interval, now_host_ns: int) -> Report:
        """Build the next report.

        It contains the process groups only if they have changed. A range of covered steps is delayed until the records
        of its steps are reported, which may still wait for device times.
        """
        totals = _add_breakdowns(_add_steps(self._totals, interval.steps), interval.breakdowns)
        self._totals = _set_flops(_add_waits(totals, interval.synchronizations), interval.flop_totals)
        return Report(
            sequence=self._next_sequence(),
            host_ns=now_host_ns,
            steps=steps_to_table(interval.steps),
            collectives=collectives_to_table(interval.collectives) if interval.collectives else Collectives(),
            covered_steps=self._pop_covered(interval),
            breakdowns=tuple(interval.breakdowns),
            host=interval.host,
            devices=interval.devices,
            totals=self._totals,
            losses=interval.losses,
            groups=self._select_groups(tuple(interval.groups.values())),
            overhead_ratio=interval.overhead_ratio,
            cost=interval.cost,
            allocator=interval.allocator,
            progress=interval.progress,
            stalled_since_host_ns=interval.stalled_since_host_ns,
            stall=interval.stall,
            synchronizations=tuple(interval.synchronizations),
            node=interval.node,
            timed_steps=tuple(interval.timed_steps),
            out_of_memory=interval.out_of_memory,
            flops=interval.flops,
            enqueues=interval.enqueues,
            compilations=interval.compilations,
            saves=interval.saves,
            pipeline=interval.pipeline,
            layers=interval.layers,
            quiet=interval.quiet,
        )

    def build_goodbye(self, end: ScriptEnd) -> Goodbye:
        """Build the last numbered message."""
        return Goodbye(
            sequence=self._next_sequence(),
            reason=end.reason,
            detail=to_unicode(end.detail[:DETAIL_LENGTH_MAX]),
            exit_code=end.exit_code,
            line=to_unicode(end.line[:NAME_LENGTH_MAX]),
        )

    def _select_groups(self, groups: tuple[GroupInfo, ...]) -> tuple[GroupInfo, ...] | None:
        """Return the groups for this report; None if they are reported already."""
        if groups != self._groups_seen:  # fast for identical objects, the usual case
            selected = tuple(sorted(filter(self._is_reported_here, groups), key=lambda group: group.label))
            self._are_groups_reported &= selected == self._groups
            self._groups_seen, self._groups = groups, selected
        if self._are_groups_reported:
            return None
        self._are_groups_reported = True
        return self._groups

    def _is_reported_here(self, group: GroupInfo) -> bool:
        if self._rank is None or len(group.ranks) <= REPORTERS_MAX:
            return True
        members = sorted(group.ranks)
        return self._rank in {members[place * len(members) // REPORTERS_MAX] for place in range(REPORTERS_MAX)}

    def _pop_covered(self, interval: Interval) -> tuple[tuple[int, int], ...]:
        # Bounded by the number of records that may wait.
        self._last_step = max([self._last_step, *(record.step for record in interval.steps)])
        covered = (*self._covered_later, *interval.covered_steps)
        self._covered_later = tuple(steps for steps in covered if steps[1] > self._last_step)
        return tuple(steps for steps in covered if steps[1] <= self._last_step)

    def _next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


def build_hello(
    identity: RankIdentity,
    first_sequence: int,
    clock: Clock,
    *,
    report_interval_ns: int,
    torch_version: str,
    fault: str = "",
    script: str = "",
) -> Hello:
    """Build the introduction of a rank process whose next report has this number. `fault` is what it does to itself,
    `script` the file name of the training script.
    """
    return Hello(
        identity=identity,
        first_sequence=first_sequence,
        host_ns=clock.monotonic_ns(),
        wall_ns=clock.wall_ns(),
        report_interval_ns=report_interval_ns,
        agent_version=__version__,
        python_version=platform.python_version(),
        torch_version=torch_version,
        fault=fault,
        wants_summary=identity.rank == 0,
        script=script,
    )


def _add_steps(totals: Totals, steps: Sequence[StepRecord]) -> Totals:
    phases_ns = dict(totals.phases_ns)
    for record in steps:
        _add_phases(phases_ns, record.phases_ns)
    timed = [record.device_phases_ns for record in steps if record.device_phases_ns is not None]
    device_phases_ns = dict(totals.device_phases_ns)
    for on_device in timed:
        _add_phases(device_phases_ns, on_device)
    tails_ns = [record.device_tail_ns for record in steps if record.device_tail_ns is not None]
    return msgspec.structs.replace(
        totals,
        steps=totals.steps + len(steps),
        step_ns=totals.step_ns + sum(record.duration_ns for record in steps),
        phases_ns=phases_ns,
        batches=totals.batches + sum(record.batches for record in steps),
        device_steps=totals.device_steps + len(timed),
        device_step_ns=sum(device_phases_ns.values()),
        device_phases_ns=device_phases_ns,
        samples=_add_known(totals.samples, [record.samples for record in steps]),
        tokens=_add_known(totals.tokens, [record.tokens for record in steps]),
        samples_step_ns=totals.samples_step_ns + sum(r.duration_ns for r in steps if r.samples is not None),
        tokens_step_ns=totals.tokens_step_ns + sum(r.duration_ns for r in steps if r.tokens is not None),
        device_tail_steps=totals.device_tail_steps + len(tails_ns),
        device_tail_ns=totals.device_tail_ns + sum(tails_ns),
    )


def _add_phases(total_ns: dict[str, int], phases_ns: Mapping[str, int]) -> None:
    for name, duration_ns in phases_ns.items():
        total_ns[name] = total_ns.get(name, 0) + duration_ns


def _add_known(total: int | None, amounts: Sequence[int | None]) -> int | None:
    known = [amount for amount in (total, *amounts) if amount is not None]
    return sum(known) if known else None


def _add_breakdowns(totals: Totals, breakdowns: Sequence[WindowBreakdown]) -> Totals:
    for window in breakdowns:
        totals = msgspec.structs.replace(
            totals,
            windows=totals.windows + 1,
            window_ns=totals.window_ns + window.window_ns,
            compute_ns=totals.compute_ns + window.compute_ns,
            communication_ns=totals.communication_ns + window.communication_ns,
            overlap_ns=totals.overlap_ns + window.overlap_ns,
            exposed_communication_ns=totals.exposed_communication_ns + window.exposed_communication_ns,
            copy_ns=totals.copy_ns + window.copy_ns,
            idle_ns=totals.idle_ns + window.idle_ns,
            host_copies=add_host_copies((totals.host_copies, window.host_copies)),
        )
    return totals


def _add_waits(totals: Totals, windows: Sequence[WindowSynchronizations]) -> Totals:
    call_ns = dict(totals.call_ns)
    for window in windows:
        for call, waits_ns in window.call_ns.items():
            add_waits(call_ns, call, waits_ns)
    return msgspec.structs.replace(totals, call_ns=call_ns) if windows else totals


def _set_flops(totals: Totals, flops: FlopTotals) -> Totals:
    if not (flops.model.steps or flops.executed.steps):
        return totals
    return msgspec.structs.replace(
        totals,
        model_flops=float(flops.model.flops) if flops.model.steps else None,
        executed_flops=float(flops.executed.flops) if flops.executed.steps else None,
    )
