"""Add to a rank's report the tables that are made only when they are asked for."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rankscope.collector.traces import tables
from rankscope.collector.traces.allocations import list_allocations
from rankscope.collector.traces.asked import Asked
from rankscope.collector.traces.event_rows import list_events
from rankscope.collector.traces.kernel_groups import sum_classes, sum_groups
from rankscope.collector.traces.kernel_launches import sum_launches
from rankscope.collector.traces.kernel_sequences import sum_sequences
from rankscope.collector.traces.made_tables import Makers
from rankscope.collector.traces.memory_stretch import find_bounds, sum_stretch
from rankscope.collector.traces.memory_timeline import has_addresses
from rankscope.collector.traces.model_profile import profile_model
from rankscope.collector.traces.modules import MODULES_MAX, NO_FRAMES, sum_modules
from rankscope.collector.traces.operator_groups import sum_operator_groups
from rankscope.collector.traces.report import (
    DeviceReport,
    RankReport,
    RooflineRow,
)
from rankscope.collector.traces.roofline import ROOFLINE_ROWS_MAX, find_roofline
from rankscope.collector.traces.user_ranges import sum_range_kernels
from rankscope.measure.device_peaks import PeakOverride, find_peaks
from rankscope.measure.kineto import Category
from rankscope.measure.rank_view import RankView

RANGE_KERNELS_MAX = 10_000
KERNEL_LAUNCHES_MAX = 10_000
OPERATOR_SHAPES_MAX = 10_000
"""Operators by shape, and by arguments, of one trace, those with the most time: about 3 MB of JSON. Sequences of any
length have many.
"""
BOUNDED = {
    "operator_shapes": (OPERATOR_SHAPES_MAX, "operators by shape"),
    "operator_arguments": (OPERATOR_SHAPES_MAX, "operators by arguments"),
    "range_kernels": (RANGE_KERNELS_MAX, "kernels in user ranges"),
    "kernel_launches": (KERNEL_LAUNCHES_MAX, "kernels by launch"),
}
"""Tables of which those rows with the most time are kept: how many, and what they are."""


def list_asked(view: RankView, asked: Asked, device: str | None, devices: Sequence[DeviceReport]) -> Makers:
    """Return what makes the tables that are asked for, by their names in the report, and the groups of kernels, which
    are always there; `device` is the name of the rank's.
    """
    makers: dict[str, Callable[[], Any]] = {
        "kernel_groups": partial(sum_groups, view, asked.kernel_groups)
        if asked.kernel_groups is not None
        else partial(sum_classes, view)
    }
    if asked.shapes:
        makers["operator_shapes"] = partial(tables.sum_operators_by_shape, view)
    if asked.arguments:
        makers["operator_arguments"] = partial(tables.sum_operators_by_arguments, view)
    if asked.modules:
        makers["modules"] = partial(sum_modules, view)
    if asked.roofline is not None:
        makers["roofline"] = partial(find_roofline, view, device, asked.roofline)
    if asked.operator_groups:
        makers["operator_groups"] = partial(sum_operator_groups, view, asked.operator_groups)
        if asked.operator_groups.nests:
            makers["range_kernels"] = partial(sum_range_kernels, view)
    if asked.launches:
        makers["kernel_launches"] = partial(sum_launches, view)
    if asked.sequence_length:
        makers["kernel_sequences"] = partial(sum_sequences, view, asked.sequence_length)
    if asked.flops is not None:
        makers["flops"] = partial(profile_model, view, _name_devices(device, devices), asked.flops)
    return {**makers, **_list_columns(view, asked)}


def _list_columns(view: RankView, asked: Asked) -> Makers:
    """Return what makes the memory of a stretch of time, and the tables with a row for each allocation and event."""
    makers: dict[str, Callable[[], Any]] = {}
    if asked.memory_between is not None:
        makers["memory_stretch"] = partial(sum_stretch, view, asked.memory_between)
    if asked.allocations:
        makers["allocations"] = partial(list_allocations, view, asked.memory_between)
    if asked.events:
        makers["events"] = partial(list_events, view)
    return makers


def add_asked(report: RankReport, view: RankView, asked: Asked, made: Mapping[str, Any]) -> RankReport:
    """Return the report with the tables of `list_asked`, made: each has a field of its name, but for some that are made
    together. With warnings of what is left out or not known.
    """
    fields = dict(made)
    warnings = list(report.warnings)
    for name, (rows_max, what) in BOUNDED.items():
        if name in fields:
            warnings += _warn_of_rest(len(fields[name]) - rows_max, what, rows_max)
            fields[name] = fields[name][:rows_max]
    if asked.modules:
        fields["modules"], left_out = fields["modules"]
        warnings += _warn_of_rest(left_out, "modules", MODULES_MAX)
    warnings += _warn_of_memory(view, asked)
    if asked.memory_between is not None:
        fields["memory_stretch"], fields["memory_stretch_operators"] = fields["memory_stretch"]
    if asked.modules and not fields["modules"] and not len(view.trace.rows(Category.PYTHON)):
        warnings.append(NO_FRAMES)
    if asked.roofline is not None:
        warnings += _warn_of_roofline(report.device, fields["roofline"], asked.roofline)
        fields["roofline"] = fields["roofline"][:ROOFLINE_ROWS_MAX]
    return msgspec.structs.replace(report, warnings=warnings, **fields)


def _name_devices(device: str | None, devices: Sequence[DeviceReport]) -> list[str]:
    """Return the name of each device that worked; that of a CPU where none did."""
    return [one.name or "unnamed device" for one in devices] or ([device] if device else [])


def _warn_of_rest(left_out: int, what: str, rows_max: int) -> list[str]:
    return [f"{left_out:,} {what} left out, those with the least time: {rows_max:,} are listed"] if left_out > 0 else []


def _warn_of_memory(view: RankView, asked: Asked) -> list[str]:
    found = []
    if asked.memory_between is not None and find_bounds(view, asked.memory_between) is None:
        found.append("nothing of the stretch of --memory-between is in the trace")
    if asked.allocations and not all(has_addresses(view, mine) for _, mine in view.allocators):
        found.append("memory events without addresses: the single allocations are not known")
    return found


def _warn_of_roofline(device: str | None, rows: list[RooflineRow], override: PeakOverride) -> list[str]:
    if not rows:
        return ["no computing kernels on a device: no roofline"]
    found, peaks = [], find_peaks(device)
    if override.tflops is None and peaks is None:
        found.append(f"the highest FLOP/s of {device} are not known: give --peak-tflops")
    if override.memory_gbps is None and (peaks is None or peaks.memory_gbps is None):
        found.append(f"the memory bandwidth of {device} is not known: give --peak-gbps")
    if len(rows) > ROOFLINE_ROWS_MAX:
        found.append(f"{len(rows) - ROOFLINE_ROWS_MAX:,} rows of the roofline left out, those with the least time")
    return found
