"""Define where ranks stand: on which node, and in which process groups."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure.identity import group_label
from rankscope.measure.records import GroupInfo

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WORLD: Final = "default_pg"
DP: Final = "mesh_dp"
TP: Final = "mesh_tp"
PP: Final = "mesh_pp"
EP: Final = "mesh_ep"
REPORTERS_MAX: Final = 8
"""As in `agent/reporting/builder.py`: ranks that report the members of a large group."""


class Layout(NamedTuple):
    """Ranks in groups: `groups[dimension]` has shape (groups, members), and every rank is in one group of each. `place`
    is each rank's (stage, data parallel index, tensor parallel index).
    """

    world: int
    per_node: int
    groups: Mapping[str, Ints]
    shape: tuple[int, int, int]

    @property
    def stages(self) -> int:
        return self.shape[0]

    @property
    def nodes(self) -> list[str]:
        return [f"host-{rank // self.per_node:03}" for rank in range(self.world)]

    def on_nodes(self, nodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.world) if rank // self.per_node in nodes)

    def ranks_of(self, names: Sequence[str]) -> frozenset[int]:
        wanted = set(names)
        return frozenset(rank for rank, name in enumerate(self.nodes) if name in wanted)

    def label(self, dimension: str, row: int) -> str:
        return group_label(dimension, self.groups[dimension][row].tolist(), self.world)

    def members(self, dimension: str) -> Ints:
        """Return which group of a dimension each rank is in, shape (world,)."""
        groups = self.groups[dimension]
        found = np.empty(self.world, dtype=np.int64)
        found[groups] = np.arange(len(groups))[:, None]
        return found

    def reported_groups(self, backend: str) -> list[tuple[GroupInfo, ...]]:
        """Return the groups that each rank reports: of large ones only some members do."""
        found: list[list[GroupInfo]] = [[] for _ in range(self.world)]
        for dimension, groups in self.groups.items():
            for members in groups.tolist():
                label = group_label(dimension, members, self.world)
                group = GroupInfo(label=label, description=dimension, ranks=tuple(sorted(members)), backend=backend)
                count = len(members)
                few = {members[place * count // REPORTERS_MAX] for place in range(REPORTERS_MAX)}
                for member in members:
                    if count <= REPORTERS_MAX or member in few:
                        found[member].append(group)
        return [tuple(groups) for groups in found]


def make_layout(*, dp: int = 1, tp: int = 1, pp: int = 1, ep: int = 1, per_node: int = 8) -> Layout:
    """Return a layout: tensor parallel neighbors first, then data parallel ones, then stages. `ep` neighbors of a data
    parallel group share the experts.
    """
    ranks = np.arange(pp * dp * tp).reshape(pp, dp, tp)
    groups = {WORLD: ranks.reshape(1, -1)}
    by_dp = ranks.transpose(0, 2, 1).reshape(-1, dp)
    if dp > 1 and dp < ranks.size:
        groups[DP] = by_dp
    if tp > 1:
        groups[TP] = ranks.reshape(-1, tp)
    if pp > 1:
        groups[PP] = ranks.transpose(1, 2, 0).reshape(-1, pp)
    if ep > 1:
        groups[EP] = by_dp.reshape(-1, ep)
    return Layout(ranks.size, per_node, groups, (pp, dp, tp))
