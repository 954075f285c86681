"""Write the sentence of a straggler: which rank, how much slower than its peers, since when, the cause and the cost."""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.detect.finding import DRIFTING, describe_begin, format_ranks
from rankscope.collector.detect.past import WHEN, put_in_past
from rankscope.collector.detect.stragglers.cost import Cost
from rankscope.collector.detect.stragglers.intermittent import find_period
from rankscope.collector.detect.stragglers.persistent import SlowRank
from rankscope.collector.detect.stragglers.root_cause import Cause
from rankscope.collector.detect.stragglers.slow_sets import SlowSet
from rankscope.collector.detect.stragglers.witness import Witness
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.units import format_duration

COST_RATIO_STATED_MIN = 1.01
IT_WOULD: Final = "it would without this"


def write_sentence(
    slow_set: SlowSet,
    slow: SlowRank,
    cause: Cause,
    cost: Cost,
    view: RunView,
    *,
    others: Sequence[int] = (),
    witness: Witness | None = None,
    is_over: bool = False,
) -> str:
    """Return the sentence about one straggler, or about ranks that are slow together, of which `slow` is the slowest.
    The cost is that of the `others`' slowness, too; `witness` is about the slowest. `is_over`: in the past tense, with
    WHEN in place of the period.
    """
    begin = describe_begin(slow.since_step, slow.since_range, is_gradual=slow.pattern == DRIFTING)
    peers, pattern = _name_peers(slow, len(view.series.ranks), is_over=is_over), _describe_pattern(slow)
    text = (
        f"{_name(slow_set, view.nodes[slow.rank], is_over=is_over)} {slow.slowdown_ratio:.2f} times as slow as "
        f"{peers}{pattern.removeprefix(',') if peers.endswith(',') else pattern}"
        f"{WHEN if is_over else f' since {begin}'}{_describe_level(slow, is_over=is_over)}: "
        f"{format_duration(slow.self_ns)} a step {describe_self(view.series)}, "
        f"against {format_duration(slow.peers_self_ns)}; "
        f"cause {cause.name}: {put_in_past(cause.because) if is_over else cause.because}."
    )
    text += "" if witness is None else witness.describe(slow.rank, is_over=is_over)
    return text + describe_cost(cost, also=_name_others(others), is_over=is_over)


def describe_self(series: StepSeries) -> str:
    """Return what the self times of the sentence are."""
    if series.is_by_device:
        return "on the GPU without the end of backward, where ranks wait for each other"
    return "excluding waits for other ranks" if series.self_is_measured else "in data, forward and optimizer"


def _name_others(others: Sequence[int]) -> str:
    """Return what else the cost is of; empty for nothing."""
    return f" and the slowness of rank{'s' if len(others) > 1 else ''} {format_ranks(others)}" if others else ""


def describe_cost(cost: Cost, *, than: str = IT_WOULD, also: str = "", is_over: bool = False) -> str:
    """Return a sentence about the cost, to follow another; empty below COST_RATIO_STATED_MIN. `also`: the end of what
    it compares with.
    """
    if cost.run_slowdown_ratio < COST_RATIO_STATED_MIN:
        return ""
    takes, costs = ("took", "cost") if is_over else ("takes", "costs")
    than = "it would have without this" if is_over and than == IT_WOULD else than
    return (
        f" The whole run {takes} {cost.run_slowdown_ratio:.2f} times as long as {than}{also}; "
        f"each hour {costs} {cost.lost_rank_hours_per_hour:.1f} rank-hours."
    )


def _describe_level(slow: SlowRank, *, is_over: bool) -> str:
    """Return since when a steady slowness has had its present size, where that is clearly not since its begin."""
    step = slow.told_level_step
    if slow.pattern != "steady" or step is None or step <= slow.since_step:
        return ""
    return f", by this much {f'from step {step} on' if is_over else f'since step {step}'}"


def _name(slow_set: SlowSet, node: str, *, is_over: bool) -> str:
    nodes, slow_ranks = slow_set
    verb = "was" if is_over else "is"
    if len(slow_ranks) == 1:
        return f"Rank {slow_ranks[0].rank} ({node}) {verb}"
    if len(nodes) != 1:
        verb = "were" if is_over else "are"
    ranks = f"anks {format_ranks(sorted(one.rank for one in slow_ranks))}"
    who = f"Node{'s' if len(nodes) > 1 else ''} {', '.join(nodes)} (r{ranks})" if nodes else f"R{ranks}"
    return f"{who} {verb} up to"


def _name_peers(slow: SlowRank, ranks: int, *, is_over: bool) -> str:
    if slow.peers.size == 1:
        only = "the other rank" if ranks == 2 else "its only peer rank"  # noqa: PLR2004 - it and the other
        return only if slow.peers.do_same_work else "usual compared with the other rank"
    if slow.peers.do_same_work:
        return f"its {slow.peers.size} peer ranks"
    is_ = "was" if is_over else "is"
    return f"usual compared with the other {slow.peers.size} ranks, none of which {is_} known to do the same work,"


def _describe_pattern(slow: SlowRank) -> str:
    if slow.pattern == DRIFTING:
        return ", and ever slower,"
    if slow.pattern != "intermittent":
        return ""
    period, is_regular = find_period(slow.slow_steps)
    return f" every {period} steps" if is_regular else f" in {100 * slow.persistence:.0f} % of the steps"
