"""What was sampled beside the steps, for detection."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rankscope.collector.detect.view import Samples
from rankscope.collector.state.rank import RankState


class _OfRanks(Mapping[int, Any]):
    """One thing of every rank, looked up when it is asked for: of 16,384 ranks few are."""

    def __init__(self, ranks: Mapping[int, RankState], read: Callable[[RankState], Any]) -> None:
        self._ranks = ranks
        self._read = read

    def __getitem__(self, rank: int) -> Any:
        return self._read(self._ranks[rank])

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)


def read_samples(ranks: Mapping[int, RankState]) -> Samples:
    """The samples of these ranks as they are when they are asked for."""
    return Samples(
        breakdowns=_OfRanks(ranks, lambda rank: rank.breakdowns),
        gc_pauses=_OfRanks(ranks, lambda rank: rank.gc_pauses),
        devices=_OfRanks(ranks, lambda rank: rank.latest.devices),
        allocators=_OfRanks(ranks, lambda rank: rank.allocators),
        hosts=_OfRanks(ranks, lambda rank: rank.latest.host),
    )
