"""One connection: a session and its socket, and what that did not take yet."""

import socket
from collections import deque
from collections.abc import Iterator
from typing import Final

from rankscope.collector.zmtp.mechanism import Acquaintance, Mechanism
from rankscope.collector.zmtp.session import Session, Told

READ_BYTES: Final = 16 * 1024
READS_PER_TURN_MAX: Final = 64
"""1 MiB of one peer, before others get their turn."""


class Connection:
    """A peer that has connected. Whatever fails about its socket is an OSError, and then it is to be closed.

    Its owner says by what `name` it is called, empty until then, and whether it is waited for its socket to take more.
    """

    __slots__ = ("_session", "_socket", "_unsent", "file", "is_watched_for_room", "key", "name")

    def __init__(self, accepted: socket.socket, mechanism: Mechanism, part_bytes_max: int) -> None:
        accepted.setblocking(False)  # noqa: FBT003 - socket's own
        self._socket = accepted
        self._session = Session(mechanism, part_bytes_max)
        self._unsent: deque[bytes] | None = None
        self.file = accepted.fileno()
        self.name = b""
        self.key = ""
        """Its public key, once it is called by a name; empty where there are no keys."""
        self.is_watched_for_room = False

    @property
    def acquaintance(self) -> Acquaintance | None:
        """Who it is, once its handshake is over."""
        return self._session.acquaintance

    @property
    def waiting(self) -> int:
        """How many pieces its socket did not take yet."""
        return 0 if self._unsent is None else len(self._unsent)

    def begin(self) -> None:
        """Say what this side says first."""
        self._send_outgoing()

    def read(self) -> Iterator[Told]:
        """What has come, as far as it is one turn's; to be gone through to its end.

        Raises Rejected, and ConnectionError at its end, after what came before.
        """
        for _ in range(READS_PER_TURN_MAX):
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                raise ConnectionResetError
            yield from self._session.take(data)
            self._send_outgoing()
            if len(data) < READ_BYTES:
                return

    def send(self, body: bytes) -> None:
        """Say a message, now or when the socket takes it."""
        self._push(self._session.seal(body))

    def flush(self) -> None:
        """Send what waits, as far as the socket takes it."""
        while self._unsent:
            piece = self._unsent[0]
            sent = self._try_send(piece)
            if sent < len(piece):
                self._unsent[0] = piece[sent:]
                return
            self._unsent.popleft()
        self._unsent = None

    def close(self, farewell: bytes = b"") -> None:
        """End it, after a last word if the socket takes that at once."""
        try:
            if farewell and not self.waiting:
                self._try_send(farewell)
        except OSError:
            pass  # it has gone first
        finally:
            self._socket.close()

    def _send_outgoing(self) -> None:
        if self._session.outgoing:
            outgoing, self._session.outgoing = self._session.outgoing, b""
            self._push(outgoing)

    def _push(self, data: bytes) -> None:
        sent = 0 if self._unsent else self._try_send(data)
        if sent < len(data):
            if self._unsent is None:
                self._unsent = deque()
            self._unsent.append(data[sent:])

    def _try_send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
