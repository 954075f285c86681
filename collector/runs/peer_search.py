"""Find the peers of all ranks of an attempt again where signatures, models of GPUs or ranks have changed. Pure.

The models are read from the ranks' samples, at a bounded cost for each detection pass.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from rankscope.collector.runs.rank import RankState
from rankscope.collector.steps.least_waiting import LeastWaiting
from rankscope.collector.steps.peer_groups import PeerGroups, find_peer_groups
from rankscope.collector.steps.workload_signature import Signature

NEW_RANKS_MAX: Final = 1024
"""Ranks that are read for the first time in one pass: a report is decoded for each, which takes 20 to 50 us."""
OLD_RANKS_MAX: Final = 64
"""Ranks without a sample of a GPU that are read again in one pass: on CPUs that is all of them, for ever."""


@dataclass(slots=True)
class GpuModels:
    """The model of each rank's first GPU, as its samples name it. A rank keeps its process, and so its model."""

    #: `{rank: model}` of the ranks that have reported one; replaced when one is added.
    known: Mapping[int, str] = field(default_factory=dict)
    #: `{rank: model}` of all ranks once several models are known, None where it is not; empty otherwise.
    several: Mapping[int, str | None] = field(default_factory=dict)
    _unread: deque[int] = field(default_factory=deque)
    _seen: set[int] = field(default_factory=set)

    def read(self, ranks: Mapping[int, RankState]) -> Mapping[int, str | None]:
        """Return the models where there are several, else nothing; the same object as long as nothing has changed.
        While some ranks were never read nothing is returned: two models in a part of a run say little of the others.
        """
        new = list(islice((rank for rank in ranks if rank not in self._seen), NEW_RANKS_MAX))
        old = [self._unread.popleft() for _ in range(min(OLD_RANKS_MAX, len(self._unread)))]
        found = {rank: model for rank in (*new, *old) if (model := _read_model(ranks[rank])) is not None}
        self._seen.update(new)
        self._unread.extend(rank for rank in (*new, *old) if rank not in found)
        if found or new:
            self.known = {**self.known, **found}
            is_mixed = len(self._seen) == len(ranks) and len(set(self.known.values())) > 1
            self.several = {rank: self.known.get(rank) for rank in ranks} if is_mixed else {}
        return self.several


def _read_model(rank: RankState) -> str | None:
    return next((device.model for device in rank.devices if device.model), None)


class _Found(NamedTuple):
    ranks: tuple[int, ...]
    signatures: Mapping[int, Signature]
    models: Mapping[int, str | None]
    classes: Mapping[int, int]
    peers: PeerGroups


@dataclass(slots=True)
class PeerSearch:
    """The peers as last found, and the models of the ranks' GPUs."""

    gpu_models: GpuModels = field(default_factory=GpuModels)
    #: The rank that waited least as of the last detection pass, where some have no peers with equal work.
    least_waiting: LeastWaiting | None = None
    _last: _Found | None = None

    @property
    def without_peers(self) -> int:
        """Return how many ranks the last search left without a peer."""
        return 0 if self._last is None else len(self._last.peers.ranks_without_peers)

    @property
    def works(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that do the same work, by the last search; empty before any."""
        return () if self._last is None else self._last.peers.works

    def find(
        self,
        ranks: tuple[int, ...],
        signatures: Mapping[int, Signature],
        states: Mapping[int, RankState],
        classes: Mapping[int, int],
    ) -> PeerGroups:
        """Return the peers of each rank, usually the same object as in the last detection pass. `classes`: of their
        batches (`find_token_classes`).
        """
        models, last = self.gpu_models.read(states), self._last
        is_same = last is not None and last.signatures is signatures and last.models is models
        if last is None or not is_same or last.ranks != ranks or last.classes != classes:
            peers = find_peer_groups(
                ranks,
                signatures,
                models,
                coarsen=Signature.coarsen,
                measure_apart=Signature.without_exchanges,
                classes=classes,
            )
            last = self._last = _Found(ranks, signatures, models, classes, peers)
        return last.peers
