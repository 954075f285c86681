"""Compute how fast a run trains, from the totals of its ranks (docs/definitions.md section 2). Pure.

Whether two ranks read different batches (data parallel) or the same ones (tensor and pipeline parallel) is not visible
from outside. So speeds are those of one rank, the median over the ranks, and beside them the sum, which is the run's
only if each rank reads batches of its own.
"""

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from rankscope.measure.records import Totals
from rankscope.measure.units import s_to_ns


class Speed(NamedTuple):
    """An amount per second: the median over the ranks that report it, and their sum, None unless every rank does."""

    per_rank: float
    summed: float | None


class RunThroughput(NamedTuple):
    """Throughput of a run over its rank processes, evaluations left out. None: not known of any rank."""

    steps_per_s: float
    reader_ratio: float
    samples_per_s: Speed | None
    tokens_per_s: Speed | None


def find_throughput(totals: Sequence[Totals], world_size: int) -> RunThroughput | None:
    """Return the throughput of a run from the totals of its ranks; None before the first step.

    >>> one = Totals(steps=4, step_ns=2 * 10**9, phases_ns={"data": 10**9}, samples=32, samples_step_ns=2 * 10**9)
    >>> found = find_throughput([one, one], world_size=2)
    >>> found.steps_per_s, found.reader_ratio, found.samples_per_s
    (2.0, 0.5, Speed(per_rank=16.0, summed=32.0))
    """
    stepped = [rank for rank in totals if rank.step_ns > 0]
    if not stepped:
        return None
    return RunThroughput(
        steps_per_s=median(rank.steps / rank.step_ns for rank in stepped) * s_to_ns(1),
        reader_ratio=sum(rank.phases_ns.get("data", 0) for rank in stepped) / sum(rank.step_ns for rank in stepped),
        samples_per_s=_find_speed([(rank.samples, rank.samples_step_ns) for rank in stepped], world_size),
        tokens_per_s=_find_speed([(rank.tokens, rank.tokens_step_ns) for rank in stepped], world_size),
    )


def _find_speed(amounts: Sequence[tuple[int | None, int]], world_size: int) -> Speed | None:
    known = [amount / known_ns * s_to_ns(1) for amount, known_ns in amounts if amount is not None and known_ns > 0]
    return Speed(median(known), sum(known) if len(known) == world_size else None) if known else None
