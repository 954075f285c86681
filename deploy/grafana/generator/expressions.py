"""Expressions that more than one panel asks, in PromQL."""

from typing import Final

from deploy.grafana.generator.frame import OF_RANK, OF_RUN
from deploy.grafana.generator.panels import Query

WINDOWS: Final = "10m"
"""Full windows of the profiler are 20 s apart, and up to some minutes where they cost much: shares of their time are
taken over as long as holds two of them."""

SHARES: Final = ("compute", "overlap", "exposed communication", "copies", "idle")
"""What the time of a window goes into: computing alone, computing and communicating, communicating alone ..."""

NODE_OF_RANK: Final = "on (run, rank) group_left (node) max by (run, rank, node) (rankscope_rank_info)"
"""After `*`: gives series of ranks the label of their node."""


def rate(name: str, selector: str = "", window: str = "$__rate_interval") -> str:
    """The increase of a counter per second."""
    return f"rate({series(name, selector)}[{window}])"


def series(name: str, selector: str = "") -> str:
    """The series of a measure of ours, named without its prefix."""
    return f"rankscope_{name}{{{selector}}}" if selector else f"rankscope_{name}"


def recorded(name: str, selector: str = "") -> str:
    """What a rule of deploy/prometheus has recorded of runs or nodes: LEVEL:MEASURE:HOW, given without our prefix."""
    level, measure, how = name.split(":")
    return f"{level}:rankscope_{measure}:{how}" + (f"{{{selector}}}" if selector else "")


def shares_of_rank() -> list[Query]:
    """What the time of the chosen rank's profiled windows went into; the shares add up to 1."""
    window, compute, overlap, exposed, copy, idle = (
        rate(f"device_{part}_seconds_total", OF_RANK, WINDOWS)
        for part in ("window", "compute", "overlap", "exposed_communication", "copy", "idle")
    )
    computed = f"({compute} - {overlap})"
    shares = (f"{seconds} / {window}" for seconds in (computed, overlap, exposed, copy, idle))
    return [Query(share, name) for share, name in zip(shares, SHARES, strict=True)]


def shares_of_run() -> list[Query]:
    """The same of all ranks of the run. Overlap is recorded as a share of communication, and of none there is none."""
    compute, communication, overlap, exposed, copy, busy = (
        recorded(f"run:device_{part}:ratio_rate10m", OF_RUN)
        for part in ("compute", "communication", "overlap", "exposed_communication", "copy", "busy")
    )
    overlapped = f"({overlap} * {communication} or 0 * {compute})"
    shares = (f"{compute} - {overlapped}", overlapped, exposed, copy, f"1 - {busy}")
    return [Query(share, name) for share, name in zip(shares, SHARES, strict=True)]


def phases_of_run() -> Query:
    """The mean duration of each phase of a step, over all ranks of the run."""
    ratio = recorded("run:step_phase:ratio_rate5m", OF_RUN)
    return Query(f"{ratio} * on (run) group_left () {STEP_OF_RUN}", "{{phase}}")


def worst(count: int, expr: str, labels: str) -> str:
    """The series of the expression that were largest at some moment of the time shown, the same at every moment."""
    return f"{expr} and on ({labels}) topk({count}, max_over_time({expr}[$__range] @ end()))"


STEP_OF_RUN: Final = recorded("run:step_seconds:mean_rate5m", OF_RUN)
"""Mean duration of a step, over all ranks of the run."""
