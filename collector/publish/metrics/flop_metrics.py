"""Metrics of the FLOPs of a rank's steps, and of how much of the peak of its device that is."""

from typing import Final

from rankscope.collector.publish.metrics.measures import NOT_NEGATIVE, RANK, RUN, Measure, OfOverview
from rankscope.collector.publish.metrics.overview import RunOverview
from rankscope.collector.publish.metrics.rank_columns import Number, of_totals, per_rank
from rankscope.collector.runs.run_flops import RunFlops, find_run_flops

_TOTALS: Final = "agent: FLOPs declared by the script, else measured (Totals)"
_RECENT: Final = "agent: FLOPs of the last minute of steps, peak of the device (StepFlops)"
_RANKS: Final = "collector: the live ranks of the run"
_UPPER_BOUND: Final = "May be an upper bound where steps were measured without kernels: a recomputation may stop early."


def _per_run(name: str) -> OfOverview:
    """Return the reader of a field of RunFlops, over the live ranks of each run."""

    def read(one: RunOverview) -> Number:
        found: RunFlops = find_run_flops(one.live)
        value: Number = getattr(found, name)
        return value

    return OfOverview(lambda overview: (((one.run.run,), read(one)) for one in overview if one.live))


RANK_FLOPS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_model_flops_total", "counter", "", RANK,
        "FLOPs that the model needed in the steps of this rank where they were known; absent while they are not.",
        "sum of the FLOPs of steps, without recomputation", _TOTALS, NOT_NEGATIVE,
        of_totals(lambda totals: totals.model_flops),
    ),
    Measure(
        "rankscope_executed_flops_total", "counter", "", RANK,
        "FLOPs that were executed in the steps of this rank where they were measured, recomputation included; absent "
        f"while they are not. {_UPPER_BOUND}",
        "sum of the FLOPs of steps, as run", _TOTALS, NOT_NEGATIVE,
        of_totals(lambda totals: totals.executed_flops),
    ),
    Measure(
        "rankscope_mfu_ratio", "gauge", "ratio", RANK,
        "Model FLOPs utilization of the rank's device in the last minute of its steps; absent without a known peak. "
        "Above 1 the FLOPs of a step, or the peak (its value, or its type of numbers), are wrong.",
        "model FLOPs / (time of the steps * dense peak)", _RECENT, NOT_NEGATIVE,
        per_rank(lambda rank: rank.flops.mfu),
    ),
    Measure(
        "rankscope_hfu_ratio", "gauge", "ratio", RANK,
        "Hardware FLOPs utilization of the rank's device in the last minute of its steps: as rankscope_mfu_ratio, with "
        f"recomputation. {_UPPER_BOUND}",
        "executed FLOPs / (time of the steps * dense peak)", _RECENT, NOT_NEGATIVE,
        per_rank(lambda rank: rank.flops.hfu),
    ),
)  # fmt: skip

RUN_FLOPS: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_run_mfu_ratio", "gauge", "ratio", RUN,
        "Model FLOPs utilization of the run; absent unless it is known of all live ranks.",
        "mean of rankscope_mfu_ratio", _RANKS, NOT_NEGATIVE,
        _per_run("mfu"),
    ),
    Measure(
        "rankscope_run_hfu_ratio", "gauge", "ratio", RUN,
        f"Hardware FLOPs utilization of the run; absent unless it is known of all live ranks. {_UPPER_BOUND}",
        "mean of rankscope_hfu_ratio", _RANKS, NOT_NEGATIVE,
        _per_run("hfu"),
    ),
    Measure(
        "rankscope_run_model_flops_per_step", "gauge", "", RUN,
        "Model FLOPs of a step of all ranks together, mean of the last minute of steps; absent unless they are known "
        "of all live ranks.",
        "sum over the ranks of model FLOPs / steps", _RANKS, NOT_NEGATIVE,
        _per_run("model_flops_per_step"),
    ),
)  # fmt: skip
