"""Draw a view of a run as lines for a terminal of a given size. Colors only repeat what letters say."""

import time
from collections.abc import Sequence
from typing import Final

from rankscope.collector.detect.finding import Finding
from rankscope.collector.reports.finding_text import list_facts
from rankscope.collector.reports.summary import describe_ended_run, verdict
from rankscope.collector.reports.terminal_colors import BLINK, BOLD, CYAN, GRAY, GREEN, RED, YELLOW
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.live_settings import describe_changed
from rankscope.collector.runs.ratio_basis import NO_WINDOW
from rankscope.collector.runs.run_end_words import describe_end
from rankscope.collector.runs.run_ratios import choose_counted, describe_absence
from rankscope.collector.runs.run_status import describe_ranks_without_peers
from rankscope.collector.steps.rank_medians import describe_median_steps
from rankscope.collector.top.bars import draw_curve
from rankscope.collector.top.board import ORDERS, Board
from rankscope.collector.top.screen_lines import ColoredText, Line, cut, make_line, pad, wrap
from rankscope.collector.top.snapshot_fetch import FetchedRun
from rankscope.collector.top.tables import choose_columns, codes_of, draw_key_of_bars, draw_table
from rankscope.measure.units import format_duration

WIDTH_MIN: Final = 80
TALL: Final = 40
"""Lines of a terminal that has room for more findings, and for what to do about them in full."""
KEY_LINES_MIN: Final = 16
"""Lines of a terminal that has room for what the signs of the bars mean; the help has it, too."""
FINDING_LINES_MAX: Final = (3, 6)
"""Lines of each finding, on a low and on a tall terminal; `rankscope status` prints all of it."""
FACT_LINES_MAX: Final = (1, 4)
SHOWN_ALWAYS: Final = frozenset({"why", "line", "do"})
"""Facts of a finding that a low terminal has room for."""
FINDINGS_SHOWN_MAX: Final = (3, 8)
CURVE_WIDTH_MAX: Final = 60
CURVE_POINTS_MIN: Final = 2
HELP: Final = (
    ("s t o w", "sort by slowdown, step time, own time (the step without waiting for others), caused wait"),
    (
        "d a b e i m u r",
        "sort by data, forward, backward, exposed communication, idle device, MFU, GPU utilization, rank",
    ),
    ("", "the same key again reverses the order"),
    ("v", "a line for each node instead of each rank: its slowest rank, its ranks or those that are not up"),
    ("g", "numbers of the GPUs in place of the bars, on terminals without room for both"),
    ("/", "filter: 12 or 8-15 are ranks, other text is part of a node's name or of a state"),
    ("esc", "clear the filter"),
    ("f, space", "freeze the view, unfreeze it"),
    ("n p", "next run, previous run"),
    ("arrows, pages, home, end", "scroll"),
    ("q", "quit"),
    ("", "phases: d data, f forward, b backward, o optimizer, u user-defined, - other; the longest step fills the bar"),
    ("", "device: # compute, ~ exposed communication, . idle, blank copies"),
    (
        "",
        "GPU, of a node: mean utilization, fullest memory, power of all, highest temperature, lowest clock",
    ),
)
HELP_KEYS_WIDTH: Final = 26


def draw(board: Board, latest: FetchedRun, width: int, height: int) -> tuple[list[Line], Board]:
    """Return the lines of the screen, and the board with the number of rows that fit, which scrolling needs."""
    view = board.choose_shown(latest)
    width = max(width, WIDTH_MIN)
    head = [
        cut(_draw_title(board, latest, view), width),
        *_draw_findings(view, width, is_tall=height >= TALL),
        *_draw_absence(view, width),
        *_draw_trend(view, width),
    ]
    rule, keys = cut(_draw_rule(view, width), width), cut(_draw_foot(board), width)
    ranks = board.arrange_nodes(view.ranks) if board.is_by_node else board.arrange(view.ranks)
    columns = choose_columns(board, view, ranks, width)
    signs = cut(draw_key_of_bars(columns, view), width) if height >= KEY_LINES_MIN else ()
    foot: list[Line] = [rule, signs, keys] if signs else [rule, keys]
    board = board._replace(rows=max(1, height - len(head) - len(foot) - 1))
    if board.shows_help:
        return [*head, rule, *(cut(one, width) for one in _draw_help()), keys], board
    board = board._replace(top=min(board.top, max(0, len(ranks) - board.rows)))
    table = draw_table(board, columns, ranks[board.top : board.top + board.rows])
    filler: list[Line] = [()] * (board.rows - min(board.rows, len(ranks)))
    return [*head, *table, *filler, *foot], board


def _draw_title(board: Board, latest: FetchedRun, view: FetchedRun) -> Line:
    title = [ColoredText("rankscope ", (BOLD,))]
    if latest.problem:
        return (*title, ColoredText(printable(latest.problem), (BOLD, RED)))
    run = view.run
    if run is None:
        return (*title, ColoredText("no run has reported to this collector"))
    # What must not be cut off comes first.
    title.append(ColoredText("FROZEN " if board.frozen is not None else "", (BOLD, YELLOW)))
    title.append(ColoredText(time.strftime("%H:%M:%S ", time.localtime(view.wall_s)), (GRAY,)))
    up = sum(rank.state == "up" for rank in view.ranks)
    title.append(ColoredText(printable(run.run), (BOLD, CYAN)))
    if run.end is None:
        title.append(ColoredText(f"  {up} of {run.world_size} up", () if up == run.world_size else (RED,)))
    else:
        title.append(ColoredText(f"  {printable(describe_end(run.end))}", (GREEN,) if run.end.is_good else (BOLD, RED)))
    return (*title, *_draw_numbers(view))


def _draw_numbers(view: FetchedRun) -> list[ColoredText]:
    """Return the run in numbers, for the rest of the title."""
    run, numbers = view.run, []
    steps = [rank.last_step for rank in view.ranks if rank.last_step is not None]
    numbers.append(ColoredText(f"  step {max(steps)}" if steps else ""))
    if run is not None and run.goodput.goodput_ratio is not None:
        numbers.append(ColoredText(f"  goodput {100 * run.goodput.goodput_ratio:.0f} %"))
    if run is not None and run.run_slowdown_ratio is not None:
        numbers.append(ColoredText(f"  slowdown {run.run_slowdown_ratio:.2f}x", codes_of(run.run_slowdown_ratio)))
    mfu = [rank.mfu_ratio for rank in view.ranks if rank.ended is None]
    known = [ratio for ratio in mfu if ratio is not None]
    if known and len(known) == len(mfu):
        numbers.append(ColoredText(f"  MFU {100 * sum(known) / len(known):.0f} %"))
    if run is not None and len(view.runs) > 1:
        numbers.append(ColoredText(f"  (run {view.runs.index(run.run_id) + 1} of {len(view.runs)})", (GRAY,)))
    return numbers


def _draw_findings(view: FetchedRun, width: int, *, is_tall: bool) -> list[Line]:
    """Return what is found, or why nothing is; the most severe that fit, each with what to do about it."""
    run = view.run
    if run is None:
        return []
    lines_max, shown_max = FINDING_LINES_MAX[is_tall], FINDINGS_SHOWN_MAX[is_tall]
    told = [run.injected_faults] if run.injected_faults else []
    beside = _wrap_all([*told, *describe_changed(run.settings, run.settings_taken)], width, lines_max)
    if run.end is not None:
        texts = [*describe_ended_run(run)[1:], f"verdict: {verdict(run)}"]
        return beside + _wrap_all(texts, width, lines_max)
    if not run.open_findings:
        quiet = "no rank is slower than the others" if run.abstained is None else f"no verdict yet: {run.abstained}"
        texts = [quiet, *([text] if (text := describe_ranks_without_peers(run)) is not None else [])]
        return beside + _wrap_all(texts, width, lines_max, (GRAY,))
    shown = [line for one in run.open_findings[:shown_max] for line in _draw_finding(one, width, is_tall=is_tall)]
    more = len(run.open_findings) - shown_max
    return beside + shown + ([(ColoredText(f"and {more} more findings", (GRAY,)),)] if more > 0 else [])


def _wrap_all(texts: Sequence[str], width: int, lines_max: int, codes: tuple[str, ...] = ()) -> list[Line]:
    return [line for text in texts for line in wrap(printable(text), width - 1, lines_max, codes)]


def _draw_absence(view: FetchedRun, width: int) -> list[Line]:
    """Return why ranks that are up have no bar of the device; nothing while no rank has had a window."""
    absent = describe_absence([(rank.rank, rank.ratio_basis) for rank in choose_counted(view.ranks)])
    if absent is None or absent == NO_WINDOW.absent:
        return []
    return _wrap_all([f"device: {absent}"], width, FINDING_LINES_MAX[0], (GRAY,))


def _draw_trend(view: FetchedRun, width: int) -> list[Line]:
    """Return the curve of the step time since this was started, or before where the collector has a store."""
    shown = view.trend[-min(CURVE_WIDTH_MAX, width - 50) :]
    if len(shown) < CURVE_POINTS_MIN:
        return []
    now, low, high = map(format_duration, (shown[-1], min(shown), max(shown)))
    return [make_line("step ", ColoredText(draw_curve(shown, len(shown)), (CYAN,)), f" {now} now, {low} to {high}")]


def _draw_finding(finding: Finding, width: int, *, is_tall: bool) -> list[Line]:
    """Return the headline, and what is known of it; on a low terminal only which line it is and what to do."""
    codes = (BOLD, RED) if finding.severity == "critical" else (BOLD, YELLOW)
    first, *others = wrap(f"! {printable(finding.headline)}", width - 1, FINDING_LINES_MAX[is_tall])
    marked = (ColoredText("!", codes), ColoredText(first[0].text[1:]))
    facts = [(name, text) for name, text in list_facts(finding) if is_tall or name in SHOWN_ALWAYS]
    lines = [wrap(f"{name}: {text}", width - 3, FACT_LINES_MAX[is_tall]) for name, text in facts]
    return [marked, *others, *((ColoredText("  "), *line) for wrapped in lines for line in wrapped)]


def _draw_help() -> list[Line]:
    return [(*pad((ColoredText(keys, (BOLD,)),), HELP_KEYS_WIDTH), ColoredText(meaning)) for keys, meaning in HELP]


def _draw_rule(view: FetchedRun, width: int) -> Line:
    """Return the line below the table, which says what steps its medians are of."""
    said = "" if view.run is None else describe_median_steps(view.run.medians_of)
    return (ColoredText(f"── {said} {'─' * width}" if said else "─" * width, (GRAY,)),)


def _draw_foot(board: Board) -> Line:
    if board.is_typing:
        kept = ColoredText("   enter keeps it, esc clears it", (GRAY,))
        return make_line(ColoredText("filter: ", (BOLD,)), board.filter, ColoredText("_", (BLINK,)), kept)
    order = ORDERS[board.order][0]
    chosen = f"by {order}{', reversed' if board.is_reversed else ''}"
    filtered = f", filter {printable(board.filter)!r}" if board.filter else ""
    keys = "s t o w d e i m u r sort  v nodes  g GPUs  / filter  ? help  q quit"
    return (ColoredText(f"{chosen}{filtered}  {keys}", (GRAY,)),)
