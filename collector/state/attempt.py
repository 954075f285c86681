"""One attempt of a run, from its begin to the elastic restart that ends it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankscope.collector.state.group_members import GroupMembers
from rankscope.collector.state.intake import Intake
from rankscope.collector.state.rank import RankState
from rankscope.collector.steps.collective_totals import CollectiveCounts
from rankscope.collector.steps.peer_groups import Twins, find_twins
from rankscope.collector.steps.rank_medians import NOT_COMPARED, Comparison
from rankscope.collector.steps.step_series import Floats
from rankscope.collector.steps.step_table import StepWindow
from rankscope.collector.steps.workload_signature import Signature
from rankscope.measure.identity import RankIdentity


@dataclass(slots=True)
class Attempt:
    """What is forgotten when an elastic restart begins a new attempt."""

    restart_count: int
    world_size: int
    window: StepWindow
    intake: Intake = field(init=False)
    groups: GroupMembers = field(init=False)
    ranks: dict[int, RankState] = field(default_factory=dict)
    by_machine: dict[str, list[RankState]] = field(default_factory=dict)
    counts_by_node: dict[str, int] = field(default_factory=dict)
    """The restart count of each node's lives: torchrun counts only failures of its own node."""
    former_nodes: frozenset[str] = frozenset()
    """The nodes of the attempt before; empty where that is not known."""
    is_looked_at: bool = False
    """What a look reads, 0.1 GB of 16,384 ranks, is let go of when it is over."""
    slowdowns: Floats | None = None
    comparison: Comparison = NOT_COMPARED
    collectives: CollectiveCounts = field(default_factory=CollectiveCounts)
    twins: tuple[tuple[int, ...], Mapping[int, Signature], Twins] | None = None

    step_ns: int = 0
    """The time in steps of the rank that has reported the most of it."""
    recorded_step: int = -1
    """The last step that has been given to the history."""

    def put(self, rank: RankState) -> None:
        """A life takes its rank's place."""
        self.ranks[rank.identity.rank] = rank
        self.counts_by_node[rank.identity.node] = rank.identity.restart_count
        self.restart_count = max(self.restart_count, rank.identity.restart_count)
        self.by_machine.setdefault(rank.identity.machine_id, []).append(rank)

    def is_followed_by(self, identity: RankIdentity) -> bool:
        """Return whether a life whose rank has none in this attempt begins another one.

        Only counts of one node can be compared. A node that was in the attempt before joins this one, whatever it has
        counted; one that is new to the run begins another attempt if it has counted more restarts than this one.
        """
        if identity.world_size != self.world_size:
            return True
        known = self.counts_by_node.get(identity.node)
        if known is not None:
            return identity.restart_count != known
        return identity.node not in self.former_nodes and identity.restart_count > self.restart_count

    def find_twins(self, ranks: tuple[int, ...]) -> Twins:
        """Who is compared with whom: mostly the same as at the last look."""
        signatures = self.window.signatures
        if self.twins is None or self.twins[1] is not signatures or self.twins[0] != ranks:
            self.twins = (ranks, signatures, find_twins(ranks, signatures))
        return self.twins[2]

    def __post_init__(self) -> None:
        self.intake = Intake(self.window)
        self.groups = GroupMembers(self.world_size)
