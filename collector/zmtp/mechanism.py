"""How two sides get to know each other, and how they talk from then on: what the mechanisms have in common."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rankscope.collector.zmtp.frames import Frame


class Channel(Protocol):
    """Both sides know each other."""

    def open(self, flags: int, body: bytes) -> Frame:
        """What a frame says: its flags, and a part of a message or a command. Raises Rejected for a false one."""
        ...

    def seal(self, body: bytes, flags: int = 0) -> bytes:
        """The bytes of the frame that says this."""
        ...


class Acquaintance(NamedTuple):
    """How a handshake has ended: the way to talk, the name that the peer gives itself, and its key, empty where there
    are none.
    """

    channel: Channel
    routing_id: bytes
    key: str


class Handshake(Protocol):
    """Becomes an Acquaintance, command by command."""

    acquaintance: Acquaintance | None

    def begin(self) -> bytes:
        """What this side says without having been asked."""
        ...

    def take(self, command: bytes) -> bytes:
        """What to answer to the peer's next command. Raises Rejected for one that does not end well."""
        ...


class Mechanism(NamedTuple):
    """One of the ways, by the name that stands in greetings. `mismatch` is why a peer with another one is rejected."""

    name: bytes
    mismatch: str
    as_server: bool
    begin_handshake: Callable[[], Handshake]
