"""Assemble a relay and run its loop: frames of ranks -> batch for their collector; answers -> ranks.

One thread does all of it. A frame is decoded only to validate it, and forwarded unchanged: fields of a later release
stay in it.
"""

import hashlib
import logging
import secrets
import socket
import threading
from typing import Final

import zmq

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.ingest.receiver import Received, Receiver
from rankscope.collector.ingest.refusal_log import RefusalLog
from rankscope.collector.ingest.relays import NO_HELLO, REPLY_FAILED, UNEXPECTED
from rankscope.collector.relay.clients import RelayClients, comes_from_rank, is_urgent
from rankscope.collector.relay.collector_link import MESSAGE_BYTES_MAX, CollectorLink
from rankscope.collector.relay.config import RelayConfig
from rankscope.collector.relay.gpu_holders import GpuHolders
from rankscope.collector.relay.gpu_reader import GpuReader
from rankscope.collector.relay.gpu_watch import GpuWatch, WatchedGpus
from rankscope.collector.relay.node_batch import NodeBatch
from rankscope.collector.relay.relay_auth import read_keys
from rankscope.measure import __version__
from rankscope.measure.clock import Clock
from rankscope.measure.codec import FRAME_BYTES_MAX, encode
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import ClientKeys
from rankscope.measure.machine import read_machine_id
from rankscope.measure.messages import ClockPong, HelloWanted
from rankscope.measure.node_messages import RelayCounts, RelayedFrame, RelayHello
from rankscope.measure.shards import choose_collector, parse_collectors
from rankscope.measure.units import NS_PER_MS, s_to_ns
from rankscope.uplink.connection import Connection

LOG = logging.getLogger("rankscope.relay")

MESSAGES_PER_PASS_MAX: Final = 512
"""Messages of ranks received before due batches are sent."""

WAIT_NS_MAX: Final = 500 * NS_PER_MS
"""Longest single wait: `stop` is noticed only after it."""

RANK_FRAME_BYTES_MAX: Final = FRAME_BYTES_MAX - 4096
"""Largest frame accepted from a rank: a batch is a frame too, with some hundred bytes around the one it holds."""

_HELLO_WANTED: Final = encode(HelloWanted())


class Relay:
    """The relay of a node. `run` works until `stop` is called, from a signal handler or another thread."""

    def __init__(self, config: RelayConfig, clock: Clock) -> None:
        """Listen for ranks, and begin to connect. Raises UnavailableError for an address that cannot be bound,
        SettingError for keys that are missing or cannot be used.
        """
        self._clock = clock
        self._config = config
        keys = read_keys(config, clock)
        self._stopping = threading.Event()
        self._poller = zmq.Poller()
        self._receiver = Receiver(
            config.listen,
            message_bytes_max=RANK_FRAME_BYTES_MAX,
            curve=keys.ranks,
            poller=self._poller,
            clock=clock,
        )
        self._has_rank_keys = keys.ranks is not None
        endpoints = parse_collectors(config.collector)
        self._clients = RelayClients(endpoints)
        self._dropped: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._refusals = RefusalLog(clock)
        self._faults = FaultLog(clock)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        name = config.name or socket.gethostname()[:128]
        self._hello = RelayHello(name=name, boot_id=secrets.token_hex(8), version=__version__)
        self._watched_gpus = WatchedGpus()
        self._gpus = _make_gpu_watch(config, name, clock, self._faults) if config.gpus else None
        self._links: dict[str, CollectorLink] = {}
        try:
            for endpoint in endpoints:
                self._links[endpoint] = self._make_link(endpoint, keys.collector)
        except Exception:
            self.close()
            raise

    @property
    def endpoint(self) -> str:
        """Where ranks connect, with the real port."""
        return self._receiver.endpoint

    @property
    def counts(self) -> RelayCounts:
        """The frames it has refused and dropped so far, by reason."""
        dropped = dict(self._dropped)
        for link in self._links.values():
            for reason, count in link.dropped.items():
                dropped[reason] = dropped.get(reason, 0) + count
        unsent = sum(self._receiver.send_failures.values())
        if unsent:
            dropped[REPLY_FAILED] = unsent
        refused = {**self._receiver.refused, **self._receiver.connections_refused, **self._refused}
        return RelayCounts(refused=refused, dropped=dropped)

    def stop(self) -> None:
        """Make `run` return soon."""
        self._stopping.set()

    def run(self) -> None:
        """Forward messages until stopped."""
        if self._gpus is not None:
            self._gpus.start()
        try:
            while not self._stopping.is_set():
                self.run_once(self._clock.monotonic_ns() + WAIT_NS_MAX)
        finally:
            self.close()

    def run_once(self, until_ns: int) -> None:
        """Send due batches, wait for messages until `until_ns` at most, and process them."""
        self._tell_gpus()
        for link in self._links.values():
            link.send_due()
        times_ns = [until_ns, *(link.prepare_wait() for link in self._links.values())]
        wake_ns = min(at_ns for at_ns in times_ns if at_ns is not None)
        remaining_ns = max(0, wake_ns - self._clock.monotonic_ns())
        # Rounded up: rounded down, the last millisecond would be a busy loop.
        ready = dict(self._poller.poll(-(-remaining_ns // NS_PER_MS)))
        with self._faults.contain("relay", "messages could not be read; the next pass continues with those after them"):
            for received in self._receiver.receive(ready, MESSAGES_PER_PASS_MAX):
                with self._faults.contain("relay", f"a {type(received.message).__name__} could not be forwarded"):
                    self._forward(received)
        for refusal in self._receiver.drain_refusals():
            self._refusals.note(refusal)
        for link in self._links.values():
            answers, has_opened = link.receive(ready)
            self._forward_answers(link, answers, has_opened=has_opened)

    def close(self) -> None:
        """Close every connection. Nothing is lost: the ranks hold what their collector has not acknowledged."""
        if self._gpus is not None:
            self._gpus.stop()
        for link in self._links.values():
            link.close()
        self._receiver.close()
        self._context.destroy(linger=0)

    def _make_link(self, endpoint: str, keys: ClientKeys | None) -> CollectorLink:
        try:
            connection = Connection(
                self._context, self._poller, self._clock, endpoint,
                keys=keys, name=self._find_routing_id(), frame_in_bytes_max=MESSAGE_BYTES_MAX,
            )  # fmt: skip
        except zmq.ZMQError as error:
            text = f"collector is {endpoint!r}: {error.strerror}. Write it as tcp://HOST:PORT."
            raise SettingError(text) from error
        batch = NodeBatch(interval_ns=s_to_ns(self._config.batch_interval_s), bytes_max=self._config.buffer_bytes_max)
        return CollectorLink(
            connection, batch, self._hello, self._clock, endpoint=endpoint, read_counts=lambda: self.counts
        )

    def _find_routing_id(self) -> str:
        """Return the same id after each restart: without keys, a rank belongs to the connection of its Hello."""
        machine = read_machine_id().partition("/")[0]
        text = f"{machine}\0{self._hello.name}\0{self._config.listen}"
        return f"relay-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"

    def _forward(self, received: Received) -> None:
        peer, message = received.peer, received.message
        if not comes_from_rank(message):
            self._refused[UNEXPECTED] = self._refused.get(UNEXPECTED, 0) + 1
            return
        endpoint = self._clients.find_endpoint(peer, message)
        if self._gpus is not None:
            self._watched_gpus.note(peer, message, self._clock.monotonic_ns())
        if endpoint is not None:
            key = received.key if self._has_rank_keys else ""
            self._links[endpoint].add(peer, received.frame, key, urgent=is_urgent(message))
            return
        self._dropped[NO_HELLO] = self._dropped.get(NO_HELLO, 0) + 1
        if not isinstance(message, ClockPong):
            self._receiver.send_frame(peer, _HELLO_WANTED)

    def _tell_gpus(self) -> None:
        """Tell one collector, the same at any time, of a reading of the GPUs."""
        read = None if self._gpus is None else self._gpus.take()
        if read is not None:
            endpoint = choose_collector(read.node, tuple(self._links))
            self._links[endpoint].tell_gpus(self._watched_gpus.name(read, self._clock.monotonic_ns()))

    def _forward_answers(self, link: CollectorLink, answers: list[RelayedFrame], *, has_opened: bool) -> None:
        for answer in answers:
            if not self._receiver.send_frame(answer.peer, answer.frame):
                self._clients.forget(answer.peer)
        if has_opened:
            for peer in self._clients.of(link.endpoint):
                if not self._receiver.send_frame(peer, _HELLO_WANTED):
                    self._clients.forget(peer)


def _make_gpu_watch(config: RelayConfig, node: str, clock: Clock, faults: FaultLog) -> GpuWatch:
    return GpuWatch(GpuReader(node, GpuHolders(config.gpu_jobs)).read, clock, faults, config.gpu_interval_s)
