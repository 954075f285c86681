"""Find the critical path of each step: the chain of work, of one rank or more, that makes the step as long as it is.

    rank 0 host    [op launch ][op]                  [ .item() ]  op
    device                  `->[ kernel ][ kernel ][ all_reduce ]^
    rank 1 host    [ data loader, slow ][launch]          |
    device                                  `->[ kernel ]'   rank 1 entered last

The path is walked backwards from the end of the step, at each place to what ended last of all that had to be there:

- work on a device had to wait for the work in front of it on its stream, for the call that launched it, and for work of
  another stream, where a wait for it is recorded; else where a wait was enqueued and the order of the work allows it;
- the host follows its operators back to the last call that returned when work on the device ended;
- a collective that was matched across ranks leads to the rank that entered it last, when that did, and a receive to the
  send of its message (on devices also a send to its receive), if that began later.

Each stretch of the path ends where the one before it in the walk began, so that they sum to the step exactly. That, and
that the device worked wherever its work is on the path, is checked; a path that fails is left out, with a note.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.cross_rank import LATENESS_NS_MIN, Matching
from rankscope.collector.traces.path_record import KINDS, Bounds, PathRecord
from rankscope.collector.traces.pipeline import Pair
from rankscope.collector.traces.report import CriticalPart, CriticalPath, CriticalStep
from rankscope.measure import intervals
from rankscope.measure.kineto import NONE
from rankscope.measure.records import SYNCHRONIZING_OPS
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.traced_messages import TracedMessage
from rankscope.measure.units import format_duration

HOST, LAUNCH, UNEXPLAINED = "host", "launch", "unexplained"
ALL_KINDS = (HOST, LAUNCH, *KINDS, UNEXPLAINED)
NO_OPERATOR = "no operator"
PARTS_MAX = 1_000
"""Rows of parts: about 200 kB of JSON."""
CONTRADICTIONS_MAX = 10
"""Notes on paths that are left out; the others are counted."""


class Stretch(NamedTuple):
    """A part of a path, by the clock of its first rank. `key` is the place of the rank among those given."""

    key: int
    kind: str
    name: str
    start_ns: int
    end_ns: int
    is_inferred: bool = False


class At(NamedTuple):
    """Work on a device of one rank."""

    key: int
    place: int


class Join(NamedTuple):
    """A collective of several ranks, or a message: what is `waiting` does not end before all `members` have begun."""

    members: Sequence[At]
    waiting: Sequence[At]
    is_message: bool = False


class _Rank:
    """The record of one rank by the common clock, as lists: single values of an array are slow to read."""

    def __init__(self, record: PathRecord, offset_ns: int) -> None:
        self.record = record
        self.names = record.names
        self.start_ns = (record.start_ns - offset_ns).tolist()
        self.end_ns = (record.end_ns - offset_ns).tolist()
        self.kind = record.kind.tolist()
        self.name = record.name.tolist()
        self.call_ns: list[int | None] = [ns - offset_ns if ns != NONE else None for ns in record.call_ns.tolist()]
        self.before, self.other = record.before.tolist(), record.other.tolist()
        self.is_inferred = record.is_inferred.tolist()
        self.return_ns = (record.waits.return_ns - offset_ns).tolist()
        self.released_by = record.waits.place.tolist()
        self.host_start_ns = (record.host.start_ns - offset_ns).tolist()
        self.host_end_ns = (record.host.end_ns - offset_ns).tolist()
        self.host_name = record.host.name.tolist()
        self.busy = intervals.union(np.stack([record.start_ns, record.end_ns], axis=1)) - offset_ns
        self.steps = {
            step.number: Bounds(step.number, step.start_ns - offset_ns, step.end_ns - offset_ns)
            for step in record.steps
        }

    def find_first(self, at_ns: int) -> tuple[int, bool]:
        """Return the work with which a walk from this time begins, NONE for the host, and whether it starts then."""
        place = bisect_left(self.start_ns, at_ns)
        if place < len(self.start_ns) and self.start_ns[place] == at_ns:
            return place, True
        ending = [one for one in range(place) if self.end_ns[one] == at_ns]
        return (ending[-1], False) if ending else (NONE, False)

    def find_cause(self, place: int, at_ns: int) -> tuple[int, int | None, bool]:
        """Return what work that starts at this time waited for: its place (NONE: the host), when that was there (None:
        not known), and whether it is inferred.
        """
        found: tuple[int, int | None, bool] = (NONE, None, False)
        call_ns = self.call_ns[place]
        if call_ns is not None:
            found = (NONE, min(call_ns, at_ns), False)
        for cause, is_inferred in ((self.other[place], self.is_inferred[place]), (self.before[place], False)):
            if cause != NONE:
                end_ns = min(self.end_ns[cause], at_ns)
                if found[1] is None or end_ns >= found[1]:
                    found = (cause, end_ns, is_inferred)
        return found

    def find_wait(self, at_ns: int) -> int:
        """Return the work that released the last call to have returned by then, NONE when there was none."""
        last = bisect_right(self.return_ns, at_ns) - 1
        return self.released_by[last] if last >= 0 else NONE

    def split_host(self, start_ns: int, end_ns: int) -> Iterator[tuple[str, int, int]]:
        """Yield what the host was in, from the end to the start, without gaps: name, start and end of each stretch."""
        place = bisect_left(self.host_start_ns, end_ns) - 1
        at_ns = end_ns
        while place >= 0 and self.host_end_ns[place] > start_ns:
            until_ns, since_ns = min(self.host_end_ns[place], at_ns), max(self.host_start_ns[place], start_ns)
            if until_ns < at_ns:
                yield NO_OPERATOR, until_ns, at_ns
            if since_ns < until_ns:
                yield self.names[self.host_name[place]], since_ns, until_ns
            at_ns = since_ns
            place -= 1
        if start_ns < at_ns:
            yield NO_OPERATOR, start_ns, at_ns


class Walk:
    """Walks of paths over the records of ranks, with their clocks' offsets; `late` leads from collectives to the same
    one on the rank that entered it last, and from messages to their other end.
    """

    def __init__(self, records: Sequence[PathRecord], offsets_ns: Sequence[int], late: Mapping[At, At]) -> None:
        """Convert the records."""
        self._ranks = [_Rank(*one) for one in zip(records, offsets_ns, strict=True)]
        self._late = late

    def steps_of(self, key: int) -> Mapping[int | None, Bounds]:
        """Return the steps of one rank by the common clock."""
        return self._ranks[key].steps

    def measure_busy(self, path: Sequence[Stretch], key: int, kinds: Sequence[str]) -> tuple[int, int]:
        """Return the length of the stretches of these kinds on one rank, and how long its devices worked during them,
        in ns.
        """
        mine = [(one.start_ns, one.end_ns) for one in path if one.key == key and one.kind in kinds]
        inside = np.array(mine, dtype=np.int64).reshape(-1, 2)
        busy = intervals.intersect(intervals.union(inside), self._ranks[key].busy)
        return sum(end_ns - start_ns for start_ns, end_ns in mine), intervals.total_ns(busy)

    def follow(self, key: int, bounds: Bounds) -> list[Stretch]:
        """Return the path that ends on this rank at the end of its step, from the end to the start of the step."""
        found: list[Stretch] = []
        place, is_start = self._ranks[key].find_first(bounds.end_ns)
        at_ns, seen = bounds.end_ns, set[At]()
        while at_ns > bounds.start_ns:
            rank = self._ranks[key]
            if place == NONE:
                place, at_ns = self._walk_host(found, key, at_ns, bounds.start_ns)
                is_start = False
                continue
            if At(key, place) in seen:
                break
            seen.add(At(key, place))
            if not is_start:
                late = self._late.get(At(key, place))
                entered_ns = self._ranks[late.key].start_ns[late.place] if late is not None else at_ns
                if late is not None and rank.start_ns[place] < min(entered_ns, at_ns):
                    at_ns = self._add_work(found, key, place, min(entered_ns, at_ns), at_ns)
                    key, place, is_start = late.key, late.place, True
                    continue
                at_ns = self._add_work(found, key, place, min(rank.start_ns[place], at_ns), at_ns)
            waiting, (place, cause_ns, is_inferred) = place, rank.find_cause(place, at_ns)
            if cause_ns is None:
                break
            kind = LAUNCH if place == NONE else UNEXPLAINED
            found.append(Stretch(key, kind, rank.names[rank.name[waiting]], cause_ns, at_ns, is_inferred))
            at_ns, is_start = cause_ns, False
        if at_ns > bounds.start_ns:
            found.append(Stretch(key, UNEXPLAINED, "before all that is known", bounds.start_ns, at_ns))
        return [clipped for one in found if (clipped := _clip(one, bounds.start_ns)) is not None]

    def _add_work(self, found: list[Stretch], key: int, place: int, start_ns: int, end_ns: int) -> int:
        rank = self._ranks[key]
        found.append(Stretch(key, KINDS[rank.kind[place]], rank.names[rank.name[place]], start_ns, end_ns))
        return start_ns

    def _walk_host(self, found: list[Stretch], key: int, at_ns: int, start_ns: int) -> tuple[int, int]:
        """Add the host's time back to the last call that waited for work; return that work, and when it ended."""
        rank = self._ranks[key]
        place = rank.find_wait(at_ns)
        since_ns = max(min(rank.end_ns[place], at_ns), start_ns) if place != NONE else start_ns
        found += [Stretch(key, HOST, *one) for one in rank.split_host(since_ns, at_ns)]
        return place, since_ns


def _clip(one: Stretch, start_ns: int) -> Stretch | None:
    """Return the part of a stretch after this time, None without any; a move of no length is kept if it is inferred."""
    if one.end_ns <= start_ns or (one.start_ns == one.end_ns and not one.is_inferred):
        return None
    return one if one.start_ns >= start_ns else one._replace(start_ns=start_ns)


# -- all ranks --------------------------------------------------------------------------------------------------------


class PathInput(NamedTuple):
    """What the path needs of one rank: its record, None where nothing is known, its collectives, and the messages by
    their place among them.
    """

    rank: int | None
    record: PathRecord | None
    collectives: Sequence[Collective]
    messages: Mapping[int, TracedMessage]
    on_device: bool


class Prepared(NamedTuple):
    """The ranks whose records are known, with what ties them: the offsets of their clocks, what they join in, and the
    groups, by their places, whose steps have one path together.
    """

    known: Sequence[PathInput]
    records: Sequence[PathRecord]
    offsets_ns: Sequence[int]
    joins: Sequence[Join]
    groups: Sequence[Sequence[int]]


def prepare(ranks: Sequence[PathInput], matching: Matching | None, pairs: Sequence[Pair]) -> Prepared:
    """Return what paths are walked over; ranks are tied where a matching is given and believed."""
    known = [one for one in ranks if one.record is not None]
    believed = matching if matching is not None and matching.refused is None and matching.offsets_ns else None
    offsets = believed.offsets_ns if believed is not None else {}
    return Prepared(
        known,
        [one.record for one in known if one.record is not None],
        [offsets.get(one.rank, 0) if one.rank is not None else 0 for one in known],
        find_joins(known, believed, pairs) if believed is not None else [],
        _group(known, [set(one) for one in believed.related] if believed is not None else []),
    )


def find_critical_path(
    ranks: Sequence[PathInput], matching: Matching | None, pairs: Sequence[Pair] = ()
) -> CriticalPath:
    """Return the paths of all steps, across ranks where a matching is given and believed, else within each rank.
    `pairs` are the sends with their receives.
    """
    found = sum_paths(prepare(ranks, matching, pairs))
    left_out = sum(one.record is None for one in ranks)
    return msgspec.structs.replace(found, notes=[*_find_notes(left_out, len(ranks), matching), *found.notes])


def sum_paths(ranks: Prepared) -> CriticalPath:
    """Return the paths of all steps of these ranks, with notes on what contradicts them."""
    walk, paths, contradictions = _walk(ranks)
    parts, left_out_ns = _sum_parts(ranks.known, [path for _, _, path in paths])
    steps = [_sum_step(ranks.known, walk, *path) for path in paths]
    inferred = sum(step.inferred_count for step in steps)
    return CriticalPath(
        steps=steps,
        parts=parts,
        left_out_ns=left_out_ns,
        notes=[*contradictions, *_describe_inferred(inferred), *_describe_busy(steps)],
    )


class PathPiece(NamedTuple):
    """A stretch of a path on one rank, by the clock of that rank's host; `step` is the number of the step."""

    rank: int | None
    step: int | None
    kind: str
    name: str
    start_ns: int
    end_ns: int


def list_pieces(
    ranks: Sequence[PathInput], matching: Matching | None, pairs: Sequence[Pair] = ()
) -> list[list[PathPiece]]:
    """Return the paths of all steps as pieces, each from its begin to its end; arguments as of `find_critical_path`."""
    prepared = prepare(ranks, matching, pairs)
    _, paths, _ = _walk(prepared)

    def place(one: Stretch, number: int | None) -> PathPiece:
        rank, offset_ns = prepared.known[one.key].rank, prepared.offsets_ns[one.key]
        return PathPiece(rank, number, one.kind, one.name, one.start_ns + offset_ns, one.end_ns + offset_ns)

    return [
        [place(one, bounds.number) for one in reversed(path) if one.end_ns > one.start_ns] for _, bounds, path in paths
    ]


_Paths = list[tuple[int | None, Bounds, list[Stretch]]]


def _walk(ranks: Prepared) -> tuple[Walk, _Paths, list[str]]:
    """Return the walk over ranks, the path of each step, and notes on paths that are left out: those whose sum
    contradicts the work of the devices.
    """
    walk = Walk(ranks.records, ranks.offsets_ns, _find_late(ranks))
    paths: _Paths = []
    notes = []
    for keys in ranks.groups:
        for key, bounds in _find_last(walk, keys):
            path = walk.follow(key, bounds)
            contradiction = find_contradiction(walk, bounds, path)
            if contradiction is None:
                paths.append((ranks.known[key].rank, bounds, path))
            else:
                where = "trace" if bounds.number is None else f"step {bounds.number}"
                notes.append(f"The path of {where} is left out: {contradiction}.")
    paths.sort(key=lambda path: (path[1].number is None, path[1].number or 0, path[0] or 0))
    return walk, paths, _cut(notes)


def find_contradiction(walk: Walk, bounds: Bounds, path: Sequence[Stretch]) -> str | None:
    """Return why a path cannot be right, None where it can be: its parts must sum to the step, and while it is on work
    of a device, that device must have worked.
    """
    length_ns, whole_ns = bounds.end_ns - bounds.start_ns, sum(one.end_ns - one.start_ns for one in path)
    if whole_ns != length_ns:
        return f"its parts sum to {format_duration(whole_ns)}, the step lasts {format_duration(length_ns)}"
    for key in sorted({one.key for one in path}):
        work_ns, busy_ns = walk.measure_busy(path, key, KINDS)
        if work_ns != busy_ns:
            return (
                f"it has {format_duration(work_ns)} of device work, and the device worked for "
                f"{format_duration(busy_ns)} of that"
            )
    return None


def _cut(notes: Sequence[str]) -> list[str]:
    more = len(notes) - CONTRADICTIONS_MAX
    return [*notes[:CONTRADICTIONS_MAX], f"So are {more:,} more paths."] if more > 0 else list(notes)


def find_joins(known: Sequence[PathInput], matching: Matching, pairs: Sequence[Pair]) -> list[Join]:
    """Return the synchronizing collectives that were matched, of whose ranks that which entered last is known, and the
    messages between ranks with a common clock.
    """
    calls, messages = dict[int, At](), dict[int, At]()
    for key, one in enumerate(known):
        for place, collective in enumerate(one.record.collective.tolist() if one.record is not None else ()):
            if collective != NONE:
                calls[id(one.collectives[collective])] = At(key, place)
                if collective in one.messages:
                    messages[id(one.messages[collective])] = At(key, place)
    found = []
    for matched in matching.matched:
        last = min(matched.by_rank.values(), key=lambda call: call.duration_ns)
        if matched.op in SYNCHRONIZING_OPS and id(last) in calls:
            members = [calls[id(call)] for call in matched.by_rank.values() if id(call) in calls]
            found.append(Join(members, members))
    for pair in pairs:
        send, recv = messages.get(id(pair.send)), messages.get(id(pair.recv))
        if send is not None and recv is not None and {pair.source, pair.destination} <= matching.offsets_ns.keys():
            found.append(Join([send, recv], [send, recv] if known[send.key].on_device else [recv], is_message=True))
    return found


def _find_late(ranks: Prepared) -> dict[At, At]:
    """Return for each piece of work that waited in a join the one that came last: of a collective by its durations,
    since all leave together, of a message by the starts.
    """
    found = {}
    for one in ranks.joins:
        waited_ns = {}
        for at in one.members:
            start_ns, end_ns = (int(column[at.place]) for column in ranks.records[at.key][1:3])
            waited_ns[at] = ranks.offsets_ns[at.key] - start_ns if one.is_message else end_ns - start_ns
        last = min(one.members, key=waited_ns.__getitem__)
        found.update({at: last for at in one.waiting if waited_ns[at] - waited_ns[last] >= LATENESS_NS_MIN})
    return found


def _group(known: Sequence[PathInput], related: Sequence[set[int]]) -> list[list[int]]:
    """Return the ranks whose steps have one path together."""
    groups = [[key for key, one in enumerate(known) if one.rank in ranks] for ranks in related]
    grouped = {key for keys in groups for key in keys}
    return [keys for keys in groups if keys] + [[key] for key in range(len(known)) if key not in grouped]


def _find_last(walk: Walk, keys: Sequence[int]) -> list[tuple[int, Bounds]]:
    """Return for each step the rank that ends it last, with its bounds of the step."""
    last: dict[int | None, tuple[int, Bounds]] = {}
    for key in keys:
        for number, bounds in walk.steps_of(key).items():
            if number not in last or bounds.end_ns > last[number][1].end_ns:
                last[number] = (key, bounds)
    return list(last.values())


def _sum_step(
    known: Sequence[PathInput], walk: Walk, rank: int | None, bounds: Bounds, path: Sequence[Stretch]
) -> CriticalStep:
    by_kind: dict[str, int] = dict.fromkeys(ALL_KINDS, 0)
    by_rank: dict[int, int] = defaultdict(int)
    for one in path:
        by_kind[one.kind] += one.end_ns - one.start_ns
        by_rank[one.key] += one.end_ns - one.start_ns
    return CriticalStep(
        step=bounds.number,
        rank=rank,
        window_ns=bounds.end_ns - bounds.start_ns,
        **{f"{kind}_ns": total_ns for kind, total_ns in by_kind.items()},
        rank_ns={str(known[key].rank): by_rank[key] for key in sorted(by_rank) if known[key].rank is not None},
        rank_change_count=sum(one.key != other.key for one, other in pairwise(path)),
        inferred_count=sum(one.is_inferred for one in path),
        host_while_busy_ns=sum(walk.measure_busy(path, key, (HOST,))[1] for key in by_rank if known[key].on_device),
    )


def _sum_parts(known: Sequence[PathInput], paths: Sequence[Sequence[Stretch]]) -> tuple[list[CriticalPart], int]:
    """Return the parts of all paths together, at most PARTS_MAX, and the time of the others."""
    sums: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    for one in (one for path in paths for one in path if one.end_ns > one.start_ns):
        sums[one.kind, one.name, one.key].append(one.end_ns - one.start_ns)
    whole_ns = sum(map(sum, sums.values()))
    rows = [
        CriticalPart(
            kind=kind, name=name, rank=known[key].rank, count=len(lengths_ns), total_ns=sum(lengths_ns),
            ratio=sum(lengths_ns) / whole_ns,
        )
        for (kind, name, key), lengths_ns in sums.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (-row.total_ns, row.kind, row.name, row.rank or 0))
    return rows[:PARTS_MAX], sum(row.total_ns for row in rows[PARTS_MAX:])


def _find_notes(left_out: int, rank_count: int, matching: Matching | None) -> list[str]:
    notes = []
    if left_out:
        traces = "1 trace has" if left_out == 1 else f"{left_out} traces have"
        notes.append(f"{traces} no work that is recognized and {'is' if left_out == 1 else 'are'} left out.")
    if rank_count > 1 and matching is not None and matching.refused is not None:
        notes.append(f"Paths stay within each rank: {matching.refused}.")
    elif rank_count > 1 and matching is not None and matching.missing_ranks:
        notes.append(
            "Traces of some ranks are missing: where such a rank entered a collective last, the waiting of the others "
            "counts as communication."
        )
    return notes


HOST_BUSY_SHARE_MIN = 0.3
"""Share of the steps from which the note is written: less is the host's work behind a queue that ran short."""


def _describe_busy(steps: Sequence[CriticalStep]) -> list[str]:
    """Return a note where the host is on the path for long although its device was at work: the sum of the device's
    work contradicts the path.
    """
    whole_ns, busy_ns = sum(one.window_ns for one in steps), sum(one.host_while_busy_ns for one in steps)
    if not whole_ns or busy_ns < HOST_BUSY_SHARE_MIN * whole_ns:
        return []
    share = f"{100 * busy_ns / whole_ns:.0f} %"
    note = (
        f"For {share} of the steps the host is on the path while its device worked: it may have waited for the device "
        "in a way that the trace does not show."
    )
    return [note]


def _describe_inferred(count: int) -> list[str]:
    if not count:
        return []
    moves = "1 move between streams is" if count == 1 else f"{count:,} moves between streams are"
    return [f"{moves} inferred from the order of work; record with enable_cuda_sync_events=True to know them."]
