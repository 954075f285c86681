"""Commands of ZMTP 3: a name, with its length before it, and what belongs to it. Pure."""

from collections.abc import Mapping
from typing import Final

from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, Rejected

READY: Final = b"\x05READY"
ERROR: Final = b"\x05ERROR"
PING: Final = b"\x04PING"
PONG: Final = b"\x04PONG"

IDENTITY: Final = b"identity"
SOCKET_TYPE: Final = b"socket-type"
_IDENTITY_BYTES_MAX: Final = 255
_PEERS: Final = frozenset({b"DEALER", b"REQ", b"ROUTER"})
"""What may connect to a ROUTER (RFC 28)."""

_PING_TTL_BYTES: Final = 2
_PING_CONTEXT_BYTES_MAX: Final = 16

OWN_PROPERTIES: Final = b"\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"
"""What this side says of itself: it is what libzmq calls a ROUTER, and has no name of its own."""


def build_error(status: bytes) -> bytes:
    """An ERROR with a status as ZAP has them (RFC 27): 400 is said to whose key is not allowed."""
    return ERROR + bytes((len(status),)) + status


def build_pong(ping: bytes) -> bytes:
    r"""The answer to a PING (RFC 37): its context, without how long it means to wait.

    >>> build_pong(b"\x04PING\x00\x0ahello")
    b'\x04PONGhello'
    """
    context_at = len(PING) + _PING_TTL_BYTES
    return PONG + ping[context_at : context_at + _PING_CONTEXT_BYTES_MAX]


def read_routing_id(properties: bytes) -> bytes:
    """The name that a peer gives itself in its properties, empty where it gives none.

    Raises Rejected for what are no properties, and for a kind of socket that does not go with this side.
    """
    found = parse_properties(properties)
    routing_id = found.get(IDENTITY, b"")
    if found.get(SOCKET_TYPE) not in _PEERS or len(routing_id) > _IDENTITY_BYTES_MAX:
        raise Rejected(BROKEN_HANDSHAKE)
    return routing_id


def parse_properties(data: bytes) -> Mapping[bytes, bytes]:
    r"""Names, in small letters, and values. Raises Rejected for what are none.

    >>> parse_properties(OWN_PROPERTIES)
    {b'socket-type': b'ROUTER', b'identity': b''}
    """
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        value_size_at = at + 1 + data[at]
        value_at = value_size_at + 4
        next_at = value_at + int.from_bytes(data[value_size_at:value_at], "big")
        if value_at > len(data) or next_at > len(data):
            raise Rejected(BROKEN_HANDSHAKE)
        found[data[at + 1 : value_size_at].lower()] = data[value_at:next_at]
        at = next_at
    return found
