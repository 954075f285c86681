"""Render ranks as a table for a terminal: one line a rank. Times are medians in ms, ratios are % of a window."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rankscope.collector.reports.terminal_colors import BOLD, DIM, GREEN, PLAIN, RED, YELLOW, Colors
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs import ratios
from rankscope.collector.runs.liveness import ENDED_WELL
from rankscope.collector.runs.run_status import describe_state
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.steps.rank_medians import MedianSteps, describe_median_steps
from rankscope.measure.records import PHASES, WindowBreakdown
from rankscope.measure.units import NS_PER_MS

UNKNOWN: Final = "-"
STATE_WIDTH: Final = 10
WIDTHS: Final = {name: max(8, len(name)) for name in PHASES}
HEAD: Final = (
    f"{'rank':>5} {'steps':>6} {'step ms':>8} "
    + " ".join(f"{name:>{WIDTHS[name]}}" for name in PHASES)
    + f" {'own ms':>8} {'slowdown':>8} {'compute %':>9} {'comm %':>6} {'overlap %':>9} {'exposed %':>9} {'idle %':>6}"
    + f"  {'state':<{STATE_WIDTH}} node"
)
STATE_COLORS: Final[Mapping[str, tuple[str, ...]]] = {
    "up": (GREEN,), "stalled": (YELLOW,), "silent": (YELLOW,), "awaited": (DIM,),
}  # fmt: skip


def render_ranks(ranks: Iterable[RankSnapshot], of_steps: MedianSteps | None, colors: Colors = PLAIN) -> list[str]:
    """Return a line that says which steps its medians are of, the head of the table, and a line for each rank."""
    return [*render_head(of_steps, colors), *(render_rank(rank, colors) for rank in ranks)]


def render_head(of_steps: MedianSteps | None, colors: Colors = PLAIN) -> list[str]:
    """Return which steps the medians are of, where they are known, and the head of the table."""
    said = describe_median_steps(of_steps)
    return [*([colors.paint(f"  ms: {said}", DIM)] if said else []), colors.paint(HEAD, BOLD)]


def render_rank(rank: RankSnapshot, colors: Colors = PLAIN) -> str:
    """Return one line of the table."""
    slowdown = UNKNOWN if rank.slowdown_ratio is None else f"{rank.slowdown_ratio:.2f}x"
    window = rank.breakdown
    shares = " ".join(
        f"{_percent(window, ratio):>{width}}"
        for ratio, width in (
            (ratios.compute_ratio, 9),
            (ratios.communication_ratio, 6),
            (ratios.overlap_ratio, 9),
            (ratios.exposed_communication_ratio, 9),
            (ratios.idle_ratio, 6),
        )
    )
    times = render_times(rank.step_ns_median, rank.phases_ns_median, rank.own_ns_median)
    state = describe_state(rank)
    painted = colors.paint(f"{state:<{STATE_WIDTH}}", *color_of(state))
    node = printable(rank.identity.node)
    return f"{rank.identity.rank:>5} {rank.totals.steps:>6} {times} {slowdown:>8} {shares}  {painted} {node}"


def render_times(step_ns: float | None, phases_ns: Mapping[str, float], own_ns: float | None) -> str:
    """Return the columns of times: the step, its phases, the own time."""
    phases = " ".join(f"{_ms(phases_ns.get(name)):>{WIDTHS[name]}}" for name in PHASES)
    return f"{_ms(step_ns):>8} {phases} {_ms(own_ns):>8}"


def color_of(state: str) -> tuple[str, ...]:
    """Return the colors of a rank's state: none for a good end, red for a bad one."""
    return STATE_COLORS.get(state, () if state in ENDED_WELL else (RED,))


def _ms(nanoseconds: float | None) -> str:
    return UNKNOWN if nanoseconds is None else f"{nanoseconds / NS_PER_MS:.1f}"


def _percent(window: WindowBreakdown | None, ratio: Callable[[WindowBreakdown], float | None]) -> str:
    value = None if window is None else ratio(window)
    return UNKNOWN if value is None else f"{100 * value:.0f}"
