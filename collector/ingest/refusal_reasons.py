"""Name the reasons for refusing a connection, or closing it later: the values of the label `reason`."""

from collections.abc import Callable
from typing import Final

Refuse = Callable[[str, str, str], None]
"""Called for a refused connection with the reason, the peer's address and its client key, empty where not known."""

NO_KEYS: Final = "no_keys"
UNEXPECTED_KEYS: Final = "unexpected_keys"
KEY_NOT_ALLOWED: Final = "key_not_allowed"
WRONG_COLLECTOR_KEY: Final = "wrong_collector_key"
BROKEN_HANDSHAKE: Final = "broken_handshake"
OPEN_FILES: Final = "open_files"
"""Why a connection was refused. Where only one side has keys it is one of the first two, or a broken handshake where
the other side noticed first and closed. A peer that does not speak ZeroMQ, or takes too long, is a broken handshake
too. `open_files`: the process has reached its limit of open files."""

SILENT: Final = "silent"
"""Why an established connection was closed: it sent no message in time."""

HANDSHAKE_REASONS: Final = frozenset(
    {NO_KEYS, UNEXPECTED_KEYS, KEY_NOT_ALLOWED, WRONG_COLLECTOR_KEY, BROKEN_HANDSHAKE, OPEN_FILES}
)

TOO_MANY_REFUSED: Final = "too_many_refused"
OVER_BUDGET: Final = "over_budget"
TOO_MUCH_HELD: Final = "too_much_held"
"""Why a connection was closed that had sent messages: too many invalid frames; more frames or bytes in one pass than an
honest peer sends; or too many bytes held here for an incomplete message. Frames read of it afterwards are refused with
the same reason."""

CUT_REASONS: Final = frozenset({SILENT, TOO_MANY_REFUSED, OVER_BUDGET, TOO_MUCH_HELD})

FORGED_ADDRESS: Final = "forged_address"
REPLACED: Final = "replaced"
"""Why a frame is refused before it is decoded: its sender uses a routing id that only the collector makes, or another
connection has its routing id now."""

FRAME_REASONS: Final = frozenset({FORGED_ADDRESS, REPLACED})
