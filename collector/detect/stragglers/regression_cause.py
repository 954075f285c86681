"""Find why some ranks, or all, have become slower than before, by comparing them with their own past.

Each test, as in `root_cause.py`, requires that its part explains at least half of the added time. Clocks and throttle
reasons have no history: there the ranks are compared with the other ranks, if any.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from rankscope.collector.detect.stragglers.root_cause import (
    CLOCK_RATIO,
    EXPLAINS,
    MORE_WORK_RATIO,
    Cause,
    name_throttle,
    pause_per_step,
)
from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.step_series import Floats
from rankscope.measure.records import WindowBreakdown
from rankscope.measure.units import format_duration

Verdict = tuple[str, str] | None


def find_cause_of_change(view: RunView, ranks: Sequence[int], since_step: int, added_ns: float) -> Cause:
    """Return why these ranks take `added_ns` a step longer since that step; `unattributed` when no test passes."""
    evidence: dict[str, float] = {}
    for test in (_data, _transfer, _garbage, _throttle, _windows):
        found = test(view, ranks, since_step, max(1.0, added_ns), evidence)
        if found is not None:
            return Cause(*found, evidence)
    return Cause("unattributed", "no known cause explains it", evidence)


def _data(view: RunView, ranks: Sequence[int], since: int, added_ns: float, evidence: dict[str, float]) -> Verdict:
    data_ns = view.series.phases_ns.get("data")
    if data_ns is None:
        return None
    longer_ns = _growth(np.nanmedian(_filled(data_ns[:, view.series.columns_of(ranks)]), axis=1), view, since)
    if longer_ns is None:
        return None
    evidence["data_added_ns"] = longer_ns
    if longer_ns < EXPLAINS * added_ns:
        return None
    return "data_loading", f"they wait {format_duration(longer_ns)} a step longer for their data loaders than before"


def _filled(values: Floats) -> Floats:
    """Replace rows without known values by zeros, which `_growth` ignores: a median of nothing warns."""
    return np.where(np.isnan(values).all(axis=1, keepdims=True), 0.0, values)


def _transfer(view: RunView, ranks: Sequence[int], since: int, added_ns: float, evidence: dict[str, float]) -> Verdict:
    wanted = set(ranks)
    grown = [
        growth
        for group, transfer_ns in view.transfers_ns.items()
        if not wanted.isdisjoint(view.groups.get(group, ()))
        and (growth := _growth(np.nan_to_num(transfer_ns, nan=0.0), view, since)) is not None
    ]
    if not grown:
        return None
    evidence["transfer_added_ns"] = longest = max(grown)
    if longest < EXPLAINS * added_ns:
        return None
    return "slow_link", f"moving their data takes {format_duration(longest)} a step longer than before"


def _growth(values_ns: Floats, view: RunView, since: int) -> float | None:
    """Return by how much the median has grown since that step, ignoring zeros; None where a side has no value."""
    known = values_ns > 0
    after = values_ns[known & (view.series.steps >= since)]
    before = values_ns[known & (view.series.steps < since)]
    return float(np.median(after) - np.median(before)) if len(after) and len(before) else None


def _garbage(view: RunView, ranks: Sequence[int], since: int, added_ns: float, evidence: dict[str, float]) -> Verdict:
    grown = []
    for rank in ranks:
        pauses = view.samples.gc_pauses.get(rank, ())
        after = pause_per_step(pauses, since)
        before = pause_per_step([pause for pause in pauses if pause.steps < since], 0)
        if after is not None and before is not None:
            grown.append(after - before)
    if not grown:
        return None
    evidence["gc_added_ns"] = longer_ns = float(np.median(grown))
    if longer_ns < EXPLAINS * added_ns:
        return None
    return "garbage_collection", f"Python's garbage collector stops them {format_duration(longer_ns)} a step longer"


def _throttle(view: RunView, ranks: Sequence[int], since: int, added_ns: float, evidence: dict[str, float]) -> Verdict:
    """Find a throttle reason or a slow clock that most of their GPUs have, and most of the others have not."""
    del since, added_ns
    mine = [device for rank in ranks for device in view.samples.devices.get(rank, ())]
    chosen = set(ranks)
    others = [device for rank, devices in view.samples.devices.items() if rank not in chosen for device in devices]
    if not mine or not others:
        return None
    clocks = [device.sm_clock_hertz for device in mine if device.sm_clock_hertz]
    their_clocks = [device.sm_clock_hertz for device in others if device.sm_clock_hertz]
    reasons = Counter(reason for device in mine for reason in device.throttle_reasons or ())
    theirs = Counter(reason for device in others for reason in device.throttle_reasons or ())
    common = [reason for reason, count in reasons.items() if 2 * count > len(mine)]
    own = [reason for reason in sorted(common) if 2 * theirs[reason] < len(others)]
    if clocks and their_clocks:
        evidence["sm_clock_ratio"] = ratio = float(np.median(clocks) / np.median(their_clocks))
        if ratio >= CLOCK_RATIO:
            return None
        text = f"their GPUs run at {100 * ratio:.0f} % of the others' clock"
        return name_throttle(own) or ("gpu_slow_clock", text)
    return name_throttle(own)


def _windows(view: RunView, ranks: Sequence[int], since: int, added_ns: float, evidence: dict[str, float]) -> Verdict:
    """Find more work, slower kernels, or devices that are idle while their hosts work."""

    def grown(read: Callable[[WindowBreakdown], float | None]) -> tuple[float, float] | None:
        values: dict[bool, list[float]] = {True: [], False: []}
        for rank in ranks:
            for window in view.samples.breakdowns.get(rank, ()):
                value = read(window)
                if value is not None and window.step_count > 0:
                    values[window.first_step >= since].append(value / window.step_count)
        return (float(np.median(values[False])), float(np.median(values[True]))) if all(values.values()) else None

    compute, idle = grown(lambda window: window.compute_ns), grown(lambda window: window.idle_ns)
    if compute is None or idle is None:
        return None
    has_device = any(view.samples.devices.get(rank) for rank in ranks)
    operators = grown(lambda window: window.operator_count)
    evidence["compute_added_ns"], evidence["idle_added_ns"] = compute[1] - compute[0], idle[1] - idle[0]
    if evidence["compute_added_ns"] >= EXPLAINS * added_ns:
        if operators is not None and operators[1] >= MORE_WORK_RATIO * operators[0]:
            return "more_work", f"they run {operators[1]:.0f} operators a step, {operators[0]:.0f} before"
        if has_device:
            longer = format_duration(evidence["compute_added_ns"])
            return "gpu_compute", f"their GPUs compute {longer} a step longer on the same work"
    if has_device and evidence["idle_added_ns"] >= EXPLAINS * added_ns:
        longer = format_duration(evidence["idle_added_ns"])
        return "host_cpu", f"their GPUs are idle {longer} a step longer, waiting for their hosts"
    return None
