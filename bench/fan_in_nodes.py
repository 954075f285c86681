"""Many nodes in one process: each has a relay's link to the collector, with a connection of its own, and RANKS_PER_NODE
ranks behind it.

What a node does is production code: the ranks' ReportBuilder, ResendBuffer and Delivery, the relay's NodeBatch and
CollectorLink. Only what lies between them, a socket on the same machine, is a call here; and the loop is another one: a
relay waits for one collector, this process gives each of a thousand nodes its turn, TURNS_PER_S times a second.

The nodes report once a second, one after the other, and the next round of reports waits while a rank holds more than
HELD_MAX of them: on a machine that others keep busy they slow down with the collector, whose cost of a report can so be
measured all the same.
"""

import os
import random
import signal
from multiprocessing.connection import Connection as Control
from time import monotonic_ns, process_time_ns, sleep
from typing import Final, NamedTuple

import zmq

from bench.load_reports import HELD_MAX, PERIOD_NS, RANKS_PER_NODE, RUN, JobReports
from rankscope.collector.relay.collector_link import MESSAGE_BYTES_MAX, CollectorLink
from rankscope.collector.relay.node_batch import NodeBatch
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import decode, encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import (
    Ack,
    ClockPing,
    ClockPong,
    Hello,
    HelloWanted,
    Message,
    Refused,
    SampleOrder,
    Welcome,
)
from rankscope.measure.node_messages import RelayCounts, RelayHello
from rankscope.measure.units import NS_PER_S, ns_to_s
from rankscope.uplink.connection import Connection
from rankscope.uplink.delivery import Delivery, DeliverySettings, DeliveryState, Send, SendFrame, SendHello
from rankscope.uplink.resend_buffer import ResendBuffer

SOCKETS_PER_NODE: Final = 3
SPARE_SOCKETS: Final = 64
FRAMES_HELD_MAX: Final = 4096
BYTES_HELD_MAX: Final = 16 * 2**20
"""The agent's own defaults, `resend_reports_max` and `resend_bytes_max`."""
BUFFER_BYTES_MAX: Final = 32 * 2**20
"""The relay's own default, `buffer_bytes_max`."""
PATIENCE: Final = DeliverySettings(resend_after_ns=120 * NS_PER_S)
"""A collector that gets little of a busy machine is slow, and not gone."""
PAUSE_S: Final = 0.002
TURNS_PER_S: Final = 4
"""Turns of a node; in one of them its ranks report. A batch so waits up to a quarter of a second longer than a relay's,
which wakes when it is due."""
CONNECTS_PER_S: Final = 500
"""Nodes of one process; each brings eight ranks."""


class Task(NamedTuple):
    """What one process does: its ranks, of how many, and where to."""

    own: range
    world_size: int
    endpoint: str
    keys: ClientKeys


class Progress(NamedTuple):
    """Where the ranks of one process stand. `behind_ns`: how late this process is itself, at most, since it was last
    asked.
    """

    ranks: int
    welcomed: int
    made: int
    batches: int
    held: int
    dropped: int
    resends: int
    behind_ns: int
    cpu_ns: int


class _Rank:
    """One rank: what it has made and what of it is acknowledged."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.boot_id = f"boot-{rank:08}"
        self.peer = self.boot_id.encode()
        self.buffer = ResendBuffer(FRAMES_HELD_MAX, BYTES_HELD_MAX)
        self.delivery = Delivery(self.buffer, random.Random(self.boot_id), PATIENCE)
        self.made = 0

    def take(self, message: Message, now_ns: int) -> list[Send] | ClockPong:
        match message:
            case Ack(through=through):
                return self.delivery.on_ack(through, now_ns)
            case Welcome(admitted_through=through, hello_number=number):
                return self.delivery.on_welcome(through, now_ns, number)
            case HelloWanted():
                return self.delivery.on_hello_wanted(now_ns)
            case Refused(reason=reason, detail=detail):
                return self.delivery.on_refused(reason, detail)
            case ClockPing(collector_ns=collector_ns):
                return ClockPong(collector_ns=collector_ns, host_ns=now_ns)
            case SampleOrder():  # such a rank runs no code of which there could be samples
                return []
        raise ValueError(f"a collector does not send {message!r}")


class _CountedBatch(NodeBatch):
    """Counts what has gone: to ask the collector for its page would be a load of its own."""

    batches = 0

    def sent(self, count: int, now_ns: int) -> None:
        super().sent(count, now_ns)
        self.batches += 1


class Node:
    """A relay and the ranks behind it."""

    def __init__(self, task: Task, first: int, context: "zmq.Context[zmq.Socket[bytes]]", reports: JobReports) -> None:
        self._task = task
        self._reports = reports
        clock = SystemClock()
        name = f"relay-{first // RANKS_PER_NODE:06}"
        self._connection = Connection(
            context, zmq.Poller(), clock, task.endpoint,
            keys=task.keys, name=name, frame_in_bytes_max=MESSAGE_BYTES_MAX,
        )  # fmt: skip
        self.batch = _CountedBatch(bytes_max=BUFFER_BYTES_MAX)
        self._link = CollectorLink(
            self._connection, self.batch, RelayHello(name=name, boot_id=name), clock,
            endpoint=task.endpoint, read_counts=RelayCounts,
        )  # fmt: skip
        self.ranks = [_Rank(rank) for rank in range(first, min(first + RANKS_PER_NODE, task.own.stop))]
        self._by_peer = {rank.peer: rank for rank in self.ranks}

    def report(self, now_ns: int) -> None:
        """A report of each rank, all in one batch."""
        for rank in self.ranks:
            rank.made += 1
            frame = encode(self._reports.build(rank.rank, rank.made, now_ns))
            rank.buffer.push(rank.made, frame, 1)
        self.turn(now_ns)

    def turn(self, now_ns: int) -> None:
        """Take in what has come, and send what is due."""
        self._receive(now_ns)
        for rank in self.ranks:
            self._carry_out(rank, rank.delivery.on_tick(now_ns))
        self._link.send_due()

    @property
    def may_report(self) -> bool:
        """Whether the collector keeps up with its ranks."""
        return all(len(rank.buffer) <= HELD_MAX for rank in self.ranks)

    def close(self) -> None:
        """Drop the connection."""
        self._link.close()

    def _receive(self, now_ns: int) -> None:
        ready: dict[object, int] = {self._connection.socket: int(self._connection.socket.getsockopt(zmq.EVENTS))}
        if int(self._connection.handshakes.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            ready[self._connection.handshakes.socket] = zmq.POLLIN
        answers, has_opened = self._link.receive(ready)
        for answer in answers:
            rank = self._by_peer[answer.peer]
            reply = rank.take(decode(answer.frame), now_ns)
            if isinstance(reply, ClockPong):
                self._link.add(rank.peer, encode(reply), "", urgent=False)
            else:
                self._carry_out(rank, reply)
        for rank in self.ranks if has_opened else ():
            self._carry_out(rank, rank.delivery.on_hello_wanted(now_ns))

    def _carry_out(self, rank: _Rank, sends: list[Send]) -> None:
        for send in sends:
            if isinstance(send, SendFrame):
                self._link.add(rank.peer, send.frame, "", urgent=False)
            else:
                hello = build_hello(rank, self._task.world_size, send)
                self._link.add(rank.peer, encode(hello), "", urgent=True)


def build_hello(rank: _Rank, world_size: int, send: SendHello) -> Hello:
    """What a rank says first."""
    identity = RankIdentity(
        run=RUN, rank=rank.rank, local_rank=rank.rank % RANKS_PER_NODE, world_size=world_size, restart_count=0,
        node=f"node{rank.rank // RANKS_PER_NODE:05}", boot_id=rank.boot_id, pid=1 + rank.rank,
    )  # fmt: skip
    now_ns = monotonic_ns()
    return Hello(
        identity=identity, first_sequence=send.first_sequence, host_ns=now_ns, wall_ns=now_ns,
        report_interval_ns=PERIOD_NS, hello_number=send.number,
    )  # fmt: skip


class NodeProcess:
    """The nodes of one process, each with its turns at its own moments of every second."""

    def __init__(self, task: Task) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        nodes_max = -(-len(task.own) // RANKS_PER_NODE)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_PER_NODE * nodes_max + SPARE_SOCKETS)
        reports = JobReports(task.world_size, task.own)
        self._nodes: list[Node] = []
        for first in range(task.own.start, task.own.stop, RANKS_PER_NODE):
            self._nodes.append(Node(task, first, self._context, reports))
            sleep(1 / CONNECTS_PER_S)
        self._behind_ns = 0

    def run(self, control: Control) -> None:
        """Turn until told to end. `report` begins the reports, `stop` ends them, any word is answered."""
        began_ns, turns, reporting, is_round = monotonic_ns(), 0, False, False
        parent, count = os.getppid(), len(self._nodes)
        while os.getppid() == parent:
            due = (monotonic_ns() - began_ns) * TURNS_PER_S * count // NS_PER_S
            self._behind_ns = max(self._behind_ns, (due - turns) * NS_PER_S // (TURNS_PER_S * count))
            while turns < due:
                place, turn = turns % count, turns // count % TURNS_PER_S
                if place == 0:  # a round is of every node, one after the other: see JobReports
                    is_round = reporting and turn == 0 and all(node.may_report for node in self._nodes)
                (self._nodes[place].report if is_round else self._nodes[place].turn)(monotonic_ns())
                turns += 1
            while control.poll():
                word = control.recv()
                if word == "end":
                    self._close()
                    return
                reporting = word == "report" if word in {"report", "stop"} else reporting
                control.send(self._describe())
            sleep(PAUSE_S)

    def _close(self) -> None:
        for node in self._nodes:
            node.close()
        self._context.destroy(linger=0)

    def _describe(self) -> Progress:
        ranks = [rank for node in self._nodes for rank in node.ranks]
        behind_ns, self._behind_ns = self._behind_ns, 0
        return Progress(
            ranks=len(ranks),
            welcomed=sum(rank.delivery.state is DeliveryState.WELCOMED for rank in ranks),
            made=sum(rank.made for rank in ranks),
            batches=sum(node.batch.batches for node in self._nodes),
            held=sum(len(rank.buffer) for rank in ranks),
            dropped=sum(rank.buffer.reports_dropped for rank in ranks),
            resends=sum(rank.delivery.resends for rank in ranks),
            behind_ns=behind_ns,
            cpu_ns=process_time_ns(),
        )


def run_nodes(task: Task, control: Control) -> None:
    """The main function of a process of nodes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above says when to stop
    NodeProcess(task).run(control)


def describe(progress: Progress) -> str:
    """Where they stand, in a line."""
    return (
        f"{progress.welcomed} of {progress.ranks} welcome, {progress.made} reports made, {progress.held} held, "
        f"{progress.dropped} dropped, {progress.resends} sent again, {ns_to_s(progress.behind_ns):.1f} s behind"
    )
