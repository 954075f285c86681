"""Define which ranks work together: the process groups of a run with data, tensor, pipeline and expert parallelism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankscope.measure.identity import group_label
from rankscope.measure.records import GroupInfo

Ints = npt.NDArray[np.int64]

WORLD, DATA, TENSOR, PIPELINE, EXPERT = "default_pg", "mesh_dp", "mesh_tp", "mesh_pp", "mesh_ep"
PAIRS = "pairs"
"""Groups of two ranks, which not every rank is in."""


@dataclass(frozen=True)
class Topology:
    """Ranks in groups. `groups[dimension]` has shape (groups, members); `stage` is each rank's pipeline stage."""

    world_size: int
    ranks_per_node: int
    groups: Mapping[str, Ints]
    stage: Ints

    @classmethod
    def mesh(
        cls,
        *,
        dp: int = 1,
        tp: int = 1,
        pp: int = 1,
        ep: int = 1,
        ranks_per_node: int = 8,
        pairs: Sequence[tuple[int, int]] = (),
    ) -> "Topology":
        """Return a mesh. Tensor parallel ranks are neighbors, then come data parallel ones, then stages. `ep`
        neighbors in a data parallel group share the experts. Each of the `pairs` is a group of its own.
        """
        if dp % ep:
            raise ValueError(f"ep is {ep}, which does not divide dp, {dp}")
        ranks = np.arange(pp * dp * tp).reshape(pp, dp, tp)
        groups = {
            WORLD: ranks.reshape(1, -1),
            DATA: ranks.transpose(0, 2, 1).reshape(-1, dp),
            TENSOR: ranks.reshape(-1, tp),
            PIPELINE: ranks.transpose(1, 2, 0).reshape(-1, pp),
            EXPERT: ranks.transpose(0, 2, 1).reshape(-1, ep),
        }
        if pairs:
            groups[PAIRS] = np.array(pairs)
        stage = np.repeat(np.arange(pp), dp * tp)
        return cls(ranks.size, ranks_per_node, groups, stage)

    @property
    def node(self) -> Ints:
        """Each rank's node, by number."""
        return np.arange(self.world_size) // self.ranks_per_node

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of the nodes, as their ranks report them."""
        return tuple(f"node{node:04}" for node in range(int(self.node[-1]) + 1))

    def ranks_on_node(self, node: int) -> tuple[int, ...]:
        """Return the ranks of one node."""
        return tuple(np.flatnonzero(self.node == node).tolist())

    def ranks_in_stage(self, stage: int) -> tuple[int, ...]:
        """Return the ranks of one pipeline stage."""
        return tuple(np.flatnonzero(self.stage == stage).tolist())

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return int(self.stage[-1]) + 1

    def describe_groups(self) -> list[tuple[GroupInfo, ...]]:
        """Return the process groups of each rank, without those of one member."""
        found: list[list[GroupInfo]] = [[] for _ in range(self.world_size)]
        for dimension, groups in self.groups.items():
            if groups.shape[1] == 1:
                continue
            for members in groups.tolist():
                label = group_label(dimension, members, self.world_size)
                group = GroupInfo(label=label, description=dimension, ranks=tuple(sorted(members)), backend="nccl")
                for member in members:
                    found[member].append(group)
        return [tuple(groups) for groups in found]
