"""Check that the collectives matched by their place are of the same steps on both ranks.

The k-th collective of one record is the k-th of another only if both records begin at the same one. A backend's own
numbers (`Seq`) show that. Without them the ends of collectives alone show nothing where training is regular: records
that are fifty steps apart fit as well, with another offset of the clocks. One of these must show it, and none deny it:

- step numbers: both ranks launched it in the step of the same number, and each step has as many on both;
- one clock: on one host the ends agree best as matched, not one or more collectives apart;
- clocks of two hosts that are less apart than the collectives could be mismatched by;
- an irregular sequence: the record does not fit itself any number of collectives later.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from rankscope.measure.kineto import Ints
from rankscope.measure.units import NS_PER_MS, NS_PER_S

SHIFT_MAX = 512
"""Collectives by which a record is compared with itself and the other: more than the largest models have in a step."""
HOST_CLOCKS_APART_NS_MAX = 100 * NS_PER_MS
"""Hosts that keep time by NTP differ by some ms. Within this, their clocks show which collectives belong together."""
SAME_RUN_APART_NS_MAX = 10 * NS_PER_S
"""Equal step numbers further apart are of two runs: a run does not start again and reach the same step this fast."""
IRREGULAR_COUNT_MIN = 8
"""Fewer collectives fit by chance."""
WALL_CLOCK_NS_MIN = 1_400_000_000 * NS_PER_S
"""Times before 2014 count from the machine's start, not from 1970."""
LATE_STARTS_SHARE_MAX = 0.2
"""Share of collectives whose thread on a CPU may start them in the next step."""


class Evidence(Enum):
    """Answer of one group of collectives about two ranks."""

    SAME = "same steps"
    UNKNOWN = "not known"
    OTHER = "other steps"


class GroupRecord(NamedTuple):
    """The synchronizing collectives of one group on one rank, in order. `clock` is the same for ranks that share one.
    `kinds` has operation and size of each, `steps` the number of the step that launched it, None without steps.
    """

    rank: int
    clock: str | int
    on_host: bool
    ends_ns: Ints
    kinds: Sequence[tuple[str, int | None]]
    steps: Sequence[int | None]
    numbered: bool


def compare(first: GroupRecord, other: GroupRecord, limit_ns: int) -> tuple[Evidence, str]:
    """Return whether two records begin at the same collective, and the reason if not, or not known.

    `limit_ns` is how far apart the ends of one collective may be.
    """
    if first.numbered and other.numbered:
        return Evidence.SAME, ""
    pair = f"ranks {first.rank} and {other.rank}"
    by_steps, reason = _compare_steps(first, other)
    if by_steps is not Evidence.UNKNOWN:
        return by_steps, reason
    if first.clock == other.clock:
        return _compare_on_one_clock(first, other, pair)
    return _compare_on_two_clocks(first, other, pair, find_period(first, limit_ns))


def _compare_on_two_clocks(
    first: GroupRecord, other: GroupRecord, pair: str, period_ns: int | None
) -> tuple[Evidence, str]:
    apart_ns = abs(_offset_ns(first, other))
    if _has_wall_clock(first, other) and apart_ns <= HOST_CLOCKS_APART_NS_MAX:
        if period_ns is None or period_ns > apart_ns + HOST_CLOCKS_APART_NS_MAX:
            return Evidence.SAME, ""
        return Evidence.UNKNOWN, (
            f"the collectives of {pair} repeat every {period_ns / NS_PER_MS:.1f} ms, closer than the clocks of two "
            "hosts can be told apart, and no step numbers say which belong together"
        )
    if period_ns is None and len(first.ends_ns) >= IRREGULAR_COUNT_MIN:
        return Evidence.SAME, ""
    return Evidence.UNKNOWN, (
        f"nothing shows that the records of {pair} are of the same steps: they have too few step numbers in common and "
        "no Seq, the clocks of the hosts do not show it, and the collectives are too few or too regular. Call "
        "profiler.step() in each step, and record again"
    )


def _compare_steps(first: GroupRecord, other: GroupRecord) -> tuple[Evidence, str]:
    pairs = _pair_steps(first, other, 0)
    if not pairs:
        return Evidence.UNKNOWN, ""
    wrong = _count_other_steps(first, other, 0)
    allowed = LATE_STARTS_SHARE_MAX * len(pairs) if first.on_host and other.on_host else 0
    nearer = any(_count_other_steps(first, other, shift) < wrong for shift in range(-NEAR, NEAR + 1))
    if wrong > allowed or nearer:
        mine, theirs = next(pair for pair in pairs if pair[0] != pair[1])
        return Evidence.OTHER, (
            "the traces are of different steps, or collectives are missing in one: what would be one collective was "
            f"launched in step {mine} on rank {first.rank}, in step {theirs} on rank {other.rank}"
        )
    is_whole = len(first.steps) == len(other.steps) or len(set(pairs)) > 1
    return (Evidence.SAME if is_whole else Evidence.UNKNOWN), ""


NEAR = 8
"""Collectives by which step numbers are compared in other places too."""


def _pair_steps(first: GroupRecord, other: GroupRecord, shift: int) -> list[tuple[int, int]]:
    """Return the step numbers of collectives that would be one, `shift` places apart, where both are known."""
    mine, theirs = first.steps[max(-shift, 0) :], other.steps[max(shift, 0) :]
    return [(a, b) for a, b in zip(mine, theirs, strict=False) if a is not None and b is not None]


def _count_other_steps(first: GroupRecord, other: GroupRecord, shift: int) -> float:
    """Return how many of them are of different steps; infinite when none is left."""
    pairs = _pair_steps(first, other, shift)
    return sum(mine != theirs for mine, theirs in pairs) if pairs else float("inf")


def _compare_on_one_clock(first: GroupRecord, other: GroupRecord, pair: str) -> tuple[Evidence, str]:
    """Compare the ends' mean distance as matched with that of any other place. One clock needs no offset."""
    count = min(len(first.ends_ns), len(other.ends_ns))
    reach = min(count // 2, SHIFT_MAX)
    as_matched_ns = _mean_distance_ns(first.ends_ns, other.ends_ns, 0)
    best = min(
        (shift for shift in range(-reach, reach + 1) if shift),
        key=lambda shift: _mean_distance_ns(first.ends_ns, other.ends_ns, shift),
        default=0,
    )
    if best and _mean_distance_ns(first.ends_ns, other.ends_ns, best) <= as_matched_ns:
        return Evidence.OTHER, (
            f"the collectives of {pair} end closest together when those of one rank are shifted by {abs(best)}: the "
            "traces are of different steps, or collectives are missing in one"
        )
    return Evidence.SAME, ""


def _mean_distance_ns(mine: Ints, theirs: Ints, shift: int) -> float:
    mine, theirs = mine[max(-shift, 0) :], theirs[max(shift, 0) :]
    count = min(len(mine), len(theirs))
    return float(np.abs(mine[:count] - theirs[:count]).mean())


def find_period(record: GroupRecord, limit_ns: int) -> int | None:
    """Return the ns after which a record fits itself: by operations, sizes and the distances of its ends. Of a record
    too short to show a period the shortest distance, 0 for a single collective; None when it never fits itself.
    """
    ends_ns, count = record.ends_ns, len(record.ends_ns)
    for shift in range(1, min(count // 2, SHIFT_MAX) + 1):
        distances_ns = ends_ns[shift:] - ends_ns[:-shift]
        typical_ns = int(np.median(distances_ns))
        off = np.abs(distances_ns - typical_ns) > limit_ns
        if off.mean() <= LATE_STARTS_SHARE_MAX and list(record.kinds[shift:]) == list(record.kinds[:-shift]):
            return typical_ns
    if count >= IRREGULAR_COUNT_MIN:
        return None
    return int(np.diff(ends_ns).min()) if count > 1 else 0


def _offset_ns(first: GroupRecord, other: GroupRecord) -> int:
    count = min(len(first.ends_ns), len(other.ends_ns))
    return int(np.median(other.ends_ns[:count] - first.ends_ns[:count]))


def _has_wall_clock(first: GroupRecord, other: GroupRecord) -> bool:
    return min(int(first.ends_ns[0]), int(other.ends_ns[0])) >= WALL_CLOCK_NS_MIN


def find_unproved(ranks: Sequence[int], groups: Sequence[Sequence[GroupRecord]], limit_ns: int) -> str | None:
    """Return why the records of these ranks, which share collectives directly or along a chain, are not known to be of
    the same steps; None when they are. `groups` has the records of each group's ranks.
    """
    reasons: list[str] = []
    proved: dict[int, set[int]] = {rank: set() for rank in ranks}
    for records in groups:
        for other in records[1:]:
            evidence, reason = compare(records[0], other, limit_ns)
            if evidence is Evidence.OTHER:
                return reason
            if evidence is Evidence.SAME:
                proved[records[0].rank].add(other.rank)
                proved[other.rank].add(records[0].rank)
            else:
                reasons.append(reason)
    reached, waiting = {ranks[0]}, [ranks[0]]
    while waiting:
        found = proved[waiting.pop()] - reached
        reached |= found
        waiting += found
    return None if reached >= set(ranks) else reasons[0]
