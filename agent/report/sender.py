"""The agent's end of the wire: a ZeroMQ DEALER that does what `delivery.py` says, and answers the collector's pings.

It has no thread of its own; the agent thread drives it, and only `wake` may be called from another one. The socket is
never a place to keep things: with IMMEDIATE it takes messages only while there is a connection, and what it does not
take stays in the resend buffer, which is bounded and counts. While no collector is there, ZeroMQ tries to connect every
few seconds on its own thread, and `exchange` sleeps.
"""

import contextlib
import os
import random
import socket
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from rankscope.agent.collector_address import set_keys
from rankscope.agent.report.delivery import Delivery, DeliveryState, Refusal, Send, SendFrame
from rankscope.agent.report.handshake import HandshakeWatch
from rankscope.agent.report.reconnect import draw_pauses
from rankscope.measure.clock import Clock
from rankscope.measure.codec import decode, encode
from rankscope.measure.errors import DecodeError, SettingError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.messages import Ack, ClockPing, ClockPong, Hello, HelloWanted, Message, Refused, Welcome
from rankscope.measure.units import NS_PER_MS, NS_PER_S

FRAME_IN_BYTES_MAX: Final = 64 * 1024
"""Largest frame taken from a collector; its largest honest one, a Refused with two texts of 1,024 characters, is
under 9 KiB."""

RECEIVES_PER_ROUND_MAX: Final = 256
"""Messages taken in before what is due is sent again."""

WAIT_MS_MAX: Final = 60_000
"""Longest single wait: ZeroMQ takes a 32-bit number of milliseconds, and a caller may say "until woken"."""

REDIAL_NS: Final = 30 * NS_PER_S
"""After so long a connection is tried anew that ZeroMQ has given up: keys are changed by people."""

_OPTIONS: Final = {
    zmq.IMMEDIATE: 1,
    zmq.LINGER: 0,
    # Messages in the socket are lost with the connection and sent again after a silence: few, but enough to keep a
    # connection busy while a backlog is sent.
    zmq.SNDHWM: 16,
    zmq.RCVHWM: 64,
    zmq.MAXMSGSIZE: FRAME_IN_BYTES_MAX,
    # Otherwise an address that swallows packets is given about two minutes before it is tried again.
    zmq.CONNECT_TIMEOUT: 5_000,
    # Only this side beats: a collector with 16,384 heartbeat timers spends its time walking them.
    zmq.HEARTBEAT_IVL: 10_000,
    zmq.HEARTBEAT_TIMEOUT: 30_000,
}  # fmt: skip


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
    ) -> None:
        self._delivery = delivery
        self._clock = clock
        self._boot_id = boot_id
        self._make_hello = make_hello
        self._pid = os.getpid()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._address: tuple[str, ClientKeys | None] | None = None
        self._handshakes: HandshakeWatch | None = None
        self._handshake_refusal: Refusal | None = None
        self._redial_after_ns = redial_ns
        self._redial_ns: int | None = None
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.settimeout(0)
        self._wake_out.settimeout(0)
        self._poller = zmq.Poller()
        self._poller.register(self._wake_out, zmq.POLLIN)
        self.metrics_url: str | None = None
        """Where the collector publishes, as its Welcome said."""
        self.frames_ignored = 0
        """Messages from the collector that are not a frame, or not one that a collector sends."""

    @property
    def connected(self) -> bool:
        """Whether the collector has taken this rank in."""
        return self._delivery.state is DeliveryState.WELCOMED

    @property
    def refused(self) -> Refusal | None:
        """The collector's reason for not taking this rank, or why there is no connection, until a Welcome."""
        return self._delivery.refusal or self._handshake_refusal

    def open(self, endpoint: str, keys: ClientKeys | None = None) -> None:
        """Begin to connect to `endpoint`, `tcp://HOST:PORT`, encrypted when there are keys, and return at once.

        Raises SettingError for an endpoint that ZeroMQ cannot read; a host that is not there is tried for ever.
        """
        if self._context is not None:
            text = f"the sender is open already; it cannot be opened again for {endpoint!r}"
            raise RuntimeError(text)
        context = zmq.Context(io_threads=1)
        try:
            self._dial(context, endpoint, keys)
        except zmq.ZMQError as error:
            context.destroy(linger=0)
            text = f"the collector's endpoint is {endpoint!r}: {error.strerror}. Write it as tcp://HOST:PORT."
            raise SettingError(text) from error
        self._context, self._address = context, (endpoint, keys)

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

        False at once where it cannot be: no collector has ever welcomed this rank, or it was refused for good.
        """
        if not self._delivery.ever_welcomed:
            return False
        while not self._delivery.everything_acknowledged:
            has_ended = self._delivery.state in {DeliveryState.REFUSED, DeliveryState.CLOSED}
            if has_ended or self._clock.monotonic_ns() >= deadline_host_ns:
                return False
            self._take_turn(deadline_host_ns)
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
        self._context = self._dealer = self._handshakes = None
        self._wake_in.close()
        self._wake_out.close()

    def _take_turn(self, until_ns: int) -> bool:
        """Send what is due, wait for what comes next, take it in. Returns whether `wake` was called."""
        if self._dealer is not None:
            self._redial_when_due()
            self._carry_out(self._delivery.on_tick(self._clock.monotonic_ns()))
        ready = self._wait(until_ns)
        if self._handshakes is not None and self._handshakes.socket in ready:
            self._take_failure(self._handshakes)
        if self._dealer is not None:
            events = ready.get(self._dealer, 0)
            if events & zmq.POLLIN:
                self._receive(self._dealer)
            if events & zmq.POLLOUT:
                self._carry_out(self._delivery.on_writable(self._clock.monotonic_ns()))
        return self._take_wake_ups(ready)

    def _dial(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, keys: ClientKeys | None) -> None:
        """A new socket, in the place of the one that ZeroMQ has given up."""
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, self._boot_id.encode())
        pauses = draw_pauses(random.Random(self._boot_id))  # noqa: S311 - spreads connects, no secret
        own = {zmq.RECONNECT_IVL: pauses.first_ms, zmq.RECONNECT_IVL_MAX: pauses.longest_ms}
        for option, value in (_OPTIONS | own).items():
            dealer.setsockopt(option, value)
        set_keys(dealer, keys)
        handshakes = HandshakeWatch(context, dealer, endpoint, keys)
        dealer.connect(endpoint)
        self._poller.register(handshakes.socket, zmq.POLLIN)
        self._dealer, self._handshakes = dealer, handshakes

    def _redial_when_due(self) -> None:
        due = self._redial_ns is not None and self._clock.monotonic_ns() >= self._redial_ns
        if not due or self._dealer is None or self._handshakes is None or self._context is None:
            return
        self._redial_ns = None
        for socket_there in (self._dealer, self._handshakes.socket):
            if socket_there in self._poller:
                self._poller.unregister(socket_there)
        self._handshakes.close()
        self._dealer.close(linger=0)
        if self._address is not None:
            self._dial(self._context, *self._address)

    def _take_failure(self, handshakes: HandshakeWatch) -> None:
        failure = handshakes.read()
        self._handshake_refusal = failure.refusal or self._handshake_refusal
        if failure.gave_up:
            self._redial_ns = self._clock.monotonic_ns() + self._redial_after_ns

    def _wait(self, until_ns: int) -> dict[object, int]:
        if self._dealer is not None:
            events = zmq.POLLIN | zmq.POLLOUT if self._delivery.blocked else zmq.POLLIN
            self._poller.register(self._dealer, events)
            due_ns = self._delivery.next_wake_ns
            until_ns = min(at_ns for at_ns in (until_ns, due_ns, self._redial_ns) if at_ns is not None)
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
            frame = send.frame if isinstance(send, SendFrame) else encode(self._make_hello(send.first_sequence))
            if not self._try_send(frame):
                self._delivery.on_blocked(sends[index:])
                return

    def _try_send(self, frame: bytes) -> bool:
        """Whether the socket took it: not while there is no connection, or SNDHWM messages are waiting."""
        if self._dealer is None:
            return False
        try:
            self._dealer.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _receive(self, dealer: "zmq.Socket[bytes]") -> None:
        for _ in range(RECEIVES_PER_ROUND_MAX):
            try:
                frame = dealer.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = decode(frame)
            except DecodeError:
                self.frames_ignored += 1
            else:
                self._handle(message, self._clock.monotonic_ns())

    def _handle(self, message: Message, now_ns: int) -> None:
        match message:
            case ClockPing(job_ns=job_ns):
                # When the socket does not take it, the collector asks again.
                self._try_send(encode(ClockPong(job_ns=job_ns, host_ns=now_ns)))
            case Ack(through=through):
                self._carry_out(self._delivery.on_ack(through, now_ns))
            case Welcome(admitted_through=admitted_through, metrics_url=metrics_url):
                self.metrics_url = metrics_url or None
                self._handshake_refusal = None
                self._carry_out(self._delivery.on_welcome(admitted_through, now_ns))
            case HelloWanted():
                self._carry_out(self._delivery.on_hello_wanted(now_ns))
            case Refused(reason=reason, detail=detail):
                self._carry_out(self._delivery.on_refused(reason, detail))
            case _:
                self.frames_ignored += 1
