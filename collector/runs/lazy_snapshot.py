"""Define the snapshot of a run that is built when it is read. Pure.

A snapshot of 16,384 ranks takes 0.2 s to build, and few are read. So each tick only refers to the states of the ranks,
which never change, and its reader builds it. It can be encoded, and built in another process.
"""

from collections.abc import Callable, Iterator

import msgspec

from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.collector.steps.collective_totals import CollectiveSnapshot
from rankscope.collector.steps.rank_medians import NO_MEDIANS, RankMedians
from rankscope.measure.records import Totals


class LazyRunSnapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The states of a run at one time, from which its snapshot is built. `head` is the snapshot without its ranks,
    `ranks` are in the order of their numbers, `now_collector_ns` is the time.
    """

    head: RunSnapshot
    now_collector_ns: int
    ranks: tuple[RankState, ...] = ()
    medians: RankMedians = NO_MEDIANS
    collectives: CollectiveSnapshot = CollectiveSnapshot()

    @property
    def run(self) -> str:
        """The name of the run."""
        return self.head.run

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.head.run_id

    @property
    def size(self) -> int:
        """How many ranks it is to have, or more if it has more."""
        return max(self.head.world_size, len(self.ranks))

    def read_totals(self) -> dict[str, Totals]:
        """Return the totals of each rank process that has reported, by its boot id."""
        return {rank.identity.boot_id: rank.last_report.totals for rank in self.ranks if rank.admitted}

    def build(self) -> RunSnapshot:
        """Return the snapshot of the run as it was then."""
        return msgspec.structs.replace(self.head, ranks=tuple(map(self._build, self.ranks)))

    def summarize(self) -> RunSnapshot:
        """Return the same with summaries of its ranks."""
        ranks = tuple([rank.summarize(self.medians) for rank in self.ranks])
        return msgspec.structs.replace(self.head, ranks=ranks)

    def blocks(self, is_wanted: Callable[[int], bool], ranks_max: int) -> Iterator[tuple[RankSnapshot, ...]]:
        """Yield the snapshots of the wanted ranks, at most `ranks_max` at a time, built when asked for."""
        wanted = [rank for rank in self.ranks if is_wanted(rank.identity.rank)]
        for first in range(0, len(wanted), ranks_max):
            yield tuple(map(self._build, wanted[first : first + ranks_max]))

    def _build(self, rank: RankState) -> RankSnapshot:
        return rank.build(self.now_collector_ns, self.medians, self.collectives.of(rank.identity.rank))
