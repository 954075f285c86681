"""Summarize how much of their devices' peak the ranks of a run use, as of their last reports. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.device_peaks import TFLOP
from rankscope.measure.model_flops import FlopSum, StepFlops


class RunFlops(NamedTuple):
    """Means of MFU and HFU over the ranks, and the model FLOPs of a step of all ranks together; None unless they are
    known of every rank: a mean over some ranks is not that of the run. `absent` says why there is no MFU; empty where
    there is one, and where no rank says why. `hfu_is_upper_bound`: HFU is at most what it says.
    """

    mfu: float | None = None
    hfu: float | None = None
    model_flops_per_step: float | None = None
    absent: str = ""
    hfu_is_upper_bound: bool = False


def find_run_flops(ranks: Sequence[RankSnapshot]) -> RunFlops:
    """Return the figures of those of these ranks that have reported."""
    ranks = [rank for rank in ranks if rank.reports_admitted]
    per_step = [None if rank.flops.model is None else rank.flops.model.per_step for rank in ranks]
    mfu = average_known([rank.flops.mfu for rank in ranks])
    return RunFlops(
        mfu=mfu,
        hfu=average_known([rank.flops.hfu for rank in ranks]),
        model_flops_per_step=_add(per_step),
        absent=_find_absence(ranks) if mfu is None else "",
        hfu_is_upper_bound=any(rank.flops.executed_is_upper_bound for rank in ranks),
    )


def describe_run_flops(flops: RunFlops) -> str:
    """Return MFU and HFU as text, and why there is no MFU; empty where neither is known, nor why.

    >>> describe_run_flops(RunFlops(mfu=0.412, hfu=0.5)), describe_run_flops(RunFlops(absent="rank 0: no GPU"))
    ('MFU 41.2 %, HFU 50.0 %', 'no MFU: rank 0: no GPU')
    """
    ratios = (("MFU", flops.mfu), (_name_hfu(is_upper_bound=flops.hfu_is_upper_bound), flops.hfu))
    known = [_name(name, ratio) for name, ratio in ratios if ratio is not None]
    return ", ".join([*known, *([f"no MFU: {flops.absent}"] if flops.absent else [])])


def describe_rank_flops(flops: StepFlops) -> str:
    """Return what a rank's last steps needed and how much of the peak that is; empty where it has no FLOPs.

    >>> found = StepFlops(model=FlopSum(6e15, 10, 20 * 10**9), source="declared", peak_flops_per_s=9.894e14,
    ...     peak_type="bf16", absent={"executed": "executed FLOPs have not been measured yet"})
    >>> describe_rank_flops(found)
    '600 TFLOPs of the model a step (declared), 300.0 TFLOP/s; MFU 30.3 % of 989.4 TFLOP/s (bf16)'
    """
    model, per_s, per_step = flops.model, _per_s(flops.model), None if flops.model is None else flops.model.per_step
    if model is None or per_s is None or per_step is None:
        return ""
    text = f"{per_step / TFLOP:,.4g} TFLOPs of the model a step ({flops.source}), {per_s / TFLOP:,.1f} TFLOP/s"
    if flops.mfu is None or flops.peak_flops_per_s is None:
        return f"{text}; no MFU: {flops.absent.get('peak', 'the peak is not known')}"
    kind = flops.peak_type or "as set by peak_tflops"
    name = _name_hfu(is_upper_bound=flops.executed_is_upper_bound)
    hfu = "" if flops.hfu is None else f", {_name(name, flops.hfu)}"
    return f"{text}; {_name('MFU', flops.mfu)}{hfu} of {_describe_peaks(flops)} TFLOP/s ({kind})"


def _describe_peaks(flops: StepFlops) -> str:
    """Return the peak in TFLOP/s, and that of the executed FLOPs where it differs."""
    model, executed = flops.peak_flops_per_s or 0.0, flops.executed_peak_flops_per_s
    texts = [f"{peak / TFLOP:,.4g}" for peak in (model, model if executed is None or flops.hfu is None else executed)]
    return " and ".join(dict.fromkeys(texts))


def _name_hfu(*, is_upper_bound: bool) -> str:
    return "HFU at most" if is_upper_bound else "HFU"


def _name(name: str, ratio: float) -> str:
    return f"{name} {100 * ratio:.1f} %"


def _per_s(done: FlopSum | None) -> float | None:
    return None if done is None else done.per_s


def average_known(ratios: Sequence[float | None]) -> float | None:
    """Return the mean; None unless every number is known.

    >>> average_known([0.5, 0.25]), average_known([0.5, None]), average_known([])
    (0.375, None, None)
    """
    known = [ratio for ratio in ratios if ratio is not None]
    return fmean(known) if known and len(known) == len(ratios) else None


def _add(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None


def _find_absence(ranks: Sequence[RankSnapshot]) -> str:
    silent = all(rank.flops.model is None and "model" not in rank.flops.absent for rank in ranks)
    if silent:  # agents of an earlier version, or no report with steps yet
        return ""
    first = next(rank for rank in ranks if rank.flops.mfu is None)
    absent = first.flops.absent
    reason = absent.get("model") or absent.get("peak") or "it has had no step with known FLOPs"
    return f"rank {first.identity.rank}: {reason}"
