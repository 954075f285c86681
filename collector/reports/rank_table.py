"""A run as a table for a terminal: one line a rank."""

from collections.abc import Callable

from rankscope.collector.detect import ratios
from rankscope.collector.reports.stalls import describe_stall
from rankscope.collector.reports.summary import describe_ended_run, verdict
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.state.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import PHASES, WindowBreakdown
from rankscope.measure.units import NS_PER_MS

UNKNOWN = "-"
HEAD = (
    f"{'rank':>5} {'steps':>6} {'step ms':>8} "
    + " ".join(f"{name[:8]:>8}" for name in PHASES)
    + f" {'self ms':>8} {'slowdown':>8} {'compute':>7} {'comm':>6} {'overlap':>7} {'exposed':>7} {'idle':>6}  state"
)


def render_run(run: RunSnapshot) -> str:
    """The table of a run and, below it, what detection says. Times are medians in ms, ratios per cent of a window."""
    lines = [f"run {run.run}: {len(run.ranks)} of {run.world_size} ranks", *describe_ended_run(run), HEAD]
    lines += [render_rank(rank) for rank in run.ranks]
    lines += [f"! {sentence}" for rank in run.ranks if (sentence := describe_stall(rank)) is not None]
    lines += [f"! {finding.sentence}" for finding in run.open_findings]
    if run.end is not None:
        lines.append(f"verdict: {verdict(run)}")
    elif run.abstained is not None:
        lines.append(f"no verdict yet: {run.abstained}")
    elif not run.open_findings:
        lines.append("no rank is slower than the others")
    return "\n".join(map(printable, lines))  # names of runs, nodes and ends came over the wire


def render_rank(rank: RankSnapshot) -> str:
    """One line of the table."""
    phases = " ".join(f"{_ms(rank.phases_ns_median.get(name)):>8}" for name in PHASES)
    slowdown = UNKNOWN if rank.slowdown_ratio is None else f"{rank.slowdown_ratio:.2f}x"
    window = rank.breakdown
    shares = " ".join(
        f"{_percent(window, ratio):>{width}}"
        for ratio, width in (
            (ratios.compute_ratio, 7),
            (ratios.communication_ratio, 6),
            (ratios.overlap_ratio, 7),
            (ratios.exposed_communication_ratio, 7),
            (ratios.idle_ratio, 6),
        )
    )
    state = rank.ended or ("stalled" if rank.stalled else "up")
    return (
        f"{rank.identity.rank:>5} {rank.totals.steps:>6} {_ms(rank.step_ns_median):>8} {phases} "
        f"{_ms(rank.self_ns_median):>8} {slowdown:>8} {shares}  {state}"
    )


def _ms(nanoseconds: float | None) -> str:
    return UNKNOWN if nanoseconds is None else f"{nanoseconds / NS_PER_MS:.1f}"


def _percent(window: WindowBreakdown | None, ratio: Callable[[WindowBreakdown], float | None]) -> str:
    value = None if window is None else ratio(window)
    return UNKNOWN if value is None else f"{100 * value:.0f}%"
