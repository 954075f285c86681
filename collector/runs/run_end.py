"""Decide how a run ended, for the list, the page, the commands, the metrics and the incidents. Pure.

A run has ended once no rank of it that has joined is live: each has finished, failed, been ended, or has not reported
for `rank_silent_s`. That is revoked when a rank joins or reports again.

    finished, stopped      every rank ended well
    failed, crashed, ...   as the rank that was the first to fail (`_describe_failed`), also where it failed for want
                           of another that had left (`_find_leavers`)
    lost                   no rank is known to have failed, and one does not report any more, while others were heard
    not_heard              the same, and nobody was heard since: the run may go on behind a network that is cut
    interrupted            no rank failed by itself or is lost, and one was interrupted (Ctrl-C)
    terminated             none of the above, and one rank was ended from outside (SIGTERM)
"""

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.hang_state import COLLECTIVE_TIMEOUT, DIED, SILENT, date_failure
from rankscope.collector.detect.memory.out_of_memory import describe_bytes, describe_place
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL, Ending
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.out_of_memory import OutOfMemory
from rankscope.measure.stalls import describe_frame, find_script_frame
from rankscope.measure.units import NS_PER_S, ns_to_s

NOT_HEARD: Final = "not_heard"
"""The same where nothing else was heard of since either: then it is not known whether the run has ended."""
LOST: Final = "lost"
"""The reason of a run without a known failure of which a rank does not report any more."""
WANTS: Final = (
    "closed by peer", "reset by peer", "Broken pipe", "failed to recv", "remote process exited", "ncclRemoteError",
)  # fmt: skip
"""What gloo, NCCL and torch's store say in an exception where the process at the other end is gone."""
TOGETHER_NS: Final = NS_PER_S
"""Deaths within a second may be out of order: clocks of two nodes are compared."""
RANKS_NAMED_MAX: Final = 64
"""Ranks that are listed by number: 8 nodes of 8 GPUs. Counts are complete."""


class RankProcessEnd(NamedTuple):
    """What is known of the end of one rank process. `ending` is None while it is live. Times are by the wall clock: of
    its end, as far as known, and of its last message. `out_of_memory`: the last error of its GPU's allocator, if
    that was shortly before the end.
    """

    rank: int
    node: str
    ending: Ending | None
    ended_wall_ns: int | None = None
    heard_wall_s: float | None = None
    seen: RankEnded | None = None
    last_step: int | None = None
    out_of_memory: OutOfMemory | None = None


class FirstToFail(msgspec.Struct, frozen=True, kw_only=True):
    """The rank whose end brought the others down. `signal` is a name such as SIGSEGV, `line` the place in the script
    where it crashed or raised, `a.py:24 (run)`; both are empty where there is none or it is not known. `together`:
    ranks that died without an exception within TOGETHER_NS of it, any of which may have been the first. `out_of_memory`
    says how its GPU's memory was not enough shortly before; empty where it was.

    Where it had left, ended well while others were to go on, `failed_for_want` has those that failed for want of it,
    `failure` is what the first of them said, and `together` are others that had left like it.
    """

    rank: int
    node: str
    reason: str
    detail: str = ""
    signal: str = ""
    exit_code: int | None = None
    line: str = ""
    last_step: int | None = None
    ended_wall_s: float | None = None
    together: tuple[int, ...] = ()
    out_of_memory: str = ""
    failed_for_want: tuple[int, ...] = ()
    failure: str = ""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `ended_wall_s` is when its last rank ended, or last reported; None: not known. `ranks` counts
    the ranks by how they ended, `unheard` those that never joined. `unknown` says why no rank is named as the first to
    fail, empty where one is, or where none failed. `lost_ranks` are the first of those that do not report any more,
    `lost_since_wall_s` the earliest of their last reports. `injected_faults` as in RunSnapshot.
    """

    reason: str
    ended_wall_s: float | None = None
    ranks: Mapping[str, int] = {}
    unheard: int = 0
    first: FirstToFail | None = None
    unknown: str = ""
    lost_ranks: tuple[int, ...] = ()
    lost_since_wall_s: float | None = None
    injected_faults: str = ""

    @property
    def is_good(self) -> bool:
        """Whether every rank that joined ended well."""
        return self.reason in ENDED_WELL


def find_run_end(
    ranks: Sequence[RankProcessEnd], world_size: int, injected_faults: str = "", *, is_gone: bool = True
) -> RunEnd | None:
    """Return how the run of these ranks ended; None while one of them is live, or before any has joined. `is_gone`:
    others were heard while its silent ranks were not.
    """
    if not ranks or any(rank.ending is None for rank in ranks):
        return None
    counts = Counter(_reason_of(rank) for rank in ranks)
    failed = sorted((rank for rank in ranks if _has_failed(rank)), key=lambda rank: (_date(rank), rank.rank))
    leavers = _find_leavers(ranks, failed)
    first = _describe_leaver(leavers, failed) if leavers else _describe_failed(failed) if failed else None
    lost = sorted((rank for rank in ranks if _reason_of(rank) == SILENT), key=lambda rank: rank.rank)
    reason = _reason_of(failed[0]) if failed else _choose_reason(counts)
    if reason == LOST and not is_gone:
        reason = NOT_HEARD
    return RunEnd(
        reason=reason,
        ended_wall_s=max((at_s for rank in ranks if (at_s := _find_end_s(rank)) is not None), default=None),
        ranks=dict(sorted(counts.items())),
        unheard=max(0, world_size - len(ranks)),
        first=first,
        unknown="" if first is not None or reason in ENDED_WELL else _explain_unknown(reason),
        lost_ranks=tuple(rank.rank for rank in lost[:RANKS_NAMED_MAX]),
        lost_since_wall_s=min((rank.heard_wall_s for rank in lost if rank.heard_wall_s is not None), default=None),
        injected_faults=injected_faults,
    )


def _describe_failed(failed: Sequence[RankProcessEnd]) -> FirstToFail:
    """Return the rank whose end brought the others down, as far as is known: the first that ended badly by itself.

    Of ranks that died without an exception the end is dated back (`date_failure`): their peers' exceptions may come
    before. `failed` are in this order.
    """
    first = failed[0]
    ending, seen = first.ending or Ending(""), first.seen
    number = None if seen is None else seen.signal
    return FirstToFail(
        rank=first.rank,
        node=first.node,
        reason=ending.reason,
        detail=ending.detail,
        signal="" if number is None else _name_signal(number),
        exit_code=ending.exit_code,
        line=ending.line or _find_line(seen),
        last_step=first.last_step,
        ended_wall_s=_find_end_s(first),
        together=_find_together(first, failed),
        out_of_memory="" if first.out_of_memory is None else _describe_out_of_memory(first.out_of_memory),
    )


def _find_leavers(ranks: Sequence[RankProcessEnd], failed: Sequence[RankProcessEnd]) -> list[RankProcessEnd]:
    """Return the ranks that had ended well before the first failure, the first one first, if all that is known of that
    is that the process at the other end was gone: an exception that says so, or a collective's timeout.

    The end of a rank and the exception of its peer may be told in any order within TOGETHER_NS. None where another rank
    may have been gone earlier.
    """
    if not failed:
        return []
    until_ns = (failed[0].ended_wall_ns or 0) + TOGETHER_NS
    at_first = [rank for rank in failed if (rank.ended_wall_ns or 0) <= until_ns]
    left = [(rank.ended_wall_ns, rank.rank, rank) for rank in ranks if _reason_of(rank) in ENDED_WELL]
    early = sorted((at_ns, number, rank) for at_ns, number, rank in left if at_ns is not None and at_ns <= until_ns)
    brought_down = [rank.ended_wall_ns for rank in ranks if _reason_of(rank) in BROUGHT_DOWN]
    is_known = bool(early) and all(at_ns is not None and at_ns >= early[0][0] for at_ns in brought_down)
    return [rank for _, _, rank in early] if is_known and all(_wants_another(rank) for rank in at_first) else []


def _wants_another(rank: RankProcessEnd) -> bool:
    detail = "" if rank.ending is None else rank.ending.detail
    return _reason_of(rank) == COLLECTIVE_TIMEOUT or any(words in detail for words in WANTS)


def _describe_leaver(leavers: Sequence[RankProcessEnd], failed: Sequence[RankProcessEnd]) -> FirstToFail:
    first, ending = leavers[0], leavers[0].ending or Ending("")
    return FirstToFail(
        rank=first.rank,
        node=first.node,
        reason=ending.reason,
        exit_code=ending.exit_code,
        last_step=first.last_step,
        ended_wall_s=_find_end_s(first),
        together=tuple(sorted(rank.rank for rank in leavers[1:])[:RANKS_NAMED_MAX]),
        failed_for_want=tuple(sorted(rank.rank for rank in failed if _wants_another(rank))[:RANKS_NAMED_MAX]),
        failure="" if failed[0].ending is None else failed[0].ending.detail,
    )


def _describe_out_of_memory(notice: OutOfMemory) -> str:
    texts = (*describe_bytes(notice), notice.snapshot and f"memory snapshot: {notice.snapshot}")
    return f"its GPU out of memory{describe_place(notice)}: {'; '.join(filter(None, texts))}"


def _reason_of(rank: RankProcessEnd) -> str:
    return "" if rank.ending is None else rank.ending.reason


def _has_failed(rank: RankProcessEnd) -> bool:
    reason = _reason_of(rank)
    return bool(reason) and reason not in ENDED_WELL | BROUGHT_DOWN and rank.ended_wall_ns is not None


def _date(rank: RankProcessEnd) -> int:
    # A rank that raised said so itself; what the sidecar saw then is another end than the one it said.
    is_only_seen = rank.ending is not None and rank.seen is not None and rank.ending.detail == rank.seen.detail
    return date_failure(_reason_of(rank), rank.ended_wall_ns or 0, is_only_seen=is_only_seen)


def _find_together(first: RankProcessEnd, failed: Sequence[RankProcessEnd]) -> tuple[int, ...]:
    """Only deaths without an exception count: a rank that raised had the time to see another rank's end."""
    if _reason_of(first) not in DIED:
        return ()
    until_ns = _date(first) + TOGETHER_NS
    others = [rank.rank for rank in failed if rank is not first and _reason_of(rank) in DIED and _date(rank) < until_ns]
    return tuple(sorted(others)[:RANKS_NAMED_MAX])


def _choose_reason(counts: Mapping[str, int]) -> str:
    # A failure of unknown time comes before ends from outside: some rank failed by itself.
    failed = sorted(counts.keys() - ENDED_WELL - BROUGHT_DOWN)
    if failed:
        return failed[0]
    for reason, name in ((SILENT, LOST), ("interrupted", "interrupted"), ("terminated", "terminated")):
        if counts.get(reason):
            return name
    return "stopped" if counts.get("stopped") else "finished"


def _explain_unknown(reason: str) -> str:
    known = {
        LOST: "no end was reported for the ranks that are not heard of any more",
        NOT_HEARD: "nothing else was heard since either, so it is not known whether the run goes on",
        "interrupted": "no rank failed by itself: the run was interrupted from outside (SIGINT, Ctrl-C)",
        "terminated": "no rank failed by itself: the ranks were ended from outside (SIGTERM or SIGHUP)",
    }
    return known.get(reason, "it is not known when each rank ended")


def _find_end_s(rank: RankProcessEnd) -> float | None:
    if _reason_of(rank) == SILENT:
        return rank.heard_wall_s
    return None if rank.ended_wall_ns is None else ns_to_s(rank.ended_wall_ns)


def _find_line(seen: RankEnded | None) -> str:
    frame = find_script_frame(seen.stacks[0].frames) if seen is not None and seen.stacks else None
    return "" if frame is None else describe_frame(frame)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
