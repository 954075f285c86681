"""Sends reports to the collector over a ZeroMQ DEALER by the rules of `delivery.py`, and answers clock pings.

It runs on the agent thread; only `wake` may be called from another one. Frames that the socket does not accept
(rankscope.uplink.connection) stay in the bounded resend buffer. Without a collector ZeroMQ retries the connection every
few seconds on its own thread, and `exchange` sleeps.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import zmq

from rankscope.agent.run_report import ReceivedSummary
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError, SettingError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import (
    Ack,
    CaptureOrder,
    CapturePartWanted,
    ClockPing,
    ClockPong,
    Hello,
    HelloWanted,
    Message,
    Refused,
    RunSummary,
    SampleOrder,
    SettingsOrder,
    Welcome,
)
from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.connection import REDIAL_NS, SILENCE_NS, Connection
from rankscope.uplink.delivery import Delivery, DeliveryState, Refusal, Send, SendFrame, SendHello

RECEIVES_PER_EXCHANGE_MAX: Final = 256
"""Largest number of messages received in a row, before messages that are due are sent."""

FRAMES_A_SECOND_MAX: Final = 2_000
"""Frames read per second from a collector, which normally sends a few: the limit costs about 2 % of a core. Further
frames wait in the connection."""
PINGS_A_SECOND_MAX: Final = 20
"""Clock pings answered per second. The collector sends at most 10 (clock_ping_s)."""
ORDERS_A_SECOND_MAX: Final = 200
"""Orders, and requests for parts of a capture's file, processed per second: 50 MiB. The collector repeats the
others."""
REFUSALS_A_SECOND_MAX: Final = 5
"""Refusals processed per second. Requests for a Hello need no limit: a restarted collector sends one for each frame it
receives, and `Delivery` answers with one Hello per 200 ms at most."""
DETAIL_LENGTH_MAX: Final = 512
REASON_LENGTH_MAX: Final = 64
URL_LENGTH_MAX: Final = 256

FIRST_CONNECT_NS: Final = NS_PER_S
"""Longest time after `open` that `drain` waits for the first connection, which usually takes milliseconds."""

WAIT_MS_MAX: Final = 60_000
"""Longest single wait: ZeroMQ accepts a 32-bit number of milliseconds."""


Order = CaptureOrder | CapturePartWanted | SampleOrder | SettingsOrder
AnswerOrder = Callable[[Order], Message | None]


class RateLimit:
    """Allows `count_max` events per second of the caller's monotonic clock, and counts the others in `ignored`.

    >>> limit = RateLimit(2)
    >>> [limit.allows(ns) for ns in (0, 1, 2, 10**9)], limit.ignored
    ([True, True, False, True], 1)
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._second_began_ns = 0
        self.ignored = 0

    def allows(self, now_ns: int) -> bool:
        """Return whether one more event is allowed now, and count it."""
        if self.find_next_ns(now_ns) is not None:
            self.ignored += 1
            return False
        self._count += 1
        return True

    def find_next_ns(self, now_ns: int) -> int | None:
        """Return the time of the next allowed event; None: now."""
        if now_ns - self._second_began_ns >= NS_PER_S:
            self._second_began_ns, self._count = now_ns, 0
        return None if self._count < self._count_max else self._second_began_ns + NS_PER_S


class Sender:
    """The sender of the frames of `delivery`, and receiver of the collector's answers.

    `push` and `exchange` may be called before `open`. After `close` only `wake` and `close` may be called.
    """

    def __init__(
        self,
        delivery: Delivery,
        clock: Clock,
        boot_id: str,
        make_hello: Callable[[int], Hello],
        *,
        redial_ns: int = REDIAL_NS,
        silence_ns: int = SILENCE_NS,
        on_order: AnswerOrder = lambda _order: None,
    ) -> None:
        self._delivery = delivery
        self._on_order = on_order
        self._clock = clock
        self._boot_id = boot_id
        self._make_hello = make_hello
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._first_connect_by_ns = 0
        self._connection: Connection | None = None
        self._redial_after_ns = redial_ns
        self._silence_ns = silence_ns
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.settimeout(0)
        self._wake_out.settimeout(0)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_out, zmq.POLLIN)
        self.metrics_url: str | None = None
        """URL of the collector's /metrics, from its Welcome."""
        self.summary: ReceivedSummary | None = None
        """The last summary of the run from the collector; it is replaced, so that any thread may read it."""
        self.frames_ignored = 0
        """Number of messages from the collector that were invalid, unexpected, or orders and too many."""
        self._reading = RateLimit(FRAMES_A_SECOND_MAX)
        self._pings = RateLimit(PINGS_A_SECOND_MAX)
        self._refusals = RateLimit(REFUSALS_A_SECOND_MAX)
        self._orders = RateLimit(ORDERS_A_SECOND_MAX)

    @property
    def connected(self) -> bool:
        """True if the collector has admitted this rank."""
        return self._delivery.state is DeliveryState.WELCOMED

    @property
    def demands_ignored(self) -> int:
        """Number of messages from the collector above the rate limits, which were ignored."""
        return self._pings.ignored + self._refusals.ignored

    @property
    def refused(self) -> Refusal | None:
        """Reason why the collector refuses this rank or there is no connection; None after a Welcome."""
        connection = self._connection  # read once: another thread may ask while `close` removes it
        return self._delivery.refusal or (None if connection is None else connection.refusal)

    def open(self, endpoint: str, keys: ClientKeys | None = None) -> None:
        """Begin to connect to `endpoint`, `tcp://HOST:PORT`, encrypted if there are keys, and return at once.

        An unreachable host is retried indefinitely. Raise SettingError for an endpoint that ZeroMQ cannot parse.
        """
        if self._context is not None:
            text = f"the sender is open already; it cannot be opened again for {endpoint!r}"
            raise RuntimeError(text)
        context = zmq.Context(io_threads=1)
        try:
            self._connection = Connection(
                context, self._poller, self._clock, endpoint,
                keys=keys, name=self._boot_id, redial_ns=self._redial_after_ns, silence_ns=self._silence_ns,
            )  # fmt: skip
        except zmq.ZMQError as error:
            context.destroy(linger=0)
            text = f"the collector's endpoint is {endpoint!r}: {error.strerror}. Write it as tcp://HOST:PORT."
            raise SettingError(text) from error
        self._context = context
        self._first_connect_by_ns = self._clock.monotonic_ns() + FIRST_CONNECT_NS

    def push(self, sequence: int, frame: bytes, step_count: int) -> None:
        """Queue a numbered message for the next `exchange`. Raise ValueError if a number is missing before it."""
        self._delivery.buffer.push(sequence, frame, step_count)

    def send(self, message: Message | None) -> None:
        """Send a message without a number, if the connection accepts it; it is not sent again. None: there is none."""
        if message is not None:
            self._try_send(encode(message))

    def exchange(self, until_host_ns: int) -> None:
        """Send, receive and answer until that time or until `wake` is called, at least once."""
        while not self._exchange_once(until_host_ns):
            if self._clock.monotonic_ns() >= until_host_ns:
                return

    def drain(self, deadline_host_ns: int) -> bool:
        """Exchange until every frame is acknowledged; return whether that was reached in time.

        Return False at once if the rank was refused, or if no connection came about within FIRST_CONNECT_NS.
        """
        self._delivery.hurry()
        while not self._delivery.everything_acknowledged:
            until_ns = min(deadline_host_ns, self._find_give_up_ns(deadline_host_ns))
            if self._clock.monotonic_ns() >= until_ns:
                return False
            self._exchange_once(until_ns)
        return True

    def wake(self) -> None:
        """Make the present or next `exchange` return. Callable from any thread at any time."""
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # full: a wake-up is pending; or closed
                self._wake_in.send(b"\0")

    def close(self) -> None:
        """Close the connection; unacknowledged frames are lost.

        Do nothing the second time, and in a forked child, which has the parent's sockets without their thread.
        """
        if os.getpid() != self._pid:
            return
        self._delivery.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._connection = None
        self._wake_in.close()
        self._wake_out.close()

    def _find_give_up_ns(self, deadline_ns: int) -> int:
        """Return until when an acknowledgement can still be expected, as far as is known now."""
        delivery = self._delivery
        if delivery.state in {DeliveryState.REFUSED, DeliveryState.CLOSED}:
            return 0
        if self.refused is not None:
            return 0
        if delivery.ever_welcomed:
            return deadline_ns
        return deadline_ns if delivery.has_sent_hello else self._first_connect_by_ns

    def _exchange_once(self, until_ns: int) -> bool:
        """Send what is due, wait for the next event and process it. Return whether `wake` was called."""
        connection = self._connection
        if connection is not None:
            connection.redial_when_due()
            self._carry_out(self._delivery.on_tick(self._clock.monotonic_ns()))
        ready = self._wait(until_ns)
        if connection is not None:
            if connection.handshakes.socket in ready:
                connection.handle_failure()
            events = ready.get(connection.socket, 0)
            if events & zmq.POLLIN:
                self._receive(connection)
            if events & zmq.POLLOUT:
                self._carry_out(self._delivery.on_writable(self._clock.monotonic_ns()))
        return self._clear_wake_ups(ready)

    def _wait(self, until_ns: int) -> dict[object, int]:
        if self._connection is not None:
            reads_again_ns = self._reading.find_next_ns(self._clock.monotonic_ns())
            self._connection.watch_for_room(wanted=self._delivery.blocked, reads=reads_again_ns is None)
            due_ns = (until_ns, self._delivery.next_wake_ns, self._connection.redial_due_ns, reads_again_ns)
            until_ns = min(at_ns for at_ns in due_ns if at_ns is not None)
        remaining_ns = max(0, until_ns - self._clock.monotonic_ns())
        # Rounded up: rounded down, the last millisecond would be a busy loop.
        return dict(self._poller.poll(min(-(-remaining_ns // NS_PER_MS), WAIT_MS_MAX)))

    def _clear_wake_ups(self, ready: dict[object, int]) -> bool:
        if self._wake_out.fileno() not in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):  # several wake-ups count as one
                pass
        return True

    def _carry_out(self, sends: Sequence[Send]) -> None:
        for index, send in enumerate(sends):
            frame = send.frame if isinstance(send, SendFrame) else self._encode_hello(send)
            if not self._try_send(frame):
                self._delivery.on_blocked(sends[index:])
                return

    def _encode_hello(self, send: SendHello) -> bytes:
        return encode(msgspec.structs.replace(self._make_hello(send.first_sequence), hello_number=send.number))

    def _try_send(self, frame: bytes) -> bool:
        return self._connection is not None and self._connection.try_send(frame)

    def _receive(self, connection: Connection) -> None:
        for _ in range(RECEIVES_PER_EXCHANGE_MAX):
            now_ns = self._clock.monotonic_ns()
            if self._reading.find_next_ns(now_ns) is not None:
                return
            frame = connection.receive()
            if frame is None:
                return
            self._reading.allows(now_ns)
            try:
                message = decode(frame)
            except DecodeError:
                self.frames_ignored += 1
            else:
                if isinstance(message, RunSummary):
                    self.summary = ReceivedSummary(message, now_ns)
                else:
                    self._handle(message, now_ns)

    def _handle(self, message: Message, now_ns: int) -> None:
        match message:
            case ClockPing(collector_ns=collector_ns):
                if self._pings.allows(now_ns):  # if the socket does not accept it, the collector pings again
                    self.send(ClockPong(collector_ns=collector_ns, host_ns=self._clock.monotonic_ns()))
            case Ack(through=through):
                self._carry_out(self._delivery.on_ack(through, now_ns))
            case Welcome(admitted_through=admitted_through, metrics_url=metrics_url, hello_number=number):
                self.metrics_url = to_line(metrics_url, URL_LENGTH_MAX) or None
                if self._connection is not None:
                    self._connection.refusal = None
                self._carry_out(self._delivery.on_welcome(admitted_through, now_ns, number))
            case HelloWanted():
                self._carry_out(self._delivery.on_hello_wanted(now_ns))
            case Refused(reason=reason, detail=detail):
                if self._refusals.allows(now_ns):  # the texts are foreign and get logged on stderr
                    texts = to_line(reason, REASON_LENGTH_MAX), to_line(detail, DETAIL_LENGTH_MAX)
                    self._carry_out(self._delivery.on_refused(*texts))
            case CaptureOrder() | CapturePartWanted() | SampleOrder() | SettingsOrder() if self._orders.allows(now_ns):
                self.send(self._on_order(message))
            case _:
                self.frames_ignored += 1
