"""Define the messages of what is on a node beside its ranks: sidecars, pre-flights, relays.

    sidecar                                 collector
      | -- RankEnded, RankUnresponsive ------>  |   about a rank that cannot report any more: each notice has its own
      | -- RasAnswered ---------------------->  |   number and is resent until it is acknowledged or given up; the last
      | -- InspectorRead -------------------->  |   but one is about the whole job, in a stall, and the last is what a
      | <----------------- Ack(through=n) ----  |   rank's NCCL has dumped, every 15 s

    rank 0 of a pre-flight                  collector
      | -- PreflightPastWanted(nodes) ------->  |   before it measures; no Hello, as of a sidecar
      | -- PreflightEnded(outcomes) --------->  |   at its end; each is resent until it is answered or given up
      | <--------- PreflightAnswer(number) ---  |   the past of the nodes; or that the outcomes are in the store

    relay of a node                         collector
      | -- RelayHello(name) ----------------->  |   on start, and whenever the collector asks for it
      | <---------------- Welcome or Refused -  |
      | -- Relayed(frames of its ranks) ----->  |   whole frames as the ranks sent them, each with its sender; and what
      |                                         |   holds the GPUs of the node, every 15 s
      | <-------- Relayed(answers to them) ---  |   whole frames too, each with its receiver

They are of the protocol of `messages.py`. No rank sends or receives one, so none imports this file.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from rankscope.measure.bounds import GROUPS_MAX, NAMES_MAX, Name, Numbers, Reasons, ShortName, Some
from rankscope.measure.held_gpus import NodeGpus
from rankscope.measure.identity import Count, Label, RankIdentity
from rankscope.measure.messages import AGENT_MESSAGES, Message, Sequence, Text
from rankscope.measure.nccl_inspector import InspectorCommunicator
from rankscope.measure.nccl_ras import RasCommunicator
from rankscope.measure.preflights import NODES_MAX, NodeDevice, NodeOutcome, NodePast
from rankscope.measure.stalls import GroupStatus, KernelThread, PendingCollective, ThreadStack


class RankEnded(Message, frozen=True):
    """Notice of a sidecar that a rank process has ended. `reason` is one of END_REASONS.

    `exit_code` and `signal` are the kernel's, one of them or, if they could not be read, none (`absent` gives the
    reason). `stacks` are the Python stacks at a fatal signal, first that of the thread which received it; empty if no
    handler wrote them. `oom_kills` is the increase of the OOM killer's count of victims, in the place that `detail`
    names.
    """

    KIND: ClassVar[int] = 10
    sequence: Sequence
    identity: RankIdentity
    host_ns: int
    wall_ns: int
    reason: Text
    detail: Text = ""
    exit_code: int | None = None
    signal: int | None = None
    core_dumped: bool | None = None
    oom_kills: int | None = None
    last_step: int | None = None
    pending: Annotated[tuple[PendingCollective, ...], Some] = ()
    absent: Reasons = {}
    stacks: Annotated[tuple[ThreadStack, ...], Some] = ()


class RankUnresponsive(Message, frozen=True):
    """Notice of a sidecar that a rank process runs, but its agent has written no heartbeat since `since_host_ns`: its
    interpreter is blocked, or the process is stopped. It has what can be read from outside: the kernel's view, and what
    torch's worker server still answers.

    `state` is the letter of the main thread's state; `waits` are torch's counters of waits in progress.
    """

    KIND: ClassVar[int] = 11
    sequence: Sequence
    identity: RankIdentity
    host_ns: int
    since_host_ns: int
    last_step: int | None = None
    state: Text = ""
    threads: Annotated[tuple[KernelThread, ...], Some] = ()
    threads_left_out: Count = 0
    progress: Annotated[tuple[GroupStatus, ...], msgspec.Meta(max_length=GROUPS_MAX)] = ()
    pending: Annotated[tuple[PendingCollective, ...], Some] = ()
    waits: Numbers = {}
    absent: Reasons = {}


RELAYED_MAX = 1024
"""Frames in one batch of a relay, as in one batch of answers to it. A node has some ten ranks."""

PEER_BYTES_MAX = 255
"""ZeroMQ's longest routing id."""


class RelayHello(Message, frozen=True):
    """Introduction of a relay. `name` is for users: its node. `boot_id` is new at each start."""

    KIND: ClassVar[int] = 12
    name: Label
    boot_id: Label
    version: Text = ""


class RelayedFrame(msgspec.Struct, frozen=True, array_like=True):
    """One whole frame on its way through a relay. `peer` is the routing id of the rank that sent it, or that it is for.

    `age_ns` is how long the relay has had it, by the relay's clock, when the batch was made. `key` is the client key
    with which the rank has connected to the relay, empty if that connection is not encrypted.
    """

    peer: Annotated[bytes, msgspec.Meta(min_length=1, max_length=PEER_BYTES_MAX)]
    frame: bytes
    age_ns: Count = 0
    key: Annotated[str, msgspec.Meta(max_length=64)] = ""


class RelayCounts(msgspec.Struct, frozen=True, array_like=True):
    """Counts of a relay since its start: frames (and connections) that it refused, and frames that it dropped, by
    reason. A dropped frame is not lost: its rank holds it until the collector has it.
    """

    refused: Annotated[Mapping[Name, Count], msgspec.Meta(max_length=NAMES_MAX)] = {}
    dropped: Annotated[Mapping[Name, Count], msgspec.Meta(max_length=NAMES_MAX)] = {}


class Relayed(Message, frozen=True):
    """Frames of the ranks of a node, or answers to them, in the order of their arrival. `counts` only if they have
    changed, `gpus` after each reading of the node's GPUs, also without a frame. Each frame is handled as if it had come
    alone; none is a Relayed itself.
    """

    KIND: ClassVar[int] = 13
    frames: Annotated[tuple[RelayedFrame, ...], msgspec.Meta(max_length=RELAYED_MAX)]
    counts: RelayCounts | None = None
    gpus: NodeGpus | None = None


class RasAnswered(Message, frozen=True):
    """Notice of the sidecar that watches rank 0: what NCCL's RAS service at `address` said about the job in a stall, or
    why it said nothing (`absent`). `identity` is that of rank 0.

    `host_ns` is when the answer was complete, `stalled_since_host_ns` when the first stall on this machine began,
    `took_ns` how long the answer took. `communicators_total` is the number of the job's communicators, None where it is
    not told; `communicators` are those with listed ranks, `communicators_left_out` were not read or not listed.
    `timeouts` counts those within RAS, while it collected the data. `is_own` says whether processes of this run on this
    machine are among those that the answer lists; None where it lists none at all.
    """

    KIND: ClassVar[int] = 14
    sequence: Sequence
    identity: RankIdentity
    host_ns: int
    stalled_since_host_ns: int
    address: Name = ""
    took_ns: Count = 0
    nccl_version: Name = ""
    communicators_total: Count | None = None
    communicators: Annotated[tuple[RasCommunicator, ...], Some] = ()
    communicators_left_out: Count = 0
    timeouts: Count | None = None
    is_own: bool | None = None
    absent: Reasons = {}


class InspectorRead(Message, frozen=True):
    """Notice of a sidecar: what the dumps of NCCL's Inspector plugin say of one of its ranks, or why nothing
    (`absent`).

    `host_ns` is when they were read, `since_host_ns` when they were read before, None for the first time: bandwidths
    are of the lines in between. The plugin writes every `dump_interval_ns`. `communicators` are those written about
    last, `communicators_left_out` is the number of others. `lines_skipped` and `bytes_skipped` are what was not
    read since the sidecar began: lines that no known version writes or that are of another process, and what was beyond
    the bounds of a reading.
    """

    KIND: ClassVar[int] = 23
    sequence: Sequence
    identity: RankIdentity
    host_ns: int
    since_host_ns: int | None = None
    dump_interval_ns: Count = 0
    communicators: Annotated[tuple[InspectorCommunicator, ...], Some] = ()
    communicators_left_out: Count = 0
    lines_skipped: Count = 0
    bytes_skipped: Count = 0
    absent: Reasons = {}


Notice = RankEnded | RankUnresponsive | RasAnswered | InspectorRead
"""A message of a sidecar."""


class PreflightPastWanted(Message, frozen=True):
    """Question of a pre-flight for the past of its nodes. `number` counts the messages of a pre-flight from 1."""

    KIND: ClassVar[int] = 20
    number: Sequence
    nodes: Annotated[tuple[NodeDevice, ...], msgspec.Meta(max_length=NODES_MAX)]


class PreflightEnded(Message, frozen=True):
    """What a pre-flight says of some of its nodes. It is kept once however often it is sent: `preflight` is random, the
    same in all messages of a pre-flight. `forgets_past`: earlier pre-flights of these nodes are deleted.
    """

    KIND: ClassVar[int] = 21
    number: Sequence
    preflight: ShortName
    outcomes: Annotated[tuple[NodeOutcome, ...], msgspec.Meta(max_length=NODES_MAX)]
    forgets_past: bool = False


class PreflightAnswer(Message, frozen=True):
    """The answer to both, by `number`. `past` has the nodes that were asked for, those without a past left out.
    `problem`: why the store was not read or written; empty: it was.
    """

    KIND: ClassVar[int] = 22
    number: Sequence
    past: Annotated[tuple[NodePast, ...], msgspec.Meta(max_length=NODES_MAX)] = ()
    problem: Text = ""


MESSAGE_TYPES: tuple[type[Message], ...] = (
    *AGENT_MESSAGES, RankEnded, RankUnresponsive, RelayHello, Relayed, RasAnswered, PreflightPastWanted, PreflightEnded,
    PreflightAnswer, InspectorRead,
)  # fmt: skip
"""All messages of the protocol."""
