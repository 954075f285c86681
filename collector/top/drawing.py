"""Draw a view of a run with rich. Colours only repeat what letters say."""

import io
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.summary import describe_ended_run, verdict
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.ratio_basis import NO_WINDOW
from rankscope.collector.runs.run_end_words import describe_end
from rankscope.collector.runs.run_ratios import choose_counted, describe_absence
from rankscope.collector.runs.run_status import describe_ranks_without_peers
from rankscope.collector.top.board import ORDERS, Board
from rankscope.collector.top.snapshot_fetch import RankLine, RunView
from rankscope.measure.records import PHASES
from rankscope.measure.units import NS_PER_MS

WIDTH_MIN: Final = 80
FIXED_WIDTH: Final = 46
"""Width of a row without its two bars and the node: five cells and the gaps."""
NODE_WIDTH: Final = (10, 24)
FINDING_LINES_MAX: Final = 3
"""Lines of each finding; `rankscope status` prints the whole sentence."""
FINDINGS_SHOWN_MAX: Final = 3
SLOW_RATIO, VERY_SLOW_RATIO = 1.05, 1.25
"""Thresholds of yellow and of red. The first is the collector's default for a straggler."""

PHASE_SIGNS: Final = {"data": ("d", "yellow"), "forward": ("f", "green"), "backward": ("b", "blue"),
                      "optimizer": ("o", "magenta"), "other": ("-", "bright_black")}  # fmt: skip
USER_PHASE: Final = ("u", "cyan")
"""A phase that the user named."""
DEVICE_SIGNS: Final = (("compute", "#", "green"), ("exposed_communication", "~", "red"), ("idle", ".", "bright_black"))
COPY_SIGN: Final = (" ", "default")
"""The remainder: copies that overlap with nothing else."""
STATE_STYLES: Final = {"up": "green", "stalled": "bold red", "silent": "red"}
HELP: Final = (
    ("s t o w", "sort by slowdown, step time, self time (compute excluding waits), caused wait"),
    ("d e i m r", "sort by data, exposed communication, idle device, MFU, rank"),
    ("", "the same key again reverses the order"),
    ("/", "filter: 12 or 8-15 are ranks, other text is part of a node's name or of a state"),
    ("esc", "clear the filter"),
    ("f, space", "freeze the view, unfreeze it"),
    ("n p", "next run, previous run"),
    ("arrows, pages, home, end", "scroll"),
    ("q", "quit"),
    ("", "phases: d data, f forward, b backward, o optimizer, u user-defined, - other; the longest step fills the bar"),
    ("", "device: # compute, ~ exposed communication, . idle, blank copies"),
)


def draw(board: Board, latest: RunView, width: int, height: int) -> tuple[RenderableType, Board]:
    """Return the screen, and the board with the number of rows that fit, which scrolling needs."""
    view = board.choose_shown(latest)
    width = max(width, WIDTH_MIN)
    head: list[RenderableType] = [
        _draw_title(board, latest, view),
        *_draw_findings(view, width),
        *_draw_absence(view, width),
    ]
    foot = _draw_foot(board)
    used = len(head) + _count_lines(head) + 3
    board = board._replace(rows=max(1, height - used))
    if board.shows_help:
        return Group(*head, Rule(style="bright_black"), _draw_help(), foot), board
    ranks = board.arrange(view.ranks)
    board = board._replace(top=min(board.top, max(0, len(ranks) - board.rows)))
    table = _draw_ranks(board, view, ranks[board.top : board.top + board.rows], width)
    filler = [Text()] * (board.rows - min(board.rows, len(ranks)))
    return Group(*head, table, *filler, Rule(style="bright_black"), foot), board


def _count_lines(parts: Sequence[RenderableType]) -> int:
    """Return the number of lines beyond one for each part."""
    return sum(part.plain.count("\n") for part in parts if isinstance(part, Text))


def _draw_title(board: Board, latest: RunView, view: RunView) -> Text:
    title = Text("rankscope ", style="bold", no_wrap=True, overflow="ellipsis")
    if latest.problem:
        title.append(printable(latest.problem), style="bold red")
        return title
    run = view.run
    if run is None:
        return title.append("no run has reported to this collector", style="default")
    # What must not be cut off comes first.
    title.append("FROZEN " if board.frozen is not None else "", style="bold yellow")
    title.append(time.strftime("%H:%M:%S ", time.localtime(view.wall_s)), style="bright_black")
    up = sum(rank.state == "up" for rank in view.ranks)
    title.append(printable(run.run), style="bold cyan")
    if run.end is None:
        title.append(f"  {up} of {run.world_size} up", style="default" if up == run.world_size else "red")
    else:
        title.append(f"  {printable(describe_end(run.end))}", style="green" if run.end.is_good else "bold red")
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    title.append(f"  step {max(steps)}" if steps else "", style="default")
    if run.goodput.goodput_ratio is not None:
        title.append(f"  goodput {100 * run.goodput.goodput_ratio:.0f} %", style="default")
    if run.run_slowdown_ratio is not None:
        title.append(f"  slowdown {run.run_slowdown_ratio:.2f}x", style=_style_of(run.run_slowdown_ratio))
    mfu = [rank.mfu_ratio for rank in view.ranks if rank.ended is None]
    known = [ratio for ratio in mfu if ratio is not None]
    if known and len(known) == len(mfu):
        title.append(f"  MFU {100 * sum(known) / len(known):.0f} %", style="default")
    if len(view.runs) > 1:
        title.append(f"  (run {view.runs.index(run.run_id) + 1} of {len(view.runs)})", style="bright_black")
    return title


def _draw_findings(view: RunView, width: int) -> list[Text]:
    run = view.run
    if run is None:
        return []
    injected = [_cut(Text(printable(run.injected_faults)), width)] if run.injected_faults else []
    if run.end is not None:
        lines = [*describe_ended_run(run)[1:], f"verdict: {verdict(run)}"]
        return injected + [_cut(Text(printable(line)), width) for line in lines]
    if not run.open_findings:
        quiet = "no rank is slower than the others" if run.abstained is None else f"no verdict yet: {run.abstained}"
        lines = [quiet, *([text] if (text := describe_ranks_without_peers(run)) is not None else [])]
        return injected + [_cut(Text(printable(line), style="bright_black"), width) for line in lines]
    shown = injected + [line for one in run.open_findings[:FINDINGS_SHOWN_MAX] for line in _draw_finding(one, width)]
    more = len(run.open_findings) - FINDINGS_SHOWN_MAX
    return shown + ([Text(f"and {more} more findings", style="bright_black")] if more > 0 else [])


def _draw_absence(view: RunView, width: int) -> list[Text]:
    """Return why ranks that are up have no bar of the device; nothing while no rank has had a window."""
    absent = describe_absence([(rank.rank, rank.ratio_basis) for rank in choose_counted(view.ranks)])
    if absent is None or absent == NO_WINDOW.absent:
        return []
    return [_cut(Text(printable(f"device: {absent}"), style="bright_black"), width)]


def _draw_finding(finding: Finding, width: int) -> list[Text]:
    """Return the sentence, and what to do about it."""
    style = "bold red" if finding.severity == "critical" else "bold yellow"
    sentence = _cut(Text.assemble(("! ", style), printable(finding.sentence)), width)
    advice = [_cut(Text(f"  do: {printable(finding.suggestion)}"), width)] if finding.suggestion else []
    return [sentence, *advice]


def _cut(text: Text, width: int) -> Text:
    """Return the text wrapped at words, in at most FINDING_LINES_MAX lines; an ellipsis marks a cut."""
    console_width = max(width - 1, 1)
    lines = text.wrap(_measuring_console(), console_width)
    if len(lines) > FINDING_LINES_MAX:
        kept = lines[:FINDING_LINES_MAX]
        kept[-1].truncate(console_width - 1)
        kept[-1].rstrip()
        kept[-1].append("…")
        return Text("\n").join(kept)
    return Text("\n").join(lines)


@cache
def _measuring_console() -> Console:
    """Return a console that measures the width of characters and writes nowhere."""
    return Console(file=io.StringIO())


def _draw_ranks(board: Board, view: RunView, ranks: Sequence[RankLine], width: int) -> Table:
    room = width - FIXED_WIDTH
    longest = max((len(printable(rank.node)) for rank in ranks), default=0)
    node_width = min(max(longest, NODE_WIDTH[0]), NODE_WIDTH[1], NODE_WIDTH[0] + max(0, room - 34))
    bars = room - node_width
    phase_width, device_width = bars - bars // 2, bars // 2
    slowest_ns = max((rank.step_ns_median or 0.0 for rank in view.ranks), default=0.0)
    by, arrow = ORDERS[board.order][0], "↑" if board.is_reversed else "↓"
    table = Table(box=None, padding=(0, 1, 0, 0), width=width, header_style="reverse", show_edge=False)
    heads = {"rank": "rank", "step time": "step ms", "self time": "self ms", "slowdown": "slow", "data": "phases"}
    for name, span, justify in (
        ("rank", 6, "right"), ("node", node_width, "left"), ("step ms", 8, "right"), ("self ms", 8, "right"),
        ("slow", 6, "right"), ("phases", phase_width, "left"), ("device", device_width, "left"), ("state", 9, "left"),
    ):  # fmt: skip
        mark = arrow if heads.get(by) == name else ""
        table.add_column(f"{name}{mark}", width=span, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            Text(printable(rank.node)),
            _ms(rank.step_ns_median),
            _ms(rank.self_ns_median),
            _draw_slowdown(rank.slowdown_ratio),
            draw_phases(rank.phases_ns_median, slowest_ns, phase_width),
            draw_device(rank.ratios, device_width),
            Text(printable(rank.state), style=STATE_STYLES.get(rank.state, "bright_black")),
        )
    return table


def draw_phases(phases_ns: Mapping[str, float], full_ns: float, width: int) -> Text:
    """Return the phases of a step as a bar; a step of `full_ns` fills the width.

    >>> draw_phases({"data": 10.0, "forward": 20.0, "backward": 20.0, "mine": 10.0}, 120.0, 24).plain
    'ddffffbbbbuu'
    """
    if full_ns <= 0:
        return Text()
    names = [*(name for name in PHASES if name in phases_ns), *(name for name in phases_ns if name not in PHASES)]
    parts = [(phases_ns[name], *PHASE_SIGNS.get(name, USER_PHASE)) for name in names]
    return _draw_bar(parts, full_ns, width)


def draw_device(ratios: Mapping[str, float], width: int) -> Text:
    """Return the breakdown of the device's time as a bar; empty before the first window.

    >>> draw_device({"compute": 0.5, "exposed_communication": 0.25, "idle": 0.25}, 8).plain
    '####~~..'
    """
    parts = [(ratios[name], sign, style) for name, sign, style in DEVICE_SIGNS if name in ratios]
    copies = 1.0 - sum(share for share, _, _ in parts)
    return _draw_bar([*parts, (max(copies, 0.0), *COPY_SIGN)], 1.0, width) if parts else Text()


def _draw_bar(parts: Sequence[tuple[float, str, str]], full: float, width: int) -> Text:
    """Return a bar whose parts end at their rounded cumulative sum, so that rounding does not add up."""
    bar, drawn, total = Text(), 0, 0.0
    for amount, sign, style in parts:
        total += amount
        end = min(width, round(width * total / full))
        bar.append(sign * (end - drawn), style=style)
        drawn = max(drawn, end)
    return bar


def _draw_slowdown(ratio: float | None) -> Text:
    return Text("-") if ratio is None else Text(f"{ratio:.2f}x", style=_style_of(ratio))


def _style_of(ratio: float) -> str:
    if ratio >= VERY_SLOW_RATIO:
        return "bold red"
    return "yellow" if ratio >= SLOW_RATIO else "default"


def _ms(nanoseconds: float | None) -> str:
    return "-" if nanoseconds is None else f"{nanoseconds / NS_PER_MS:.1f}"


def _draw_help() -> Table:
    table = Table.grid(padding=(0, 2))
    for keys, meaning in HELP:
        table.add_row(Text(keys, style="bold"), meaning)
    return table


def _draw_foot(board: Board) -> Text:
    if board.is_typing:
        return Text.assemble(
            ("filter: ", "bold"), board.filter, ("_", "blink"), ("   enter keeps it, esc clears it", "bright_black")
        )
    order = ORDERS[board.order][0]
    chosen = f"by {order}{', reversed' if board.is_reversed else ''}"
    kept = f", filter {printable(board.filter)!r}" if board.filter else ""
    return Text(
        f"{chosen}{kept}   s t o w d e i r sort  / filter  f freeze  n run  ? help  q quit",
        style="bright_black",
        no_wrap=True,
        overflow="ellipsis",
    )
