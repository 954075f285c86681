"""Build the table of modules of a trace report: the tree of instances, of all ranks together."""

from collections.abc import Mapping
from operator import attrgetter

from rankscope.collector.reports.trace_cells import Cells, Section, amount, columns_of, ms, text_cell
from rankscope.collector.traces.modules import NO_FRAMES
from rankscope.collector.traces.report import ModuleRow, TraceReport

_MODULES = Section(
    "modules", "Modules",
    "Instances of nn.Module in the tree of their calls: device time launched in the forward (fwd) and in the backward "
    "operators (bwd) of what ran in them, and host time; self is without the modules inside. Operators are those that "
    "its forward called itself, in all calls. What belongs to no module has rows of its own, so that self times sum to "
    "all device work.",
    columns_of(
        "<module, calls, operators, fwd self ms, fwd ms, bwd self ms, bwd ms, host fwd self ms, host fwd ms, "
        "host bwd self ms, host bwd ms"
    ), "No nn.Module was called in a trace that has Python frames.",
)  # fmt: skip
_TIMES = (
    "device_self_ns", "device_total_ns", "backward_device_self_ns", "backward_device_total_ns",
    "host_self_ns", "host_total_ns", "backward_host_self_ns", "backward_host_total_ns",
)  # fmt: skip
INDENT = ". "

ModuleKey = tuple[str | None, str]
"""Path of a module and its name; the path is None for what belongs to no module."""


def build_modules(report: TraceReport, top: int) -> list[Section]:
    """Return the table with the `top` most costly modules in the order of the tree; no table if it was not asked for.
    Rows of what belongs to no module are never left out.
    """
    if all(rank.modules is None for rank in report.ranks):
        return []
    if all(NO_FRAMES in rank.warnings for rank in report.ranks):
        reason = "The traces have no Python frames: record with with_stack=True, or capture with modules."
        return [_MODULES._replace(reason=reason)]
    found: dict[ModuleKey, list[ModuleRow]] = {}
    for rank in report.ranks:
        for row in rank.modules or ():
            found.setdefault((row.path, row.name), []).append(row)
    modules = [key for key in found if key[0] is not None]
    kept = set(sorted(modules, key=lambda key: (-_cost(found[key]), found[key][0].depth))[:top])
    shown = [
        key for key in order_tree({key: _cost(rows) for key, rows in found.items()}) if key in kept or key[0] is None
    ]
    left_out = len(found) - len(shown)
    return [_MODULES._replace(rows=tuple(_cells(found[key]) for key in shown), left_out=left_out)]


def _cost(rows: list[ModuleRow]) -> int:
    on_device = sum((row.device_total_ns or 0) + (row.backward_device_total_ns or 0) for row in rows)
    return on_device or sum((row.host_total_ns or 0) + row.backward_host_total_ns for row in rows)


def order_tree(costs: Mapping[ModuleKey, float]) -> list[ModuleKey]:
    """Return the keys in the order of the tree, siblings by their cost, those of no module last.

    >>> order_tree({("A", "A"): 3, ("A/x", "x"): 1, ("B", "B"): 4, ("A/y", "y"): 2, (None, "outside"): 9})
    [('B', 'B'), ('A', 'A'), ('A/y', 'y'), ('A/x', 'x'), (None, 'outside')]
    """
    cost = {path: value for (path, _), value in costs.items()}

    def place(key: ModuleKey) -> list[tuple[float, str]]:
        parts = (key[0] or "").split("/")
        above = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return [(-cost.get(path, 0), path) for path in above]

    modules = sorted((key for key in costs if key[0] is not None), key=place)
    return [*modules, *(key for key in costs if key[0] is None)]


def _cells(rows: list[ModuleRow]) -> Cells:
    def total(field: str) -> int | None:
        values = [value for value in map(attrgetter(field), rows) if value is not None]
        return sum(values) if values else None

    name = INDENT * rows[0].depth + rows[0].name
    return (
        text_cell(name),
        amount(total("count")),
        amount(total("operator_self_count")),
        *(ms(total(field)) for field in _TIMES),
    )
