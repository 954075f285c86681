"""Everybody who has connected: who may, who is who, what they say, and what is said to them.

Nothing is read ahead. `take` reads a peer when it is asked for the next message, so that what nobody has time for stays
with the kernel, and then with the peer. What a peer does not read waits here up to a bound.
"""

import select
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rankscope.collector.zmtp.connection import Connection
from rankscope.collector.zmtp.listening import Listening
from rankscope.collector.zmtp.mechanism import Mechanism
from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, HANDSHAKE_REASONS, OPEN_FILES, Rejected
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

UNROUTABLE: Final = "unroutable"
FULL: Final = "full"
"""Why something was not sent: there is no such peer any more, or it does not read."""

SENDS_WAITING_MAX: Final = 64
"""Messages, or what is left of one, that wait for a peer which does not read."""

READY_MAX: Final = 2048
"""Connections that `wait` finds something about at a time; the others are next."""
ACCEPTS_PER_TURN_MAX: Final = 256
HANDSHAKES_PER_TURN_MAX: Final = 256
"""Steps of handshakes between two looks at the messages: with CURVE 20 ms of CPU. A storm of 16,384 connections is in
after seconds, and who reports meanwhile is heard."""

ACCEPT_AGAIN_NS: Final = NS_PER_S
"""After the kernel could not accept a connection (no memory, or no file): it would say so in a busy loop."""

_READABLE: Final = 0x001
_WRITABLE: Final = 0x004
"""EPOLLIN and EPOLLOUT by their numbers: only where there is epoll does `select` have the names, and the commands that
read files are used elsewhere too."""

Ready = Sequence[tuple[int, int]]
"""Files about which there is something to do, and what."""


class Heard(NamedTuple):
    """A message of a peer: see `Told`. `name` is what answers are addressed to, `key` empty where there are no keys."""

    name: bytes
    body: bytes
    parts: int
    key: str


class Server:
    """Lets in whoever gets through a handshake of `mechanism` within `handshake_ns`, but no more than `peers_max`.
    When there is no room left, the one who has been in a handshake for longest makes place for a newcomer: who says
    nothing keeps nobody out.

    A part of a message above `part_bytes_max` ends its connection. A peer is called by the name that it gives itself
    (its routing id), or by one that is made up and begins with a zero byte. Whoever comes under the name of another one
    takes its place, as a peer does that comes back before its old connection is known to be broken; but not with
    another key: then it is given a name that is made up.
    """

    def __init__(
        self,
        listening: Listening,
        mechanism: Mechanism,
        clock: Clock,
        *,
        part_bytes_max: int,
        handshake_ns: int,
        peers_max: int,
    ) -> None:
        self._listening = listening
        self._mechanism = mechanism
        self._clock = clock
        self._part_bytes_max = part_bytes_max
        self._handshake_ns = handshake_ns
        self._peers_max = peers_max
        self.refused: dict[str, int] = {}
        """Connections that were not let in, by reason."""
        self.cut_off: dict[str, int] = {}
        """Peers that were let in, and then said what is not ZeroMQ's or too large, by reason."""
        self._by_file: dict[int, Connection] = {}
        self._by_name: dict[bytes, Connection] = {}
        self._handshakes: dict[int, int] = {}  # until when each may last, by file, the first ones first
        self._names_made = 0
        self._round: Iterator[Heard] = iter(())
        self.is_amid = False
        """Whether `take` has left something over."""
        self._accept_again_ns: int | None = None
        self._listens_at = listening.socket.fileno()
        self._epoll = select.epoll()
        self._epoll.register(self._listens_at, _READABLE)

    @property
    def peers(self) -> int:
        """How many are connected, those included that are not let in yet."""
        return len(self._by_file)

    def fileno(self) -> int:
        """A file that can be read when there is something to do, for whoever waits for other things too."""
        return self._epoll.fileno()

    def watch(self, file: int) -> None:
        """Let `wait` return, too, when this file can be read."""
        self._epoll.register(file, _READABLE)

    def wait(self, timeout_ms: int) -> Ready:
        """What there is to do, after at most that time; at once while `take` is amid something."""
        return () if self.is_amid else self._epoll.poll(timeout_ms / 1000, READY_MAX)

    def has_peers(self, ready: Ready) -> bool:
        """Whether a peer that is let in has said something."""
        return self.is_amid or any(file in self._by_file and file not in self._handshakes for file, _ in ready)

    def take(self, ready: Ready, messages_max: int) -> Iterator[Heard]:
        """What those who are ready say, in at most so many messages: a peer is read when its next one is asked for.
        What is left over is where it was, and the next call goes on with it.
        """
        self._tend()
        if not self.is_amid:
            self._round, self.is_amid = self._go_round(ready), True
        for _ in range(messages_max):
            heard = next(self._round, None)
            if heard is None:
                self.is_amid = False
                return
            yield heard

    def send(self, name: bytes, body: bytes) -> str | None:
        """Say a message to a peer; why that is not possible, or None."""
        connection = self._by_name.get(name)
        if connection is None:
            return UNROUTABLE
        if connection.waiting >= SENDS_WAITING_MAX:
            return FULL
        try:
            connection.send(body)
        except OSError:
            self._end(connection)
            return UNROUTABLE
        self._watch_for_room(connection)
        return None

    def close(self) -> None:
        """Listen no more, and end all connections. A second call does nothing."""
        for connection in list(self._by_file.values()):
            connection.close()
        self._by_file.clear()
        self._by_name.clear()
        self._handshakes.clear()
        self._listening.close()
        self._epoll.close()

    def _go_round(self, ready: Ready) -> Iterator[Heard]:
        steps = 0
        for file, events in ready:
            connection = self._by_file.get(file)
            if connection is None:
                if file == self._listens_at:
                    self._accept()
                continue
            if file in self._handshakes:
                steps += 1
                if steps > HANDSHAKES_PER_TURN_MAX:
                    continue  # it is ready again the next time
            if events & _WRITABLE:
                self._flush(connection)
            if events & ~_WRITABLE:
                yield from self._read(connection)

    # -- one peer -----------------------------------------------------------------------------------------------------

    def _read(self, connection: Connection) -> Iterator[Heard]:
        try:
            for body, parts in connection.read():
                if not connection.name:
                    self._let_in(connection)
                yield Heard(connection.name, body, parts, connection.key)
            if not connection.name:
                self._let_in(connection)
            if connection.waiting:
                self._watch_for_room(connection)
        except Rejected as rejected:
            self._end(connection, rejected)
        except OSError:
            self._end(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            connection.flush()
            self._watch_for_room(connection)
        except OSError:
            self._end(connection)

    def _watch_for_room(self, connection: Connection) -> None:
        """Wait for the socket to take more exactly while something waits for it."""
        wants = bool(connection.waiting)
        if wants != connection.is_watched_for_room and self._by_file.get(connection.file) is connection:
            connection.is_watched_for_room = wants
            self._epoll.modify(connection.file, _READABLE | _WRITABLE if wants else _READABLE)

    def _let_in(self, connection: Connection) -> None:
        """Call somebody by a name, if his handshake is over."""
        known = connection.acquaintance
        if known is None:
            return
        del self._handshakes[connection.file]
        name, before = known.routing_id, self._by_name.get(known.routing_id)
        if not name or name[0] == 0 or (before is not None and before.key != known.key):
            self._names_made += 1
            name = b"\0" + self._names_made.to_bytes(8, "big")
        elif before is not None:
            self._end(before)
        connection.name, connection.key = name, known.key
        self._by_name[name] = connection

    def _end(self, connection: Connection, rejected: Rejected | None = None) -> None:
        """End a connection, which may be over already: for that reason, or since its peer has gone."""
        if self._by_file.get(connection.file) is not connection:
            return
        del self._by_file[connection.file]
        self._handshakes.pop(connection.file, None)
        if self._by_name.get(connection.name) is connection:
            del self._by_name[connection.name]
        if connection.acquaintance is None:
            reason = BROKEN_HANDSHAKE if rejected is None else rejected.reason
            _count(self.refused, reason if reason in HANDSHAKE_REASONS else BROKEN_HANDSHAKE)
        elif rejected is not None:
            _count(self.cut_off, rejected.reason)
        connection.close(b"" if rejected is None else rejected.farewell)  # by which the kernel watches it no more

    # -- newcomers ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                accepted, _ = self._listening.socket.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it has gone already
            except OSError:
                self._pause_accepting()
                return
            if len(self._by_file) >= self._peers_max and not self._make_room():
                _count(self.refused, OPEN_FILES)
                accepted.close()
                continue
            self._begin_handshake(Connection(accepted, self._mechanism, self._part_bytes_max))

    def _make_room(self) -> bool:
        file = next(iter(self._handshakes), None)
        if file is not None:
            self._end(self._by_file[file])
        return file is not None

    def _begin_handshake(self, connection: Connection) -> None:
        self._by_file[connection.file] = connection
        self._handshakes[connection.file] = self._clock.monotonic_ns() + self._handshake_ns
        try:
            self._epoll.register(connection.file, _READABLE)
            connection.begin()
        except OSError:
            self._end(connection)

    def _pause_accepting(self) -> None:
        _count(self.refused, OPEN_FILES)
        self._epoll.unregister(self._listens_at)
        self._accept_again_ns = self._clock.monotonic_ns() + ACCEPT_AGAIN_NS

    def _tend(self) -> None:
        """Once in a while: end handshakes that have taken too long, and accept again after a pause."""
        now_ns = self._clock.monotonic_ns()
        if self._accept_again_ns is not None and now_ns >= self._accept_again_ns:
            self._accept_again_ns = None
            self._epoll.register(self._listens_at, _READABLE)
        while self._handshakes:
            file, until_ns = next(iter(self._handshakes.items()))
            if until_ns > now_ns:
                return
            self._end(self._by_file[file])


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
