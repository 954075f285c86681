"""One connection without its socket: bytes in, messages and bytes out. Pure, but for what CURVE leaves to chance.

greeting --> handshake --> messages, and now and then a command
"""

from collections.abc import Iterator
from typing import Final

from rankscope.collector.zmtp.commands import PING, build_pong
from rankscope.collector.zmtp.frames import COMMAND, MORE, FrameReader
from rankscope.collector.zmtp.greeting import FIRST_BYTES, GREETING_BYTES, build_greeting, read_mechanism
from rankscope.collector.zmtp.mechanism import Acquaintance, Handshake, Mechanism
from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, Rejected

COMMAND_BYTES_MAX: Final = 2048
"""Of a handshake. The longest honest one is an INITIATE with a name of 255 bytes, some 600."""

PONGS_BYTES_MAX: Final = 1024
"""Answers to PINGs of one reading. Who asks more often is answered less often."""

Told = tuple[bytes, int]
"""A message: its body where it has one part, else nothing, and how many parts it has."""


class Session:
    """Speaks with one peer, and takes parts of messages of at most `part_bytes_max`.

    What is to be sent to it is in `outgoing`, from the start and after each `take`; whoever sends it empties that.
    """

    __slots__ = (
        "_frames", "_greeting", "_handshake", "_mechanism", "_part_bytes_max", "_parts", "acquaintance", "outgoing",
    )  # fmt: skip

    def __init__(self, mechanism: Mechanism, part_bytes_max: int) -> None:
        self._mechanism = mechanism
        self._part_bytes_max = part_bytes_max
        self._greeting: bytes | None = b""
        self._handshake: Handshake | None = None
        self._frames = FrameReader(COMMAND_BYTES_MAX)
        self._parts = 0
        self.acquaintance: Acquaintance | None = None
        """How the handshake has ended; None before."""
        self.outgoing = build_greeting(mechanism.name, as_server=mechanism.as_server)[:FIRST_BYTES]

    def take(self, data: bytes) -> Iterator[Told]:
        """The messages that are whole with these bytes; to be gone through to its end. Raises Rejected, after what came
        before.
        """
        if self._greeting is not None:
            data = self._greet(self._greeting + data)
        for outer_flags, body in self._frames.feed(data):
            if self.acquaintance is None:
                self._advance(outer_flags, body)
                continue
            flags, part = self.acquaintance.channel.open(outer_flags, body)
            if flags & COMMAND:
                self._obey(part)
            elif flags & MORE:
                self._parts += 1
            elif self._parts:
                yield b"", self._parts + 1
                self._parts = 0
            else:
                yield part, 1

    def seal(self, body: bytes) -> bytes:
        """The bytes that say a message. Only when there is an acquaintance."""
        if self.acquaintance is None:
            raise ValueError("nothing can be said before both sides know each other")
        return self.acquaintance.channel.seal(body)

    def _greet(self, greeting: bytes) -> bytes:
        """Take the peer's greeting, as far as it has come; what has come after it."""
        mechanism = read_mechanism(greeting)
        if mechanism is None:
            self._greeting = greeting
            return b""
        own = build_greeting(self._mechanism.name, as_server=self._mechanism.as_server)[FIRST_BYTES:]
        if mechanism != self._mechanism.name:
            raise Rejected(self._mechanism.mismatch, farewell=own)  # by which the peer sees what it lacks
        self._greeting = None
        self._handshake = self._mechanism.begin_handshake()
        self.outgoing += own + self._handshake.begin()
        return greeting[GREETING_BYTES:]

    def _advance(self, flags: int, body: bytes) -> None:
        if self._handshake is None or not flags & COMMAND:
            raise Rejected(BROKEN_HANDSHAKE)
        self.outgoing += self._handshake.take(body)
        if self._handshake.acquaintance is not None:
            self.acquaintance, self._handshake = self._handshake.acquaintance, None
            self._frames.body_bytes_max = self._part_bytes_max

    def _obey(self, command: bytes) -> None:
        """Whatever else there is to be obeyed is for other kinds of sockets."""
        if command.startswith(PING) and self.acquaintance is not None and len(self.outgoing) < PONGS_BYTES_MAX:
            self.outgoing += self.acquaintance.channel.seal(build_pong(command), COMMAND)
