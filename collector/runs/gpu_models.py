"""Know the model of each rank's GPU, at a bounded cost for each detection pass. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from rankscope.collector.runs.rank import RankState

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
