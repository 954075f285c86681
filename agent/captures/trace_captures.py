"""Join the captures of one rank: when they are taken, on the training thread, and where they go, on the agent thread.

What is said to the user, a line on stderr each: by rank 0 that a capture has been written and what it cost, by one rank
of a node why one was refused or lost, and that the collector has ordered one. The collector gets the outcomes of those
that it orders (`ordered_captures.py`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.agent.capture_settings import (
    PLAIN_COST,
    CaptureSteps,
    RecordOptions,
    is_url,
    parse_options,
    parse_schedule,
)
from rankscope.agent.captures.captured_steps import TRACE_BYTES_MAX, CapturedTrace
from rankscope.agent.captures.cpu_use import CpuUseNotes
from rankscope.agent.captures.marked_ranges import MarkedRanges, find_modules_obstacle
from rankscope.agent.captures.model_memory import ModelMemory
from rankscope.agent.captures.trace_files import TraceFiles, Written
from rankscope.agent.captures.trace_recording import (
    ANOTHER,
    ANOTHER_THREAD,
    PART,
    ProfilerSession,
    RawCapture,
    TraceRecording,
)
from rankscope.agent.captures.trace_uploads import TraceUploads, Uploaded
from rankscope.agent.config import ON_DEMAND, AgentConfig
from rankscope.agent.guard import Guard, log_line
from rankscope.agent.once_per_node import log_once_per_node
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.ring import Ring
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS
from rankscope.measure.identity import RankIdentity
from rankscope.measure.records import StepRecord
from rankscope.measure.units import ns_to_s, s_to_ns

WAITING_MAX: Final = 2
"""Captures that may wait for the agent thread; one holds all its events in memory."""
FULL = "an earlier one would have exceeded capture_bytes_max"
TOO_COSTLY = "it would stop training for"
BEHIND = "the captures before it have not been written yet"

REFUSED_KEPT: Final = 8
MB: Final = 1_000_000


class RefusedCapture(NamedTuple):
    """A capture that was refused, and why."""

    steps: CaptureSteps
    reason: str


class Order(NamedTuple):
    """What the collector asks for beside the steps. `pause_ns_max`: the longest time for which the capture may be
    expected to stop training; None: however long. `bytes_max`: the largest size of the file, 0: as large as any.
    """

    options: RecordOptions
    pause_ns_max: int | None = None
    bytes_max: int = 0


class Outcome(NamedTuple):
    """What has become of a capture that the collector ordered: its file; or, with an empty path, why there is none.
    `cut`: why it has fewer steps.
    """

    steps: CaptureSteps
    path: str = ""
    size_bytes: int = 0
    pause_ns: int | None = None
    problem: str = ""
    cut: str = ""


class TraceCaptures:
    """The captures of one rank, in the folder that the settings name, or uploaded to its URL; those that the collector
    orders, without a folder, in a temporary one.
    """

    def __init__(
        self,
        config: AgentConfig,
        identity: RankIdentity,
        environment: Mapping[str, str],
        guard: Guard,
        graphs: GraphCaptures,
        *,
        settle: Callable[[float], bool] = lambda _limit_s: True,
        make_session: Callable[[CaptureSteps], ProfilerSession] | None = None,
        make_uploads: Callable[[str], TraceUploads] = TraceUploads,
        script_profilers: int = 0,
    ) -> None:
        self._rank = identity.rank
        self._environment = environment
        self._first_graph = graphs.first_graph
        self._guard = guard
        self._options = parse_options(config.capture_options)
        self._orders: dict[str, Order] = {}
        self._make_session = make_session or (lambda steps: make_profile(steps, self._options_of(steps)))
        self._pause_ns_max = s_to_ns(config.capture_pause_s_max)
        self._uploads = make_uploads(config.capture_folder) if is_url(config.capture_folder) else None
        self._files = TraceFiles(
            config.capture_folder if self._uploads is None else self._uploads.folder,
            identity.run,
            identity.rank,
            bytes_max=config.capture_bytes_max,
            restart_count=identity.restart_count,
        )
        self._finished: Ring[RawCapture] = Ring(WAITING_MAX)
        self._refused: Ring[RefusedCapture] = Ring(REFUSED_KEPT)
        self._pauses_a_step_ns: dict[RecordOptions, float] = {}
        self._keeps_traces = config.full_windows and config.device_windows == ON_DEMAND
        self.outcomes: list[Outcome] = []
        """Outcomes of ordered captures that nobody has fetched yet. Of the agent thread."""
        self.plain_traces: list[CapturedTrace] = []
        """Traces of plain captures that nobody has fetched yet, where the ratios of a device come from these. As above.
        """
        self.events_a_step: float | None = None
        """Events of a step in the last full window; None before the first. Set by the agent thread."""
        self.window_ns_an_event: float | None = None
        """What that window has cost the training thread for each event; None where it is not known. As above."""
        self.written_ns = 0
        """CPU time of writing files on the agent thread so far."""
        self._ranges = ranges = MarkedRanges(guard)
        self._model_memory = ModelMemory(guard)
        self._cpu_use = CpuUseNotes(guard)
        self.recording = TraceRecording(
            self._begin,
            parse_schedule(config.capture_schedule),
            guard,
            on_finished=self._finished.append,
            on_refused=lambda steps, reason: self._refused.append(RefusedCapture(steps, reason)),
            find_obstacle=self._find_obstacle,
            on_running=lambda steps: mark_beside(
                ranges, self._model_memory, self._cpu_use, None if steps is None else self._options_of(steps)
            ),
            is_capturing_graph=graphs.is_open,
            settle=settle,
            end_leftover=end_leftover,
            script_profilers=script_profilers,
        )

    @property
    def keeps_files(self) -> bool:
        """Whether there is a folder for captures."""
        return not self._files.is_temporary

    @property
    def training_ns(self) -> int:
        """CPU time on the training thread so far."""
        return self.recording.spent_ns

    @property
    def upload_ns(self) -> int:
        """CPU time of the processes that upload files so far."""
        return 0 if self._uploads is None else self._uploads.cpu_ns

    def find_next(self, step: int) -> int:
        """Return the first step after this one at whose begin a capture may begin, continue or end."""
        found = self.recording.find_next(step)
        return UNKNOWN_STEPS if found is None else found

    def mark(self, steps: Sequence[StepRecord]) -> list[StepRecord]:
        """Return the records with those marked that a capture has made longer."""
        is_captured = self.recording.is_captured
        return [msgspec.structs.replace(one, captured=True) if is_captured(one.step) else one for one in steps]

    # -- on the agent thread ------------------------------------------------------------------------------------------

    def order(self, steps: CaptureSteps, order: Order) -> str:
        """Capture these steps for the collector; return why not, empty if it was accepted."""
        if self._guard.is_off(PART):
            return f"{PART} are switched off on this rank after too many errors"
        obstacle = self._find_price_obstacle(steps, order)
        if obstacle is None and order.options.modules and not order.options.stacks:
            obstacle = find_modules_obstacle()
        if obstacle is not None:
            return obstacle
        self._orders[steps.order_id] = order  # before the training thread may see the steps
        if self.recording.order(steps):
            return ""
        del self._orders[steps.order_id]
        return ANOTHER

    def call_off(self, order_id: str) -> None:
        """Forget an ordered capture, or end it at the next boundary."""
        self.recording.call_off(order_id)
        if not self.recording.is_on(order_id):
            self._orders.pop(order_id, None)

    def expect_pause_ns(self, steps: int, options: RecordOptions) -> float | None:
        """Return for how long a capture of so many steps is expected to stop training: as measured by the last one with
        these options, else by the events of the last full window. None: neither is known.
        """
        measured_ns = self._pauses_a_step_ns.get(options)
        if measured_ns is not None:
            return steps * measured_ns
        if self.events_a_step is None:
            return None
        return options.expect_pause_ns(steps * self.events_a_step, self.window_ns_an_event or PLAIN_COST.stop_ns)

    def write(self) -> None:
        """Write the captures that have ended, and log what has become of each. For the agent thread."""
        for steps, reason in self._refused.drain():
            if self._note_outcome(Outcome(steps, problem=reason)):
                continue
            text = f"the capture of {steps} was refused: {reason}. Training is not affected"
            self._log(text, TOO_COSTLY if reason.startswith(TOO_COSTLY) else reason)
        for capture in self._finished.drain():
            begin_ns = time.thread_time_ns()
            self._write(capture)
            self.written_ns += time.thread_time_ns() - begin_ns
        if self._uploads is not None:
            self._log_uploaded(self._uploads.collect())

    def finish(self, deadline_ns: int) -> None:
        """Upload what can be until the deadline, of this host's monotonic clock. For the agent thread, at its end."""
        if self._uploads is not None:
            self._log_uploaded(self._uploads.finish(deadline_ns))

    def _write(self, capture: RawCapture) -> None:
        steps = capture.steps
        order = self._orders.get(steps.order_id)
        options, bytes_max = (self._options, 0) if order is None else (order.options, order.bytes_max)
        written = self._files.write(capture, bytes_max)
        if self._keeps_traces and options == RecordOptions() and not written.problem:
            # Before it is uploaded, and deleted.
            self.plain_traces.append(read_trace(written, capture.wall_minus_host_ns))
        if self._uploads is not None and not written.problem:
            self._uploads.submit(written, capture.cut)
        if not written.problem:
            self._pauses_a_step_ns[options] = written.pause_ns / steps.step_count
        path = "" if written.problem else written.path
        outcome = Outcome(steps, path, written.size_bytes, written.pause_ns, written.problem, capture.cut)
        if self._note_outcome(outcome):
            log_once_per_node(describe_ordered(outcome), self._environment, topic=f"captured {steps.order_id}")
        elif written.problem:
            text = f"the capture of {steps} was lost: {written.problem}. Training stood still for"
            self._log(f"{text} {ns_to_s(written.pause_ns):.2g} s, and goes on", written.problem)
        elif self._rank == 0 and self._uploads is None:
            log_line(describe(written, capture.cut))

    def _note_outcome(self, outcome: Outcome) -> bool:
        """Keep the outcome of an ordered capture for the collector; return False for one that it has not ordered."""
        order_id = outcome.steps.order_id
        if not order_id:
            return False
        self._orders.pop(order_id, None)
        self.outcomes.append(outcome)
        return True

    # -- on the training thread ---------------------------------------------------------------------------------------

    def refuse_on_another_thread(self, step: int) -> None:
        """Refuse what is due at the begin of this step, if anything is: training has just changed its thread."""
        self.recording.refuse(step, ANOTHER_THREAD)

    def _begin(self, steps: CaptureSteps) -> ProfilerSession:
        if steps.order_id:
            text = f"capturing {steps}, as the collector has ordered. {self._describe_price(steps)}"
            log_once_per_node(text, self._environment, topic=f"capturing {steps.order_id}")
        elif self._rank == 0:
            log_line(f"capturing {steps}. {self._describe_price(steps)}")
        session = self._make_session(steps)
        self._ranges.session = self._model_memory.session = self._cpu_use.session = session
        return session

    def _options_of(self, steps: CaptureSteps) -> RecordOptions:
        """Return what is recorded. Where modules cannot be marked, the stacks that are asked for show them, too."""
        order = self._orders.get(steps.order_id)
        options = self._options if order is None else order.options
        if options.modules and options.stacks and find_modules_obstacle():
            return options._replace(modules=False)
        return options

    def _find_obstacle(self, steps: CaptureSteps) -> str | None:
        if self._first_graph.waits(steps.begin_step):
            return self._first_graph.obstacle
        if self._files.is_full:
            return FULL
        if len(self._finished) >= WAITING_MAX:
            return BEHIND
        if self._options_of(steps).modules and (obstacle := find_modules_obstacle()):
            return obstacle
        return self._find_price_obstacle(steps, self._orders.get(steps.order_id))

    def _find_price_obstacle(self, steps: CaptureSteps, order: Order | None) -> str | None:
        """Return that the capture is expected to stop training for too long; None where it is not."""
        options, limit_ns = self._options, self._pause_ns_max
        if order is not None:
            if order.pause_ns_max is None:
                return None
            options, limit_ns = order.options, min(limit_ns, order.pause_ns_max)
        pause_ns = self.expect_pause_ns(steps.step_count, options)
        if pause_ns is None or pause_ns <= limit_ns:
            return None
        limit = "capture_pause_s_max"
        if order is not None:  # the collector has one of that name, too
            limit += f" of the {'agent' if limit_ns == self._pause_ns_max else 'collector'}"
        return f"{TOO_COSTLY} about {ns_to_s(pause_ns):.2g} s, and {limit} is {ns_to_s(limit_ns):g} s"

    def _describe_price(self, steps: CaptureSteps) -> str:
        pause_ns = self.expect_pause_ns(steps.step_count, self._options_of(steps))
        if pause_ns is None:
            return "For how long it stops training is not known: no full window has been recorded yet"
        return f"It is expected to stop training for {ns_to_s(pause_ns):.2g} s"

    def _log_uploaded(self, uploads: Sequence[Uploaded]) -> None:
        for (written, target, cut), problem in uploads:
            if problem:
                text = f"the capture of {written.steps} of rank {self._rank} was lost: it could not be uploaded to"
                self._log(f"{text} {target}: {problem}. Training is not affected", f"upload {problem}")
            elif self._rank == 0:
                log_line(describe(written._replace(path=target), cut))

    def _log(self, text: str, reason: str) -> None:
        """Log why there is no capture, the first time for each reason on a node: a schedule may go on for days."""
        log_once_per_node(text, self._environment, topic=f"capture {reason}")


def mark_beside(ranges: MarkedRanges, memory: ModelMemory, cpu: CpuUseNotes, options: RecordOptions | None) -> None:
    """Begin what is marked and noted beside a capture with these options; None: end it, and raise nothing."""
    if options is None:
        ranges.end()
        memory.end()
        cpu.end()
        return
    cpu.begin()
    ranges.begin(options)
    if options.memory:
        memory.begin()


def describe(written: Written, cut: str) -> str:
    """Return the line about a capture of rank 0.

    >>> written = Written(CaptureSteps(7, 8, 9), "/c/steps-8-9/rank-0.gz", 2_300_000, 410_000_000)
    >>> describe(written, "").partition(" To read")[0]
    'captured steps 8 to 9 into /c/steps-8-9 (rank 0: 2.3 MB). Training stood still for 0.41 s.'
    """
    folder = written.path.rpartition("/")[0]
    ended_early = f" It ended early: {cut}." if cut else ""
    size, stood_still_s = _describe_size(written.size_bytes), ns_to_s(written.pause_ns)
    return (
        f"captured {written.steps} into {folder} (rank 0: {size}).{ended_early} "
        f"Training stood still for {stood_still_s:.2g} s. To read it: rankscope analyze {folder}"
    )


def describe_ordered(outcome: Outcome) -> str:
    """Return the line about a capture that the collector has ordered.

    >>> describe_ordered(Outcome(CaptureSteps(7, 8, 9, "c1"), "/c/rank-0.gz", 2_300_000, 410_000_000))
    'captured steps 8 to 9 for the collector (2.3 MB). Training stood still for 0.41 s'
    """
    stood_still = f"Training stood still for {ns_to_s(outcome.pause_ns or 0):.2g} s"
    if outcome.problem:
        return (
            f"the capture of {outcome.steps} for the collector was lost: {outcome.problem}. {stood_still}, and goes on"
        )
    ended_early = f" It ended early: {outcome.cut}." if outcome.cut else ""
    size = _describe_size(outcome.size_bytes)
    return f"captured {outcome.steps} for the collector ({size}).{ended_early} {stood_still}"


def _describe_size(size_bytes: int) -> str:
    """Return a size for the user.

    >>> _describe_size(2_340_000), _describe_size(32_117)
    ('2.3 MB', '32 kB')
    """
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= MB else f"{size_bytes / 1e3:.0f} kB"


def read_trace(written: Written, wall_minus_host_ns: int) -> CapturedTrace:
    """Return the trace of a capture that has been written, empty if it is too large. Raises OSError."""
    data = b""
    if written.size_bytes <= TRACE_BYTES_MAX:
        with open(written.path, "rb") as file:
            data = file.read()
    return CapturedTrace(written.steps, data, wall_minus_host_ns)


def make_profile(steps: CaptureSteps, options: RecordOptions) -> Any:
    """Return a `torch.profiler.profile` that marks its steps by the agent's numbers. Raises the error of a torch that
    lacks one of these names.
    """
    from torch.profiler import ProfilerAction, profile  # noqa: PLC0415 - the user's torch

    prepares = steps.first_step > steps.begin_step

    def choose(step: int) -> Any:
        return ProfilerAction.WARMUP if prepares and step < steps.first_step else ProfilerAction.RECORD

    session = profile(
        schedule=choose,
        record_shapes=options.shapes,
        with_stack=options.stacks,
        profile_memory=options.memory,
        experimental_config=_make_verbose() if options.stacks else None,
    )
    session.step_num = steps.begin_step
    return session


def end_leftover() -> None:
    """End the session that is on in this thread, if any."""
    from torch._C import _autograd  # noqa: PLC0415 - as above

    if _autograd._profiler_enabled():  # noqa: SLF001 - there is no other way
        _autograd._disable_profiler()  # noqa: SLF001


def _make_verbose() -> Any:
    """Return the setting without which operators have no "Call stack"."""
    from torch._C._profiler import _ExperimentalConfig  # noqa: PLC0415 - as above

    return _ExperimentalConfig(verbose=True)
