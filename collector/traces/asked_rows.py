"""Add to a rank's report the tables that are made only when they are asked for."""

import msgspec

from rankscope.collector.traces import tables
from rankscope.collector.traces.asked import Asked
from rankscope.collector.traces.kernel_groups import sum_classes, sum_groups
from rankscope.collector.traces.kernel_sequences import sum_sequences
from rankscope.collector.traces.made_tables import MadeTables
from rankscope.collector.traces.model_profile import profile_model
from rankscope.collector.traces.modules import MODULES_MAX, NO_FRAMES, sum_modules
from rankscope.collector.traces.operator_groups import sum_operator_groups
from rankscope.collector.traces.report import RankReport, RooflineRow
from rankscope.collector.traces.roofline import ROOFLINE_ROWS_MAX, find_roofline
from rankscope.measure.device_peaks import PeakOverride, find_peaks
from rankscope.measure.kineto import Category
from rankscope.measure.rank_view import RankView

OPERATOR_SHAPES_MAX = 10_000
"""Operators by shape of one trace, those with the most time: about 3 MB of JSON. Sequences of any length have many."""


def add_asked(report: RankReport, view: RankView, asked: Asked, made: MadeTables) -> RankReport:
    """Return the report with what is asked for of one rank, and with warnings of what is left out or not known."""
    shapes = made(tables.sum_operators_by_shape(view) if asked.shapes else [])
    modules, modules_left_out = made(sum_modules(view) if asked.modules else (None, 0))
    roofline = made(find_roofline(view, report.device, asked.roofline) if asked.roofline is not None else [])
    warnings = [
        *report.warnings,
        *_warn_of_rest(len(shapes) - OPERATOR_SHAPES_MAX, "operators by shape", OPERATOR_SHAPES_MAX),
        *_warn_of_rest(modules_left_out, "modules", MODULES_MAX),
        *([NO_FRAMES] if asked.modules and not modules and not len(view.trace.rows(Category.PYTHON)) else []),
        *(_warn_of_roofline(report.device, roofline, asked.roofline) if asked.roofline is not None else []),
    ]
    return msgspec.structs.replace(
        report,
        warnings=warnings,
        operator_shapes=shapes[:OPERATOR_SHAPES_MAX] if asked.shapes else None,
        operator_groups=made(sum_operator_groups(view, asked.operator_groups) if asked.operator_groups else None),
        modules=modules,
        kernel_groups=made(
            sum_groups(view, asked.kernel_groups) if asked.kernel_groups is not None else sum_classes(view)
        ),
        kernel_sequences=made(sum_sequences(view, asked.sequence_length) if asked.sequence_length else None),
        roofline=roofline[:ROOFLINE_ROWS_MAX] if asked.roofline is not None else None,
        flops=made(profile_model(view, _name_devices(report), asked.flops) if asked.flops is not None else None),
    )


def _name_devices(report: RankReport) -> list[str]:
    """Return the name of each device that worked; that of a CPU where none did."""
    return [one.name or "unnamed device" for one in report.devices] or ([report.device] if report.device else [])


def _warn_of_rest(left_out: int, what: str, rows_max: int) -> list[str]:
    return [f"{left_out:,} {what} left out, those with the least time: {rows_max:,} are listed"] if left_out > 0 else []


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
