"""Many ranks in one process, each with a connection, an identity and a resend buffer of its own.

What the ranks say and when they say it again is the agent's own code: ReportBuilder, the codec, ResendBuffer, Delivery
and Connection, which watches the handshake too. Only its loop is another one: an agent waits for one socket, this
process for thousands of them, by epoll.

Each rank makes a report a second, at its own moment of it, from the moment on that it is told to; whether the collector
is there or not. Until then it connects and says Hello.
"""

import os
import random
import resource
import select
import signal
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection as Pipe
from time import monotonic_ns, process_time_ns
from typing import Final, NamedTuple

import msgspec
import zmq

from bench.load_reports import RUN, JobReports, build_hello
from rankscope.measure.clock import SystemClock
from rankscope.measure.codec import decode, encode
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack, ClockPing, ClockPong, HelloWanted, Message, Refused, SampleOrder, Welcome
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.connection import Connection
from rankscope.uplink.delivery import Delivery, DeliveryState, Send, SendFrame, SendHello
from rankscope.uplink.resend_buffer import ResendBuffer

FILES_PER_RANK: Final = 4
"""The connection, and a mailbox of each of the three sockets: the rank's own and both ends of its watch."""
SOCKETS_PER_RANK: Final = 3
RANKS_PER_PROCESS: Final = 4096
"""16,384 open files: hard limits of 20,000 are met with."""
SPARE_FILES: Final = 256

SLICE_NS: Final = 10 * NS_PER_MS
"""Between two turns of the loop: the ranks that are due then report together, and what has come for any is taken in."""
LATE_NS_MAX: Final = 100 * NS_PER_MS
"""A process that cannot keep up on a busy machine lets time go by: making up for it would be another load."""
TELL_NS: Final = NS_PER_S // 2
FRAMES_HELD_MAX: Final = 4096
BYTES_HELD_MAX: Final = 16 * 2**20
"""The agent's own defaults, `resend_reports_max` and `resend_bytes_max`."""


class Task(NamedTuple):
    """What one process does: its ranks, where and with which keys, and in how long they begin to connect. With
    `waits_for_word` they make reports only once they are told "report". It runs at `niceness`, and each rank makes a
    report every `period_ns`.
    """

    own: range
    world_size: int
    endpoint: str
    keys: ClientKeys | None
    connect_ns: int
    begin_ns: int
    waits_for_word: bool
    niceness: int
    period_ns: int


class Progress(NamedTuple):
    """Where the ranks of one process stand. `reports_dropped` fell out of a full buffer: that is loss. `behind_ns`: the
    time that this process has let go by because it could not keep up. `welcomed_ns`: when the rank was last welcomed
    for which that is longest ago, by the monotonic clock; 0 before all were.
    """

    ranks: int
    welcomed: int
    made: int
    held: int
    reports_dropped: int
    resends: int
    refused: int
    behind_ns: int
    cpu_ns: int
    welcomed_ns: int = 0
    is_done: bool = False


class LoadRank:
    """One rank: what `agent/reporting/sender.py` does, without its waiting."""

    def __init__(self, task: Task, rank: int, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.rank = rank
        self._task = task
        self.boot_id = f"boot-{rank:08}"
        chance = random.Random(self.boot_id)
        self.buffer = ResendBuffer(FRAMES_HELD_MAX, BYTES_HELD_MAX)
        self.delivery = Delivery(self.buffer, chance)
        self.made = 0
        self.welcomed_ns = 0
        self._context = context
        self._connection: Connection | None = None

    def connect(self) -> int:
        """Begin to; the file that tells when something has come."""
        task = self._task
        self._connection = Connection(
            self._context, zmq.Poller(), SystemClock(), task.endpoint, keys=task.keys, name=self.boot_id
        )
        return int(self._connection.socket.FD)

    def report(self, reports: JobReports, now_ns: int) -> None:
        """Make the next report, and send what is due."""
        self.made += 1
        self.buffer.push(self.made, encode(reports.build(self.rank, self.made, now_ns)), 1)
        self.turn(now_ns)

    def turn(self, now_ns: int) -> None:
        """Time has passed: take in what has come, send what is due."""
        # In this order, because the socket reads its mailbox for whatever is asked of it, though not twice within a
        # millisecond: what comes after this its file will tell. What it does not tell is read at the next turn.
        self.receive()
        self._carry_out(self.delivery.on_tick(now_ns))

    def receive(self) -> None:
        """Take in all that has come."""
        connection = self._connection
        while connection is not None and (frame := connection.receive()) is not None:
            self._take(decode(frame), monotonic_ns())
        if self.delivery.blocked and connection is not None and connection.socket.poll(0, zmq.POLLOUT):
            self._carry_out(self.delivery.on_writable(monotonic_ns()))

    def close(self) -> None:
        """Drop the connection."""
        self.delivery.close()
        if self._connection is not None:
            self._connection.close()

    def _carry_out(self, sends: Sequence[Send]) -> None:
        for index, send in enumerate(sends):
            frame = send.frame if isinstance(send, SendFrame) else self._say_hello(send)
            if not self._try_send(frame):
                self.delivery.on_blocked(sends[index:])
                return

    def _try_send(self, frame: bytes) -> bool:
        return self._connection is not None and self._connection.try_send(frame)

    def _say_hello(self, send: SendHello) -> bytes:
        hello = build_hello(RUN, self.rank, self._task.world_size, self.boot_id, send.first_sequence)
        return encode(msgspec.structs.replace(hello, hello_number=send.number))

    def _take(self, message: Message, now_ns: int) -> None:
        match message:
            case Ack(through=through):
                self._carry_out(self.delivery.on_ack(through, now_ns))
            case ClockPing(collector_ns=collector_ns):
                # When the socket does not take it, the collector asks again.
                self._try_send(encode(ClockPong(collector_ns=collector_ns, host_ns=now_ns)))
            case Welcome(admitted_through=through, hello_number=number):
                self.welcomed_ns = now_ns
                self._carry_out(self.delivery.on_welcome(through, now_ns, number))
            case HelloWanted():
                self._carry_out(self.delivery.on_hello_wanted(now_ns))
            case Refused(reason=reason, detail=detail):
                self._carry_out(self.delivery.on_refused(reason, detail))
            case SampleOrder():  # such a rank runs no code of which there could be samples
                pass
            case _:
                raise ValueError(f"a collector does not send {message!r}")


class RankProcess:
    """The ranks of one process, until they are told to stop making reports and everything is delivered."""

    def __init__(self, task: Task, control: Pipe) -> None:
        self._task = task
        self._control = control
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS_PER_RANK * len(task.own) + SPARE_FILES)
        self._reports = JobReports(task.world_size, task.own)
        self._ranks = [LoadRank(task, rank, self._context) for rank in task.own]
        self._by_file: dict[int, LoadRank] = {}
        self._epoll = select.epoll(len(self._ranks))
        self._connected = self._turns = 0
        self._reports_begun = not task.waits_for_word
        self._stops = False
        self._behind_ns = 0

    def run(self) -> None:
        """Connect, report and deliver until told to stop, and the process above is gone or has had the last word."""
        told_ns = slice_ns = self._task.begin_ns
        parent = os.getppid()
        while os.getppid() == parent and not (self._stops and self._is_delivered()):
            slice_ns += SLICE_NS
            late_ns = monotonic_ns() - slice_ns
            if late_ns > LATE_NS_MAX:  # the ranks make fewer reports then, and not all that are due at once
                self._behind_ns += late_ns
                slice_ns += late_ns
            self._connect_due(slice_ns - self._behind_ns)
            self._take_turns(slice_ns - self._behind_ns)
            self._wait_until(slice_ns)
            if monotonic_ns() - told_ns >= TELL_NS:
                told_ns = monotonic_ns()
                self._control.send(self._describe())
                while self._control.poll():
                    self._take_word(self._control.recv())
        self._control.send(self._describe()._replace(is_done=True))
        for rank in self._ranks:
            rank.close()
        self._context.destroy(linger=0)

    def _take_word(self, word: str) -> None:
        self._reports_begun = self._reports_begun or word == "report"
        self._stops = self._stops or word == "stop"

    def _connect_due(self, now_ns: int) -> None:
        share = (now_ns - self._task.begin_ns) / max(1, self._task.connect_ns)
        due = len(self._ranks) if self._task.connect_ns == 0 else min(len(self._ranks), int(share * len(self._ranks)))
        for rank in self._ranks[self._connected : due]:
            file = rank.connect()
            self._by_file[file] = rank
            self._epoll.register(file, select.EPOLLIN | select.EPOLLET)
        self._connected = max(self._connected, due)

    def _take_turns(self, now_ns: int) -> None:
        """Every rank has its turn once a period, one after the other; none before all have begun to connect. A turn is
        a report, or just time that passes: before there are to be reports, and when there are to be no more.
        """
        since_ns = now_ns - self._task.begin_ns - self._task.connect_ns
        due = max(0, since_ns) * len(self._ranks) // self._task.period_ns
        while self._turns < due:
            rank = self._ranks[self._turns % len(self._ranks)]
            self._turns += 1
            if self._stops or not self._reports_begun:
                rank.turn(monotonic_ns())
            else:
                rank.report(self._reports, monotonic_ns())

    def _wait_until(self, until_ns: int) -> None:
        """Sleep, then take in all that has come meanwhile: to wake for each message costs as much as the message."""
        time.sleep(max(0, until_ns - monotonic_ns()) / NS_PER_S)
        for file, _ in self._epoll.poll(0, maxevents=max(1, len(self._by_file))):
            self._by_file[file].receive()

    def _is_delivered(self) -> bool:
        return all(rank.delivery.everything_acknowledged for rank in self._ranks)

    def _describe(self) -> Progress:
        welcomed = made = held = dropped = resends = refused = 0
        for rank in self._ranks:  # in one walk: one for each number was a tenth of what a rank costs
            delivery, buffer = rank.delivery, rank.buffer
            welcomed += delivery.state is DeliveryState.WELCOMED
            made += rank.made
            held += len(buffer)
            dropped += buffer.reports_dropped
            resends += delivery.resends
            refused += delivery.refusal is not None
        return Progress(
            ranks=len(self._ranks),
            welcomed=welcomed,
            made=made,
            held=held,
            reports_dropped=dropped,
            resends=resends,
            refused=refused,
            behind_ns=self._behind_ns,
            cpu_ns=process_time_ns(),
            welcomed_ns=min(rank.welcomed_ns for rank in self._ranks),
        )


def run_ranks(task: Task, control: Pipe) -> None:
    """The main function of a process of ranks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above says when to stop
    os.nice(task.niceness)
    raise_open_files(len(task.own) * FILES_PER_RANK + SPARE_FILES)
    RankProcess(task, control).run()


def raise_open_files(needed: int) -> None:
    """Make room for so many open files. Raises OSError, with the cure, where this process may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, max(needed, hard)))
    except (ValueError, OSError) as error:
        raise OSError(f"{needed} open files are needed and {hard} allowed; raise the hard limit: ulimit -Hn") from error
