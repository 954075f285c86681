"""Why a connection is ended by this side."""

from typing import Final

NO_KEYS: Final = "no_keys"
UNEXPECTED_KEYS: Final = "unexpected_keys"
KEY_NOT_ALLOWED: Final = "key_not_allowed"
WRONG_COLLECTOR_KEY: Final = "wrong_collector_key"
BROKEN_HANDSHAKE: Final = "broken_handshake"
OPEN_FILES: Final = "open_files"
"""Why somebody was not let in. Where one side has keys and the other has none it is one of the first two; what is no
ZeroMQ, or was ended by the other side or by time before both knew each other, is a broken handshake; and a process may
have only so many files open."""

HANDSHAKE_REASONS: Final = frozenset(
    {NO_KEYS, UNEXPECTED_KEYS, KEY_NOT_ALLOWED, WRONG_COLLECTOR_KEY, BROKEN_HANDSHAKE, OPEN_FILES}
)

TOO_LARGE: Final = "too_large"
BROKEN_PROTOCOL: Final = "broken_protocol"
"""Why somebody who was in was cut off."""


class Rejected(Exception):  # noqa: N818 - it is no error of ours
    """Whoever is at the other end is to be cut off. `farewell` is what to tell him first."""

    def __init__(self, reason: str, farewell: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.farewell = farewell
