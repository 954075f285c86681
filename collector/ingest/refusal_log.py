"""What is refused, in the log: each reason at most once a minute, however often it happens.

A peer that is refused may try again for ever, a hundred thousand of them at once; a line for each would fill the disk.
How often is in the metrics.
"""

import logging
from collections.abc import Mapping
from typing import Final

from rankscope.collector.zmtp import rejection
from rankscope.measure.clock import Clock
from rankscope.measure.units import NS_PER_S

LOG = logging.getLogger("rankscope.collector")

SAY_AGAIN_NS: Final = 60 * NS_PER_S

MEANINGS: Final[Mapping[str, str]] = {
    rejection.NO_KEYS: "an agent without keys; give it key_file and collector_key_file",
    rejection.UNEXPECTED_KEYS: "an agent with keys, and this collector has none; give it key_file and allowed_keys",
    rejection.KEY_NOT_ALLOWED: "an agent whose key is not in allowed_keys; put its .pub file there",
    rejection.WRONG_COLLECTOR_KEY: "an agent with the public key of another collector; give it this one's",
    rejection.BROKEN_HANDSHAKE: "something that does not speak ZeroMQ, says nothing, or has gone before its turn",
    rejection.OPEN_FILES: "a connection more than this process may have files open; raise the limit (ulimit -Hn)",
}


class RefusalLog:
    """Says what is refused, on the log of the collector."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ns: dict[str, int] = {}
        self._counted: dict[str, int] = {}

    def note(self, reason: str, text: str) -> None:
        """Something was refused, of which `text` says all."""
        now_ns = self._clock.monotonic_ns()
        said_ns = self._said_ns.get(reason)
        if said_ns is None or now_ns - said_ns >= SAY_AGAIN_NS:
            self._said_ns[reason] = now_ns
            LOG.warning("refused (%s): %s", reason, text)

    def look(self, counts: Mapping[str, int]) -> None:
        """So many connections were refused so far, by reason."""
        for reason, count in counts.items():
            if count > self._counted.get(reason, 0):
                self._counted[reason] = count
                self.note(reason, f"{MEANINGS.get(reason, 'a connection')}; {count} so far")
