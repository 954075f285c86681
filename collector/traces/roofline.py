"""Set what operators did on the device against what it can do at most: operations, bytes, their rates, and the bound.

The time of a kernel belongs to the innermost operator around its launch that has a formula (operator_costs.py), else to
the innermost one. An operator is bound by memory if its operations for each byte are fewer than the device can do while
it moves one, else by compute.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rankscope.collector.traces.report import RooflineRow
from rankscope.collector.traces.tables import describe_shapes
from rankscope.measure.device_peaks import GB, TFLOP, PeakOverride, find_peaks, find_tflops, name_number_type
from rankscope.measure.kineto import NONE, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.operator_costs import OPERATORS, OperatorCost, count_cost
from rankscope.measure.rank_view import RankView
from rankscope.measure.tensor_cores import uses_tensor_cores
from rankscope.measure.units import NS_PER_S

COMPUTE_BOUND, MEMORY_BOUND = "compute", "memory"
NO_OPERATOR = "no operator"
ROOFLINE_ROWS_MAX = 10_000
"""Rows of one trace, those with the most time: about 5 MB of JSON."""

_Key = tuple[str, tuple[bytes, bytes] | None, bytes | None]
"""Operator, recorded types and shapes, recorded values."""


@dataclass(slots=True)
class _Sums:
    calls: set[int] = field(default_factory=set)
    kernel_count: int = 0
    kernels_ns: Counter[str] = field(default_factory=Counter)


def find_roofline(view: RankView, device: str | None, override: PeakOverride) -> list[RooflineRow]:
    """Return the operators that launched computing kernels, by the shapes of their inputs, the most device time first.
    Their times sum to that of these kernels. Empty on a CPU. The trace was read with every shape and value.
    """
    if not view.has_device:
        return []
    work = view.work
    kernels = np.flatnonzero(work.is_kernel & ~work.is_communication)
    sums: dict[_Key, _Sums] = defaultdict(_Sums)
    lengths_ns = (work.end_ns - work.start_ns)[kernels].tolist()
    for row, name, length_ns in zip(
        _find_operators(view, kernels), work.name[kernels].tolist(), lengths_ns, strict=True
    ):
        one = sums[_key_of(view, row)]
        one.calls.add(row)
        one.kernel_count += 1
        one.kernels_ns[view.trace.names[name]] += length_ns
    rows = [_build_row(key, one, device, override) for key, one in sums.items()]
    return sorted(rows, key=lambda row: (-row.device_ns, row.operator, row.shapes or ""))


def _key_of(view: RankView, row: int) -> _Key:
    if row == NONE:
        return NO_OPERATOR, None, None
    return view.trace.name(row), view.trace.shapes.get(row), view.trace.addresses.get(row)


def _find_operators(view: RankView, kernels: Ints) -> list[int]:
    """Return the row of the operator that the time of each kernel belongs to, NONE without one."""
    nesting, rows = view.host.operators, view.host.operator_rows
    call = view.launch[kernels]
    inside = np.full(len(kernels), OUTSIDE, dtype=np.int64)
    known = call != NONE
    inside[known] = nesting.find_innermost(view.events.thread[call[known]], view.events.start_ns[call[known]])
    has_formula = view.trace.names_like(OPERATORS.__contains__)[view.events.name[rows]]
    found: dict[int, int] = {OUTSIDE: NONE}
    for place in np.unique(inside[inside != OUTSIDE]).tolist():
        above = place
        while above != OUTSIDE and not has_formula[above]:
            above = int(nesting.parent[above])
        found[place] = int(rows[above if above != OUTSIDE else place])
    return [found[place] for place in inside.tolist()]


class _Rates(NamedTuple):
    """Operations and bytes each second, None where not known."""

    flops: float | None
    bytes: float | None


class _Judgement(NamedTuple):
    """Fields of a row."""

    intensity: float | None = None
    bound: str | None = None
    roof_ratio: float | None = None


def _build_row(key: _Key, sums: _Sums, device: str | None, override: PeakOverride) -> RooflineRow:
    operator, recorded, values = key
    cost = count_cost(operator, recorded, values)
    if operator == NO_OPERATOR:
        cost = OperatorCost(None, None, reason="in no recorded operator")
    device_ns, calls = sum(sums.kernels_ns.values()), len(sums.calls)
    kernel, kernel_ns = max(sums.kernels_ns.items(), key=lambda item: (item[1], item[0]))
    flops, size = (None if one is None else one * calls for one in (cost.flops, cost.bytes))
    rates = _Rates(*(one * NS_PER_S / device_ns if one and device_ns else None for one in (flops, size)))
    peaks = _find_peaks(device, override, cost.dtype, kernel)
    found = _judge(flops, size, rates, peaks)
    return RooflineRow(
        operator=operator,
        shapes=describe_shapes(*recorded) if recorded is not None else None,
        kernel=kernel,
        kernel_ns=kernel_ns,
        count=calls if operator != NO_OPERATOR else 0,
        kernel_count=sums.kernel_count,
        device_ns=device_ns,
        flops=flops,
        bytes=size,
        flops_per_s=rates.flops,
        bytes_per_s=rates.bytes,
        intensity=found.intensity,
        peak_flops_per_s=peaks.flops,
        peak_bytes_per_s=peaks.bytes,
        bound=found.bound,
        roof_ratio=found.roof_ratio,
        reason=cost.reason,
    )


def _find_peaks(device: str | None, override: PeakOverride, dtype: str | None, kernel: str) -> _Rates:
    """Return the highest rates for inputs of this type."""
    peaks = find_peaks(device)
    number_type = name_number_type(dtype or "", on_tensor_cores=uses_tensor_cores(kernel) is True)
    tflops = find_tflops(device, number_type or "", override)
    gbps = peaks.memory_gbps if peaks is not None else None
    gbps = override.memory_gbps if override.memory_gbps is not None else gbps
    return _Rates(tflops * TFLOP if tflops is not None else None, gbps * GB if gbps is not None else None)


def _judge(flops: int | None, size: int | None, rates: _Rates, peaks: _Rates) -> _Judgement:
    """Return what bounds an operator, and how near it came. Without products, memory alone does."""
    if size and flops is None:
        is_known = rates.bytes is not None and peaks.bytes is not None
        return _Judgement(None, MEMORY_BOUND, (rates.bytes or 0) / (peaks.bytes or 1) if is_known else None)
    if flops is None or not size:
        return _Judgement()
    intensity = flops / size
    if peaks.flops is None or peaks.bytes is None:
        return _Judgement(intensity)
    roof = min(peaks.flops, intensity * peaks.bytes)
    bound = MEMORY_BOUND if intensity < peaks.flops / peaks.bytes else COMPUTE_BOUND
    return _Judgement(intensity, bound, rates.flops / roof if rates.flops is not None else None)
