"""Match the calls of a step in two traces one by one, in their order: which took longer, which are new, which are gone.

Below calls that are matched the calls right inside are aligned by name: as many as possible of them in the same order
(the longest common subsequence, by the greedy algorithm of Myers). Its cost grows with the square of the number of
differences, so that lists of calls that differ in more than DIFFERENCES_MAX places are not aligned, and are counted.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rankscope.collector.traces.call_trees import CallTrees, StepCalls
from rankscope.collector.traces.report import CallMatching, CallRow
from rankscope.collector.traces.timeline_path import name_rank
from rankscope.measure.nesting import OUTSIDE

DIFFERENCES_MAX = 1_000
"""Calls that are new or gone right inside one call: half a second of a core."""
WORK_MAX = 20_000_000
"""Of all alignments of a step: the squares of their numbers of differences, some 10 s of a core."""
ROWS_MAX = 1_000
"""Rows of each kind: matched, added, removed."""
PATH_MAX = 8
"""Names of a path that are shown, from the innermost one on."""
KINDS = MATCHED, ADDED, REMOVED = "matched", "added", "removed"


class _Tree:
    """The calls of a step, as lists."""

    def __init__(self, names: Sequence[str], calls: StepCalls) -> None:
        self.names = [names[code] for code in calls.name.tolist()]
        self.parent: list[int] = calls.parent.tolist()
        self.host_ns: list[int] = calls.host_ns.tolist()
        self.device_ns: list[int] = calls.device_ns.tolist()
        self.inside: dict[int, list[int]] = defaultdict(list)
        for place, parent in enumerate(self.parent):
            self.inside[parent].append(place)

    def list_below(self, place: int) -> list[int]:
        """Return a call with all calls inside it."""
        found = [place]
        for one in found:
            found += self.inside.get(one, ())
        return found

    def describe(self, place: int) -> str:
        """Return the names from the outermost call on; of several of one name in a call with their number."""
        path: list[str] = []
        while place != OUTSIDE:
            alike = [one for one in self.inside[self.parent[place]] if self.names[one] == self.names[place]]
            number = f" #{alike.index(place) + 1}" if len(alike) > 1 else ""
            path.append(f"{self.names[place]}{number}")
            place = self.parent[place]
        return " > ".join([*(["..."] if len(path) > PATH_MAX else []), *path[:PATH_MAX][::-1]])


def match_calls(ranks: Sequence[tuple[int | None, CallTrees, CallTrees]]) -> CallMatching:
    """Return the calls of one step of each rank, with those of the traces to compare with: of the steps that both have
    by number, else by their order, that whose difference in length is the median.
    """
    found: dict[str, list[_Found]] = defaultdict(list)
    notes: list[str] = []
    for rank, here, there in ranks:
        pair = _choose_steps(here, there)
        if pair is None:
            notes.append(f"{name_rank(rank)}: no step on both sides, or several threads run the steps")
            continue
        trees = _Tree(here.names, pair[0]), _Tree(there.names, pair[1])
        aligned = _Alignment(*trees)
        for kind, places in aligned.list_all():
            found[kind].append(_measure((rank, pair[0].number, pair[1].number), trees, kind, places))
        if aligned.left_out:
            lists = _count(aligned.left_out, "list")
            notes.append(f"{name_rank(rank)}: {lists} of calls not matched, since the two sides differ too much")
        if here.left_out or there.left_out:
            notes.append(
                f"{name_rank(rank)}: too many calls, {_count(max(here.left_out, there.left_out), 'step')} left out"
            )
    for one in found.values():
        one.sort(key=lambda call: -max(abs(call.host_difference_ns), abs(call.device_difference_ns)))
    return CallMatching(
        matched_count=len(found[MATCHED]),
        added_count=len(found[ADDED]),
        removed_count=len(found[REMOVED]),
        rows=[_build_row(kind, call) for kind in KINDS for call in found[kind][:ROWS_MAX]],
        notes=notes,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _choose_steps(here: CallTrees, there: CallTrees) -> tuple[StepCalls, StepCalls] | None:
    theirs = {step.number: step for step in there.steps}
    pairs = [(step, theirs[step.number]) for step in here.steps if step.number in theirs]
    pairs = pairs or list(zip(here.steps, there.steps, strict=False))
    pairs.sort(key=lambda pair: pair[0].length_ns - pair[1].length_ns)
    return pairs[len(pairs) // 2] if pairs else None


class _Alignment:
    """Two trees, aligned from the step on down."""

    def __init__(self, ours: _Tree, theirs: _Tree) -> None:
        self._ours, self._theirs = ours, theirs
        self._work_left = WORK_MAX
        self.left_out = 0

    def list_all(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the calls that are matched, with their places in both; those that are only in one, OUTSIDE in the
        other, without the calls inside them.
        """
        waiting = [(OUTSIDE, OUTSIDE)]
        while waiting:
            place, other = waiting.pop()
            mine, against = self._ours.inside.get(place, []), self._theirs.inside.get(other, [])
            pairs = self._align(mine, against)
            yield from ((MATCHED, pair) for pair in pairs)
            yield from ((ADDED, (one, OUTSIDE)) for one in sorted(set(mine) - {one for one, _ in pairs}))
            yield from ((REMOVED, (OUTSIDE, one)) for one in sorted(set(against) - {one for _, one in pairs}))
            waiting += pairs

    def _align(self, mine: Sequence[int], against: Sequence[int]) -> list[tuple[int, int]]:
        names = [self._ours.names[one] for one in mine], [self._theirs.names[one] for one in against]
        most = min(DIFFERENCES_MAX, int(max(self._work_left, 0) ** 0.5))
        found = align(*names, most)
        if found is None:
            self.left_out += 1
            self._work_left -= most**2
            return []
        self._work_left -= (len(mine) + len(against) - 2 * len(found)) ** 2
        return [(mine[one], against[other]) for one, other in found]


def align(ours: Sequence[str], theirs: Sequence[str], most: int) -> list[tuple[int, int]] | None:
    """Return the places of as many names as possible that are in both lists in the same order; None where more than
    `most` names are in one list only.

    >>> align(["mm", "relu", "mm"], ["mm", "gelu", "mm", "add"], 9)
    [(0, 0), (2, 2)]
    """
    rounds: list[Sequence[int]] = []  # by number of differences how far each diagonal was reached, from the lowest on
    for count in range(min(len(ours) + len(theirs), most) + 1):
        reached = array("q")
        for step in range(count + 1):
            diagonal = 2 * step - count
            x = 0
            if count:
                x = rounds[-1][step] if _comes_down(rounds[-1], step) else rounds[-1][step - 1] + 1
            while x < len(ours) and x - diagonal < len(theirs) and ours[x] == theirs[x - diagonal]:
                x += 1
            reached.append(x)
            if x >= len(ours) and x - diagonal >= len(theirs):
                return _walk_back([*rounds, reached], len(ours), len(theirs))
        rounds.append(reached)
    return None


def _comes_down(before: Sequence[int], step: int) -> bool:
    """Return whether a diagonal is reached furthest from the one above it: by a name that only the second list has."""
    return step == 0 or (step < len(before) and before[step - 1] < before[step])


def _walk_back(rounds: Sequence[Sequence[int]], x: int, y: int) -> list[tuple[int, int]]:
    """Return the names that are in both lists on the way back from the ends of both."""
    found = []
    for count in range(len(rounds) - 1, -1, -1):
        before_x = before_y = 0
        if count:
            before, step = rounds[count - 1], (x - y + count) // 2
            down = _comes_down(before, step)
            before_x = before[step if down else step - 1]
            before_y = before_x - (2 * (step if down else step - 1) - (count - 1))
        while x > before_x and y > before_y:
            x, y = x - 1, y - 1
            found.append((x, y))
        x, y = before_x, before_y
    return found[::-1]


# -- rows -------------------------------------------------------------------------------------------------------------


class _Found(NamedTuple):
    """A call with its sums: matched by itself, else with all calls inside it. `key`: rank and number of both steps."""

    key: tuple[int | None, int, int]
    tree: _Tree
    place: int
    call_count: int
    host_ns: int
    against_host_ns: int
    device_ns: int
    against_device_ns: int

    @property
    def host_difference_ns(self) -> int:
        return self.host_ns - self.against_host_ns

    @property
    def device_difference_ns(self) -> int:
        return self.device_ns - self.against_device_ns


def _measure(
    key: tuple[int | None, int, int], trees: tuple[_Tree, _Tree], kind: str, places: tuple[int, int]
) -> _Found:
    (count, host_ns, device_ns), (against_count, against_host_ns, against_device_ns) = (
        _sum_call(tree, place, whole=kind != MATCHED) for tree, place in zip(trees, places, strict=True)
    )
    side = int(kind == REMOVED)
    return _Found(
        key, trees[side], places[side], max(count, against_count), host_ns, against_host_ns, device_ns,
        against_device_ns,
    )  # fmt: skip


def _sum_call(tree: _Tree, place: int, *, whole: bool) -> tuple[int, int, int]:
    if place == OUTSIDE:
        return 0, 0, 0
    places = tree.list_below(place) if whole else [place]
    return len(places), sum(map(tree.host_ns.__getitem__, places)), sum(map(tree.device_ns.__getitem__, places))


def _build_row(kind: str, call: _Found) -> CallRow:
    return CallRow(
        kind=kind,
        rank=call.key[0],
        step=call.key[1],
        against_step=call.key[2],
        path=call.tree.describe(call.place),
        call_count=call.call_count,
        host_ns=call.host_ns,
        against_host_ns=call.against_host_ns,
        host_difference_ns=call.host_difference_ns,
        device_ns=call.device_ns,
        against_device_ns=call.against_device_ns,
        device_difference_ns=call.device_difference_ns,
    )
