"""Define the messages between agents and the collector. Those of sidecars, pre-flights and relays: `node_messages.py`.

    agent                                   collector
      | -- Hello(identity, first_sequence) -->  |   on start, and whenever the collector asks for it
      | <-------- Welcome(admitted_through) --  |   from here on the agent sends; or Refused(reason, cure)
      | -- Report 1, Report 2, Report 3 ----->  |   numbered; a Report every interval is the heartbeat too
      | <----------------- Ack(through=3) ----  |   cumulative, once the reports are in the collector's state
      | <----------------- HelloWanted() -----  |   from a collector that does not know this peer, e.g. after a restart
      | <------- ClockPing / ClockPong ------>  |   periodically: the offset of the two clocks and its error bound
      | -- Goodbye(sequence=4, reason) ------>  |   numbered and acknowledged like a report

    agent                                   collector
      | <---- CaptureOrder(id, steps) --------  |   repeated until the capture has ended; each is answered by the state
      | -- CaptureState(id, state) ---------->  |   the answer, and whenever the state changes
      | <---- CapturePartWanted(id, offset) --  |   once the file is written
      | -- CapturePart(id, offset, data) ---->  |   the collector asks again for what does not arrive
      | <---- CaptureOrder(id, is_over) ------  |   the collector has the file, or does not want it any more

    agent                                   collector
      | <---- SampleOrder(id, mode) ---------   |   repeated until the samples have come; each is answered
      | -- SamplesTaken(id, state) --------->   |   the answer, and once more when the samples are there
      | <---- SettingsOrder(id, settings) ---   |   repeated until it is answered; only where any was ever changed
      | -- SettingsTaken(id, refused) ------>   |   what is in force from now on

Within a protocol number fields are only added, at the end and with a default. Kinds are never reused.
"""

from typing import Annotated, ClassVar

import msgspec

from rankscope.measure.bounds import GROUPS_MAX, Name, Numbers, Reasons, Some
from rankscope.measure.enqueues import Enqueues
from rankscope.measure.identity import Count, Label, RankIdentity
from rankscope.measure.line_samples import (
    STACKS_MAX,
    STEPS_MAX,
    WORKERS_MAX,
    HeldGrowth,
    SampledLoader,
    SampledStack,
    SampledStep,
    SampledWorker,
)
from rankscope.measure.model_flops import NO_FLOPS, StepFlops
from rankscope.measure.out_of_memory import Notices
from rankscope.measure.records import (
    SAVE_LINES_MAX,
    AgentCost,
    AllocatorSample,
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
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.stalls import QUIET_PLACES_MAX, GroupStatus, QuietPlace, Stall
from rankscope.measure.table import Table

Sequence = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
COVERED_RANGES_MAX = 4096
"""Ranges of steps of each kind in a report: each profiler window adds one. Admitting a range costs the collector 20 us,
and a frame has room for millions."""

Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Base of all messages. `KIND` is the byte in the frame that identifies the type of message."""

    KIND: ClassVar[int] = 0


class Hello(Message, frozen=True):
    """Introduction of a rank. `first_sequence` is the oldest report it still holds: everything before it was
    acknowledged by some collector, or dropped and counted in `Losses`. `hello_number` counts the Hellos of a rank
    process from 1; 0: not reported.

    `left_behind`: the rank process has ended, and another process delivers its orphaned reports from the disk; the
    times are those of its start. It replaces no other process of the rank.

    `fault` describes what the rank does to itself on purpose, ordered by the setting `fault`; empty: nothing.

    `wants_summary`: the collector is to send a RunSummary now and then, as rank 0 asks; no other message asks for one.
    `script` is the file name of the training script, without its folder; empty where it is none.
    """

    KIND: ClassVar[int] = 1
    identity: RankIdentity
    first_sequence: Sequence
    host_ns: int
    wall_ns: int
    report_interval_ns: Count
    agent_version: Text = ""
    python_version: Text = ""
    torch_version: Text = ""
    left_behind: bool = False
    hello_number: Count = 0
    fault: Text = ""
    wants_summary: bool = False
    script: Name = ""


class Welcome(Message, frozen=True):
    """Admission of a rank; the collector has its numbered messages up to `admitted_through`. `hello_number` is that of
    the Hello that this answers: messages sent after that Hello are not considered.
    """

    KIND: ClassVar[int] = 2
    admitted_through: Count
    metrics_url: Text = ""
    hello_number: Count = 0


class Report(Message, frozen=True):
    """Measurements of one rank in one interval, number `sequence` of this rank process, counted from 1.

    `covered_steps` are ranges (first, last) of steps all of whose collectives are in the reports up to this one: a step
    outside them was not profiled, so the absence of a collective there means nothing. `timed_steps` are ranges of steps
    outside of windows whose collectives of devices, as far as torch's flight recorder has timed them, are in this
    report: how much of them was exposed is not known, and some kinds are missing, so no own time follows from them.

    While the rank is stalled every report has `stalled_since_host_ns`, and some of them the whole `stall`. `node` is in
    reports of one rank a node, and only where it is newer than that of the report before. `out_of_memory` has the
    errors of torch's allocator since the report before, which is made at once after one. `flops` are the FLOPs of the
    last steps beside the peak of the device. `enqueues` are times of collectives that torch does not time.
    `compilations`: None where this torch does not tell of them. `saves`: what was saved so far, None where that is not
    counted. `pipeline`: None where none is announced. `layers`: None where they are none, or no others than before.
    `quiet`: where the training thread was in long steps since the report before.
    """

    KIND: ClassVar[int] = 3
    sequence: Sequence
    host_ns: int
    steps: Table = Table()
    collectives: Collectives = Collectives()
    covered_steps: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=COVERED_RANGES_MAX)] = ()
    breakdowns: Annotated[tuple[WindowBreakdown, ...], Some] = ()
    host: HostSample | None = None
    devices: Annotated[tuple[DeviceSample, ...], Some] = ()
    totals: Totals = Totals()
    losses: Losses = Losses()
    groups: Annotated[tuple[GroupInfo, ...], msgspec.Meta(max_length=GROUPS_MAX)] | None = None
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()
    allocator: AllocatorSample | None = None
    progress: Annotated[tuple[GroupStatus, ...], msgspec.Meta(max_length=GROUPS_MAX)] = ()
    stalled_since_host_ns: int | None = None
    stall: Stall | None = None
    synchronizations: Annotated[tuple[WindowSynchronizations, ...], Some] = ()
    node: NodeSample | None = None
    timed_steps: Annotated[tuple[tuple[int, int], ...], msgspec.Meta(max_length=COVERED_RANGES_MAX)] = ()
    out_of_memory: Notices = ()
    flops: StepFlops = NO_FLOPS
    enqueues: Enqueues | None = None
    compilations: Compilations | None = None
    saves: Annotated[tuple[SavedLine, ...], msgspec.Meta(max_length=SAVE_LINES_MAX)] | None = None
    pipeline: PipelineSchedule | None = None
    layers: LayerTimes | None = None
    quiet: Annotated[tuple[QuietPlace, ...], msgspec.Meta(max_length=QUIET_PLACES_MAX)] = ()


class Ack(Message, frozen=True):
    """Every numbered message up to and with `through` is in the collector's state."""

    KIND: ClassVar[int] = 4
    through: Count


class HelloWanted(Message, frozen=True):
    """The collector got a message from a peer it does not know."""

    KIND: ClassVar[int] = 5


class Refused(Message, frozen=True):
    """Refusal of a peer; `detail` is the reason and the cure."""

    KIND: ClassVar[int] = 6
    reason: Text
    detail: Text


class ClockPing(Message, frozen=True):
    """Question of the collector for the rank's clock; `collector_ns` is its own clock when it asked."""

    KIND: ClassVar[int] = 7
    collector_ns: int


class ClockPong(Message, frozen=True):
    """The answer: the ping's `collector_ns` and the rank's clock when it answered."""

    KIND: ClassVar[int] = 8
    collector_ns: int
    host_ns: int


class Goodbye(Message, frozen=True):
    """Last message of a rank process. `reason` is one of END_REASONS, `detail` for example the exception's type, `line`
    the place in the script where that was raised, `train.py:24 (main)`; empty if there is none or it is not known.
    """

    KIND: ClassVar[int] = 9
    sequence: Sequence
    reason: Text
    detail: Text = ""
    exit_code: int | None = None
    line: Name = ""


CAPTURE_PART_BYTES_MAX = 256 * 1024
"""Bytes of a file in one message. The collector's limit of a frame is at least four times as large."""

CAPTURE_STATES = ("accepted", "recording", "written", "refused", "failed")
"""States of a capture on one rank: it waits for its first step; it records or is being written; its file is complete.
The last two are final, as `written` is until the collector has the file: it was not begun, or it was lost."""


class CaptureOrder(Message, frozen=True):
    """Order of the collector to capture the steps `first_step` to `last_step`, both included, of this rank process.

    It is repeated until the capture has ended; whoever has accepted or refused this `id` before only answers with the
    state. `options` are of `CAPTURE_OPTIONS`; a name that is not known refuses the capture. The file may have
    `bytes_max` bytes. A capture that is expected to stop training for longer than `pause_ns_max` is refused; None:
    however long. `is_over`: the capture is called off if it is not written yet, else its file is deleted; no answer.
    """

    KIND: ClassVar[int] = 15
    id: Label
    first_step: Count
    last_step: Count
    options: Annotated[tuple[Name, ...], msgspec.Meta(max_length=16)] = ()
    bytes_max: Count = 0
    pause_ns_max: Count | None = None
    is_over: bool = False


class CaptureState(Message, frozen=True):
    """State of a capture on a rank: one of CAPTURE_STATES. `reason`: why it was refused or lost, or why it ended early.

    `first_step` and `last_step` are the recorded steps, where that is known; `next_step` is the first step that the
    rank has not begun. `expected_pause_ns` is for how long it is expected to stop training (None: not known),
    `pause_ns` for how long it has. `size_bytes` and `sha256` (hexadecimal) are those of the written file.
    """

    KIND: ClassVar[int] = 16
    id: Label
    state: Name
    reason: Text = ""
    next_step: Count = 0
    first_step: Count | None = None
    last_step: Count | None = None
    expected_pause_ns: Count | None = None
    pause_ns: Count | None = None
    size_bytes: Count | None = None
    sha256: Name = ""


class CapturePartWanted(Message, frozen=True):
    """Request of the collector for `length` bytes of a written file, from `offset` on."""

    KIND: ClassVar[int] = 17
    id: Label
    offset: Count
    length: Annotated[int, msgspec.Meta(ge=1, le=CAPTURE_PART_BYTES_MAX)]


class CapturePart(Message, frozen=True):
    """Bytes of a written file, from `offset` on; empty with a `problem` where it cannot be read."""

    KIND: ClassVar[int] = 18
    id: Label
    offset: Count
    data: Annotated[bytes, msgspec.Meta(max_length=CAPTURE_PART_BYTES_MAX)] = b""
    problem: Text = ""


class OpenFinding(msgspec.Struct, frozen=True, array_like=True):
    """A finding that holds now, as far as a log of the run says it. `number` counts the findings of the run from 1."""

    number: Count
    kind: Name
    cause: Name
    subject: Text
    sentence: Text
    severity: Name = ""
    since_step: int | None = None


SUMMARY_FINDINGS_MAX = 8
"""Findings in a RunSummary, the most severe first; more are counted. An agent accepts frames of at most 64 KiB."""


class RunSummary(Message, frozen=True):
    """What the collector has found about the run so far, for rank 0, which logs it beside the loss.

    `slowdown_ratio` is the step over the ideal step now (from 1), `goodput_ratio` the share of all time so far that
    was productive, `mfu` the mean over the live ranks, `exposed_communication_ratio` the share of the time in the last
    windows in which ranks only communicated, `data_wait_ratio` the share of the steps since the summary before in which
    ranks waited for batches. None: not known, and `absent` has the reason under the field's name.

    `findings_left_out` were open too, beyond SUMMARY_FINDINGS_MAX.
    """

    KIND: ClassVar[int] = 19
    slowdown_ratio: float | None = None
    goodput_ratio: float | None = None
    mfu: float | None = None
    exposed_communication_ratio: float | None = None
    data_wait_ratio: float | None = None
    absent: Reasons = {}
    findings: Annotated[tuple[OpenFinding, ...], msgspec.Meta(max_length=SUMMARY_FINDINGS_MAX)] = ()
    findings_left_out: Count = 0


class SampleOrder(Message, frozen=True):
    """Order of the collector to sample where the training thread is, every `interval_ns` for `lasts_ns` at most.

    `mode` is one of SAMPLE_MODES; a name that is not known is refused. Of the mode LONG are the steps that last longer
    than `longer_than_ns`. It ends early once `steps_max` steps are there. It is repeated until it is answered by the
    samples; whoever has taken this `id` before only answers.
    """

    KIND: ClassVar[int] = 24
    id: Label
    mode: Name
    interval_ns: Count
    lasts_ns: Count
    steps_max: Count
    longer_than_ns: Count = 0


class SamplesTaken(Message, frozen=True):
    """State of an order of samples, one of SAMPLE_STATES. `reason`: why it was refused.

    `stacks` are those of `steps`, the ones with most time; a place beyond them stands for all others. `cpu_ns` is the
    CPU time of the sampled thread from the first to the last sample, which are `span_ns` apart; None where the system
    does not tell. `cost_ns` is the CPU time that sampling took. `workers` are those of its data
    loaders that have fetched a batch meanwhile, `loader` has the queues of the one with workers; None: there was none.
    `threads` has the time of its other threads in the same steps, in stacks of the script.
    `held` is the answer of the mode HELD.
    """

    KIND: ClassVar[int] = 25
    id: Label
    state: Name
    reason: Text = ""
    stacks: Annotated[tuple[SampledStack, ...], msgspec.Meta(max_length=STACKS_MAX)] = ()
    steps: Annotated[tuple[SampledStep, ...], msgspec.Meta(max_length=STEPS_MAX)] = ()
    samples: Count = 0
    span_ns: Count = 0
    cpu_ns: Count | None = None
    cost_ns: Count = 0
    workers: Annotated[tuple[SampledWorker, ...], msgspec.Meta(max_length=WORKERS_MAX)] = ()
    loader: SampledLoader | None = None
    threads: Annotated[tuple[SampledStep, ...], msgspec.Meta(max_length=STEPS_MAX)] = ()
    held: HeldGrowth | None = None


class SettingsOrder(Message, frozen=True):
    """Order of the collector to measure by these settings, `values` as their variables would have them, each for its
    `lasts_ns` (none: until the next order). Those that it lacks are the rank's own again.
    """

    KIND: ClassVar[int] = 26
    id: Label
    values: Reasons = {}
    lasts_ns: Numbers = {}


class SettingsTaken(Message, frozen=True):
    """Answer to an order of settings: all are in force but the `refused`, by name with the reason."""

    KIND: ClassVar[int] = 27
    id: Label
    refused: Reasons = {}


END_REASONS = (
    "finished", "failed", "interrupted", "stopped", "terminated", "killed", "out_of_memory", "crashed",
    "collective_timeout", "exit_unknown",
)  # fmt: skip
"""Ways in which a rank process ends. The rank itself reports four of them: the script ran to its end; an uncaught
exception or a non-zero exit; KeyboardInterrupt; `rankscope.agent.stop()`. Its sidecar sees these in the exit code too,
and in addition: a SIGTERM or SIGHUP, such as launchers send to the other ranks when one has failed; a SIGKILL, with or
without the OOM killer; a signal that the process caused itself (SIGSEGV, SIGABRT); an abort while a collective was past
its timeout; `exit_unknown`: the process has ended, and its exit status could not be read. The collector adds
`exit_unknown` for a process that is gone without a Goodbye and without a sidecar's notice, and `silent` (no report, and
no way to see whether the process runs)."""

AGENT_MESSAGES: tuple[type[Message], ...] = (
    Hello, Welcome, Report, Ack, HelloWanted, Refused, ClockPing, ClockPong, Goodbye, CaptureOrder, CaptureState,
    CapturePartWanted, CapturePart, RunSummary, SampleOrder, SamplesTaken, SettingsOrder, SettingsTaken,
)  # fmt: skip
