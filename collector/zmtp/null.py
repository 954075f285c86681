"""The mechanism NULL (RFC 23): everybody is who he says he is. Pure."""

from typing import Final

from rankscope.collector.zmtp.commands import OWN_PROPERTIES, READY, read_routing_id
from rankscope.collector.zmtp.frames import COMMAND, Frame, build_frame
from rankscope.collector.zmtp.mechanism import Acquaintance, Mechanism
from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, UNEXPECTED_KEYS, Rejected


class NullChannel:
    """What is said is what is sent."""

    __slots__ = ()

    def open(self, flags: int, body: bytes) -> Frame:
        """The frame itself."""
        return flags, body

    def seal(self, body: bytes, flags: int = 0) -> bytes:
        """The frame itself."""
        return build_frame(body, flags)


class NullHandshake:
    """Each side says READY, and what it is."""

    def __init__(self) -> None:
        self.acquaintance: Acquaintance | None = None

    def begin(self) -> bytes:
        """This side's READY."""
        return build_frame(READY + OWN_PROPERTIES, COMMAND)

    def take(self, command: bytes) -> bytes:
        """The peer's."""
        if not command.startswith(READY):
            raise Rejected(BROKEN_HANDSHAKE)
        self.acquaintance = Acquaintance(NullChannel(), read_routing_id(command[len(READY) :]), "")
        return b""


NULL: Final = Mechanism(b"NULL", UNEXPECTED_KEYS, as_server=False, begin_handshake=NullHandshake)
