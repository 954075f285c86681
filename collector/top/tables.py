"""Draw the ranks of a run, or its nodes, as a table: more columns where the terminal has room for them."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from rankscope.collector.detect.finding import format_ranks
from rankscope.collector.reports.terminal_colors import BOLD, GRAY, GREEN, RED, REVERSE, YELLOW
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.top.bars import draw_device, draw_key, draw_phases
from rankscope.collector.top.board import ORDERS, Board, NodeLine
from rankscope.collector.top.screen_lines import ColoredText, Line, make_line, pad, width_of
from rankscope.collector.top.snapshot_fetch import FetchedRank, FetchedRun, Gpu
from rankscope.measure.units import NS_PER_MS

NODE_WIDTH: Final = (10, 24)
BAR_HEADS: Final = ("phases", "device")
BARS_WIDTH_MIN: Final = 24
"""Smallest width of the two bars together that says something."""
BARS_WIDTH_GOOD: Final = 40
"""What they keep before further columns are shown."""
SLOW_RATIO, VERY_SLOW_RATIO = 1.05, 1.25
"""Thresholds of yellow and of red. The first is the collector's default for a straggler."""
STATE_CODES: Final = {"up": (GREEN,), "stalled": (BOLD, RED), "silent": (RED,)}
UNKNOWN: Final = "-"
GIB: Final = 2**30

Row: TypeAlias = "FetchedRank | NodeLine"


class Column(NamedTuple):
    """A column: its head, its width, and what it shows of a line."""

    head: str
    width: int
    draw: Callable[[Row], Line]
    is_right: bool = True


def draw_table(board: Board, columns: Sequence[Column], rows: Sequence[Row]) -> list[Line]:
    """Return the head and a line for each row, which are ranks, or nodes."""
    heads = {"rank": "rank", "step time": "step ms", "own time": "own ms", "slowdown": "slow", "data": "phases",
             "MFU": "MFU", "GPU utilization": "util", "caused wait": "wait ms"}  # fmt: skip
    marked, arrow = heads.get(ORDERS[board.order][0]), "↑" if board.is_reversed else "↓"
    titles = [(f"{one.head}{arrow if one.head == marked else ''}", one) for one in columns]
    head = " ".join("".join(span.text for span in pad(make_line(text), one.width, is_right=one.is_right))
                    for text, one in titles)  # fmt: skip
    lines: list[Line] = [(ColoredText(head, (REVERSE,)),)]
    for row in rows:
        spans: list[ColoredText] = []
        for column in columns:
            spans += [*pad(column.draw(row), column.width, is_right=column.is_right), ColoredText(" ")]
        lines.append(tuple(spans))
    return lines


def choose_columns(board: Board, view: FetchedRun, rows: Sequence[Row], width: int) -> list[Column]:
    """Return the columns that fit into `width`: the GPUs' where any was sampled, in place of the bars if asked for;
    then step, caused wait and MFU. The bars share what is left.
    """
    gpus = _gpu_columns() if any(rank.gpu is not None for rank in view.ranks) else []
    node = _node_column(rows, width)
    first = [*_name_columns(node, is_by_node=board.is_by_node), *_time_columns()]
    last = [_state_column(is_by_node=board.is_by_node)]
    room = width - _span_of([*first, *last])
    chosen: list[Column] = []
    if gpus and (board.shows_gpus or room - _span_of(gpus) >= BARS_WIDTH_GOOD):
        chosen += gpus
        if room < _span_of(gpus):
            first = [column for column in first if column.head != "own ms"]
    room = width - _span_of([*first, *chosen, *last])
    if room - _span_of(_more_columns()) >= BARS_WIDTH_GOOD:
        chosen += _more_columns()
        room -= _span_of(_more_columns())
    bars = _bar_columns(view, room - len(BAR_HEADS)) if room >= BARS_WIDTH_MIN else []
    return [*first, *chosen, *bars, *last]


def draw_key_of_bars(columns: Sequence[Column], view: FetchedRun) -> Line:
    """Return what the signs in the bars of these ranks mean; empty where the columns have no bars, or no rank has."""
    if not {column.head for column in columns}.issuperset(BAR_HEADS):
        return ()
    phases = {name for rank in view.ranks for name in rank.phases_ns_median}
    ratios = {name for rank in view.ranks for name in rank.ratios}
    return draw_key(phases, ratios)


def _span_of(columns: Sequence[Column]) -> int:
    """Return the width of columns with the gap behind each."""
    return sum(column.width + 1 for column in columns)


def _worst(row: Row) -> FetchedRank:
    return row.worst if isinstance(row, NodeLine) else row


def _gpu(row: Row) -> Gpu:
    return _worst(row).gpu or Gpu()


def _node_column(rows: Sequence[Row], width: int) -> Column:
    longest = max((width_of(printable(row.node)) for row in rows), default=0)
    room = max(0, width - 90)
    fitting = min(max(longest, NODE_WIDTH[0]), NODE_WIDTH[1], NODE_WIDTH[0] + room)
    return Column("node", fitting, lambda row: make_line(printable(row.node)), is_right=False)


def _name_columns(node: Column, *, is_by_node: bool) -> list[Column]:
    number = Column("rank", 6, lambda row: make_line(str(_worst(row).rank)))
    return [node, number._replace(head="worst")] if is_by_node else [number, node]


def _time_columns() -> list[Column]:
    return [
        Column("step ms", 8, lambda row: make_line(_ms(_worst(row).step_ns_median))),
        Column("own ms", 8, lambda row: make_line(_ms(_worst(row).own_ns_median))),
        Column("slow", 6, lambda row: _draw_slowdown(_worst(row).slowdown_ratio)),
    ]


def _gpu_columns() -> list[Column]:
    return [
        Column("util %", 6, lambda row: make_line(_percent(_gpu(row).utilization_ratio))),
        Column("mem GiB", 9, lambda row: make_line(_draw_memory(_gpu(row)))),
        Column("W", 5, lambda row: make_line(_whole(_gpu(row).power_watts))),
        Column("°C", 3, lambda row: make_line(_whole(_gpu(row).temperature_celsius))),
        Column("MHz", 5, lambda row: make_line(_whole(_gpu(row).sm_clock_hertz, 1_000_000))),
    ]


def _more_columns() -> list[Column]:
    return [
        Column("step", 9, lambda row: make_line(_whole(_worst(row).last_step))),
        Column("wait ms", 8, lambda row: make_line(_ms(_worst(row).wait_caused_ns_median))),
        Column("MFU %", 5, lambda row: make_line(_percent(_worst(row).mfu_ratio))),
    ]


def _bar_columns(view: FetchedRun, room: int) -> list[Column]:
    """Return the bars of the phases and of the device, which share `room` columns."""
    slowest_ns = max((rank.step_ns_median or 0.0 for rank in view.ranks), default=0.0)
    wide, narrow = room - room // 2, room // 2
    phases, device = BAR_HEADS
    return [
        Column(phases, wide, lambda row: draw_phases(_worst(row).phases_ns_median, slowest_ns, wide), is_right=False),
        Column(device, narrow, lambda row: draw_device(_worst(row).ratios, narrow), is_right=False),
    ]


def _state_column(*, is_by_node: bool) -> Column:
    head, width = ("ranks", 12) if is_by_node else ("state", 9)
    return Column(head, width, _draw_state, is_right=False)


def _draw_state(row: Row) -> Line:
    """Return the state of a rank; of a node its ranks, and how many of them are not up."""
    if not isinstance(row, NodeLine):
        return (ColoredText(printable(row.state), STATE_CODES.get(row.state, (GRAY,))),)
    down = ", ".join(f"{count} {state}" for state, count in row.states.items() if state != "up")
    return make_line(ColoredText(printable(down), (RED,)) if down else format_ranks(row.ranks))


def _draw_memory(gpu: Gpu) -> str:
    if gpu.memory_used_bytes is None:
        return UNKNOWN
    total = "" if gpu.memory_total_bytes is None else f"/{gpu.memory_total_bytes / GIB:.0f}"
    return f"{gpu.memory_used_bytes / GIB:.1f}{total}"


def _draw_slowdown(ratio: float | None) -> Line:
    return make_line(UNKNOWN) if ratio is None else (ColoredText(f"{ratio:.2f}x", codes_of(ratio)),)


def codes_of(ratio: float) -> tuple[str, ...]:
    """Return the colors of a slowdown."""
    if ratio >= VERY_SLOW_RATIO:
        return BOLD, RED
    return (YELLOW,) if ratio >= SLOW_RATIO else ()


def _ms(nanoseconds: float | None) -> str:
    return UNKNOWN if nanoseconds is None else f"{nanoseconds / NS_PER_MS:.1f}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}"


def _whole(value: float | None, unit: float = 1) -> str:
    return UNKNOWN if value is None else f"{value / unit:.0f}"
