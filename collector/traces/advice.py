"""Judge the reports of traces: what costs time, on which rank, by which numbers, and what to do about it.

A rule returns an Advice, an Abstention with its reason, or None: judged, nothing found. Rules of one rank run on each
rank and are merged: the advice of the rank with the largest number stands for all. The evidence begins with the
measured number and its threshold.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from rankscope.collector.traces import (
    advice_rules_device,
    advice_rules_host,
    advice_rules_parallel,
    advice_rules_ranks,
)
from rankscope.collector.traces.net import attempt
from rankscope.collector.traces.report import Abstention, Advice, CrossRank, RankReport

Verdict = Advice | Abstention | None

SEVERITIES = ("critical", "warning", "hint")

RULES_OF_ONE_RANK: Mapping[str, Callable[[RankReport], Verdict]] = {
    "low_gpu_utilization": advice_rules_host.judge_gpu_utilization,
    "long_step": advice_rules_host.judge_long_steps,
    "small_kernels": advice_rules_host.judge_small_kernels,
    "data_bound": advice_rules_host.judge_data_loading,
    "blocking_sync": advice_rules_host.judge_blocking_sync,
    "redundant_copies": advice_rules_device.judge_copies,
    "memory_growth": advice_rules_device.judge_memory_growth,
    "memory_near_capacity": advice_rules_device.judge_memory_capacity,
    "no_tensor_cores": advice_rules_device.judge_tensor_cores,
    "serial_communication": advice_rules_ranks.judge_serial_communication,
    "data_parallel": advice_rules_parallel.judge_data_parallel,
    "gloo_beside_devices": advice_rules_parallel.judge_gloo,
}
RULES_OF_ALL_RANKS: Mapping[str, Callable[[Sequence[RankReport], CrossRank | None], Verdict]] = {
    "communication_bound": advice_rules_ranks.judge_communication,
    "straggler": advice_rules_ranks.judge_stragglers,
    "load_imbalance": advice_rules_ranks.judge_load_balance,
    "slow_stage": advice_rules_ranks.judge_slow_stage,
    "pipeline_bubble": advice_rules_ranks.judge_bubble,
}


def advise(reports: Sequence[RankReport], across: CrossRank | None) -> tuple[list[Advice], list[Abstention]]:
    """Return what the rules found, the most severe first, and their abstentions; at most one of each per key."""
    verdicts: list[Verdict] = []
    for key, rule in RULES_OF_ALL_RANKS.items() if reports else ():
        verdicts.append(attempt(partial(rule, reports, across), partial(_abstain, key)))
    for key, judge in RULES_OF_ONE_RANK.items():
        judged = [(report.rank, attempt(partial(judge, report), partial(_abstain, key))) for report in reports]
        verdicts += merge(judged)
    found = [one for one in verdicts if isinstance(one, Advice)]
    abstained = [one for one in verdicts if isinstance(one, Abstention)]
    return (
        sorted(found, key=lambda one: (SEVERITIES.index(one.severity), one.key)),
        sorted(abstained, key=lambda one: one.key),
    )


def _abstain(key: str, reason: str) -> Verdict:
    return Abstention(key=key, reason=reason)


def merge(verdicts: Sequence[tuple[int | None, Verdict]]) -> list[Advice | Abstention]:
    """Merge the verdicts of one rule on each rank into at most one advice and one abstention.

    An abstention names its ranks when others could be judged.
    """
    fired = [one for _, one in verdicts if isinstance(one, Advice)]
    merged: list[Advice | Abstention] = [_merge_advice(fired)] if fired else []
    by_reason: dict[str, list[int]] = defaultdict(list)
    abstained = [(rank, one) for rank, one in verdicts if isinstance(one, Abstention)]
    for rank, one in abstained:
        by_reason[one.reason].extend([rank] if rank is not None else [])
    if len(by_reason) == 1 and len(abstained) == len(verdicts):
        merged.append(abstained[0][1])
    elif abstained:
        reasons = "; ".join(f"{name_ranks(ranks)}: {reason}" for reason, ranks in by_reason.items())
        merged.append(Abstention(key=abstained[0][1].key, reason=reasons))
    return merged


def _merge_advice(fired: Sequence[Advice]) -> Advice:
    worst = max(fired, key=lambda one: float(next(iter(one.evidence.values())) or 0))
    ranks = sorted({rank for one in fired for rank in one.ranks})
    others = [rank for rank in ranks if rank not in worst.ranks]
    more = f" The same is found on {name_ranks(others)}." if others else ""
    severity = min((one.severity for one in fired), key=SEVERITIES.index)
    return msgspec.structs.replace(worst, severity=severity, ranks=ranks, sentence=worst.sentence + more)


RANKS_NAMED_MAX = 8
"""Ranks named in a sentence; the others are counted."""


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as text, the first few by number.

    >>> name_ranks([3]), name_ranks([0, 2])
    ('rank 3', 'ranks 0, 2')
    """
    named = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
    more = f" and {len(ranks) - RANKS_NAMED_MAX} more" if len(ranks) > RANKS_NAMED_MAX else ""
    return f"rank{'s' if len(ranks) != 1 else ''} {named}{more}" if ranks else "a trace without a rank"
