"""What both sides say first (RFC 23): that they speak ZMTP, its version, and how they mean to know each other. Pure.

    ff 00 00 00 00 00 00 00 00 7f | major minor | mechanism, 20 bytes | as-server | 31 zeros

What is too old to have mechanisms, ZMTP 1 and 2, is not let in.
"""

from typing import Final

from rankscope.collector.zmtp.rejection import BROKEN_HANDSHAKE, Rejected

GREETING_BYTES: Final = 64
FIRST_BYTES: Final = 11
"""Up to the major version: libzmq says the rest of its own greeting when it has read so much of the other one."""

_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
_MAJOR, _MINOR = 3, 1
_MECHANISM: Final = slice(12, 32)
_MARK_AT, _MARK_ENDS_AT, _MAJOR_AT = 0, 9, 10


def build_greeting(mechanism: bytes, *, as_server: bool) -> bytes:
    """The greeting of a side that speaks ZMTP 3.1; `as_server` where it is the server of CURVE."""
    return _SIGNATURE + bytes((_MAJOR, _MINOR)) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def read_mechanism(greeting: bytes) -> bytes | None:
    """The mechanism that a greeting names; None while it is not whole.

    Raises Rejected as soon as it cannot become one: who speaks HTTP is not waited for.
    """
    is_other = greeting[_MARK_AT : _MARK_AT + 1] not in {b"", b"\xff"}
    if is_other or (len(greeting) > _MARK_ENDS_AT and not greeting[_MARK_ENDS_AT] & 1):
        raise Rejected(BROKEN_HANDSHAKE)
    if len(greeting) > _MAJOR_AT and greeting[_MAJOR_AT] < _MAJOR:
        raise Rejected(BROKEN_HANDSHAKE)
    if len(greeting) < GREETING_BYTES:
        return None
    return greeting[_MECHANISM].rstrip(b"\0")
