"""What agents and collector say to each other.

    agent                                   collector
      | -- Hello(identity, first_sequence) -->  |   on start, and whenever the collector asks for it
      | <-------- Welcome(admitted_through) --  |   from here on the agent sends; or Refused(reason, what to do)
      | -- Report 1, Report 2, Report 3 ----->  |   numbered; a Report every interval is the heartbeat too
      | <----------------- Ack(through=3) ----  |   cumulative, once the reports are in the collector's state
      | <----------------- HelloWanted() -----  |   a collector that has just been started knows nobody
      | <------- ClockPing / ClockPong ------>  |   now and then: the offset of the two clocks and its error bound
      | -- Goodbye(sequence=4, reason) ------>  |   numbered and acknowledged like a report

Within a protocol number fields are only added, at the end and with a default. Kinds are never used again.
"""

from typing import Annotated, ClassVar

import msgspec

from rankscope.measure.identity import Count, RankIdentity
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    Collectives,
    DeviceSample,
    GroupInfo,
    HostSample,
    Losses,
    Totals,
    WindowBreakdown,
)
from rankscope.measure.table import Table

Sequence = Annotated[int, msgspec.Meta(ge=1, le=2**62)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Anything that travels. `KIND` is its byte in the frame."""

    KIND: ClassVar[int] = 0


class Hello(Message, frozen=True):
    """A rank introduces itself. `first_sequence` is the oldest report it still holds: everything before it was
    acknowledged by some collector, or dropped and counted in `Losses`.
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


class Welcome(Message, frozen=True):
    """The collector takes the rank in, and has its numbered messages up to `admitted_through`."""

    KIND: ClassVar[int] = 2
    admitted_through: Count
    metrics_url: Text = ""


class Report(Message, frozen=True):
    """What one rank measured in one interval, number `sequence` of this life of the rank, counted from 1.

    `covered_steps` are ranges (first, last) of steps all of whose collectives are in the reports up to this one: a
    step outside them was not watched, and having no collective there means nothing.
    """

    KIND: ClassVar[int] = 3
    sequence: Sequence
    host_ns: int
    steps: Table = Table()
    collectives: Collectives = Collectives()
    covered_steps: tuple[tuple[int, int], ...] = ()
    breakdowns: tuple[WindowBreakdown, ...] = ()
    host: HostSample | None = None
    devices: tuple[DeviceSample, ...] = ()
    totals: Totals = Totals()
    losses: Losses = Losses()
    groups: tuple[GroupInfo, ...] | None = None
    overhead_ratio: float | None = None
    cost: AgentCost = AgentCost()
    allocator: AllocatorSample | None = None


class Ack(Message, frozen=True):
    """Every numbered message up to and with `through` is in the collector's state."""

    KIND: ClassVar[int] = 4
    through: Count


class HelloWanted(Message, frozen=True):
    """The collector got a message from a peer it does not know."""

    KIND: ClassVar[int] = 5


class Refused(Message, frozen=True):
    """The collector will not take this peer; `detail` says why and what to do."""

    KIND: ClassVar[int] = 6
    reason: Text
    detail: Text


class ClockPing(Message, frozen=True):
    """The collector asks what time it is; `job_ns` is its own clock when it asked."""

    KIND: ClassVar[int] = 7
    job_ns: int


class ClockPong(Message, frozen=True):
    """The answer: the ping's `job_ns` and the rank's clock when it answered."""

    KIND: ClassVar[int] = 8
    job_ns: int
    host_ns: int


class Goodbye(Message, frozen=True):
    """The last message of a life. `reason` is one of END_REASONS, `detail` for example the exception's type."""

    KIND: ClassVar[int] = 9
    sequence: Sequence
    reason: Text
    detail: Text = ""
    exit_code: int | None = None


END_REASONS = ("finished", "failed", "interrupted", "stopped")
"""How a life ends that could still say so: the script ran to its end; an uncaught exception or a non-zero exit;
KeyboardInterrupt; `rankscope.agent.stop()`. The collector adds `killed` (the process is gone without a word: a signal,
os._exit, the OOM killer), `silent` (no report, and nobody can see whether the process lives) and `replaced` (an elastic
restart took its place)."""

MESSAGE_TYPES: tuple[type[Message], ...] = (
    Hello, Welcome, Report, Ack, HelloWanted, Refused, ClockPing, ClockPong, Goodbye,
)  # fmt: skip
