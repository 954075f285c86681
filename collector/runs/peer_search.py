"""Find the peers of every rank of an attempt again where something has changed: signatures, models of GPUs, ranks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rankscope.collector.runs.gpu_models import GpuModels
from rankscope.collector.runs.rank import RankState
from rankscope.collector.steps.peer_groups import PeerGroups, find_peer_groups
from rankscope.collector.steps.workload_signature import Signature


class _Found(NamedTuple):
    ranks: tuple[int, ...]
    signatures: Mapping[int, Signature]
    models: Mapping[int, str | None]
    peers: PeerGroups


@dataclass(slots=True)
class PeerSearch:
    """The peers as last found, and the models of the ranks' GPUs."""

    gpu_models: GpuModels = field(default_factory=GpuModels)
    _last: _Found | None = None

    @property
    def without_peers(self) -> int:
        """Return how many ranks the last search left without a peer."""
        return 0 if self._last is None else len(self._last.peers.ranks_without_peers)

    def find(
        self, ranks: tuple[int, ...], signatures: Mapping[int, Signature], states: Mapping[int, RankState]
    ) -> PeerGroups:
        """Return the peers of each rank, usually the same object as in the last detection pass."""
        models, last = self.gpu_models.read(states), self._last
        if last is None or last.signatures is not signatures or last.models is not models or last.ranks != ranks:
            peers = find_peer_groups(ranks, signatures, models, Signature.coarsen)
            last = self._last = _Found(ranks, signatures, models, peers)
        return last.peers
