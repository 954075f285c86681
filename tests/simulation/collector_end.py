"""Run the collector's end of the connection: production code from the frame on, as `collector/service.py` joins it,
without a socket.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.finding_memory import remember
from rankscope.collector.ingest.admission import Admission, Admitted, Duplicate, SequenceGap
from rankscope.collector.runs.events import (
    AskClock,
    ClockSampled,
    CloseFinding,
    DuplicateSeen,
    FindingOpened,
    RankJoined,
    ReportAdmitted,
)
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.codec import decode
from rankscope.measure.messages import Ack, ClockPong, Hello, HelloWanted, Message, Report, Welcome
from rankscope.measure.units import ns_to_s
from tests.run_ticks import tick_run
from tests.simulation.finding_watch import FindingWatch
from tests.validated_run import ValidatedRun


class Opened(NamedTuple):
    """A finding as it was last known, and after how many steps it was opened and closed."""

    finding: Finding
    opened_step: int
    closed_step: int | None


class CollectorEnd:
    """Collector that accepts frames, returns answers, and records the findings of the run. Raises AssertionError when a
    finding is opened twice, or closed without being open.
    """

    def __init__(
        self, run: str, world_size: int, config: CollectorConfig, run_type: type[RunState] = ValidatedRun
    ) -> None:
        self.admission = Admission(1, world_size)
        self.run = run_type(run, config)
        self.steps_admitted: dict[str, int] = {}
        """Records of steps in admitted reports, by rank process."""
        self.admitted: dict[str, set[int]] = {}
        """Numbers of the admitted reports, by rank process."""
        self._open: dict[int, tuple[Finding, int]] = {}
        self._closed: list[Opened] = []
        self._opened_ever: set[int] = set()
        self.watch: FindingWatch | None = None
        """Sees the findings of every pass, where there is one."""

    @property
    def opened(self) -> list[Opened]:
        """Return every finding, closed ones first."""
        return self._closed + [Opened(finding, step, None) for finding, step in self._open.values()]

    def receive(self, peer: str, frame: bytes, now_ns: int) -> list[Message]:
        """Handle a frame and return the answers."""
        message = decode(frame)
        match message:
            case Hello():
                welcome = self.admission.hello(peer.encode(), message)
                assert isinstance(welcome, Welcome), welcome
                self.run.apply(RankJoined(message, now_ns))
                return [welcome]
            case Report():
                return self._receive_report(peer, message, now_ns)
            case ClockPong():
                self.run.apply(ClockSampled(peer, message.collector_ns, message.host_ns, now_ns))
                return []
        raise AssertionError(f"no rank sends {message!r}")

    def _receive_report(self, peer: str, report: Report, now_ns: int) -> list[Message]:
        verdict = self.admission.number(peer.encode(), report.sequence)
        match verdict:
            case Admitted():
                self.admitted.setdefault(peer, set()).add(report.sequence)
                self.steps_admitted[peer] = self.steps_admitted.get(peer, 0) + report.steps.row_count
                self.run.apply(ReportAdmitted(peer, ReportFields.of(report), now_ns, ns_to_s(now_ns)))
                return [Ack(through=verdict.through)]
            case Duplicate():
                self.run.apply(DuplicateSeen(peer))
                return [Ack(through=verdict.through)]
            case SequenceGap() if not verdict.hello_wanted:
                return []
        return [HelloWanted()]

    def run_pass(self, step: int, now_ns: int) -> list[str]:
        """Run a detection pass; return the ranks whose clocks the collector asks for."""
        asked: list[str] = []
        for effect in tick_run(self.run, now_ns, ns_to_s(now_ns)):
            match effect:
                case AskClock():
                    asked.append(effect.boot_id)
                case FindingOpened():
                    number = effect.finding.number
                    assert number not in self._opened_ever, f"finding {number} is opened twice"
                    self._opened_ever.add(number)
                    self._open[number] = (effect.finding, step)
                case CloseFinding():
                    assert effect.finding.number in self._open, f"finding {effect.finding.number} is not open"
                    _, opened_step = self._open.pop(effect.finding.number)
                    self._closed.append(Opened(effect.finding, opened_step, step))
                    if self.watch is not None and effect.reason == "passed":
                        self.watch.observe_passed(effect.finding, step)
        if self.watch is not None:
            kept = self.run.findings.kept_memories
            known = [(one, kept.get(one.number)) for one in self.run.open_findings]
            self.watch.observe([remember(one, has.memory) if has else one for one, has in known], step)
        return asked

    def snapshot(self, now_ns: int) -> RunSnapshot:
        """Return the snapshot of the run, with findings brought up to date."""
        snapshot = self.run.snapshot(now_ns)
        held: Mapping[int, Finding] = {finding.number: finding for finding in snapshot.open_findings}
        assert held.keys() == self._open.keys(), f"findings {sorted(held)} are open, {sorted(self._open)} were opened"
        self._open = {number: (held[number], step) for number, (_, step) in self._open.items()}
        return snapshot
