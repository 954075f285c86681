"""Composes rank 0's log lines about a configured collector: when it is reached, when it is unreachable, and at the end.

Pure: returns the lines instead of logging them.
"""

import shlex
from typing import Final, NamedTuple

from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_S, ns_to_s

AWAY_NS: Final = 60 * NS_PER_S
"""Time without connection before the first log line: a restarted collector is back in seconds, and a rank of a run of
thousands connects within about ten."""
LOOPBACK: Final = ("://127.", "://localhost:", "://[::1]:")
ABSENCES_LOGGED_MAX: Final = 5
"""Largest number of lines about an unreachable collector per process."""


class Delivered(NamedTuple):
    """The number of reports made, and of those not acknowledged, which `spill_dir` keeps as far as it has room."""

    reports: int
    unacknowledged: int
    spill_dir: str = ""


class CollectorNotices:
    """The log lines about the collector at `endpoint` for one run."""

    def __init__(self, run: str, endpoint: str, now_ns: int) -> None:
        self._run = run
        self._endpoint = endpoint
        self._away_since_ns: int | None = now_ns
        self._was_reached = False
        self._absences_logged = 0
        self._is_absence_logged = False
        self._page = ""

    def update(self, now_ns: int, *, is_connected: bool, is_refused: bool, metrics_url: str | None) -> str | None:
        """Return the line that is due now, if any. Refusals are logged elsewhere."""
        if is_connected:
            return self._note_reached(now_ns, metrics_url or "")
        if self._away_since_ns is None:
            self._away_since_ns = now_ns
        is_due = now_ns - self._away_since_ns >= AWAY_NS and not self._is_absence_logged
        if not is_due or is_refused or self._absences_logged >= ABSENCES_LOGGED_MAX:
            return None
        self._is_absence_logged = True
        self._absences_logged += 1
        return (
            f"run {self._run!r}: the collector {self._endpoint} has not been reached for {ns_to_s(AWAY_NS):.0f} s. "
            "Training continues, the newest reports are kept, and the connection is retried. Check the address "
            "(RANKSCOPE_COLLECTOR), that `rankscope serve` runs there, and that no firewall is in the way."
        )

    def summarize(self, delivered: Delivered) -> str:
        """Return the line for the end."""
        if not self._was_reached:
            return (
                f"run {self._run!r}: the collector {self._endpoint} never accepted rank 0; none of its "
                f"{delivered.reports} reports was delivered{_describe_spill(delivered)}"
            )
        url = f" --url {self._page}" if self._page else ""
        run = shlex.quote(to_line(self._run))
        # Not `report`, which needs a collector with a store.
        where = f"`rankscope status {run}{url}` shows how the run went{self._describe_place()}"
        if not delivered.unacknowledged:
            return f"run {self._run!r}: all {delivered.reports} reports of rank 0 were delivered; {where}"
        return (
            f"run {self._run!r}: {delivered.unacknowledged} of the {delivered.reports} reports of rank 0 were not "
            f"acknowledged by {self._endpoint}{_describe_spill(delivered)}; {where}"
        )

    def _note_reached(self, now_ns: int, metrics_url: str) -> str | None:
        away_ns = now_ns - (now_ns if self._away_since_ns is None else self._away_since_ns)
        was_reached, is_absence_logged = self._was_reached, self._is_absence_logged
        self._was_reached, self._is_absence_logged = True, False
        self._away_since_ns, self._page = None, metrics_url.removesuffix("/metrics")
        after = f"after {ns_to_s(away_ns):.0f} s"
        if not was_reached:
            late = f", reached {after}" if is_absence_logged else ""
            page = f"; its page is {self._page}{self._describe_place()}" if self._page else ""
            return f"run {self._run!r} reports to {self._endpoint}{late}{page}"
        return (
            f"run {self._run!r}: the collector {self._endpoint} was reached again {after}"
            if is_absence_logged
            else None
        )

    def _describe_place(self) -> str:
        return " (on the collector's machine only)" if any(one in self._page for one in LOOPBACK) else ""


def _describe_spill(delivered: Delivered) -> str:
    return f" ({delivered.spill_dir} keeps as many as it has room for)" if delivered.spill_dir else ""
