"""Keep what pre-flights say of nodes in the store: the latest of each node, however old they are.

They are few and short (about 500 bytes for a node), so that every call opens a connection of its own and waits for the
disk: never call it from the collector's loop, or from the receive thread.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Final

import msgspec

from rankscope.collector.storage.database import Connection, StoreDatabase, explaining, reading, transaction
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.preflights import NAMED, PAST_MAX, STATUSES, LastPreflight, NodeDevice, NodeOutcome, NodePast

KEPT_OF_NODE_MAX: Final = 32
"""Of a node: more than are compared with, as those in which it was named are not."""
KEPT_MAX: Final = 32_768
"""Of all nodes, 16 MB: 1,024 nodes with all of theirs. Beyond it the oldest are deleted."""

BUSY_S: Final = 2.0
"""Longest wait for the store thread to end its transaction, on a slow disk: ten times what others wait, and less than
half of the 5 s after which a pre-flight gives up."""

_WRITE: Final = (
    "INSERT INTO preflights (node, preflight, wall_s, device, status, body) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (node, preflight) DO NOTHING"
)
_FORGET: Final = "DELETE FROM preflights WHERE node = ? AND preflight != ?"
_TRIM_NODE: Final = (
    "DELETE FROM preflights WHERE node = ? AND id <= "
    "(SELECT id FROM preflights WHERE node = ? ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_TRIM_ALL: Final = "DELETE FROM preflights WHERE id <= (SELECT id FROM preflights ORDER BY id DESC LIMIT 1 OFFSET ?)"
_READ_PAST: Final = "SELECT body FROM preflights WHERE node = ? AND device = ? AND status != ? ORDER BY id DESC LIMIT ?"
_READ_LAST: Final = (
    "SELECT node, wall_s, device, status, body FROM preflights WHERE id IN "
    "(SELECT max(id) FROM preflights GROUP BY node) ORDER BY node"
)


class _Body(msgspec.Struct, frozen=True):
    """The column `body`, as JSON: fields can be added without a migration."""

    rates: Mapping[str, float] = {}
    reasons: tuple[str, ...] = ()


def write_outcomes(
    database: StoreDatabase,
    preflight: str,
    outcomes: Sequence[NodeOutcome],
    wall_s: float,
    *,
    forgets_past: bool = False,
) -> None:
    """Keep what a pre-flight says of these nodes, once for each name `preflight`, in one transaction. What is no rate,
    and a node without a name or with an unknown status, is left out. `forgets_past` deletes the earlier pre-flights of
    these nodes. Raises UnavailableError.
    """
    known = [one for one in outcomes if one.node and one.status in STATUSES]
    with _writing(database) as connection, transaction(connection):
        connection.executemany(
            _WRITE, [(one.node, preflight, wall_s, one.device, one.status, _encode(one)) for one in known]
        )
        if forgets_past:
            connection.executemany(_FORGET, [(one.node, preflight) for one in known])
        connection.executemany(_TRIM_NODE, [(one.node, one.node, KEPT_OF_NODE_MAX) for one in known])
        connection.execute(_TRIM_ALL, (KEPT_MAX,))


def read_past(address: StoreAddress, nodes: Sequence[NodeDevice]) -> tuple[NodePast, ...]:
    """Return the rates of the last PAST_MAX pre-flights of each node on this device in which it was not named, the
    latest last; nodes without any are left out, and so are unreadable rows. Raises UnavailableError.
    """
    with reading(address) as connection:
        if not connection.has_table("preflights"):
            return ()
        found = []
        for node, device in ((one.node, one.device) for one in nodes):
            rows = connection.execute(_READ_PAST, (node, device, NAMED, PAST_MAX)).fetchall()
            rates = [body.rates for (text,) in reversed(rows) if (body := _decode(text)).rates]
            if rates:
                found.append(NodePast(node, tuple(rates)))
        return tuple(found)


def read_last_preflights(address: StoreAddress) -> dict[str, LastPreflight]:
    """Return the last pre-flight of each node that had one. Raises UnavailableError."""
    with reading(address) as connection:
        if not connection.has_table("preflights"):
            return {}
        return {
            node: LastPreflight(wall_s=wall_s, status=status, device=device, reasons=_decode(body).reasons)
            for node, wall_s, device, status, body in connection.execute(_READ_LAST)
        }


@contextmanager
def _writing(database: StoreDatabase) -> Iterator[Connection]:
    with explaining(database.path), closing(database.open_connection(BUSY_S)) as connection:
        yield connection


def _encode(outcome: NodeOutcome) -> str:
    rates = {check: rate for check, rate in outcome.rates.items() if 0.0 < rate < math.inf}
    return msgspec.json.encode(_Body(rates, outcome.reasons)).decode()


def _decode(text: str) -> _Body:
    try:
        return msgspec.json.decode(text, type=_Body)
    except (msgspec.DecodeError, TypeError):
        return _Body()
