"""Simulate the steps of traces with some operators and kernels shorter: what that saves, and what the path is then.

The records are played again in the order of their times. What waited for something waits for the same:

- work on a device begins when the work in front of it on its stream, the call that launched it and the work of another
  stream that it waited for are there, as much later than the last of them as it did;
- the host is as late as it was, less what is shorter; a call that waited for work returns as long after its end as it
  did, or after the host has come to it where that is later;
- what joins several ranks ends as long after the last has begun as it did.

Subtracting what is shorter from the critical path would be simpler, and says too much: another path is critical then.
Example: a kernel of 10 ms is on the path, beside a copy of 8 ms that the next work waits for, too. At half its time the
kernel saves 5 ms on the path, but the step only 2.

So time that the trace does not explain stays, and what did not have to wait in the trace does not wait here, but for
what is in front of it on its stream, its launch, and the wait of another stream that the record has.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from rankscope.collector.traces.critical_path import At, Join, PathInput, Prepared, prepare, sum_paths
from rankscope.collector.traces.cross_rank import Matching
from rankscope.collector.traces.path_record import Bounds, HostSegments, PathRecord, Waits
from rankscope.collector.traces.pipeline import Pair
from rankscope.collector.traces.report import CriticalPath, ShortenedPath, ShortenedStep
from rankscope.measure import intervals
from rankscope.measure.kineto import NONE, Floats, Ints

Shares = Mapping[str, float]
"""By a pattern on names the share of the time that is left, 0 to 1; the first pattern that is found counts."""
_NEVER = 2**62
_END, _RETURN, _SINCE, _CALL, _START = range(5)
"""What happens in the record, in the order in which it counts where times are equal."""


def add_shortened(
    path: CriticalPath, shares: Shares, ranks: Sequence[PathInput], matching: Matching | None, pairs: Sequence[Pair]
) -> CriticalPath:
    """Return the path with what it would be if what these patterns are found in took these shares of its time."""
    prepared = prepare(ranks, matching, pairs)
    replays = play(prepared, shares)
    found = sum_paths(_build(prepared, replays))
    steps = _compare_steps(path, prepared, replays)
    count = sum(one.matched_count for one in replays)
    nothing = (
        [] if count else [f"nothing has a name in which {' or '.join(shares)} is found, so nothing was shortened."]
    )
    shortened = ShortenedPath(
        shares=dict(shares),
        matched_count=count,
        before_ns=sum(step.before_ns for step in steps),
        after_ns=sum(step.after_ns for step in steps),
        steps=steps,
        parts=found.parts,
        left_out_ns=found.left_out_ns,
        notes=[*nothing, *(note for note in found.notes if note not in path.notes)],
    )
    return msgspec.structs.replace(path, shortened=shortened)


def _compare_steps(path: CriticalPath, ranks: Prepared, replays: Sequence["Replay"]) -> list[ShortenedStep]:
    """Return the steps that have a path, before and after: from the begin on the rank that ended the step last."""
    group_of = {ranks.known[key].rank: keys for keys in ranks.groups for key in keys}
    found = []
    for step in path.steps:
        keys = [key for key in group_of[step.rank] if step.step in replays[key].bounds]
        last = next(key for key in keys if ranks.known[key].rank == step.rank)
        after_ns = max(replays[key].bounds[step.step].end_ns for key in keys) - replays[last].bounds[step.step].start_ns
        found.append(ShortenedStep(step=step.step, rank=step.rank, before_ns=step.window_ns, after_ns=after_ns))
    return found


# -- one rank ---------------------------------------------------------------------------------------------------------


class Replay:
    """The record of one rank by the common clock, and when everything in it is as simulated (`new_...`). The host is
    `ahead_ns` of the record since its last return from a call that waited; what its own time is shorter comes to that.
    """

    def __init__(self, record: PathRecord, offset_ns: int, shares: Shares) -> None:
        self.record, self.offset_ns = record, offset_ns
        self.start_ns: list[int] = (record.start_ns - offset_ns).tolist()
        self.end_ns: list[int] = (record.end_ns - offset_ns).tolist()
        call_ns = np.minimum(np.where(record.call_ns == NONE, record.start_ns, record.call_ns), record.start_ns)
        self.has_call: list[bool] = (record.call_ns != NONE).tolist()
        self.call_ns: list[int] = (call_ns - offset_ns).tolist()
        self.before, self.other = record.before.tolist(), record.other.tolist()
        self.released_by: list[int] = record.waits.place.tolist()
        self.return_ns: list[int] = (record.waits.return_ns - offset_ns).tolist()
        self.since_ns: list[int] = (record.waits.since_ns - offset_ns).tolist()
        found = _find_shares(record.names, shares)
        is_matched, share_of_name = ~np.isnan(found), np.nan_to_num(found, nan=1.0)
        self.share: list[float] = share_of_name[record.name].tolist()
        self.matched_count = int(is_matched[record.name].sum() + is_matched[record.host.name].sum())
        self._shorter = _sum_host(record, share_of_name)
        self._call_saved_ns, self._since_saved_ns, self._return_saved_ns = (
            self._sum_saved(np.array(times_ns, dtype=np.int64)).tolist()
            for times_ns in (self.call_ns, self.since_ns, self.return_ns)
        )
        self.new_start_ns, self.new_end_ns, self.new_call_ns = (list(self.start_ns) for _ in range(3))
        self.new_since_ns, self.new_return_ns = list(self.since_ns), list(self.return_ns)
        self._turns: list[tuple[int, int, float]] = [(-_NEVER, 0, 0.0)]
        self.bounds: dict[int | None, Bounds] = {}

    def list_moments(self, key: int) -> Ints:
        """Return all that happens on this rank: time, kind, the rank's `key`, and the place of the work or the wait."""
        work, waits = np.arange(len(self.start_ns)), np.arange(len(self.return_ns))
        moments = (
            (self.end_ns, _END, work), (self.return_ns, _RETURN, waits), (self.since_ns, _SINCE, waits),
            (self.call_ns, _CALL, work), (self.start_ns, _START, work),
        )  # fmt: skip
        columns = [
            np.stack(
                [np.array(times_ns, dtype=np.int64), np.full(len(places), kind), np.full(len(places), key), places]
            )
            for times_ns, kind, places in moments
        ]
        return np.concatenate(columns, axis=1)

    def _sum_saved(self, times_ns: Ints) -> Floats:
        """Return how much shorter the host's own time until these times is."""
        edges_ns, saved_ns = self._shorter
        if not len(edges_ns):
            return np.zeros(len(times_ns))
        first_ns = int(edges_ns[0])  # floats hold times since then, not since 1970, to the ns
        found: Floats = np.interp(times_ns + (self.offset_ns - first_ns), edges_ns - first_ns, saved_ns)
        return found

    def reach_call(self, place: int) -> None:
        """Find when the host launches work."""
        self.new_call_ns[place] = self._map_now(self.call_ns[place], self._call_saved_ns[place])

    def reach_wait(self, wait: int) -> None:
        """Find when the host begins to wait."""
        self.new_since_ns[wait] = self._map_now(self.since_ns[wait], self._since_saved_ns[wait])

    def _map_now(self, at_ns: int, saved_ns: float) -> int:
        _, ahead_ns, saved_before_ns = self._turns[-1]
        return at_ns - ahead_ns - round(saved_ns - saved_before_ns)

    def map_host(self, times_ns: Ints) -> Ints:
        """Return when the host is where it was at these times, after all has been played."""
        returns_ns, ahead_ns, saved_ns = (np.array(column) for column in zip(*self._turns, strict=True))
        last = np.searchsorted(returns_ns, times_ns, side="right") - 1
        shorter_ns = np.round(self._sum_saved(times_ns) - saved_ns[last]).astype(np.int64)
        following_ns = np.minimum.accumulate(np.array([*self.new_return_ns, _NEVER], dtype=np.int64)[::-1])[::-1]
        limit_ns = following_ns[np.searchsorted(np.array(self.return_ns, dtype=np.int64), times_ns, side="left")]
        found: Ints = np.minimum(times_ns - ahead_ns[last] - shorter_ns, limit_ns)
        return found

    def begin_work(self, place: int) -> None:
        """Find when work begins: as long after the last of what it waited for as it did."""
        start_ns = self.start_ns[place]
        causes = [
            (self.end_ns[one], self.new_end_ns[one])
            for one in (self.before[place], self.other[place])
            if one != NONE and self.end_ns[one] <= start_ns
        ] or [
            (self.start_ns[one], self.new_start_ns[one])  # it began beside the work in front of it
            for one in (self.before[place],)
            if one != NONE
        ]
        if self.has_call[place]:
            causes.append((self.call_ns[place], self.new_call_ns[place]))
        if causes:
            start_ns += max(new_ns for _, new_ns in causes) - max(was_ns for was_ns, _ in causes)
        self.new_start_ns[place] = start_ns
        self.new_end_ns[place] = start_ns + round(self.share[place] * (self.end_ns[place] - self.start_ns[place]))

    def return_from(self, wait: int) -> None:
        """Find when the host returns from a call that waited for work."""
        released_ns = self.end_ns[self.released_by[wait]]
        done_ns = max(self.new_since_ns[wait], self.new_end_ns[self.released_by[wait]])
        returned_ns = self.return_ns[wait]
        self.new_return_ns[wait] = done_ns + returned_ns - released_ns
        self._turns.append((returned_ns, returned_ns - self.new_return_ns[wait], self._return_saved_ns[wait]))

    def finish(self) -> None:
        """Find the new bounds of the steps, after all has been played."""
        begins, ends = dict(zip(reversed(self.start_ns), reversed(self.new_start_ns), strict=True)), set(self.end_ns)
        by_end = np.argsort(self.end_ns, kind="stable")
        ended_ns = np.array(self.end_ns, dtype=np.int64)[by_end].tolist()
        latest_ns = np.maximum.accumulate(np.array(self.new_end_ns, dtype=np.int64)[by_end]).tolist()
        edges = np.array([(step.start_ns, step.end_ns) for step in self.record.steps], dtype=np.int64).ravel()
        edges -= self.offset_ns
        new_ns = [
            begins[at_ns]
            if at_ns in begins
            else latest_ns[bisect_right(ended_ns, at_ns) - 1]
            if at_ns in ends
            else host_ns
            for at_ns, host_ns in zip(edges.tolist(), self.map_host(edges).tolist(), strict=True)
        ]
        for step, start_ns, end_ns in zip(self.record.steps, new_ns[::2], new_ns[1::2], strict=True):
            self.bounds[step.number] = Bounds(step.number, start_ns, max(start_ns, end_ns))

    def build(self, order: Ints) -> PathRecord:
        """Return the record as simulated, by the clock of the rank's host; `order` has the work by its new start."""
        old = self.record
        place_of = np.append(np.argsort(order), NONE)  # NONE stays what it is, as the last of them
        call_ns, start_ns, end_ns = (
            np.array(column, dtype=np.int64)[order] + self.offset_ns
            for column in (self.new_call_ns, self.new_start_ns, self.new_end_ns)
        )
        waited = [
            (self.new_return_ns[wait] + self.offset_ns, int(place_of[place]), self.new_since_ns[wait] + self.offset_ns)
            for wait, place in enumerate(self.released_by)
            if self.new_since_ns[wait] <= self.new_end_ns[place]
        ]
        waits = np.array(sorted(waited), dtype=np.int64).reshape(-1, 3)
        return old._replace(
            start_ns=start_ns,
            end_ns=end_ns,
            kind=old.kind[order],
            name=old.name[order],
            call_ns=np.where(old.call_ns[order] == NONE, NONE, call_ns),
            before=place_of[old.before[order]],
            other=place_of[old.other[order]],
            is_inferred=old.is_inferred[order],
            collective=old.collective[order],
            waits=Waits(*waits.T),
            host=self._map_segments(),
            steps=[
                Bounds(one.number, one.start_ns + self.offset_ns, one.end_ns + self.offset_ns)
                for one in self.bounds.values()
            ],
        )

    def _map_segments(self) -> HostSegments:
        """Return what the host was in, by the new times: still disjoint and ascending."""
        host = self.record.host
        edges = np.stack([host.start_ns, host.end_ns], axis=1).ravel() - self.offset_ns
        mapped = np.maximum.accumulate(self.map_host(edges)).reshape(-1, 2)
        return HostSegments(mapped[:, 0] + self.offset_ns, mapped[:, 1] + self.offset_ns, host.name)


def _find_shares(names: Sequence[str], shares: Shares) -> Floats:
    """Return for each name the share of its time that is left, NaN for those in which no pattern is found."""
    patterns = [(re.compile(pattern), share) for pattern, share in shares.items()]
    found = (next((share for pattern, share in patterns if pattern.search(name)), np.nan) for name in names)
    return np.array(list(found), dtype=np.float64)


def _sum_host(record: PathRecord, share_of_name: Floats) -> tuple[Ints, Floats]:
    """Return times of the host, and how much its own time until each is shorter; between two of them it is in
    proportion. Time in a call that waits is the device's.
    """
    host, waits = record.host, record.waits
    waiting = intervals.union(np.stack([waits.since_ns, waits.return_ns], axis=1))
    spans, share = np.stack([host.start_ns, host.end_ns], axis=1), share_of_name[host.name]
    pieces: list[tuple[int, int, float]] = []
    for one in np.unique(share[share < 1]).tolist():
        own = intervals.subtract(intervals.union(spans[share == one]), waiting)
        pieces += [(start_ns, end_ns, (1 - one) * (end_ns - start_ns)) for start_ns, end_ns in own.tolist()]
    pieces.sort()
    edges = np.array([piece[:2] for piece in pieces], dtype=np.int64).ravel()
    saved_ns = np.array([(0.0, piece[2]) for piece in pieces], dtype=np.float64).ravel()
    return edges, np.cumsum(saved_ns)


# -- all ranks --------------------------------------------------------------------------------------------------------


def play(ranks: Prepared, shares: Shares) -> list[Replay]:
    """Play the records of all ranks again, in the order of their times."""
    replays = [
        Replay(record, offset_ns, shares) for record, offset_ns in zip(ranks.records, ranks.offsets_ns, strict=True)
    ]
    joined = {at: one.members for one in ranks.joins for at in one.waiting}
    nothing = np.empty((4, 0), dtype=np.int64)
    moments = np.concatenate([nothing, *(one.list_moments(key) for key, one in enumerate(replays))], axis=1)
    for _, kind, key, place in moments[:, np.lexsort(moments[1::-1])].T.tolist():
        one = replays[key]
        if kind == _START:
            one.begin_work(place)
        elif kind == _CALL:
            one.reach_call(place)
        elif kind == _SINCE:
            one.reach_wait(place)
        elif kind == _RETURN:
            one.return_from(place)
        elif (members := joined.get(At(key, place))) is not None:
            _end_join(replays, At(key, place), members)
    for one in replays:
        one.finish()
    return replays


def _end_join(replays: Sequence[Replay], at: At, members: Sequence[At]) -> None:
    """Find when a collective or message ends on a rank: as long after the last has begun as it did, times its share."""
    one = replays[at.key]
    end_ns = one.end_ns[at.place]
    begun = [
        (replays[other.key].start_ns[other.place], replays[other.key].new_start_ns[other.place])
        for other in members
        if replays[other.key].start_ns[other.place] < end_ns or other == at
    ]
    transfer_ns = round(one.share[at.place] * (end_ns - max(was_ns for was_ns, _ in begun)))
    one.new_end_ns[at.place] = max(new_ns for _, new_ns in begun) + transfer_ns


def _build(ranks: Prepared, replays: Sequence[Replay]) -> Prepared:
    """Return the ranks as simulated. Work is by start, so that its places change."""
    orders = [np.argsort(one.new_start_ns, kind="stable").astype(np.int64) for one in replays]
    place_of = [np.argsort(order) for order in orders]

    def move(places: Sequence[At]) -> list[At]:
        return [At(at.key, int(place_of[at.key][at.place])) for at in places]

    joins = [Join(move(one.members), move(one.waiting), one.is_message) for one in ranks.joins]
    records = [one.build(order) for one, order in zip(replays, orders, strict=True)]
    known = [one._replace(record=record) for one, record in zip(ranks.known, records, strict=True)]
    return ranks._replace(known=known, records=records, joins=joins)
