"""How a run ended: the one account that the list, the page, the commands, the metrics and the incidents use. Pure.

A run has ended once no rank of it that has joined is live: each has finished, failed, been ended, or has not been heard
of for `rank_silent_s`. That is taken back when a rank joins or is heard of again.

    finished, stopped      every rank ended well
    failed, crashed, ...   as the rank that was the first to fail (`find_first_to_fail`)
    interrupted            nobody failed by itself, and a rank was interrupted (Ctrl-C)
    terminated             nobody failed by itself, and a rank was ended from outside (SIGTERM)
    lost                   nobody is known to have failed, and some rank is not heard of any more
"""

import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.detect.hang_state import DIED, SILENT, date_failure
from rankscope.collector.runs.liveness import BROUGHT_DOWN, ENDED_WELL, Ending
from rankscope.measure.messages import RankEnded
from rankscope.measure.stalls import describe_frame, find_script_frame
from rankscope.measure.units import NS_PER_S, ns_to_s

LOST: Final = "lost"
"""The reason of a run of which nobody is known to have failed, while a rank of it is not heard of any more."""
TOGETHER_NS: Final = NS_PER_S
"""Deaths within a second may have been seen in another order than they came in: clocks of two nodes are compared."""
RANKS_NAMED_MAX: Final = 64
"""Ranks that are listed by number in an account: 8 nodes of 8 GPUs. Their count says how many there are."""


class RankProcessEnd(NamedTuple):
    """What is known of the end of one rank. `ending` is None while it is live. Times are by the wall clock: when it
    ended, as far as that is known, and when it was last heard of.
    """

    rank: int
    node: str
    ending: Ending | None
    ended_wall_ns: int | None = None
    heard_wall_s: float | None = None
    seen: RankEnded | None = None
    last_step: int | None = None


class FirstToFail(msgspec.Struct, frozen=True, kw_only=True):
    """The rank whose end brought the others down. `signal` is a name such as SIGSEGV, `line` the place in the script
    where it crashed or raised, `a.py:24 (run)`; both are empty where there is none or it is not known. `together`:
    ranks that died without a word within TOGETHER_NS of it, any of which may have been the first.
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


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `ended_wall_s` is when its last rank did, or was last heard of; None: not known. `ranks` counts
    the ranks by how they ended, `unheard` those that never joined. `unknown` says why no rank is named as the first to
    fail, empty where one is, or where none failed. `lost_ranks` are the first of those that are not heard of any more,
    `lost_since_wall_s` when the first of them was heard of last.
    """

    reason: str
    ended_wall_s: float | None = None
    ranks: Mapping[str, int] = {}
    unheard: int = 0
    first: FirstToFail | None = None
    unknown: str = ""
    lost_ranks: tuple[int, ...] = ()
    lost_since_wall_s: float | None = None

    @property
    def is_good(self) -> bool:
        """Whether every rank that joined ended well."""
        return self.reason in ENDED_WELL


def find_run_end(lives: Sequence[RankProcessEnd], world_size: int) -> RunEnd | None:
    """How the run ended whose ranks these are; None while one of them is live, or before any has joined."""
    if not lives or any(life.ending is None for life in lives):
        return None
    counts = Counter(_reason_of(life) for life in lives)
    first = find_first_to_fail(lives)
    lost = sorted((life for life in lives if _reason_of(life) == SILENT), key=lambda life: life.rank)
    reason = _choose_reason(counts, first)
    return RunEnd(
        reason=reason,
        ended_wall_s=max((at_s for life in lives if (at_s := _find_end_s(life)) is not None), default=None),
        ranks=dict(sorted(counts.items())),
        unheard=max(0, world_size - len(lives)),
        first=first,
        unknown="" if first is not None or reason in ENDED_WELL else _explain_unknown(reason),
        lost_ranks=tuple(life.rank for life in lost[:RANKS_NAMED_MAX]),
        lost_since_wall_s=min((life.heard_wall_s for life in lost if life.heard_wall_s is not None), default=None),
    )


def find_first_to_fail(lives: Sequence[RankProcessEnd]) -> FirstToFail | None:
    """The rank whose end brought the others down, as far as can be told: the first that ended badly by itself.

    Of ranks that died without a word the end is dated back (`date_failure`): their peers' exceptions may come before.
    """
    failed = [life for life in lives if _has_failed(life)]
    if not failed:
        return None
    first = min(failed, key=lambda life: (_date(life), life.rank))
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
    )


def _reason_of(life: RankProcessEnd) -> str:
    return "" if life.ending is None else life.ending.reason


def _has_failed(life: RankProcessEnd) -> bool:
    reason = _reason_of(life)
    return bool(reason) and reason not in ENDED_WELL | BROUGHT_DOWN and life.ended_wall_ns is not None


def _date(life: RankProcessEnd) -> int:
    # A rank that raised said so itself; what the sidecar saw then is another end than the one it said.
    is_only_seen = life.ending is not None and life.seen is not None and life.ending.detail == life.seen.detail
    return date_failure(_reason_of(life), life.ended_wall_ns or 0, is_only_seen=is_only_seen)


def _find_together(first: RankProcessEnd, failed: Sequence[RankProcessEnd]) -> tuple[int, ...]:
    """Only deaths without a word count: whoever raised an exception had the time to see another rank's end."""
    if _reason_of(first) not in DIED:
        return ()
    until_ns = _date(first) + TOGETHER_NS
    others = [life.rank for life in failed if life is not first and _reason_of(life) in DIED and _date(life) < until_ns]
    return tuple(sorted(others)[:RANKS_NAMED_MAX])


def _choose_reason(counts: Mapping[str, int], first: FirstToFail | None) -> str:
    if first is not None:
        return first.reason
    # A failure whose time nobody knows comes before what was brought about from outside: somebody failed by himself.
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
        "interrupted": "no rank failed by itself: the run was interrupted from outside (SIGINT, Ctrl-C)",
        "terminated": "no rank failed by itself: the ranks were ended from outside (SIGTERM or SIGHUP)",
    }
    return known.get(reason, "it is not known when each rank ended")


def _find_end_s(life: RankProcessEnd) -> float | None:
    if _reason_of(life) == SILENT:
        return life.heard_wall_s
    return None if life.ended_wall_ns is None else ns_to_s(life.ended_wall_ns)


def _find_line(seen: RankEnded | None) -> str:
    frame = find_script_frame(seen.stacks[0].frames) if seen is not None and seen.stacks else None
    return "" if frame is None else describe_frame(frame)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
