"""Sum one trace by name: kernels, copies, collectives, operators, synchronization points."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.collector.traces.report import (
    CollectiveRow,
    CopyRow,
    KernelRow,
    OperatorArgumentsRow,
    OperatorRow,
    OperatorShapeRow,
    SourceRow,
    SynchronizationRow,
)
from rankscope.collector.traces.sources import find_sources, sum_sources
from rankscope.measure import kernel_classes
from rankscope.measure.blocking_calls import find_blocking_calls, find_operators_around
from rankscope.measure.flops import FORMULAS
from rankscope.measure.kineto import NONE, Codes, Floats, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import Bools, RankView
from rankscope.measure.tensor_cores import uses_tensor_cores
from rankscope.measure.traced_collectives import Collective
from rankscope.measure.units import NS_PER_S

GB = 10**9
GB_PER_S_MAX = 1e6
"""What a profiler says to be faster is none: memory on a chip is a tenth of it."""
SHAPES_TEXT_MAX = 1_000
"""Characters of the longest description of inputs: operators on lists have hundreds of inputs."""


# -- on the device ----------------------------------------------------------------------------------------------------


def sum_kernels(view: RankView) -> list[KernelRow]:
    """Return all kernels by name, the longest in total first."""
    work, found = view.work, view.trace.device_work
    kernels = np.flatnonzero(work.is_kernel)
    length = (work.end_ns - work.start_ns)[kernels]
    whole = int(length.sum())
    sources = _sum_sources_of_kernels(view, kernels, length)
    rows = []
    for code, mine in by_name(work.name[kernels]):
        mine_ns = length[mine]
        name = view.trace.names[code]
        rows.append(
            KernelRow(
                name=name,
                count=len(mine),
                total_ns=int(mine_ns.sum()),
                mean_ns=round(int(mine_ns.sum()) / len(mine)),
                min_ns=int(mine_ns.min()),
                max_ns=int(mine_ns.max()),
                pct=100 * int(mine_ns.sum()) / whole if whole else 0.0,
                is_communication=bool(work.is_communication[kernels[mine]].any()),
                uses_tensor_cores=uses_tensor_cores(name),
                sources=sources.get(code, []),
                kind=kernel_classes.COMMUNICATION
                if work.is_communication[kernels[mine]].any()
                else kernel_classes.find_class(name),
                blocks_per_sm=weigh(found.blocks_per_sm[kernels[mine]], mine_ns),
                occupancy_ratio=weigh(found.occupancy_percent[kernels[mine]] / 100, mine_ns),
                median_ns=float(np.median(mine_ns)),
                deviation_ns=deviate(mine_ns),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def deviate(values: Ints | Floats) -> float | None:
    """Return the standard deviation of a sample; None of fewer than two."""
    return float(values.std(ddof=1)) if len(values) > 1 else None


def weigh(values: Floats, length_ns: Ints) -> float | None:
    """Return the mean of the values that are known, weighted with their time; None without any."""
    known = np.isfinite(values) & (length_ns > 0)
    weight_ns = int(length_ns[known].sum())
    return float((values[known] * length_ns[known]).sum()) / weight_ns if weight_ns else None


def _sum_sources_of_kernels(view: RankView, kernels: Ints, length_ns: Ints) -> dict[int, list[SourceRow]]:
    """Return by name of a kernel the places that launched it. Old traces have stacks of operators only."""
    launch = view.launch[kernels] if view.has_device else np.empty(0, dtype=np.int64)
    if not len(view.host.frame_rows) and view.trace.stacks:
        launch = view.host.find_callers(launch)
    return sum_sources(view, view.work.name[kernels], launch, length_ns)


def sum_copies(view: RankView) -> list[CopyRow]:
    """Return all memory copies and sets by kind, the longest in total first."""
    work = view.work
    copies = np.flatnonzero(~work.is_kernel)
    size = view.trace.device_work.bytes[copies]
    length = (work.end_ns - work.start_ns)[copies]
    written = np.minimum(view.trace.device_work.gigabytes_per_s[copies], GB_PER_S_MAX + 1) * GB
    call = view.launch[copies] if view.has_device else copies
    call_ns = np.where(call == NONE, NONE, view.events.duration_ns[call])
    rows = []
    for code, mine in by_name(work.name[copies]):
        known = bool((size[mine] != NONE).all())
        total_bytes, total_ns = int(size[mine].sum()), int(length[mine].sum())
        rows.append(
            CopyRow(
                name=view.trace.names[code],
                count=len(mine),
                bytes=total_bytes if known else None,
                total_ns=total_ns,
                bytes_per_s=total_bytes * NS_PER_S / total_ns if known and total_ns else None,
                min_ns=int(length[mine].min()),
                max_ns=int(length[mine].max()),
                host_total_ns=int(call_ns[mine].sum()) if (call_ns[mine] != NONE).all() else None,
                **_sum_bandwidth(size[mine], length[mine], written[mine]),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.name))


def _sum_bandwidth(size: Ints, length_ns: Ints, written: Floats) -> dict[str, Any]:
    """Return the fields of a row of copies with their bandwidth, of copies of these bytes and times: as the profiler
    wrote it (bytes/s), who knew their time before it was rounded, else bytes over time.
    """
    known = (size > 0) & (length_ns > 0)
    rates = np.where(known, size * float(NS_PER_S), np.nan) / np.maximum(length_ns, 1)
    rates = np.where((written > 0) & (written <= GB_PER_S_MAX * GB), written, rates)
    rates = rates[np.isfinite(rates)]
    if not len(rates):
        return {}
    at = np.quantile(rates, [0, 0.25, 0.5, 0.75, 0.9, 1]).tolist()
    fields = [f"bandwidth_{name}_bytes_per_s" for name in ("min", "p25", "median", "p75", "p90", "max")]
    return {
        **dict(zip(fields, at, strict=True)),
        "bandwidth_count": len(rates),
        "bandwidth_mean_bytes_per_s": float(rates.mean()),
        "bandwidth_deviation_bytes_per_s": deviate(rates),
    }


def by_name(codes: Codes) -> list[tuple[int, Ints]]:
    """Return each code with its positions."""
    if len(codes) == 0:
        return []
    order = np.argsort(codes, kind="stable")
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    return [(int(codes[part[0]]), part) for part in np.split(order, edges)]


# -- collectives ------------------------------------------------------------------------------------------------------


class CollectiveKind(NamedTuple):
    """The fields that the collectives of one row share."""

    group: str
    group_size: int | None
    op: str
    dtype: str | None


def kind_of(one: Collective | CollectiveRow) -> CollectiveKind:
    """Return the kind of a collective, or of a row of them."""
    return CollectiveKind(one.group, one.group_size, one.op, one.dtype)


def sum_collectives(found: Sequence[Collective]) -> list[CollectiveRow]:
    """Return the collectives by kind, the longest in total first."""
    kinds: dict[CollectiveKind, list[Collective]] = defaultdict(list)
    for one in found:
        kinds[kind_of(one)].append(one)
    rows = []
    for kind, mine in kinds.items():
        known = [one.bytes for one in mine if one.bytes is not None]
        total_ns = sum(one.duration_ns for one in mine)
        rows.append(
            CollectiveRow(
                **kind._asdict(),
                count=len(mine),
                bytes=sum(known) if len(known) == len(mine) else None,
                total_ns=total_ns,
                mean_ns=round(total_ns / len(mine)),
            )
        )
    return sorted(rows, key=lambda row: (-row.total_ns, row.group, row.op))


# -- on the host ------------------------------------------------------------------------------------------------------


def sum_operators(view: RankView) -> list[OperatorRow]:
    """Return all operators by name, sorted by device self time, then by host self time."""
    rows = view.host.operator_rows
    codes = view.events.name[rows]
    own_ns = _device_ns_within(view, len(rows)) if view.has_device else view.host.operators.self_ns()
    sources = sum_sources(view, codes, rows, own_ns)
    allocated = _sum_allocated(view)
    on_tensor_cores = _sum_tensor_cores(view, codes) if view.has_device else None
    found = [
        OperatorRow(
            name=view.trace.names[code],
            **sums,
            sources=sources.get(code, []),
            allocated_bytes=allocated.get(view.trace.names[code], 0) if len(view.trace.memory.time_ns) else None,
            may_use_tensor_cores=view.trace.names[code] in FORMULAS,
            tensor_core_ns=int(on_tensor_cores[0][code]) if on_tensor_cores is not None else None,
            tensor_core_total_ns=int(on_tensor_cores[1][code]) if on_tensor_cores is not None else None,
        )
        for code, sums in sum_calls(view, codes)
    ]
    return sorted(found, key=lambda row: (-row.device_self_ns, -row.host_self_ns, row.name))


def _sum_tensor_cores(view: RankView, codes: Codes) -> tuple[Ints, Ints]:
    """Return by name of an operator the device time on tensor cores, by the names of kernels: of its own launches, and
    with those of operators inside.
    """
    used = np.unique(view.work.name)
    used = used[[uses_tensor_cores(view.trace.names[code]) is True for code in used.tolist()]]
    own_ns = _device_ns_within(view, len(codes), np.isin(view.work.name, used) & view.work.is_kernel)
    own, total = (np.zeros(len(view.trace.names), dtype=np.int64) for _ in range(2))
    np.add.at(own, codes, own_ns)
    np.add.at(total, codes, view.host.operators.sum_up(own_ns))
    return own, total


def _sum_allocated(view: RankView) -> Mapping[str, int]:
    """Return by name of an operator the bytes that were allocated right inside of it, on any device."""
    memory = view.trace.memory
    grown = np.flatnonzero(memory.bytes > 0)
    around = view.host.find_operators(memory.thread[grown].astype(np.int32), memory.time_ns[grown])
    known = around != NONE
    names = view.events.name[around[known]]
    total = np.bincount(names, weights=memory.bytes[grown][known], minlength=1)
    return {view.trace.names[code]: int(total[code]) for code in np.unique(names).tolist()}


def sum_operators_by_shape(view: RankView) -> list[OperatorShapeRow]:
    """Return all operators by name and the shapes of their inputs, sorted as `sum_operators`. The trace was read with
    every shape.
    """
    found = [
        OperatorShapeRow(name=name, shapes=_shapes_text(shapes), **sums)
        for name, (shapes,), sums in _sum_by(view, view.trace.shapes)
    ]
    return sorted(found, key=lambda row: (-row.device_self_ns, -row.host_self_ns, row.name, row.shapes or ""))


def sum_operators_by_arguments(view: RankView) -> list[OperatorArgumentsRow]:
    """Return all operators by name and all that was recorded of their inputs, sorted as `sum_operators`. The trace was
    read with every shape and with the arguments.
    """
    found = [
        OperatorArgumentsRow(
            name=name, shapes=_shapes_text(shapes),
            arguments=describe_arguments(*arguments) if arguments is not None else None, **sums,
        )
        for name, (shapes, arguments), sums in _sum_by(view, view.trace.shapes, view.trace.arguments)
    ]  # fmt: skip
    return sorted(
        found,
        key=lambda row: (
            -row.device_self_ns, -row.host_self_ns, row.name, row.shapes or "", row.arguments or "",
        ),
    )  # fmt: skip


def _sum_by(
    view: RankView, *recorded: Mapping[int, tuple[bytes, bytes]]
) -> Iterator[tuple[str, Sequence[tuple[bytes, bytes] | None], dict[str, int]]]:
    """Yield the operators by name and by what was recorded of their calls, None where nothing was, with their sums."""
    kinds: dict[tuple[int, tuple[tuple[bytes, bytes] | None, ...]], int] = {}
    rows = view.host.operator_rows
    names = view.events.name[rows].tolist()
    keys = ((name, tuple(found.get(row) for found in recorded)) for name, row in zip(names, rows.tolist(), strict=True))
    codes = np.array([kinds.setdefault(key, len(kinds)) for key in keys], dtype=np.int32)
    of_code = list(kinds)
    for code, sums in sum_calls(view, codes):
        name, found = of_code[code]
        yield view.trace.names[name], found, sums


def _shapes_text(recorded: tuple[bytes, bytes] | None) -> str | None:
    return describe_shapes(*recorded) if recorded is not None else None


def describe_arguments(strides_json: bytes, values_json: bytes) -> str:
    """Return of each input its strides, `(64, 1)`, or its value, `-` where neither was recorded, from the JSON of
    `Input Strides` and `Concrete Inputs`; cut at SHAPES_TEXT_MAX. What is no such JSON stays as it is.

    >>> describe_arguments(b"[[64, 1], [], [], [[1], [2]]]", b'["", "1", "[0, 1]", ""]')
    '(64, 1), 1, [0, 1], ((1), (2))'
    >>> describe_arguments(b"", b'["", "True"]'), describe_arguments(b"[[1", b"")
    ('-, True', '[[1')
    """
    try:
        strides, values = (
            msgspec.json.decode(recorded, type=list[Any]) if recorded else []
            for recorded in (strides_json, values_json)
        )
        text = ", ".join(
            _describe_strides(of) or str(value) or "-" for of, value in zip_longest(strides, values, fillvalue="")
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = " ".join(one.decode(errors="replace") for one in (strides_json, values_json) if one)
    return _cut(text)


def _describe_strides(strides: Any) -> str:
    """Return `(64, 1)` for the strides of a tensor, `((1), (2))` for those of a list, nothing for no tensor."""
    if not isinstance(strides, list):
        return str(strides)
    return f"({', '.join(_describe_strides(one) or '()' for one in strides)})" if strides else ""


def _cut(text: str) -> str:
    return text if len(text) <= SHAPES_TEXT_MAX else f"{text[: SHAPES_TEXT_MAX - 3]}..."


def describe_shapes(types_json: bytes, dims_json: bytes) -> str:
    """Return the inputs from the JSON of `Input type` and `Input Dims`: `16x32 float` for a tensor, the type alone for
    what has no shape, `-` for an input that was not recorded; cut at SHAPES_TEXT_MAX. What is no such JSON stays
    as it is.

    >>> describe_shapes(b'["float", "", "Scalar", "TensorList"]', b'[[16, 32], [], [], [[4], [2, 3]]]')
    '16x32 float, -, Scalar, (4; 2x3) TensorList'
    >>> describe_shapes(b'["float"]', b'[[1')
    '["float"] [[1'
    """
    try:
        types: Any = msgspec.json.decode(types_json)
        dims: Any = msgspec.json.decode(dims_json)
        text = ", ".join(_describe(*one) for one in zip(types, dims, strict=True))
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError, ValueError):
        text = f"{types_json.decode(errors='replace')} {dims_json.decode(errors='replace')}"
    return _cut(text)


def _describe(kind: Any, shape: Any) -> str:
    shown = _describe_shape(shape)
    return f"{shown} {kind}".strip() or "-"


def _describe_shape(shape: Any) -> str:
    """Return `2x3` for a shape, `(4; 2x3)` for those of a list of tensors, nothing for a scalar."""
    if not isinstance(shape, list):
        return str(shape)
    if any(isinstance(inner, list) for inner in shape):
        return f"({'; '.join(_describe_shape(inner) or 'scalar' for inner in shape)})"
    return "x".join(map(str, shape))


def sum_calls(view: RankView, codes: Codes) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield each code with the fields of a row of operators, summed over the operators that have it."""
    rows, nesting = view.host.operator_rows, view.host.operators
    device_self = _device_ns_within(view, nesting_rows=len(rows))
    device_total = nesting.sum_up(device_self)
    host_total = view.events.duration_ns[rows]
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    sorted_codes = codes[order]
    first = np.flatnonzero(np.diff(sorted_codes, prepend=sorted_codes[0] - 1))
    sums = {
        "count": np.diff(first, append=len(codes)),
        "host_total_ns": np.add.reduceat(host_total[order], first),
        "host_self_ns": np.add.reduceat(nesting.self_ns()[order], first),
        "device_total_ns": np.add.reduceat(device_total[order], first),
        "device_self_ns": np.add.reduceat(device_self[order], first),
        "host_min_ns": np.minimum.reduceat(host_total[order], first),
        "host_max_ns": np.maximum.reduceat(host_total[order], first),
        "device_min_ns": np.minimum.reduceat(device_total[order], first),
        "device_max_ns": np.maximum.reduceat(device_total[order], first),
    }
    for code, *row in zip(sorted_codes[first].tolist(), *(column.tolist() for column in sums.values()), strict=True):
        yield code, dict(zip(sums, row, strict=True))


def _device_ns_within(view: RankView, nesting_rows: int, chosen: Bools | None = None) -> Ints:
    """Return for each operator the device time of its own launches, without those of operators inside it; only of the
    pieces of work that are chosen, if any are.
    """
    own = np.zeros(nesting_rows, dtype=np.int64)
    if view.has_device:
        launched = np.flatnonzero((view.launch != NONE) & (True if chosen is None else chosen))
        call = view.launch[launched]
        inside = view.host.operators.find_innermost(view.events.thread[call], view.events.start_ns[call])
        known = inside != OUTSIDE
        length = (view.work.end_ns - view.work.start_ns)[launched]
        np.add.at(own, inside[known], length[known])
    return own


def sum_synchronizations(view: RankView) -> list[SynchronizationRow]:
    """Return the calls that waited for the device, blocking copies too, by operator and source."""
    rows = find_blocking_calls(view)
    operators = find_operators_around(view, rows)
    sources = find_sources(view, rows, operators)
    found: dict[tuple[str, str | None, str | None], list[int]] = defaultdict(list)
    for row, operator, source in zip(rows.tolist(), operators, sources, strict=True):
        name = view.trace.name(operator) if operator != NONE else None
        found[view.trace.name(row), name, source].append(int(view.events.duration_ns[row]))
    table = [
        SynchronizationRow(
            name=name, count=len(mine), total_ns=sum(mine), max_ns=max(mine), operator=operator, source=source
        )
        for (name, operator, source), mine in found.items()
    ]
    return sorted(table, key=lambda row: (-row.total_ns, row.name, row.operator or "", row.source or ""))
