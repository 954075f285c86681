"""Log refused peers and frames, with the address, key and run as far as they are known.

A refused peer may try again for ever, a hundred thousand of them at once; a line for each would fill the disk. So each
reason is logged at most once a minute for each run, with the number of refusals since, and at most LINES_MAX times a
minute, since a stranger may make up runs. Metrics have the total counts.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from rankscope.collector.ingest import refusal_reasons as reasons
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.collector")

LOG_AGAIN_NS: Final = 60 * NS_PER_S
LINES_MAX: Final = 8
SUBJECTS_MAX: Final = 1024
"""Reasons and runs that are remembered; beyond, the oldest is forgotten."""

MEANINGS: Final[Mapping[str, str]] = {
    reasons.NO_KEYS: "an agent without keys; give the agent key_file and collector_key_file",
    reasons.UNEXPECTED_KEYS: "an agent with keys, and this collector has none; set key_file and allowed_keys here too",
    reasons.KEY_NOT_ALLOWED: "an agent whose key is not in allowed_keys; put its .pub file there",
    reasons.WRONG_COLLECTOR_KEY: "an agent with the public key of another collector; give the agent this one's",
    reasons.BROKEN_HANDSHAKE: (
        "a peer that speaks no ZeroMQ, sent nothing, or closed before the handshake ended; this port is for agents, "
        "browsers and Prometheus need the address in the collector's http_listen"
    ),
    reasons.OPEN_FILES: "this process has as many files open as it may; raise the limit (ulimit -Hn)",
    reasons.SILENT: "a connection that sent no message after its handshake was cut off",
    reasons.TOO_MANY_REFUSED: "a connection that sent too many frames that are not messages was cut off",
    reasons.OVER_BUDGET: "a connection that sent more at once than an agent does was cut off",
    reasons.TOO_MUCH_HELD: "a connection whose unfinished message held too many bytes was cut off",
}


class LoggedRefusal(NamedTuple):
    """A connection, a frame or a Hello that was refused. Unknown fields are empty; behind a relay the address is the
    relay's.
    """

    reason: str
    address: str = ""
    key: str = ""
    peer: bytes = b""
    run: str = ""
    text: str = ""


class RefusalLog:
    """Writes refusals to the log of the collector, limited in rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ns: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._unlogged: dict[tuple[str, str], int] = {}
        self._lines: dict[str, tuple[int, int]] = {}
        """By reason: when its minute began, and its lines since."""

    def note(self, refusal: LoggedRefusal) -> None:
        """Log a refusal, unless one for its reason in its run was logged within the last minute."""
        subject = (refusal.reason, refusal.run)
        now_ns = self._clock.monotonic_ns()
        logged_ns = self._logged_ns.get(subject)
        if (logged_ns is not None and now_ns - logged_ns < LOG_AGAIN_NS) or not self._has_line(refusal.reason, now_ns):
            if logged_ns is not None:
                self._unlogged[subject] = self._unlogged.get(subject, 0) + 1
            return
        self._logged_ns[subject] = now_ns
        self._logged_ns.move_to_end(subject)
        if len(self._logged_ns) > SUBJECTS_MAX:
            forgotten, _ = self._logged_ns.popitem(last=False)
            self._unlogged.pop(forgotten, None)
        LOG.warning("refused (%s): %s%s", refusal.reason, _describe(refusal), self._describe_unlogged(subject))

    def _has_line(self, reason: str, now_ns: int) -> bool:
        """Return whether a reason may have another line in this minute, and count it."""
        began_ns, lines = self._lines.get(reason, (now_ns, 0))
        if now_ns - began_ns >= LOG_AGAIN_NS:
            began_ns, lines = now_ns, 0
        self._lines[reason] = began_ns, lines + (lines < LINES_MAX)
        return lines < LINES_MAX

    def _describe_unlogged(self, subject: tuple[str, str]) -> str:
        count = self._unlogged.pop(subject, 0)
        return f"; {count} more since this was last logged" if count else ""


def _describe(refusal: LoggedRefusal) -> str:
    text = refusal.text or MEANINGS.get(refusal.reason, "a frame that is not a message of rankscope")
    known = [
        f"{name} {value}"
        for name, value in (
            ("from", refusal.address),
            ("client key", refusal.key),
            ("routing id", ascii(refusal.peer.decode(errors="replace")) if refusal.peer else ""),
            ("run", repr(refusal.run) if refusal.run else ""),
        )
        if value
    ]
    return f"{text} ({', '.join(known)})" if known else text
