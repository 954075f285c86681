"""Why a connection is not let in, or is cut off afterwards: the values of the label `reason`."""

from collections.abc import Callable
from typing import Final

Refuse = Callable[[str, str, str], None]
"""Called for a connection that is not let in: with the reason, the peer's address and its client key, each of the last
two empty where it is not known."""

NO_KEYS: Final = "no_keys"
UNEXPECTED_KEYS: Final = "unexpected_keys"
KEY_NOT_ALLOWED: Final = "key_not_allowed"
WRONG_COLLECTOR_KEY: Final = "wrong_collector_key"
BROKEN_HANDSHAKE: Final = "broken_handshake"
OPEN_FILES: Final = "open_files"
"""Why a connection was not let in. Where one side has keys and the other has none it is one of the first two, or a
broken handshake where the other side noticed first and closed. What does not speak ZeroMQ, or takes too long, is a
broken handshake too. A process may have only so many files open."""

SILENT: Final = "silent"
"""Why a connection was cut off that had got in: it sent no message in time."""

HANDSHAKE_REASONS: Final = frozenset(
    {NO_KEYS, UNEXPECTED_KEYS, KEY_NOT_ALLOWED, WRONG_COLLECTOR_KEY, BROKEN_HANDSHAKE, OPEN_FILES}
)

TOO_MANY_REFUSED: Final = "too_many_refused"
OVER_BUDGET: Final = "over_budget"
TOO_MUCH_HELD: Final = "too_much_held"
"""Why a connection was cut off that had sent messages: too many frames that are none; more frames or bytes in one pass
than an honest peer sends; or more bytes than it may have here that are no whole message yet.
What was read of it afterwards is refused by the same reason."""

CUT_REASONS: Final = frozenset({SILENT, TOO_MANY_REFUSED, OVER_BUDGET, TOO_MUCH_HELD})

FORGED_ADDRESS: Final = "forged_address"
REPLACED: Final = "replaced"
"""Why a frame is refused before it is decoded: its sender uses a routing id that only the collector makes, or
somebody else has its routing id now."""

FRAME_REASONS: Final = frozenset({FORGED_ADDRESS, REPLACED})
