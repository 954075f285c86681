"""The verdict in one sentence: which rank, how much slower than whom, since when, why, and what it costs."""

from rankscope.collector.detect.cost import Cost
from rankscope.collector.detect.root_cause import Cause
from rankscope.collector.detect.series import StepSeries
from rankscope.collector.detect.stragglers import Slow
from rankscope.measure.units import format_duration

COST_WORTH_SAYING = 1.01


def write_sentence(slow: Slow, cause: Cause, cost: Cost, series: StepSeries, node: str) -> str:
    """The sentence about one straggler."""
    peers = f"its {len(slow.peers.ranks)} twins" if slow.peers.are_twins else f"the other {len(slow.peers.ranks)} ranks"
    if len(slow.peers.ranks) == 1:
        peers = "the other rank"
    work = "own work" if series.self_is_measured else "data, forward and optimizer time"
    text = (
        f"Rank {slow.rank} ({node}) is {slow.slowdown_ratio:.2f} times as slow as {peers} "
        f"since step {slow.since_step}: "
        f"{format_duration(slow.self_ns)} of {work} a step against {format_duration(slow.peers_self_ns)}; "
        f"cause {cause.name}: {cause.because}."
    )
    if cost.job_slowdown_ratio >= COST_WORTH_SAYING:
        text += (
            f" The whole job takes {cost.job_slowdown_ratio:.2f} times as long as it would; "
            f"each hour costs {cost.lost_rank_hours_per_hour:.1f} rank-hours."
        )
    return text
