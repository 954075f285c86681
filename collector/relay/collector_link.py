"""Maintain the one connection of a relay to one collector.

To be admitted, a relay follows the rules of a rank (rankscope.uplink.delivery): a Hello, again after growing pauses
until it is welcomed, and once more when the collector asks for one. Nothing it sends afterwards is numbered: the ranks
number their messages and hold them until the collector acknowledges them, and a second set of numbers would only repair
the same losses twice.

So unsent frames are not kept for long. While the collector is away, frames are dropped and counted; once it is back,
the ranks are asked for a Hello, its Welcome tells each what the collector has, and they send the rest again.
"""

import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from rankscope.collector.ingest.relays import NO_COLLECTOR, RELAY_NOT_ALLOWED
from rankscope.collector.relay.node_batch import NodeBatch
from rankscope.measure.clock import Clock
from rankscope.measure.codec import FRAME_BYTES_MAX, decode, encode
from rankscope.measure.errors import DecodeError
from rankscope.measure.held_gpus import NodeGpus
from rankscope.measure.messages import HelloWanted, Refused, Welcome
from rankscope.measure.node_messages import RelayCounts, Relayed, RelayedFrame, RelayHello
from rankscope.measure.units import NS_PER_S
from rankscope.uplink.connection import Connection
from rankscope.uplink.delivery import Delivery, DeliverySettings, DeliveryState, Send
from rankscope.uplink.resend_buffer import ResendBuffer

LOG = logging.getLogger("rankscope.relay")

BLOCKED_NS_MAX: Final = 2 * NS_PER_S
"""A collector that has accepted nothing for this long counts as gone. The frames that wait are dropped: the ranks still
hold them."""

MESSAGES_PER_PASS_MAX: Final = 64
"""Batches of answers received before frames are sent again."""

MESSAGE_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""Largest batch of answers that a relay accepts: 1,024 of 9 KiB, the largest that any rank gets, are 9 MiB, and 200
summaries of 32 KiB, which only rank 0 of each run gets, 6 MiB more."""

_SETTINGS: Final = DeliverySettings(reasons_retried=frozenset({"full", RELAY_NOT_ALLOWED}))
"""A key that is not marked as a relay's may be so later: operators change keys."""


class CollectorLink:
    """Sends `batch` to the collector of `connection`, and receives the answers. `read_counts` returns the relay's own
    counts, which are sent with a batch whenever they have changed.
    """

    def __init__(
        self,
        connection: Connection,
        batch: NodeBatch,
        hello: RelayHello,
        clock: Clock,
        *,
        endpoint: str,
        read_counts: Callable[[], RelayCounts],
    ) -> None:
        self._connection = connection
        self._batch = batch
        self._hello = hello
        self._clock = clock
        self._read_counts = read_counts
        self._counts_sent: RelayCounts | None = None
        self._gpus: NodeGpus | None = None
        self.endpoint = endpoint
        chance = random.Random(hello.boot_id)  # noqa: S311 - spreads Hellos, no secret
        self._delivery = Delivery(ResendBuffer(1, 1), chance, _SETTINGS)
        self._blocked_ns: int | None = None
        self._logged_refusal = ""

    @property
    def is_open(self) -> bool:
        """Whether the collector has admitted the relay."""
        return self._delivery.state is DeliveryState.WELCOMED

    @property
    def dropped(self) -> Mapping[str, int]:
        """Dropped frames, by reason."""
        return self._batch.dropped

    def add(self, peer: bytes, frame: bytes, key: str, *, urgent: bool) -> None:
        """Queue a frame of a rank for this collector; drop and count it while the relay is not admitted."""
        self._batch.add(peer, frame, key, self._clock.monotonic_ns(), urgent=urgent)
        if not self.is_open:
            self._batch.drop(NO_COLLECTOR)

    def tell_gpus(self, gpus: NodeGpus) -> None:
        """Send a reading of the node's GPUs, as soon as the collector takes it; a later one replaces it until then."""
        self._gpus = gpus

    def send_due(self) -> None:
        """Send what is due, as far as the socket has room."""
        self._connection.redial_when_due()
        self._carry_out(self._delivery.on_tick(self._clock.monotonic_ns()))
        self._log_refusal()
        if self._blocked_ns is not None and self._clock.monotonic_ns() - self._blocked_ns >= BLOCKED_NS_MAX:
            self._give_up()
        if self.is_open and not self._delivery.blocked and self._gpus is not None:
            self._send_gpus(self._gpus)
        while self.is_open and not self._delivery.blocked and self._is_due():
            self._send_batch()

    def prepare_wait(self) -> int | None:
        """Register with the poller; return when `send_due` has something to do if no event comes before."""
        self._connection.watch_for_room(wanted=self._delivery.blocked)
        gives_up_ns = None if self._blocked_ns is None else self._blocked_ns + BLOCKED_NS_MAX
        batch_ns = None if self._delivery.blocked else self._batch.due_ns
        times_ns = (self._delivery.next_wake_ns, self._connection.redial_due_ns, gives_up_ns, batch_ns)
        return min((at_ns for at_ns in times_ns if at_ns is not None), default=None)

    def receive(self, ready: Mapping[object, int]) -> tuple[list[RelayedFrame], bool]:
        """Return the answers that have arrived, and whether the collector has just admitted the relay: the ranks are to
        send a Hello then.
        """
        if self._connection.handshakes.socket in ready:
            self._connection.handle_failure()
        events = ready.get(self._connection.socket, 0)
        answers: list[RelayedFrame] = []
        was_open = self.is_open
        if events & zmq.POLLIN:
            self._read(answers)
        if events & zmq.POLLOUT:
            self._blocked_ns = None
            self._carry_out(self._delivery.on_writable(self._clock.monotonic_ns()))
        return answers, self.is_open and not was_open

    def close(self) -> None:
        """Drop the connection and what has not been sent."""
        self._delivery.close()
        self._connection.close()

    def _is_due(self) -> bool:
        return self._batch.due_ns is not None and self._batch.due_ns <= self._clock.monotonic_ns()

    def _send_batch(self) -> None:
        now_ns = self._clock.monotonic_ns()
        frames = self._batch.build(now_ns)
        counts = self._read_counts()
        changed = None if counts == self._counts_sent else counts
        if self._connection.try_send(encode(Relayed(frames=frames, counts=changed))):
            self._batch.sent(len(frames), now_ns)
            self._counts_sent = counts
            return
        self._block(())

    def _send_gpus(self, gpus: NodeGpus) -> None:
        if self._connection.try_send(encode(Relayed(frames=(), gpus=gpus))):
            self._gpus = None
            return
        self._block(())

    def _carry_out(self, sends: list[Send]) -> None:
        for index in range(len(sends)):
            if not self._connection.try_send(encode(self._hello)):  # the delivery has nothing else to send
                self._block(sends[index:])
                return

    def _block(self, unsent: list[Send] | tuple[()]) -> None:
        self._delivery.on_blocked(unsent)
        if self._blocked_ns is None:
            self._blocked_ns = self._clock.monotonic_ns()

    def _give_up(self) -> None:
        self._blocked_ns = None
        if self.is_open:
            LOG.warning("collector %s has stopped reading; ranks buffer their reports", self.endpoint)
            self._delivery.on_hello_wanted(self._clock.monotonic_ns())
        self._batch.drop(NO_COLLECTOR)

    def _read(self, answers: list[RelayedFrame]) -> None:
        for _ in range(MESSAGES_PER_PASS_MAX):
            frame = self._connection.receive()
            if frame is None:
                return
            try:
                message = decode(frame)
            except DecodeError:
                continue  # from a later release; the collector asks again for what matters
            match message:
                case Relayed(frames=frames):
                    answers += frames
                case Welcome():
                    self._handle_welcome()
                case HelloWanted():
                    self._carry_out(self._delivery.on_hello_wanted(self._clock.monotonic_ns()))
                case Refused(reason=reason, detail=detail):
                    self._delivery.on_refused(reason, detail)

    def _handle_welcome(self) -> None:
        if not self.is_open:
            LOG.info("connected to the collector at %s; forwarding the reports of this node", self.endpoint)
        self._connection.refusal = None
        self._counts_sent = None
        self._logged_refusal = ""
        self._carry_out(self._delivery.on_welcome(0, self._clock.monotonic_ns()))

    def _log_refusal(self) -> None:
        refusal = self._delivery.refusal or self._connection.refusal
        if refusal is not None and refusal.reason != self._logged_refusal:
            self._logged_refusal = refusal.reason
            LOG.error("the collector at %s refuses this relay (%s): %s", self.endpoint, refusal.reason, refusal.detail)
