"""Keep the state of the screen of `rankscope top`, and change it by key. Pure: no terminal, no network."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple, TypeVar

import msgspec

from rankscope.collector.top.snapshot_fetch import FetchedRank, FetchedRun, Gpu

ENTER, ESCAPE, BACKSPACE = "enter", "escape", "backspace"
UP, DOWN, PAGE_UP, PAGE_DOWN, HOME, END = "up", "down", "page up", "page down", "home", "end"

FILTER_LENGTH_MAX: Final = 64
"""Longer than any node name that fits into a line."""

Number = TypeVar("Number", int, float)
_Value = Callable[[FetchedRank], float | None]
ORDERS: Final[dict[str, tuple[str, _Value | None]]] = {
    "s": ("slowdown", lambda rank: rank.slowdown_ratio),
    "t": ("step time", lambda rank: rank.step_ns_median),
    "o": ("own time", lambda rank: rank.own_ns_median),
    "w": ("caused wait", lambda rank: rank.wait_caused_ns_median),
    "d": ("data", lambda rank: rank.phases_ns_median.get("data")),
    "a": ("forward", lambda rank: rank.phases_ns_median.get("forward")),
    "b": ("backward", lambda rank: rank.phases_ns_median.get("backward")),
    "e": ("exposed communication", lambda rank: rank.ratios.get("exposed_communication")),
    "i": ("idle device", lambda rank: rank.ratios.get("idle")),
    "m": ("MFU", lambda rank: rank.mfu_ratio),
    "u": ("GPU utilization", lambda rank: None if rank.gpu is None else rank.gpu.utilization_ratio),
    "r": ("rank", None),
}
"""Sort keys, with the name and the value of each order of `runs/rank_orders.py`: largest first, by rank the smallest;
unknown values last.
"""


class NodeLine(NamedTuple):
    """The ranks of one node as one line: their numbers, how many are in each state, and the worst of them."""

    node: str
    ranks: tuple[int, ...]
    states: Mapping[str, int]
    worst: FetchedRank


class Board(NamedTuple):
    """One state of the screen. `top` is the index of the first rank shown among those that pass the filter, `rows` the
    number that fit. `is_typing`: keys go into the filter. `frozen` is the view that stays, None while views change.
    `run` is the selected run; empty: the first one. `is_by_node`: a line is a node; `shows_gpus`: numbers of GPUs take
    the place of the bars where there is no room for both.
    """

    order: str = "s"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    frozen: FetchedRun | None = None
    run: str = ""
    top: int = 0
    rows: int = 10
    shows_help: bool = False
    is_by_node: bool = False
    shows_gpus: bool = False
    is_over: bool = False

    def choose_shown(self, latest: FetchedRun) -> FetchedRun:
        """Return the view to draw: the frozen one, else the latest."""
        return latest if self.frozen is None else self.frozen

    def arrange(self, ranks: Sequence[FetchedRank]) -> list[FetchedRank]:
        """Return the ranks that pass the filter, sorted; equal ones by number."""
        return self._sort([rank for rank in ranks if passes(rank, self.filter)])

    def arrange_nodes(self, ranks: Sequence[FetchedRank]) -> list[NodeLine]:
        """Return the nodes of the ranks that pass the filter, sorted like ranks by their worst."""
        nodes = {one.worst.rank: one for one in group_by_node([rank for rank in ranks if passes(rank, self.filter)])}
        return [nodes[worst.rank] for worst in self._sort([one.worst for one in nodes.values()])]

    def count_rows(self, ranks: Sequence[FetchedRank]) -> int:
        """Return how many lines the ranks that pass the filter take."""
        return len(self.arrange_nodes(ranks) if self.is_by_node else self.arrange(ranks))

    def _sort(self, matching: Sequence[FetchedRank]) -> list[FetchedRank]:
        read = ORDERS[self.order][1]
        if read is None:
            return sorted(matching, key=lambda rank: rank.rank, reverse=self.is_reversed)
        sign = 1 if self.is_reversed else -1
        known = [(value, rank) for rank in matching if (value := read(rank)) is not None]
        known.sort(key=lambda pair: (sign * pair[0], pair[1].rank))
        unknown = sorted((rank for rank in matching if read(rank) is None), key=lambda rank: rank.rank)
        return [rank for _, rank in known] + unknown


def group_by_node(ranks: Sequence[FetchedRank]) -> list[NodeLine]:
    """Return a line for each node of these ranks. Of the node `worst` has the slowest rank's number, slowdown, bars and
    reason, the largest step and own time, and of the GPUs the mean utilization, the fullest memory, the power of all,
    the highest temperature and the lowest clock; unknown ones are left out.
    """
    nodes: dict[str, list[FetchedRank]] = {}
    for rank in ranks:
        nodes.setdefault(rank.node, []).append(rank)
    return [_sum_up(node, members) for node, members in nodes.items()]


def _sum_up(node: str, members: Sequence[FetchedRank]) -> NodeLine:
    slowest = max(members, key=lambda rank: (rank.slowdown_ratio or 0.0, rank.own_ns_median or 0.0, -rank.rank))
    worst = msgspec.structs.replace(
        slowest,
        step_ns_median=_fold(max, [rank.step_ns_median for rank in members]),
        own_ns_median=_fold(max, [rank.own_ns_median for rank in members]),
        gpu=_sum_up_gpus([rank.gpu for rank in members if rank.gpu is not None]),
    )
    return NodeLine(node, tuple(sorted(rank.rank for rank in members)), Counter(rank.state for rank in members), worst)


def _sum_up_gpus(gpus: Sequence[Gpu]) -> Gpu | None:
    if not gpus:
        return None
    fullest = max(gpus, key=lambda gpu: (gpu.memory_used_bytes or 0) / (gpu.memory_total_bytes or 1))
    return Gpu(
        utilization_ratio=_fold(fmean, [gpu.utilization_ratio for gpu in gpus]),
        memory_used_bytes=fullest.memory_used_bytes,
        memory_total_bytes=fullest.memory_total_bytes,
        power_watts=_fold(sum, [gpu.power_watts for gpu in gpus]),
        temperature_celsius=_fold(max, [gpu.temperature_celsius for gpu in gpus]),
        sm_clock_hertz=_fold(min, [gpu.sm_clock_hertz for gpu in gpus]),
    )


def _fold(combine: Callable[[list[Number]], Number], values: Sequence[Number | None]) -> Number | None:
    """Return the known values combined; None where none is known."""
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def passes(rank: FetchedRank, wanted: str) -> bool:
    """Return whether a rank passes a filter: `7` and `4-9` are ranks, other text is part of the node or the state.

    >>> line = FetchedRank(rank=7, node="gpu-12")
    >>> [passes(line, wanted) for wanted in ("", "7", "4-9", "12", "gpu-12", "up", "ended")]
    [True, True, True, False, True, True, False]
    """
    first, dash, last = wanted.partition("-")
    if first.isdecimal() and not dash:
        return rank.rank == int(first)
    if first.isdecimal() and last.isdecimal():
        return int(first) <= rank.rank <= int(last)
    return wanted.lower() in rank.node.lower() or wanted.lower() in rank.state


def press(board: Board, key: str, latest: FetchedRun) -> Board:
    """Return the board after a key; an unknown key changes nothing."""
    if board.is_typing:
        return _type(board, key)
    if board.shows_help:
        return board._replace(shows_help=False)
    if key in ORDERS:
        is_reversed = not board.is_reversed if key == board.order else False
        return board._replace(order=key, is_reversed=is_reversed, top=0)
    command = _COMMANDS.get(key)
    return _scroll(board, key, latest) if command is None else command(board, latest)


def _type(board: Board, key: str) -> Board:
    match key:
        case "enter":
            return board._replace(is_typing=False)
        case "escape":
            return board._replace(is_typing=False, filter="")
        case "backspace":
            return board._replace(filter=board.filter[:-1])
        case _ if len(key) == 1 and len(board.filter) < FILTER_LENGTH_MAX:
            return board._replace(filter=board.filter + key)
        case _:
            return board


def _switch_run(board: Board, latest: FetchedRun, by: int) -> Board:
    """Select another run, and unfreeze: a frozen view has only its own run."""
    names = latest.runs
    if not names:
        return board
    now = names.index(latest.run.run_id) if latest.run is not None and latest.run.run_id in names else 0
    return board._replace(run=names[(now + by) % len(names)], frozen=None, top=0)


def _freeze(board: Board, latest: FetchedRun) -> Board:
    return board._replace(frozen=None if board.frozen is not None else latest)


def _scroll(board: Board, key: str, latest: FetchedRun) -> Board:
    shown = board.count_rows(board.choose_shown(latest).ranks)
    last = max(0, shown - board.rows)
    moved = {
        UP: board.top - 1,
        DOWN: board.top + 1,
        PAGE_UP: board.top - board.rows,
        PAGE_DOWN: board.top + board.rows,
        HOME: 0,
        END: last,
    }
    return board._replace(top=min(max(moved.get(key, board.top), 0), last))


_COMMANDS: Final[dict[str, Callable[[Board, FetchedRun], Board]]] = {
    "q": lambda board, _: board._replace(is_over=True),
    "?": lambda board, _: board._replace(shows_help=True),
    "h": lambda board, _: board._replace(shows_help=True),
    "/": lambda board, _: board._replace(is_typing=True, filter="", top=0),
    ESCAPE: lambda board, _: board._replace(filter="", top=0),
    "v": lambda board, _: board._replace(is_by_node=not board.is_by_node, top=0),
    "g": lambda board, _: board._replace(shows_gpus=not board.shows_gpus),
    "f": _freeze,
    " ": _freeze,
    "n": lambda board, latest: _switch_run(board, latest, 1),
    "p": lambda board, latest: _switch_run(board, latest, -1),
}
