"""Find the nodes that an incident is about, and how often each has held up the runs in the store."""

from collections.abc import Callable, Sequence
from typing import Final

from rankscope.collector.fault_log import FaultLog
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.kept_nodes import KeptNodes
from rankscope.collector.incidents.nodes import NodeRecord
from rankscope.collector.notifications.channel import FAULT
from rankscope.collector.notifications.event import IncidentNodes, NodeStanding
from rankscope.collector.runs.run import RunState
from rankscope.collector.store_address import StoreAddress
from rankscope.measure.errors import UnavailableError

NO_RANKS: Final = "the collector does not know any more where these ranks run"
NO_STORE: Final = "the collector has no store, which counts how often a node has held up its runs"
NOT_STORED: Final = "the store has no run of a node yet"


class NodeFinder:
    """Finds the nodes of an incident and their standing, by the store. Any thread; one at a time reads."""

    def __init__(
        self, store: StoreAddress | None, find_run: Callable[[str], RunState | None], faults: FaultLog
    ) -> None:
        self._kept = None if store is None else KeptNodes(store)
        self._find_run = find_run
        self._faults = faults

    def find(self, incident: Incident) -> IncidentNodes:
        """Return the nodes, with their runs where the store has them. Never raises."""
        names = self._find_names(incident)
        if incident.ranks and not names:
            return IncidentNodes((), NO_RANKS)
        unknown = tuple(NodeStanding(node=name) for name in names)
        if not names or self._kept is None:
            return IncidentNodes(unknown, NO_STORE if names else "")
        try:
            known = {record.node: record for record in self._kept.read().nodes if record.runs}
        except UnavailableError as error:
            return IncidentNodes(unknown, str(error))
        except Exception as error:  # noqa: BLE001 - the fault log has it
            self._faults.note(FAULT, "the nodes of the store could not be read; continuing without")
            return IncidentNodes(unknown, f"internal error of the collector ({type(error).__name__}); see its log")
        standings = tuple(_find_standing(one, known.get(one.node)) for one in unknown)
        return IncidentNodes(standings, NOT_STORED if any(one.runs is None for one in standings) else "")

    def _find_names(self, incident: Incident) -> Sequence[str]:
        if incident.nodes:
            return incident.nodes
        run = self._find_run(incident.run_id) if incident.ranks else None
        attempt = None if run is None else run.attempt
        if attempt is None:
            return ()
        states = [attempt.ranks.get(rank) for rank in incident.ranks]
        return list(dict.fromkeys(state.identity.node for state in states if state is not None))


def _find_standing(unknown: NodeStanding, record: NodeRecord | None) -> NodeStanding:
    if record is None:
        return unknown
    return NodeStanding(
        node=record.node, runs=record.runs, runs_held_up=record.runs_held_up, ratio_low=record.ratio_low
    )
