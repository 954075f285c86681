"""Expressions that more than one panel asks, in PromQL."""

from typing import Final

from deploy.grafana.generator.frame import OF_RUN

WINDOWS: Final = "10m"
"""Full windows of the profiler are 20 s apart, and up to some minutes where they cost much: shares of their time are
taken over as long as holds two of them."""

NODE_OF_RANK: Final = "on (run, rank) group_left (node) max by (run, rank, node) (rankscope_rank_info)"
"""After `*`: gives series of ranks the label of their node."""


def rate(name: str, selector: str = "", window: str = "$__rate_interval") -> str:
    """The increase of a counter per second."""
    return f"rate({series(name, selector)}[{window}])"


def series(name: str, selector: str = "") -> str:
    """The series of a measure of ours, named without its prefix."""
    return f"rankscope_{name}{{{selector}}}" if selector else f"rankscope_{name}"


def share_of_windows(selector: str, part: str, less: str | None = None) -> str:
    """The part of the time of the profiled windows that went into something, less what is counted elsewhere."""
    seconds = f"sum({rate(f'device_{part}_seconds_total', selector, WINDOWS)})"
    if less is not None:
        seconds = f"({seconds} - sum({rate(f'device_{less}_seconds_total', selector, WINDOWS)}))"
    return f"{seconds} / sum({rate('device_window_seconds_total', selector, WINDOWS)})"


def worst(count: int, expr: str, labels: str) -> str:
    """The series of the expression that were largest at some moment of the time shown, the same at every moment."""
    return f"{expr} and on ({labels}) topk({count}, max_over_time({expr}[$__range] @ end()))"


def median_of_run(expr: str) -> str:
    """The median over the ranks of the run."""
    return f"quantile(0.5, {expr})"


STEP_OF_RUN: Final = f"sum({rate('step_seconds_total', OF_RUN)}) / sum({rate('steps_total', OF_RUN)})"
"""Mean duration of a step."""
