"""Order a capture when an incident opens that names a rank: of that rank, its healthiest peer and a neighbor.

A run that hangs reaches no further step, so there is nothing to capture.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from rankscope.collector.captures.capture import Capture, CaptureRefusal, CaptureRequest
from rankscope.collector.captures.choice import choose_around
from rankscope.collector.detect.finding import PERIODIC_WORK, STRAGGLER
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.runs.run import RunState
from rankscope.measure.capture_limits import MODULES

LOG = logging.getLogger("rankscope.collector")

KINDS: Final = frozenset({STRAGGLER, PERIODIC_WORK})
CAPTURES_A_DAY_MAX: Final = 4
"""Captures of one run, by its name, that incidents may order in a day; each stops training for a moment."""
DAY_S: Final = 86_400.0


class IncidentCaptures:
    """Orders at most one capture for an incident, and none for those that an earlier collector has opened."""

    def __init__(
        self,
        find_run: Callable[[str], RunState | None],
        order: Callable[[CaptureRequest], Capture | CaptureRefusal],
        read_captures: Callable[[], tuple[Capture, ...]],
        opened_before: Iterable[Incident],
    ) -> None:
        self._find_run = find_run
        self._order = order
        self._read_captures = read_captures
        self._last_id = max((one.id for one in opened_before), default=0)

    def consider(self, incidents: Iterable[Incident], now_wall_s: float) -> None:
        """Order what the incidents since the last call call for. Ids ascend. To be called at each tick."""
        new = [one for one in incidents if one.id > self._last_id]
        for incident in new:
            self._last_id = max(self._last_id, incident.id)
            if incident.is_open and incident.kind in KINDS and incident.ranks and self._may(incident, now_wall_s):
                run = self._find_run(incident.run_id)
                ranks = () if run is None else choose_around(incident.ranks[0], run)
                if run is not None and ranks:
                    options = (MODULES,) if _may_record_modules(run, incident.ranks[0], ranks) else ()
                    self._order_of(incident, ranks, options)

    def _order_of(self, incident: Incident, ranks: tuple[int, ...], options: tuple[str, ...]) -> None:
        by = f"incident {incident.id}"
        request = CaptureRequest(
            run=incident.run_id, ranks=ranks, asked_by=by, incident=str(incident.id), options=options
        )
        found = self._order(request)
        if isinstance(found, CaptureRefusal):
            LOG.warning("run %r: %s gets no capture: %s", incident.run_id, by, found.error)

    def _may(self, incident: Incident, now_wall_s: float) -> bool:
        """Return whether incidents of the run have ordered fewer captures than a day may have."""
        of_run = (one for one in self._read_captures() if one.run == incident.run and one.incident)
        return sum(now_wall_s - one.asked_wall_s < DAY_S for one in of_run) < CAPTURES_A_DAY_MAX


def _may_record_modules(run: RunState, blamed: int, ranks: Iterable[int]) -> bool:
    """Return whether the modules that launch kernels can be recorded: the rank has reported a GPU, and none of those to
    be captured has compiled anything, for which they would refuse it.
    """
    known = {} if run.attempt is None else run.attempt.ranks
    compiled = (known[rank].last_report.compilations for rank in ranks if rank in known)
    return (
        blamed in known
        and bool(known[blamed].devices)
        and all(one is not None and not one.compiled for one in compiled)
    )
