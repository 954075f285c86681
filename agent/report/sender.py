"""The agent's end of the wire: a ZeroMQ DEALER that does what `delivery.py` says, and answers the collector's pings.

It has no thread of its own; the agent thread drives it, and only `wake` may be called from another one. What the
socket does not take (rankscope.uplink.connection) stays in the resend buffer, which is bounded and counts. While no
collector is there, ZeroMQ tries to connect every few seconds on its own thread, and `exchange` sleeps.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import zmq

from rankscope.agent.report.rate_limit import RateLimit
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError, SettingError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack, ClockPing, ClockPong, Hello, HelloWanted, Message, Refused, Welcome
from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from rankscope.uplink.connection import REDIAL_NS, SILENCE_NS, Connection
from rankscope.uplink.delivery import Delivery, DeliveryState, Refusal, Send, SendFrame, SendHello

RECEIVES_PER_ROUND_MAX: Final = 256
"""Messages taken in before what is due is sent again."""

FRAMES_A_SECOND_MAX: Final = 2_000
"""Frames taken in from a collector. An honest one sends a few; to take in so many costs about 2 % of a core, which is
the training's. What is more waits, with the collector."""
PINGS_A_SECOND_MAX: Final = 20
"""Clock pings answered. An honest collector sends 10 at the most (clock_ping_s)."""
REFUSALS_A_SECOND_MAX: Final = 5
"""Refusals that are followed. Requests for a Hello need no such bound: a collector that has just been started sends one
for each frame that it gets, and `Delivery` answers with a Hello each 200 ms at the most."""
DETAIL_LENGTH_MAX: Final = 512
REASON_LENGTH_MAX: Final = 64
URL_LENGTH_MAX: Final = 256

FIRST_CONNECT_NS: Final = NS_PER_S
"""So long after `open` an end still waits for the first connection. One that is there takes milliseconds."""

WAIT_MS_MAX: Final = 60_000
"""Longest single wait: ZeroMQ takes a 32-bit number of milliseconds, and a caller may say "until woken"."""


class Sender:
    """Carries the frames of `delivery` to the collector, and the collector's answers back.

    Frames can be pushed, and `exchange` waited in, before `open`. After `close` only `wake` and `close` may be called.
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
    ) -> None:
        self._delivery = delivery
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
        """Where the collector publishes, as its Welcome said."""
        self.frames_ignored = 0
        """Messages from the collector that are not a frame, or not one that a collector sends."""
        self._reading = RateLimit(FRAMES_A_SECOND_MAX)
        self._pings = RateLimit(PINGS_A_SECOND_MAX)
        self._refusals = RateLimit(REFUSALS_A_SECOND_MAX)

    @property
    def connected(self) -> bool:
        """Whether the collector has taken this rank in."""
        return self._delivery.state is DeliveryState.WELCOMED

    @property
    def demands_ignored(self) -> int:
        """Messages of a collector that asks for too much in a second: they were not followed."""
        return self._pings.ignored + self._refusals.ignored

    @property
    def refused(self) -> Refusal | None:
        """The collector's reason for not taking this rank, or why there is no connection, until a Welcome."""
        return self._delivery.refusal or (None if self._connection is None else self._connection.refusal)

    def open(self, endpoint: str, keys: ClientKeys | None = None) -> None:
        """Begin to connect to `endpoint`, `tcp://HOST:PORT`, encrypted when there are keys, and return at once.

        Raises SettingError for an endpoint that ZeroMQ cannot read; a host that is not there is tried for ever.
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
        """Take a numbered message; it goes out in the next `exchange`. Raises ValueError unless numbers follow."""
        self._delivery.buffer.push(sequence, frame, step_count)

    def exchange(self, until_host_ns: int) -> None:
        """Send, receive and answer until that time, or until `wake` is called. A call for the past does it once."""
        while not self._take_turn(until_host_ns):
            if self._clock.monotonic_ns() >= until_host_ns:
                return

    def drain(self, deadline_host_ns: int) -> bool:
        """Exchange until every frame is acknowledged; whether that was reached in time.

        False at once where it cannot be: this rank was refused, or there never was a connection, though time for one.
        """
        self._delivery.hurry()
        while not self._delivery.everything_acknowledged:
            until_ns = min(deadline_host_ns, self._find_hope_ns(deadline_host_ns))
            if self._clock.monotonic_ns() >= until_ns:
                return False
            self._take_turn(until_ns)
        return True

    def wake(self) -> None:
        """Make the present `exchange`, or else the next one, return. From any thread, at any time."""
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # full: a wake-up is waiting already; or closed
                self._wake_in.send(b"\0")

    def close(self) -> None:
        """Drop the connection and whatever was not acknowledged.

        It does nothing the second time, nor in a forked child, which has the parent's sockets without the thread
        behind them.
        """
        if os.getpid() != self._pid:
            return
        self._delivery.close()
        if self._context is not None:
            self._context.destroy(linger=0)
        self._context = self._connection = None
        self._wake_in.close()
        self._wake_out.close()

    def _find_hope_ns(self, deadline_ns: int) -> int:
        """Until when a collector may still be heard of, as far as is known now."""
        delivery = self._delivery
        if delivery.state in {DeliveryState.REFUSED, DeliveryState.CLOSED}:
            return 0
        if delivery.ever_welcomed:
            return deadline_ns
        if self.refused is not None:
            return 0
        return deadline_ns if delivery.has_sent_hello else self._first_connect_by_ns

    def _take_turn(self, until_ns: int) -> bool:
        """Send what is due, wait for what comes next, take it in. Returns whether `wake` was called."""
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
        return self._take_wake_ups(ready)

    def _wait(self, until_ns: int) -> dict[object, int]:
        if self._connection is not None:
            reads_again_ns = self._reading.find_next_ns(self._clock.monotonic_ns())
            self._connection.watch_for_room(wanted=self._delivery.blocked, reads=reads_again_ns is None)
            due_ns = (until_ns, self._delivery.next_wake_ns, self._connection.redial_due_ns, reads_again_ns)
            until_ns = min(at_ns for at_ns in due_ns if at_ns is not None)
        remaining_ns = max(0, until_ns - self._clock.monotonic_ns())
        # Upwards: rounded down, the last millisecond would be spent in a busy loop.
        return dict(self._poller.poll(min(-(-remaining_ns // NS_PER_MS), WAIT_MS_MAX)))

    def _take_wake_ups(self, ready: dict[object, int]) -> bool:
        if self._wake_out.fileno() not in ready:
            return False
        with contextlib.suppress(BlockingIOError):
            while self._wake_out.recv(4096):  # many wake-ups are one
                pass
        return True

    def _carry_out(self, sends: Sequence[Send]) -> None:
        for index, send in enumerate(sends):
            frame = send.frame if isinstance(send, SendFrame) else self._say_hello(send)
            if not self._try_send(frame):
                self._delivery.on_blocked(sends[index:])
                return

    def _say_hello(self, send: SendHello) -> bytes:
        return encode(msgspec.structs.replace(self._make_hello(send.first_sequence), hello_number=send.number))

    def _try_send(self, frame: bytes) -> bool:
        return self._connection is not None and self._connection.try_send(frame)

    def _receive(self, connection: Connection) -> None:
        for _ in range(RECEIVES_PER_ROUND_MAX):
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
                self._handle(message, now_ns)

    def _handle(self, message: Message, now_ns: int) -> None:
        match message:
            case ClockPing(collector_ns=collector_ns):
                if self._pings.allows(now_ns):  # when the socket does not take it, the collector asks again
                    self._try_send(encode(ClockPong(collector_ns=collector_ns, host_ns=self._clock.monotonic_ns())))
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
                if self._refusals.allows(now_ns):  # what a stranger says ends up on the training's stderr
                    said = to_line(reason, REASON_LENGTH_MAX), to_line(detail, DETAIL_LENGTH_MAX)
                    self._carry_out(self._delivery.on_refused(*said))
            case _:
                self.frames_ignored += 1
