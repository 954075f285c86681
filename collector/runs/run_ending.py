"""Keep the run's end up to date: computed when its last rank ends, and again when more is known. Pure."""

from collections.abc import Collection
from typing import Final

from rankscope.collector.detect.finding import describe_faults
from rankscope.collector.detect.hang_state import SILENT
from rankscope.collector.runs.attempt import Attempt
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.hearing import Heard
from rankscope.collector.runs.liveness import Ending
from rankscope.collector.runs.rank import RankState
from rankscope.collector.runs.run_end import NOT_HEARD, RankProcessEnd, RunEnd, find_run_end
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.units import NS_PER_S, s_to_ns

SHORTLY_NS: Final = 60 * NS_PER_S
"""A rank that does not catch an error of its allocator ends within seconds; with many threads, or peers in a
collective, within a minute."""


NOTHING_YET: Final = Heard()


class RunEnding:
    """The end of one run. Written by RunState only."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        #: How each rank ended, as `end` was computed.
        self._known: list[tuple[Ending | None, RankEnded | None]] = []
        #: Whether others were heard while its silent ranks were not, as `end` was computed. Stays True.
        self._is_gone = False
        #: The clocks when the last rank ended; None while one is live.
        self._clocks: Clocks | None = None
        #: How the run ended; None while it goes on.
        self.end: RunEnd | None = None
        #: Whether the findings have been closed since the run ended.
        self.is_concluded = False

    def restore(self, end: RunEnd, attempt: Attempt, clocks: Clocks) -> None:
        """Restore the end of a run that an earlier collector had concluded: nothing of it is derived again."""
        self._known = _read_known(attempt)
        self._clocks, self.end, self.is_concluded = clocks, end, True
        self._is_gone = end.reason != NOT_HEARD

    def update(self, attempt: Attempt, clocks: Clocks, heard: Heard = NOTHING_YET, silent_ns: int = 0) -> None:
        """Bring the end up to date. Cheap while a rank is live. `heard`: what was heard of anybody."""
        ranks = attempt.ranks.values()
        if not ranks or attempt.has_live_ranks:
            self._reset()
            return
        known = _read_known(attempt)
        last_ns = max((rank.last_seen_collector_ns for rank in ranks if rank.ended == SILENT), default=None)
        is_gone = self._is_gone or last_ns is None or heard.shows_gone(last_ns, clocks.collector_ns, silent_ns)
        if self.end is not None and (known, is_gone) == (self._known, self._is_gone):
            return
        # The clocks of the first call: a wall clock that is set must not move a past end.
        self._clocks = self._clocks or clocks
        self._known, self._is_gone = known, is_gone
        faults = describe_faults(attempt.faults)
        self.end = find_run_end(read_ends(ranks, self._clocks), attempt.world_size, faults, is_gone=is_gone)


def _read_known(attempt: Attempt) -> list[tuple[Ending | None, RankEnded | None]]:
    return [(rank.liveness.ending, rank.liveness.seen) for rank in attempt.ranks.values()]


def find_last_end(ranks: Collection[RankState], last_message_collector_ns: int) -> int:
    """Return when the last rank ended; where that is not known of all of them, when the last message came."""
    known = [rank.liveness.ended_collector_ns for rank in ranks]
    ended = [ended_ns for ended_ns in known if ended_ns is not None]
    return max(ended) if ended and len(ended) == len(known) else max([last_message_collector_ns, *ended])


def read_ends(ranks: Collection[RankState], clocks: Clocks) -> list[RankProcessEnd]:
    """Return what is known of the end of each rank."""
    return [_read_end(rank, clocks) for rank in ranks]


def _read_end(rank: RankState, clocks: Clocks) -> RankProcessEnd:
    liveness = rank.liveness
    ended_collector_ns = None if liveness.ending is None else liveness.ended_collector_ns
    return RankProcessEnd(
        rank=rank.identity.rank,
        node=rank.identity.node,
        ending=liveness.ending,
        ended_wall_ns=None if ended_collector_ns is None else s_to_ns(clocks.to_wall_s(ended_collector_ns)),
        heard_wall_s=rank.last_report_wall_s,
        seen=liveness.seen,
        last_step=rank.last_step,
        out_of_memory=_find_out_of_memory(rank, ended_collector_ns),
    )


def _find_out_of_memory(rank: RankState, ended_collector_ns: int | None) -> OutOfMemory | None:
    """Return the last error of a rank's allocator, if it was within SHORTLY_NS before its end."""
    if ended_collector_ns is None or not rank.memory_errors:
        return None
    last = rank.memory_errors[-1]
    return last.notice if ended_collector_ns - last.seen_collector_ns <= SHORTLY_NS else None
