"""Build the profile of a model from one trace: FLOPs by phase, type, operator and module, their rates, MFU and HFU.

Model FLOPs are 3 x those of the forward's products: a training step computes each product once forward, and twice for
the gradients of its two factors (PaLM, appendix B). Executed FLOPs are as run, with recomputation. MFU and HFU are the
shares of the device's peak that these make over the time of the steps.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rankscope.collector.traces.asked import FlopsAsked
from rankscope.collector.traces.module_profile import profile_modules
from rankscope.collector.traces.profile_rows import FlopsByType, FlopsOperator, ModelProfile
from rankscope.collector.traces.windows import find_step_bounds
from rankscope.measure.counted_operators import (
    BACKWARD,
    FORWARD,
    PHASES,
    RECOMPUTE,
    CountedOperators,
    ProfiledWindow,
    find_counted,
)
from rankscope.measure.device_peaks import TFLOP, PeakOverride, find_tflops, name_number_type
from rankscope.measure.flops import NO_FORMULA, add_formulas
from rankscope.measure.rank_view import RankView
from rankscope.measure.uncounted_operators import OUTSIDE_OPERATORS, UncountedOperator, find_uncounted_operators
from rankscope.measure.units import NS_PER_S
from rankscope.measure.window_flops import TRAINING_FACTOR

NO_BACKWARD = "the trace has no backward with products: model FLOPs are those of the forward"
MAY_STOP_EARLY = (
    "recomputed and executed FLOPs are an upper bound: recomputation may have stopped before its last product, which a "
    "trace of a CPU does not show"
)
NO_NUMBERS = "the trace has no sequence numbers of autograd: what was recomputed counts as backward"


class _Sums(NamedTuple):
    """FLOPs by phase and type, and by operator, phase and type: calls, FLOPs and ns."""

    by_type: Mapping[str, Sequence[int]]
    by_operator: Mapping[tuple[str, int, str], Sequence[int]]


def profile_model(view: RankView, devices: Sequence[str], asked: FlopsAsked) -> ModelProfile:
    """Return the profile of a trace; `devices` are the names of the devices that worked, "CPU" for one of a CPU. The
    trace was read with every shape, the values of convolutions, and the links of autograd.
    """
    window = find_profiled_window(view)
    counted = find_counted(view, window, add_formulas(asked.formulas))
    types = _name_types(counted)
    sums = _sum_up(view, counted, types)
    by_dtype = _build_types(sums.by_type, devices, asked.peaks)
    phases = [sum(flops[phase] for flops in sums.by_type.values()) for phase in range(len(PHASES))]
    factor = TRAINING_FACTOR if phases[BACKWARD] else 1
    model, executed = factor * phases[FORWARD], sum(phases)
    uncounted = find_uncounted_operators(view, window, counted)
    reason = _name_failures(uncounted) or _refuse_utilization(by_dtype, devices, window, executed)
    seconds = window.length_ns / NS_PER_S
    return ModelProfile(
        step_count=window.step_count,
        window_ns=window.length_ns,
        device_count=len(devices),
        forward_flops=phases[FORWARD],
        recompute_flops=phases[RECOMPUTE],
        backward_flops=phases[BACKWARD],
        executed_flops=executed,
        model_flops=model,
        executed_flops_per_s=executed / seconds if seconds else None,
        model_flops_per_s=model / seconds if seconds else None,
        mfu_ratio=_find_utilization(by_dtype, [factor, 0, 0], seconds, len(devices)) if reason is None else None,
        hfu_ratio=_find_utilization(by_dtype, [1, 1, 1], seconds, len(devices)) if reason is None else None,
        utilization_reason=reason,
        is_lower_bound=bool(uncounted),
        is_upper_bound=bool(phases[RECOMPUTE]) and not view.has_device,
        by_dtype=by_dtype,
        operators=_build_operators(sums.by_operator, has_times=view.has_device or not view.has_unknown_device),
        modules=profile_modules(view, window, counted),
        uncounted=uncounted,
        notes=_find_notes(view, counted, phases),
    )


def find_profiled_window(view: RankView) -> ProfiledWindow:
    """Return the steps of the trace; all of it where it has none."""
    if view.steps:
        length_ns = sum(end_ns - start_ns for _, start_ns, end_ns in find_step_bounds(view))
        return ProfiledWindow(view.steps[0].start_ns, view.steps[-1].next_start_ns, length_ns, len(view.steps))
    start_ns, end_ns = view.bounds_ns or (0, 0)
    last_ns = int(view.events.end_ns.max(initial=0)) + 1
    return ProfiledWindow(view.origin_ns, last_ns, end_ns - start_ns, None)


def _name_types(counted: CountedOperators) -> list[str]:
    """Return the type of the numbers of each operator, as peaks are listed by, else as torch spells it."""
    return [
        name_number_type(one.dtype or "", on_tensor_cores=on_tensor_cores) or one.dtype or ""
        for one, on_tensor_cores in zip(counted.found, counted.on_tensor_cores.tolist(), strict=True)
    ]


def _sum_up(view: RankView, counted: CountedOperators, types: Sequence[str]) -> _Sums:
    by_type: dict[str, list[int]] = defaultdict(lambda: [0] * len(PHASES))
    by_operator: dict[tuple[str, int, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    columns = zip(
        counted.row.tolist(), counted.phase.tolist(), types, counted.found, counted.time_ns.tolist(), strict=True
    )
    for row, phase, dtype, found, time_ns in columns:
        if found.flops is not None:
            by_type[dtype][phase] += found.flops
            one = by_operator[view.trace.name(row), phase, dtype]
            for place, value in enumerate((1, found.flops, time_ns)):
                one[place] += value
    return _Sums(by_type, by_operator)


def _build_operators(sums: Mapping[tuple[str, int, str], Sequence[int]], *, has_times: bool) -> list[FlopsOperator]:
    rows = [
        FlopsOperator(
            operator=operator,
            phase=PHASES[phase],
            dtype=dtype,
            count=count,
            flops=flops,
            time_ns=time_ns if has_times else None,
            flops_per_s=flops * NS_PER_S / time_ns if has_times and time_ns else None,
        )
        for (operator, phase, dtype), (count, flops, time_ns) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row.flops, row.operator, row.phase, row.dtype))


# -- utilization ------------------------------------------------------------------------------------------------------


def _build_types(
    sums: Mapping[str, Sequence[int]], devices: Sequence[str], override: PeakOverride
) -> list[FlopsByType]:
    rows = []
    for dtype, flops in sorted(sums.items(), key=lambda item: (-sum(item[1]), item[0])):
        tflops = find_tflops(devices[0] if devices else None, dtype, override)
        rows.append(
            FlopsByType(
                dtype=dtype,
                forward_flops=flops[FORWARD],
                backward_flops=flops[BACKWARD],
                recompute_flops=flops[RECOMPUTE],
                peak_flops_per_s=tflops * TFLOP if tflops is not None else None,
            )
        )
    return rows


def _name_failures(uncounted: Iterable[UncountedOperator]) -> str | None:
    """Return which operators with products could not be counted, and why; None without any."""
    failed = [row for row in uncounted if row.reason not in {NO_FORMULA, OUTSIDE_OPERATORS}]
    if not failed:
        return None
    names = ", ".join(sorted({row.operator for row in failed}))
    return f"products are not counted, of {names}: {', '.join(sorted({row.reason for row in failed}))}"


def _refuse_utilization(
    rows: Sequence[FlopsByType], devices: Sequence[str], window: ProfiledWindow, executed: int
) -> str | None:
    """Return why MFU and HFU are not known, None where they are."""
    if not executed:
        return "no products were counted"
    if not window.length_ns:
        return "the trace has no work with a time"
    if len(set(devices)) != 1:
        return f"devices of several kinds in one file: {', '.join(sorted(set(devices)))}" if devices else "no device"
    unknown = [row.dtype for row in rows if row.peak_flops_per_s is None]
    if unknown:
        return f"the peak of {devices[0]} for {', '.join(unknown)} is not known: give --peak-tflops"
    return None


def _find_utilization(rows: Iterable[FlopsByType], factors: Sequence[int], seconds: float, device_count: int) -> float:
    """Return the time that the FLOPs take at their peaks over the time of the steps; `factors` are those by which the
    FLOPs of forward, recomputation and backward count.
    """
    at_peak = sum(
        sum(factor * flops for factor, flops in zip(factors, _phases_of(row), strict=True))
        / (row.peak_flops_per_s or 1)
        for row in rows
    )
    return at_peak / seconds / device_count


def _phases_of(row: FlopsByType) -> tuple[int, int, int]:
    return row.forward_flops, row.recompute_flops, row.backward_flops


# -- notes ------------------------------------------------------------------------------------------------------------


def _find_notes(view: RankView, counted: CountedOperators, phases: Sequence[int]) -> list[str]:
    notes = []
    if sum(phases) and not phases[BACKWARD]:
        notes.append(NO_BACKWARD)
    if phases[RECOMPUTE] and not view.has_device:
        notes.append(MAY_STOP_EARLY)
    if phases[BACKWARD] and (view.trace.autograd is None or not len(view.trace.autograd.row)):
        notes.append(NO_NUMBERS)
    skipped = sum(counted.skipped.values())
    if skipped:
        names = ", ".join(sorted(counted.skipped))
        notes.append(f"{skipped:,} calls launched no computing kernel and are not counted: {names}")
    return notes
