"""What rank 0 tells the person who trains of a collector that stands: at the start, when it is away, and at the end.

Pure: it is given what is known, and gives the line to say.
"""

import shlex
from typing import Final, NamedTuple

from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_S, ns_to_s

AWAY_NS: Final = 60 * NS_PER_S
"""A collector that is restarted is back in a few seconds, and one rank of thousands connects within some ten."""
LOOPBACK: Final = ("://127.", "://localhost:", "://[::1]:")
ABSENCES_SAID_MAX: Final = 5
"""Of a network that fails every hour for weeks, the log does not need every time."""


class Delivered(NamedTuple):
    """How many reports there were, and how many of them nobody has acknowledged; `spill_dir` has those, as far as it
    has room.
    """

    reports: int
    unacknowledged: int
    spill_dir: str = ""


class CollectorNotices:
    """The lines about one collector, `endpoint`, for one run."""

    def __init__(self, run: str, endpoint: str, now_ns: int) -> None:
        self._run = run
        self._endpoint = endpoint
        self._away_since_ns: int | None = now_ns
        self._was_reached = False
        self._absences_said = 0
        self._absence_is_said = False
        self._page = ""

    def look(self, now_ns: int, *, is_connected: bool, is_refused: bool, metrics_url: str | None) -> str | None:
        """Return the line that is due now. Why this rank is refused is said elsewhere."""
        if is_connected:
            return self._note_reached(now_ns, metrics_url or "")
        if self._away_since_ns is None:
            self._away_since_ns = now_ns
        is_due = now_ns - self._away_since_ns >= AWAY_NS and not self._absence_is_said
        if not is_due or is_refused or self._absences_said >= ABSENCES_SAID_MAX:
            return None
        self._absence_is_said = True
        self._absences_said += 1
        return (
            f"run {self._run!r}: the collector {self._endpoint} has not been reached for {ns_to_s(AWAY_NS):.0f} s. "
            "Training continues, the newest reports are kept, and the connection is retried. Check the address "
            "(RANKSCOPE_COLLECTOR), that `rankscope serve` runs there, and that no firewall is in the way."
        )

    def sum_up(self, delivered: Delivered) -> str:
        """Return the line for the end."""
        if not self._was_reached:
            return (
                f"run {self._run!r}: the collector {self._endpoint} never accepted rank 0; none of its "
                f"{delivered.reports} reports was delivered{_describe_spill(delivered)}"
            )
        url = f" --url {self._page}" if self._page else ""
        run = shlex.quote(to_line(self._run))
        # Not `report`, which needs a collector with a store.
        where = f"`rankscope status --run {run}{url}` shows how the run went{self._describe_place()}"
        if not delivered.unacknowledged:
            return f"run {self._run!r}: all {delivered.reports} reports of rank 0 were delivered; {where}"
        return (
            f"run {self._run!r}: {delivered.unacknowledged} of the {delivered.reports} reports of rank 0 were not "
            f"acknowledged by {self._endpoint}{_describe_spill(delivered)}; {where}"
        )

    def _note_reached(self, now_ns: int, metrics_url: str) -> str | None:
        away_ns = now_ns - (now_ns if self._away_since_ns is None else self._away_since_ns)
        was_reached, absence_is_said = self._was_reached, self._absence_is_said
        self._was_reached, self._absence_is_said = True, False
        self._away_since_ns, self._page = None, metrics_url.removesuffix("/metrics")
        after = f"after {ns_to_s(away_ns):.0f} s"
        if not was_reached:
            late = f", reached {after}" if absence_is_said else ""
            page = f"; its page is {self._page}{self._describe_place()}" if self._page else ""
            return f"run {self._run!r} reports to {self._endpoint}{late}{page}"
        return (
            f"run {self._run!r}: the collector {self._endpoint} was reached again {after}" if absence_is_said else None
        )

    def _describe_place(self) -> str:
        return " (on the collector's machine only)" if any(one in self._page for one in LOOPBACK) else ""


def _describe_spill(delivered: Delivered) -> str:
    return f" ({delivered.spill_dir} keeps as many as it has room for)" if delivered.spill_dir else ""
