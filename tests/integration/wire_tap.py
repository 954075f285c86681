"""A witness on the wire between ranks and a collector: it passes every byte on and writes down what the bytes say.

So that a report was delivered is not taken from the word of a collector that has been killed since, nor of the rank.
ZMTP 3 on a connection without security, each way: 64 bytes of greeting, then frames

    flags: u8 (1: more follows, 2: the size has 8 bytes, 4: a command) | size: u8 or u64 | body
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from rankscope.measure.codec import decode
from rankscope.measure.messages import Ack, Goodbye, Hello, Message, Report, Welcome

GREETING_BYTES = 64
LONG, COMMAND = 2, 4
CONNECT_S_MAX = 10.0


@dataclass
class Delivered:
    """What has passed between one life of a rank and one life of the collector."""

    numbered: dict[int, Report | Goodbye] = field(default_factory=dict)
    """Towards the collector, by number."""
    acknowledged_through: int = 0
    """The other way."""

    @property
    def settled(self) -> dict[int, Report | Goodbye]:
        """What this very collector was given and has acknowledged."""
        return {number: message for number, message in self.numbered.items() if number <= self.acknowledged_through}


class Key(NamedTuple):
    """The life of a rank, and the how-manieth collector."""

    boot_id: str
    collector: int


class WireTap:
    """Listens on a free port of loopback and connects each rank on to `port`. Made by `tapping`."""

    def __init__(self, port: int) -> None:
        self.collector = 1
        """Counted up by the test while no collector runs: later connections are with the next one."""
        self.delivered: dict[Key, Delivered] = {}
        self.ranks: dict[str, int] = {}
        """Which rank a life is."""
        self.problems: list[str] = []
        self._port = port
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def wait_until(self, predicate: Callable[[], bool], deadline_s: float) -> None:
        """Wait until `predicate()` holds; it is asked again after each message. Fails after `deadline_s`."""
        end_s = time.monotonic() + deadline_s
        with self._changed:
            while not predicate():
                left_s = end_s - time.monotonic()
                assert left_s > 0, f"not within {deadline_s} s; problems: {self.problems}"
                self._changed.wait(left_s)

    def passed(self, boot_id: str) -> int:
        """The highest number that the present collector was given by this life of a rank."""
        return max(self.delivered.get(Key(boot_id, self.collector), Delivered()).numbered, default=0)

    def close(self) -> None:
        """Break every connection."""
        with self._changed:
            for each in (self._listening, *self._sockets):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits on it
                each.close()

    def _accept(self) -> None:
        while True:
            try:
                rank, _ = self._listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError):
                self._connect_on(rank)
                continue
            rank.close()

    def _connect_on(self, rank: socket.socket) -> None:
        conversation = _Conversation(self.collector)
        collector = socket.create_connection(("127.0.0.1", self._port), CONNECT_S_MAX)
        collector.settimeout(None)
        with self._changed:
            self._sockets += [rank, collector]
        for source, target, note in (
            (rank, collector, conversation.note_rank),
            (collector, rank, conversation.note_collector),
        ):
            threading.Thread(target=self._pass_on, args=(source, target, note), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, note: "Note") -> None:
        parser = _Frames()
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                self._write_down(parser.feed(chunk), note)
                target.sendall(chunk)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _write_down(self, frames: list[bytes], note: "Note") -> None:
        with self._changed:
            for frame in frames:
                try:
                    note(self, decode(frame))
                except Exception as error:  # noqa: BLE001 - the test sees it; the witness does not disturb
                    self.problems.append(f"{type(error).__name__}: {error}")
            self._changed.notify_all()


class _Conversation:
    """One connection: who speaks in it."""

    def __init__(self, collector: int) -> None:
        self._collector = collector
        self._boot_id: str | None = None

    def note_rank(self, tap: WireTap, message: Message) -> None:
        """From the rank. Before its Hello nobody can say whose numbers these are; the collector refuses them too."""
        if isinstance(message, Hello):
            self._boot_id = message.identity.boot_id
            tap.ranks[self._boot_id] = message.identity.rank
        elif isinstance(message, Report | Goodbye) and self._boot_id is not None:
            self._find(tap, self._boot_id).numbered[message.sequence] = message

    def note_collector(self, tap: WireTap, message: Message) -> None:
        """From the collector."""
        if self._boot_id is None or not isinstance(message, Ack | Welcome):
            return
        through = message.through if isinstance(message, Ack) else message.admitted_through
        delivered = self._find(tap, self._boot_id)
        delivered.acknowledged_through = max(delivered.acknowledged_through, through)

    def _find(self, tap: WireTap, boot_id: str) -> Delivered:
        return tap.delivered.setdefault(Key(boot_id, self._collector), Delivered())


Note = Callable[[WireTap, Message], None]


class _Frames:
    """One direction of a connection: bytes in, the messages' bodies out; greeting and commands are left out."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._to_skip = GREETING_BYTES

    def feed(self, chunk: bytes) -> list[bytes]:
        """The bodies that these bytes complete."""
        self._pending += chunk
        skipped = min(self._to_skip, len(self._pending))
        del self._pending[:skipped]
        self._to_skip -= skipped
        bodies = []
        while not self._to_skip and (cut := self._cut()) is not None:
            flags, body = cut
            if not flags & COMMAND:
                bodies.append(body)
        return bodies

    def _cut(self) -> tuple[int, bytes] | None:
        head = 9 if self._pending and self._pending[0] & LONG else 2
        if len(self._pending) < head:
            return None
        end = head + int.from_bytes(self._pending[1:head], "big")
        if len(self._pending) < end:
            return None
        flags, body = self._pending[0], bytes(self._pending[head:end])
        del self._pending[:end]
        return flags, body


@contextlib.contextmanager
def tapping(port: int) -> Iterator[WireTap]:
    """A witness in front of `port`."""
    tap = WireTap(port)
    try:
        yield tap
    finally:
        tap.close()
