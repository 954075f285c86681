"""Judge the ranks together: serialized or excessive communication, stragglers, load imbalance."""

from collections.abc import Sequence
from statistics import mean

import msgspec

from rankscope.collector.detect.finding import STRAGGLER
from rankscope.collector.detect.run_rules.thresholds import (
    EXPOSED_RATIO_MIN,
    HIDEABLE_RATIO_MIN,
    OVERLAP_RATIO_MAX,
    percent,
)
from rankscope.collector.detect.stragglers.recording import STEADY_SLOWDOWN_MIN, find_noise
from rankscope.collector.detect.suggestions import COMMUNICATE_LESS, OVERLAP
from rankscope.collector.traces.advice_rules import of_rank, ranks_of, severity_of, window_of
from rankscope.collector.traces.pipeline import SLOW_STAGE_MIN
from rankscope.collector.traces.report import Abstention, Advice, CrossRank, RankReport, TraceFinding
from rankscope.collector.traces.standings import describe_few_steps
from rankscope.collector.traces.traced_run import IMBALANCE

# -- serial_communication ---------------------------------------------------------------------------------------------

SHARED_STREAM_RATIO_MIN = 0.5
"""Share of the communication on the compute stream, where it cannot overlap."""


def judge_serial_communication(report: RankReport) -> Advice | Abstention | None:
    """Judge whether communication and compute alternate although they could overlap."""
    key = "serial_communication"
    if not report.communication_ns or report.overlap_ratio is None:
        return Abstention(key=key, reason="no communication in the trace")
    if report.signs.message_excess_ns is not None and report.signs.stage_wait_ns is None:
        return Abstention(
            key=key,
            reason="the rank exchanges messages, and how long it waits in collectives for other stages of a pipeline "
            "is not known from these traces",
        )
    working_ns = report.window_ns - report.idle_ns
    hideable_ns = max(0, min(_find_exposed_transfer(report), report.compute_ns - report.overlap_ns))
    ratio = hideable_ns / working_ns
    if report.overlap_ratio >= OVERLAP_RATIO_MAX or ratio < HIDEABLE_RATIO_MIN:
        return None
    kernels_ns = sum(row.total_ns for row in report.kernels if row.is_communication)
    shared = (report.signs.shared_stream_communication_ns or 0) / kernels_ns if kernels_ns else 0.0
    same = " It is on the compute stream." if shared >= SHARED_STREAM_RATIO_MIN else ""
    return Advice(
        key=key,
        severity="warning" if hideable_ns / report.window_ns >= HIDEABLE_RATIO_MIN else "hint",
        ranks=ranks_of(report),
        sentence=(
            f"Only {percent(report.overlap_ratio)} of the communication{of_rank(report)} overlaps with compute"
            f"{_describe_saving(report, ratio)}{same}"
        ),
        action=_OWN_STREAM if same else f"{OVERLAP} {_CHECK_THE_HOST}",
        evidence={
            "hideable_ratio": ratio,
            "hideable_ratio_min": HIDEABLE_RATIO_MIN,
            "overlap_ratio": report.overlap_ratio,
            "overlap_ratio_max": OVERLAP_RATIO_MAX,
            "shared_stream_ratio": shared,
            "hideable_ns": hideable_ns,
            "wait_ns": report.signs.exposed_wait_ns,
        },
    )


def _describe_saving(report: RankReport, ratio: float) -> str:
    """Return what overlap would save: of transfers alone, else why that is not known."""
    of_time = f"{percent(ratio)} of the time the device works"
    if not _knows_waits(report):
        return (
            f"; {of_time} is communication that compute could hide. How much of it is waiting for other ranks, which "
            "overlap does not save, is not known from these traces."
        )
    return f"; full overlap would save up to {of_time}, waits for other ranks not counted.{_doubt_waits(report)}"


def _knows_waits(report: RankReport) -> bool:
    return report.signs.exposed_wait_ns is not None or report.world_size == 1


def _doubt_waits(report: RankReport) -> str:
    """Return a sentence where waits are left in what counts as transfer."""
    if not report.signs.waits_are_lower_bound:
        return ""
    return " Some of it may still be waits for ranks whose traces are missing."


_OWN_STREAM = (
    "Start collectives with async_op=True and wait as late as possible, or on a stream of their own; a collective that "
    "is waited for at once runs in the queue of the compute stream."
)
_CHECK_THE_HOST = "A device that waits for its host overlaps little either: see low_gpu_utilization."

# -- communication_bound ----------------------------------------------------------------------------------------------


def judge_communication(reports: Sequence[RankReport], _across: CrossRank | None) -> Advice | Abstention | None:
    """Judge whether exposed communication takes much of the steps."""
    key = "communication_bound"
    judged = [one for one in reports if one.communication_ns and window_of(one)]
    if not judged:
        return Abstention(key=key, reason="no communication in the traces")
    ratios = [(_find_transfer_of_steps(one) / window_of(one), one) for one in judged]
    fired = [(ratio, one) for ratio, one in ratios if ratio >= EXPOSED_RATIO_MIN]
    if not fired:
        return None
    ratio, worst = max(fired, key=lambda pair: pair[0])
    known = _knows_waits(worst)
    doubt = _doubt_waits(worst) if known else " How much of it is waits for other ranks is not known from these traces."
    what = "transfer" if known else "communication"
    return Advice(
        key=key,
        severity=severity_of(ratio) if known else "warning",
        ranks=sorted(rank for _, one in fired for rank in ranks_of(one)),
        sentence=(
            f"{percent(ratio)} of the time{of_rank(worst)} is communication that does not overlap with compute"
            f"{', waits for other ranks not counted' if known else ''}.{doubt}"
        ),
        action=f"{COMMUNICATE_LESS} {_COMPARE_BANDWIDTH}",
        evidence={
            f"exposed_{what}_ratio": ratio,
            f"exposed_{what}_ratio_min": EXPOSED_RATIO_MIN,
            "exposed_communication_ns": worst.signs.exposed_communication_ns,
            "wait_ns": worst.signs.step_wait_ns,
            "rank": worst.rank,
        },
    )


_COMPARE_BANDWIDTH = "Compare the bus bandwidth in the table of collectives with what the links can do."


def _find_exposed_transfer(report: RankReport) -> int:
    """Return exposed communication less the waits that are known in ns. Messages count with what the fastest of their
    kind took: a receive lasts until its sender has come, a send until it is asked for.
    """
    return _subtract_waits(report.exposed_communication_ns, report.signs.exposed_wait_ns, report)


def _find_transfer_of_steps(report: RankReport) -> int:
    """Return the same over the steps that shares are of."""
    return _subtract_waits(report.signs.exposed_communication_ns, report.signs.step_wait_ns, report)


def _subtract_waits(exposed_ns: int, waited_ns: int | None, report: RankReport) -> int:
    known_ns = (report.signs.message_excess_ns or 0) + (report.signs.stage_wait_ns or 0)
    return max(0, exposed_ns - (known_ns if waited_ns is None else waited_ns))


# -- straggler --------------------------------------------------------------------------------------------------------

CRITICAL_SLOWDOWN = 1.5
"""All ranks take half as long again: a third of the machines is lost."""


def judge_stragglers(reports: Sequence[RankReport], across: CrossRank | None) -> Advice | Abstention | None:
    """Judge which ranks the others wait for, as the comparison of the ranks has found them."""
    key = "straggler"
    compared = _find_comparison(key, reports, across)
    if isinstance(compared, Abstention):
        return compared
    found = [finding for finding in compared.findings if finding.kind == STRAGGLER]
    if not found:
        return Abstention(key=key, reason=compared.undecided) if compared.undecided is not None else None
    return _advise(key, found, compared)


def _advise(key: str, found: Sequence[TraceFinding], across: CrossRank) -> Advice:
    """Return the advice on ranks that are behind the others."""
    worst = max(found, key=lambda finding: finding.slowdown_ratio or 0.0)
    is_critical = key == STRAGGLER and (worst.slowdown_ratio or 0.0) >= CRITICAL_SLOWDOWN
    bound = " Ranks are missing here: one of them may be slower still." if across.lower_bound else ""
    mine = (one for one in across.standings if one.rank in worst.ranks)
    slowest = max(mine, key=lambda one: one.slowdown_ratio or 0.0, default=None)
    shown = ("excess_ns", "noise_ns", "last_count", "late_count", "wait_caused_ratio")
    return Advice(
        key=key,
        severity="critical" if is_critical else "warning",
        ranks=sorted(rank for finding in found for rank in finding.ranks),
        sentence=" ".join(finding.sentence for finding in found) + bound,
        action=_ACTIONS.get(worst.cause or "", _ACTIONS["unattributed"]),
        evidence={
            "slowdown_ratio": worst.slowdown_ratio,
            "slowdown_ratio_min": STEADY_SLOWDOWN_MIN,
            "run_slowdown_ratio": worst.run_slowdown_ratio,
            "rank": worst.rank,
            "cause": worst.cause,
            **({} if slowest is None else {name: getattr(slowest, name) for name in shown}),
        },
    )


_EVEN_OUT = (
    "Even out what ranks are given: samples of similar length in one batch, shards and experts of equal size, no extra "
    "work on one rank."
)
_ACTIONS = {
    "data_loading": "Look at this rank's input: its shard's size, its storage, the processors of its loader's workers.",
    "host_cpu": "Look at this rank's host: other work on its processors, how it is pinned, Python done on it alone.",
    "gpu_compute": "Look at this rank's GPU: its clocks, temperature and power limit, and who else uses it.",
    "unattributed": "Profile this rank beside another with with_stack=True, and compare their timelines.",
    "more_work": _EVEN_OUT,
}


def _find_comparison(key: str, reports: Sequence[RankReport], across: CrossRank | None) -> CrossRank | Abstention:
    """Return the comparison of the ranks by their steps, else why there is none."""
    if across is None:
        return Abstention(key=key, reason="only one rank's trace: nothing to compare with")
    reason = across.pipeline_refused or across.refused
    if reason is not None:
        return Abstention(key=key, reason=reason)
    numbers = [{step.step for step in report.steps if step.is_judged} for report in reports]
    return across if set.intersection(*numbers) else Abstention(key=key, reason="no step that all ranks have")


# -- pipelines --------------------------------------------------------------------------------------------------------

BUBBLE_RATIO_MIN = 0.15
"""Of 4 stages with 16 microbatches, 1F1B: 3 / 19 of the time."""


def judge_slow_stage(_reports: Sequence[RankReport], across: CrossRank | None) -> Advice | None:
    """Judge whether one stage of a pipeline works longer than the others."""
    key = "slow_stage"
    if across is None or across.pipeline is None:
        return None
    found = next((finding for finding in across.findings if finding.kind == key), None)
    if found is None:
        return None
    ratio = found.slowdown_ratio or 0.0
    return Advice(
        key=key,
        severity="critical" if ratio >= CRITICAL_SLOWDOWN else "warning",
        ranks=found.ranks,
        sentence=found.sentence,
        action=(
            "Move layers from this stage to others, so that all work equally long. If its layers are equal to theirs, "
            "check the GPU clocks and the hosts of its ranks."
        ),
        evidence={
            "work_ratio": ratio,
            "work_ratio_min": SLOW_STAGE_MIN,
            "rank": found.rank,
            "cause": found.cause,
            "bubble_ratio": across.pipeline.bubble_ratio,
        },
    )


def judge_bubble(_reports: Sequence[RankReport], across: CrossRank | None) -> Advice | None:
    """Judge how much of the time the stages of a pipeline wait for each other."""
    staged = across.pipeline if across is not None else None
    if staged is None or (staged.bubble_ratio or 0.0) < BUBBLE_RATIO_MIN:
        return None
    worst = max(staged.stages, key=lambda stage: stage.bubble_ratio or 0.0)
    return Advice(
        key="pipeline_bubble",
        severity="hint",
        ranks=sorted(rank for stage in staged.stages for rank in stage.ranks),
        sentence=(
            f"{percent(staged.bubble_ratio or 0.0)} of the stages' time is bubble: they wait for messages and for each "
            f"other, stage {worst.stage} the longest ({percent(worst.bubble_ratio or 0.0)})."
        ),
        action=(
            "First balance the stages: all wait for the slowest. Then use more microbatches in a step, several chunks "
            "for each stage (interleaved schedule), or a schedule that fills the bubble with weight gradients (zero "
            "bubble)."
        ),
        evidence={"bubble_ratio": staged.bubble_ratio, "bubble_ratio_min": BUBBLE_RATIO_MIN, "stage": worst.stage},
    )


# -- load_imbalance ---------------------------------------------------------------------------------------------------

_LOAD_IMBALANCE = "load_imbalance"
MORE_WORK_MIN = 1.1
"""Times as many kernels as the others run: that is more work."""
IMBALANCE_MIN = 0.15
"""The longest compute time over the mean, less 1; up to 13 % between healthy ranks on busy cores."""
IMBALANCE_COST_RATIO_MIN = 0.05
"""Share of the window that all ranks could save at most with evenly spread work."""


def judge_load_balance(reports: Sequence[RankReport], across: CrossRank | None) -> Advice | Abstention | None:
    """Judge whether ranks of the same program have unequal compute times, without a straggler among them. Ranks whose
    messages cannot be matched may be stages with other work: they are judged where they run as many kernels.
    """
    compared = _find_comparison(_LOAD_IMBALANCE, reports, across)
    if isinstance(compared, Abstention):
        is_unmatched = across is not None and across.pipeline_refused is not None and across.refused is None
        return _judge_computing(reports, else_=compared) if is_unmatched else compared
    if compared.pipeline is not None or len({_signature(report) for report in reports}) > 1:
        return Abstention(
            key=_LOAD_IMBALANCE, reason="the ranks do not run the same collectives: their work is not meant to be equal"
        )
    more_work = [finding for finding in compared.findings if finding.kind == IMBALANCE]
    if more_work or any(finding.kind == STRAGGLER for finding in compared.findings):
        return _advise(_LOAD_IMBALANCE, more_work, compared) if more_work else None
    return _judge_computing(reports)


def _judge_computing(reports: Sequence[RankReport], else_: Abstention | None = None) -> Advice | Abstention | None:
    """Judge the compute times of the steps that all ranks have. `else_`: what is returned unless all ranks run about as
    many kernels.
    """
    steps = [{step.step: step.on_device or step for step in report.steps if step.is_judged} for report in reports]
    common = sorted(set.intersection(*map(set, steps)))
    counts: list[float] = [sum(mine[number].kernel_count for number in common) for mine in steps]
    if else_ is not None:
        counts = [len(common) * _count_computing(report) for report in reports] if common else []
        if not _are_about_equal(counts):
            return else_
    computed = [[mine[number].compute_ns for number in common] for mine in steps]
    average_ns = [mean(at) for at in zip(*computed, strict=True)]
    most = max(range(len(reports)), key=lambda place: sum(computed[place]))
    window_ns = sum(steps[most][number].window_ns for number in common)
    excess_ns = [mine - usual for mine, usual in zip(computed[most], average_ns, strict=True)]
    whole_ns, more_ns = sum(average_ns), sum(excess_ns)
    if not whole_ns or more_ns < max(IMBALANCE_MIN * whole_ns, IMBALANCE_COST_RATIO_MIN * window_ns):
        return None
    noise_ns = find_noise(excess_ns)
    if noise_ns is not None and mean(excess_ns) <= noise_ns:
        return Abstention(
            key=_LOAD_IMBALANCE,
            reason=f"rank {reports[most].rank} computed {percent(more_ns / whole_ns)} longer than the ranks do on "
            "average, but its steps differ by as much: record more of them",
        )
    advice = _advise_on_balance(reports[most], counts[most], mean(counts), more_ns / whole_ns, more_ns / window_ns)
    return advice if noise_ns is not None else _add_doubt(advice, len(common))


def _count_computing(report: RankReport) -> float:
    """Return the kernels of a step that do not communicate; on a CPU the operators."""
    if not report.devices:
        return mean(step.kernel_count for step in report.steps)
    return sum(row.count for row in report.kernels if not row.is_communication) / len(report.steps)


def _are_about_equal(counts: Sequence[float]) -> bool:
    return 0 < max(counts, default=0) < MORE_WORK_MIN * min(counts)


def _advise_on_balance(report: RankReport, count: float, usual: float, imbalance: float, cost: float) -> Advice:
    """Return the advice on a rank with so many kernels (on a CPU: operators) in its steps, `usual` in the mean."""
    return Advice(
        key=_LOAD_IMBALANCE,
        severity="warning",
        ranks=ranks_of(report),
        sentence=(
            f"Rank {report.rank} computed {percent(imbalance)} longer than the ranks do on average"
            f"{describe_counts(count, usual, 'kernels' if report.devices else 'operators')}; "
            f"spread evenly the steps would be up to {percent(cost)} shorter."
        ),
        action=f"{_EVEN_OUT} With equal kernels look at sizes, then at the clocks of the GPUs.",
        evidence={
            "imbalance_ratio": imbalance,
            "imbalance_ratio_min": IMBALANCE_MIN,
            "cost_ratio": cost,
            "cost_ratio_min": IMBALANCE_COST_RATIO_MIN,
            "kernel_count": count,
            "kernel_count_mean": usual,
        },
    )


def describe_counts(count: float, usual: float, what: str) -> str:
    """Return how the work of a rank compares with the ranks' mean by its number; nothing where one of the two is 0:
    then the work was not counted.

    >>> describe_counts(120, 100, "kernels"), describe_counts(101, 100, "kernels"), describe_counts(0, 0, "kernels")
    (', with 1.20 times as many kernels', ', with about as many kernels', '')
    """
    if not count or not usual:
        return ""
    ratio = count / usual
    return f", with {'about' if 1 / MORE_WORK_MIN < ratio < MORE_WORK_MIN else f'{ratio:.2f} times'} as many {what}"


def _add_doubt(advice: Advice, step_count: int) -> Advice:
    doubt = f" {describe_few_steps(step_count)} to tell how much steps differ by themselves: record more of them."
    return msgspec.structs.replace(advice, sentence=advice.sentence + doubt)


def _signature(report: RankReport) -> frozenset[tuple[str, int | None, int]]:
    """Return what distinguishes pipeline stages and roles: which collectives, in groups of which size, how often."""
    return frozenset((row.op, row.group_size, row.count) for row in report.collectives)
