"""PromQL expressions that several panels share, and panels that several dashboards share."""

from typing import Final

from deploy.grafana.generator.frame import OF_RANK, OF_RUN, Placed
from deploy.grafana.generator.panels import RATIO, THIRD, Query, lines

WINDOWS: Final = "10m"
"""Range for shares of profiler windows. Full windows are 20 s apart, up to some minutes where they cost much; the range
holds at least two."""

SHARES: Final = ("compute", "overlap", "exposed communication", "copies", "idle")
"""Parts of the time of a window; they sum to the window."""

NODE_OF_RANK: Final = (
    "on (cluster, run, rank) group_left (node) max by (cluster, run, rank, node) (rankscope_rank_info)"
)
"""Right side of `*` that adds the label node to series of ranks."""


def rate(name: str, selector: str = "", window: str = "$__rate_interval") -> str:
    """Return the rate of a counter."""
    return f"rate({series(name, selector)}[{window}])"


def series(name: str, selector: str = "") -> str:
    """Return the series of a metric, named without the prefix rankscope_."""
    return f"rankscope_{name}{{{selector}}}" if selector else f"rankscope_{name}"


def recorded(name: str, selector: str = "") -> str:
    """Return a series recorded by deploy/prometheus, LEVEL:MEASURE:HOW, named without the prefix rankscope_."""
    level, measure, how = name.split(":")
    return f"{level}:rankscope_{measure}:{how}" + (f"{{{selector}}}" if selector else "")


def shares_of_rank() -> list[Query]:
    """Return the shares of the chosen rank's profiler windows; they sum to 1."""
    window, compute, overlap, exposed, copy, idle = (
        rate(f"device_{part}_seconds_total", OF_RANK, WINDOWS)
        for part in ("window", "compute", "overlap", "exposed_communication", "copy", "idle")
    )
    computed = f"({compute} - {overlap})"
    shares = (f"{seconds} / {window}" for seconds in (computed, overlap, exposed, copy, idle))
    return [Query(share, name) for share, name in zip(shares, SHARES, strict=True)]


def shares_of_run() -> list[Query]:
    """Return the shares of the profiler windows of all ranks of the run; they sum to 1.

    Overlap is recorded as a share of communication, and absent without communication.
    """
    compute, communication, overlap, exposed, copy, busy = (
        recorded(f"run:device_{part}:ratio_rate10m", OF_RUN)
        for part in ("compute", "communication", "overlap", "exposed_communication", "copy", "busy")
    )
    overlapped = f"({overlap} * {communication} or 0 * {compute})"
    shares = (f"{compute} - {overlapped}", overlapped, exposed, copy, f"1 - {busy}")
    return [Query(share, name) for share, name in zip(shares, SHARES, strict=True)]


def phases_of_run() -> Query:
    """Return the mean duration of each phase of a step, over all ranks of the run."""
    ratio = recorded("run:step_phase:ratio_rate5m", OF_RUN)
    return Query(f"{ratio} * on (cluster, run) group_left () {STEP_OF_RUN}", "{{phase}}")


def use_of_peak(title: str, mfu: str, hfu: str, of: str) -> Placed:
    """Return a panel with MFU and HFU by these expressions; `of` says over what they are."""
    description = (
        f"Model FLOPs utilization (MFU), and with recomputation (HFU), {of}; empty where the FLOPs of a step or the "
        "peak are not known."
    )
    return lines(title, description, RATIO, Query(mfu, "MFU"), Query(hfu, "HFU"), most=1, width=THIRD)


def worst(count: int, expr: str, labels: str) -> str:
    """Return the series with the largest maximum in the selected time range; the same series at every time."""
    return f"{expr} and on (cluster, {labels}) topk({count}, max_over_time({expr}[$__range] @ end()))"


STEP_OF_RUN: Final = recorded("run:step_seconds:mean_rate5m", OF_RUN)
"""Mean duration of a step, over all ranks of the run."""
