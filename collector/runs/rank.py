"""Define the state of one rank process, plain fields that each event replaces, and what is saved of it. Pure.

A state never changes, so the snapshot of a run refers to the states of its ranks and is built when it is read.

The last report stays in its frame and is decoded on each access: as objects the totals, losses, costs and samples of a
rank are 5 KB; the frame is one block of a kilobyte, which the codec has checked already.
"""

from typing import Any, Final

import msgspec

from rankscope.collector.detect.view import OutOfMemorySeen
from rankscope.collector.invariants import require
from rankscope.collector.runs.clock_alignment import ClockAlignment, Clocks
from rankscope.collector.runs.events import (
    ClockSampled,
    DuplicateSeen,
    EndSeen,
    GoodbyeAdmitted,
    InspectorSeen,
    ProcessGone,
    RankProcessEvent,
    RasSeen,
    UnresponsiveSeen,
)
from rankscope.collector.runs.liveness import Liveness
from rankscope.collector.runs.ratio_basis import (
    FirstSeen,
    RatioBasis,
    WindowTimes,
    find_absence,
    find_basis,
    note_windows,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.runs.step_accounting import StepAccounting, StepCounts
from rankscope.collector.steps.collective_totals import CollectiveTotals
from rankscope.collector.steps.rank_medians import RankMedians
from rankscope.measure.codec import encode, find_body
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.model_flops import NO_FLOPS, StepFlops
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.out_of_memory import NOTICES_MAX
from rankscope.measure.records import (
    Collectives,
    DeviceSample,
    HostSample,
    Losses,
    NodeSample,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.table import Table

FRAME_BYTES_KEPT: Final = 4096
"""A larger frame, of a thousand collectives or a stall, is reduced to the fields that are needed."""


_REPORTS: Final = msgspec.msgpack.Decoder(Report)
_NOTHING_REPORTED: Final = Report(sequence=1, host_ns=0)


class SavedRank(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved of one rank process: who it is, its counts, and how it ended, as far as it has. Times are seconds
    since 1970.
    """

    hello: Hello
    first_sequence: int
    last_sequence: int
    admitted: int
    duplicates: int
    steps: StepCounts = StepCounts()
    last_report_wall_s: float | None = None
    last_step: int | None = None
    totals: Totals = Totals()
    losses: Losses = Losses()
    devices: tuple[DeviceSample, ...] = ()
    said: Goodbye | None = None
    seen: RankEnded | None = None
    is_gone: bool = False
    ended_wall_s: float | None = None
    flops: StepFlops = NO_FLOPS
    #: Its last windows with blocking calls as one; None while there is none, and where its ratios are absent.
    synchronizations: WindowSynchronizations | None = None

    @property
    def missing(self) -> int:
        """Numbered messages of this rank process that were given up."""
        return self.last_sequence - self.first_sequence + 1 - self.admitted


class RankState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank process, from its Hello to its end. Never changed: each event makes another state."""

    #: Its first Hello here, with who it is.
    hello: Hello
    #: When it last reported, or its sidecar last saw it alive; moved by absences of the collector.
    last_seen_collector_ns: int
    #: When its clock is to be asked for next.
    next_ping_collector_ns: int
    #: Number of the first message expected of it. Never changes.
    first_sequence: int
    #: Number of the last message admitted; `first_sequence - 1` before any. Only grows.
    last_sequence: int
    #: Where its step records went, as of the last report that is in the step table.
    steps: StepAccounting
    #: Numbered messages admitted, also those that an earlier collector acknowledged. Only grows.
    admitted: int = 0
    #: Numbered messages that came again. Only grows.
    duplicates: int = 0
    #: Whether it is known from the store only: it has not reported since the collector was restarted.
    is_awaited: bool = False
    #: Wall time of its last report, in s since 1970; None before any, at any collector.
    last_report_wall_s: float | None = None
    #: The last step of its last report that had steps; None before any.
    last_step: int | None = None
    #: Whether it runs, hangs or has ended.
    liveness: Liveness = Liveness()
    #: Offset of its host's clock, from at most SAMPLES_MAX answers.
    clock: ClockAlignment = ClockAlignment()
    #: The sum of its last BREAKDOWNS_KEPT breakdowns; None while there is none.
    breakdown: WindowBreakdown | None = None
    #: When these came; None while there is none.
    window_times: WindowTimes | None = None
    #: Its last SYNCHRONIZATIONS_KEPT windows with blocking calls as one; None while there is none.
    synchronizations: WindowSynchronizations | None = None
    #: What an earlier collector saved of these: for the store alone, until a window comes.
    saved_synchronizations: WindowSynchronizations | None = None
    #: Frame of its last report; empty before any.
    frame: bytes = b""
    #: Frame of an earlier report, where the last one has no sample of the host: empty where none has had one.
    host_frame: bytes | None = None
    #: The same for samples of GPUs.
    devices_frame: bytes | None = None
    #: The same for samples of torch's allocator.
    allocator_frame: bytes | None = None
    #: The same for samples of its machine, which most reports are without.
    node_frame: bytes | None = None
    #: Where the distance to its first full window is counted from; None before any report here.
    first_seen: FirstSeen | None = None
    #: Its last errors of torch's allocator, at most NOTICES_MAX, numbers ascend.
    memory_errors: tuple[OutOfMemorySeen, ...] = ()

    @classmethod
    def begin(cls, hello: Hello, now_collector_ns: int) -> "RankState":
        """Return the state of a process that has just said Hello."""
        first = hello.first_sequence
        return cls(hello, now_collector_ns, now_collector_ns, first, first - 1, StepAccounting(first == 1))

    @classmethod
    def restore(cls, saved: SavedRank, clocks: Clocks) -> "RankState":
        """Return a rank process as it was saved. It counts as seen just now: it has all the time to come back."""
        ended_ns = None if saved.ended_wall_s is None else clocks.to_collector_ns(saved.ended_wall_s)
        report = msgspec.structs.replace(
            _NOTHING_REPORTED, totals=saved.totals, losses=saved.losses, devices=saved.devices, flops=saved.flops
        )
        return cls(
            hello=saved.hello,
            last_seen_collector_ns=clocks.collector_ns,
            next_ping_collector_ns=clocks.collector_ns,
            first_sequence=saved.first_sequence,
            last_sequence=saved.last_sequence,
            steps=StepAccounting.restore(
                saved.hello.first_sequence, saved.steps, saved.losses.steps_dropped_in_reports
            ),
            admitted=saved.admitted,
            duplicates=saved.duplicates,
            is_awaited=True,
            last_report_wall_s=saved.last_report_wall_s,
            last_step=saved.last_step,
            liveness=Liveness.restore(saved.said, saved.seen, is_gone=saved.is_gone, ended_collector_ns=ended_ns),
            saved_synchronizations=saved.synchronizations,
            frame=encode(report),
        )

    def save(self, clocks: Clocks) -> SavedRank:
        """Return what is saved of it."""
        liveness, last = self.liveness, self.last_report
        ended_ns = None if self.is_live else liveness.ended_collector_ns
        return SavedRank(
            hello=self.hello,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            admitted=self.admitted,
            duplicates=self.duplicates,
            steps=self.steps.counts,
            last_report_wall_s=self.last_report_wall_s,
            last_step=self.last_step,
            totals=last.totals,
            losses=last.losses,
            flops=last.flops,
            synchronizations=self._find_lasting_synchronizations(last),
            devices=self.devices,
            said=liveness.said,
            seen=liveness.seen,
            is_gone=liveness.is_gone,
            ended_wall_s=None if ended_ns is None else clocks.to_wall_s(ended_ns),
        )

    def _find_lasting_synchronizations(self, last: Report) -> WindowSynchronizations | None:
        if self.window_times is None:
            return self.saved_synchronizations
        return self.synchronizations if _find_basis(self, last).absent is None else None

    # -- who it is, and whether it runs --------------------------------------------------------------------------------

    @property
    def identity(self) -> RankIdentity:
        """Who it is."""
        return self.hello.identity

    @property
    def ended(self) -> str | None:
        """How it ended; None while it is live."""
        ending = self.liveness.ending
        return None if ending is None else ending.reason

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.liveness.ending is None

    @property
    def missing(self) -> int:
        """Numbered messages that were given up: the numbers up to the last one that never came."""
        return self.last_sequence - self.first_sequence + 1 - self.admitted

    @property
    def counters(self) -> tuple[object, ...]:
        """What must not be lost, in short: when this has changed the rank has to be saved."""
        return self.identity.boot_id, self.missing, self.steps.late, self.liveness.ending

    def is_continued_by(self, identity: RankIdentity) -> bool:
        """Return whether this identity is of the same process, whose agent was stopped and started again. A process in
        another container may have the same machine and process id, so this one must have stopped its agent and not have
        been seen to end.
        """
        mine = self.identity
        is_same = bool(identity.machine_id) and (mine.machine_id, mine.pid) == (identity.machine_id, identity.pid)
        return is_same and self.ended == "stopped" and self.liveness.seen is None

    # -- events --------------------------------------------------------------------------------------------------------

    def apply(self, event: RankProcessEvent) -> "RankState":
        """Return the state after an event other than a report."""
        changes: dict[str, Any] = {}
        match event:
            case DuplicateSeen():
                changes = {"duplicates": self.duplicates + 1}
            case GoodbyeAdmitted(_, goodbye, now_ns):
                changes = {"is_awaited": False, "last_sequence": goodbye.sequence}
                changes["admitted"] = self._count_admitted(goodbye.sequence, 0)
                changes["liveness"] = self.liveness.record_goodbye(goodbye, now_ns)
            case ClockSampled(_, sent_ns, host_ns, received_ns):
                changes["clock"] = self.clock.add(sent_ns, host_ns, received_ns)
            case ProcessGone(_, now_ns) if self.ended in {None, "silent"}:
                changes["liveness"] = self.liveness.record_process_gone(now_ns)
            case EndSeen(_, seen, now_ns):
                changes["liveness"] = self.liveness.record_end(seen, self.clock, now_ns)
            case UnresponsiveSeen(_, found, now_ns):  # the process runs, so it is not silent
                changes["last_seen_collector_ns"] = now_ns
                changes["liveness"] = self.liveness.record_unresponsive(found)
            case RasSeen(_, answered, _):
                changes["liveness"] = msgspec.structs.replace(self.liveness, ras=answered)
            case InspectorSeen(_, read, _):
                changes["liveness"] = msgspec.structs.replace(self.liveness, inspector=read)
        return msgspec.structs.replace(self, **changes)

    def record_report(
        self, report: ReportFields, breakdown: WindowBreakdown | None, now_collector_ns: int, now_wall_s: float
    ) -> "RankState":
        """Return the state after a report, without its steps. `breakdown` is the sum of the last breakdowns."""
        frame = report.frame if len(report.frame) <= FRAME_BYTES_KEPT else _shorten(report.frame)
        first_seen = _find_first_seen(self, report) if self.first_seen is None else self.first_seen
        return msgspec.structs.replace(
            self,
            last_seen_collector_ns=now_collector_ns,
            last_report_wall_s=now_wall_s,
            is_awaited=False,
            admitted=self._count_admitted(report.sequence, report.reports_dropped),
            last_sequence=report.sequence,
            liveness=self.liveness.record_report(report),
            breakdown=breakdown,
            window_times=note_windows(self.window_times, report.breakdowns, report.host_ns, first_seen),
            first_seen=first_seen,
            frame=frame,
            host_frame=None if report.has_host else _choose(self.host_frame, self.frame),
            devices_frame=None if report.has_devices else _choose(self.devices_frame, self.frame),
            allocator_frame=_choose(self.allocator_frame, self.frame) if report.allocator is None else None,
            node_frame=_choose_node(self, report, frame),
            memory_errors=_add_errors(self, report, now_collector_ns) if report.out_of_memory else self.memory_errors,
        )

    def record_steps(self, report: ReportFields, late: int, last_step: int) -> "RankState":
        """Return the state after the steps of a report were added to the step table, `late` of them too late;
        `last_step` is the last of them, where there are any.
        """
        last = last_step if report.steps.row_count else self.last_step
        return msgspec.structs.replace(self, steps=self.steps.record_report(report, late), last_step=last)

    def _count_admitted(self, sequence: int, reports_dropped: int) -> int:
        """Return how many messages are admitted with this one. The first after a restart of the collector may skip
        some: an earlier collector acknowledged those and could not save that. Only as many are missing as the rank has
        dropped meanwhile.
        """
        if not self.is_awaited:
            return self.admitted + 1
        between = max(0, sequence - self.last_sequence - 1)
        dropped = max(0, reports_dropped - self.last_report.losses.reports_dropped)
        return self.admitted + 1 + max(0, between - dropped)

    # -- its last report -----------------------------------------------------------------------------------------------

    @property
    def last_report(self) -> Report:
        """Its last report, without steps and collectives where it was too large to be kept; an empty one before any."""
        return _read(self.frame)

    @property
    def host(self) -> HostSample | None:
        """The last sample of the rank's process; None before any."""
        return _read(_choose(self.host_frame, self.frame)).host

    @property
    def devices(self) -> tuple[DeviceSample, ...]:
        """The last sample of each GPU; empty before any."""
        return _read(_choose(self.devices_frame, self.frame)).devices

    @property
    def absent_ratios(self) -> str | None:
        """Why its windows are none of the present; None where they are, or where there is none."""
        if self.window_times is None:
            return None
        last = self.last_report
        return find_absence(self.window_times, last.cost, self.last_step, last.host_ns)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def build(
        self, now_collector_ns: int, medians: RankMedians, collectives: tuple[CollectiveTotals, ...]
    ) -> RankSnapshot:
        """Return the snapshot of the rank at this time."""
        liveness, ending, steps = self.liveness, self.liveness.ending, self.steps.counts
        last, alignment = self.last_report, self.clock.at(now_collector_ns)
        basis = _find_basis(self, last)
        return RankSnapshot(
            identity=self.identity,
            up=ending is None,
            ended=None if ending is None else ending.reason,
            ended_detail="" if ending is None else ending.detail,
            exit_code=None if ending is None else ending.exit_code,
            torch_version=self.hello.torch_version,
            agent_version=self.hello.agent_version,
            last_report_wall_s=self.last_report_wall_s,
            last_step=self.last_step,
            reports_admitted=self.admitted,
            reports_duplicate=self.duplicates,
            report_gaps=self.missing,
            first_sequence=self.first_sequence,
            last_sequence=self.last_sequence,
            records_late=steps.late,
            steps=steps,
            breakdown=self.breakdown if basis.absent is None else None,
            ratio_basis=basis,
            synchronizations=self.synchronizations if basis.absent is None else None,
            totals=last.totals,
            losses=last.losses,
            flops=last.flops,
            collectives=collectives,
            host=last.host if self.host_frame is None else self.host,
            devices=last.devices if self.devices_frame is None else self.devices,
            allocator=last.allocator if self.allocator_frame is None else _read(self.allocator_frame).allocator,
            node=last.node if self.node_frame is None else _read(self.node_frame).node,
            overhead_ratio=last.overhead_ratio,
            cost=last.cost,
            clock_error_ns=None if alignment is None else alignment.error_ns,
            stalled=liveness.is_stalled if ending is None else None,
            stall=liveness.stall,
            unresponsive=liveness.unresponsive,
            progress=liveness.progress,
            end=liveness.seen,
            ended_collector_ns=None if ending is None else liveness.ended_collector_ns,
            awaited=self.is_awaited,
            nccl=liveness.nccl_bandwidths,
            compilations=last.compilations,
            saves=last.saves,
            **medians.of(self.identity.rank),
        )

    def summarize(self, medians: RankMedians) -> RankSnapshot:
        """Return the snapshot with only SUMMARY_FIELDS."""
        last = self.last_report
        basis = _find_basis(self, last)
        return RankSnapshot(
            identity=self.identity,
            up=self.is_live,
            ended=self.ended,
            torch_version=self.hello.torch_version,
            agent_version=self.hello.agent_version,
            reports_admitted=self.admitted,
            breakdown=self.breakdown if basis.absent is None else None,
            ratio_basis=basis,
            cost=last.cost,
            totals=last.totals,
            flops=last.flops,
            devices=last.devices if self.devices_frame is None else self.devices,
            node=last.node if self.node_frame is None else _read(self.node_frame).node,
            stalled=self.liveness.is_stalled if self.is_live else None,
            awaited=self.is_awaited,
            **medians.summary_of(self.identity.rank),
        )

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        who = f"rank {self.identity.rank}"
        require(self.last_sequence >= self.first_sequence - 1, f"{who}: the last sequence number is below the first")
        require(min(self.admitted, self.missing, self.duplicates) >= 0, f"{who}: a negative count of messages")
        steps = self.steps.counts
        counts = (steps.published, steps.published_elsewhere, steps.overwritten, steps.dropped_in_reports, steps.late)
        require(min(counts) >= 0, f"{who}: a negative count of step records: {steps}")
        require(len(self.frame) <= FRAME_BYTES_KEPT, f"{who}: too large a frame is kept")
        require(len(self.node_frame or b"") <= FRAME_BYTES_KEPT, f"{who}: too large a sample of its machine is kept")
        numbers = [one.notice.number for one in self.memory_errors]
        require(numbers == sorted(set(numbers)), f"{who}: errors of the allocator are out of order")
        require(len(numbers) <= NOTICES_MAX, f"{who}: too many errors of the allocator are kept")
        self.liveness.validate()


def _find_basis(rank: RankState, last: Report) -> RatioBasis:
    return find_basis(rank.breakdown, rank.window_times, last.cost, rank.last_step, last.host_ns)


def _find_first_seen(rank: RankState, report: ReportFields) -> FirstSeen:
    """Return where windows are counted from, at the first report here. An earlier collector may have had some."""
    if report.sequence == 1:
        return FirstSeen(-1, rank.hello.host_ns)
    last_step = int(report.steps.column("step").max()) if report.steps.row_count else rank.last_step
    return FirstSeen(-1 if last_step is None else last_step, report.host_ns)


def _add_errors(rank: RankState, report: ReportFields, now_collector_ns: int) -> tuple[OutOfMemorySeen, ...]:
    """Return the errors of the allocator that are kept after a report: the first, of which the most was read, and the
    last. One that is reported again has more fields now.
    """
    known = {one.notice.number: one for one in rank.memory_errors}
    for notice in report.out_of_memory:
        seen = known.get(notice.number) or OutOfMemorySeen(notice, now_collector_ns, rank.last_step)
        known[notice.number] = seen._replace(notice=notice)
    first, *later = sorted(known)
    return tuple(known[number] for number in (first, *later[1 - NOTICES_MAX :]))


def _choose(earlier_frame: bytes | None, last_frame: bytes) -> bytes:
    """Return the frame with the last sample of a kind, from the fields of a state."""
    return last_frame if earlier_frame is None else earlier_frame


def _choose_node(before: RankState, report: ReportFields, frame: bytes) -> bytes | None:
    """Return the frame with the last sample of the machine after a report, None for `frame`: what is kept of that
    report.
    """
    if report.node is None:
        return _choose(before.node_frame, before.frame)
    return None if frame is report.frame else _pack_node(report.node)


def _read(frame: bytes) -> Report:
    return _REPORTS.decode(find_body(frame)) if frame else _NOTHING_REPORTED


def _shorten(frame: bytes) -> bytes:
    """Return the frame of a report without what may be large, all of which is used when it arrives."""
    report = msgspec.structs.replace(
        _read(frame), steps=Table(), collectives=Collectives(), covered_steps=(), breakdowns=(), groups=None,
        progress=(), stall=None, synchronizations=(), timed_steps=(), node=None, out_of_memory=(), enqueues=None,
    )  # fmt: skip
    return encode(report)


def _pack_node(node: NodeSample) -> bytes:
    """Return a frame with nothing but a sample of the machine; one of nothing where it is too large to be kept, which
    that of an agent is not.
    """
    frame = encode(msgspec.structs.replace(_NOTHING_REPORTED, node=node))
    return frame if len(frame) <= FRAME_BYTES_KEPT else b""
