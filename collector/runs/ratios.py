"""Compute the ratios of one window of one rank (docs/definitions.md section 1). None without a divisor. Pure."""

from typing import Final

from rankscope.measure.records import WindowBreakdown, add_host_copies


def compute_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the window in which the device computed, 0 to 1."""
    return _over(window.compute_ns, window.window_ns)


def communication_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the window in which it communicated, computing or not, 0 to 1."""
    return _over(window.communication_ns, window.window_ns)


def exposed_communication_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the window in which it communicated and did not compute, 0 to 1."""
    return _over(window.exposed_communication_ns, window.window_ns)


def idle_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the window in which it did nothing, 0 to 1."""
    return _over(window.idle_ns, window.window_ns)


def overlap_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the communication that was hidden behind compute, 0 to 1; None without communication."""
    return _over(window.overlap_ns, window.communication_ns)


def exposed_host_copy_ratio(window: WindowBreakdown) -> float | None:
    """Return the share of the window in which copies from the host ran and no kernel did, 0 to 1; None on a CPU."""
    return None if window.host_copies is None else _over(window.host_copies.exposed_ns, window.window_ns)


RATIOS: Final = {
    "compute": compute_ratio,
    "communication": communication_ratio,
    "overlap": overlap_ratio,
    "exposed_communication": exposed_communication_ratio,
    "idle": idle_ratio,
    "exposed_host_copy": exposed_host_copy_ratio,
}


def read_ratios(window: WindowBreakdown | None) -> dict[str, float]:
    """Return the known ratios by name; none without a window."""
    if window is None:
        return {}
    found = {name: ratio(window) for name, ratio in RATIOS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _over(part_ns: int, whole_ns: int) -> float | None:
    return part_ns / whole_ns if whole_ns > 0 else None


def add_breakdowns(windows: tuple[WindowBreakdown, ...]) -> WindowBreakdown | None:
    """Return several windows of one rank as one: the sums, so that the parts still sum to the window. None of none."""
    if not windows:
        return None
    names = (
        "window_ns", "compute_ns", "communication_ns", "overlap_ns", "exposed_communication_ns", "copy_ns", "idle_ns",
    )  # fmt: skip
    copies = [window.host_copies for window in windows]
    counts = [window.operator_count for window in windows if window.operator_count is not None]
    return WindowBreakdown(
        first_step=windows[0].first_step,
        step_count=sum(window.step_count for window in windows),
        operator_count=sum(counts) if len(counts) == len(windows) else None,
        host_copies=None if None in copies else add_host_copies(copies),
        **{name: sum(getattr(window, name) for window in windows) for name in names},
    )
