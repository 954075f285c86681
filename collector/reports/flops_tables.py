"""Build the tables of a model's profile: FLOPs, rates and utilization by rank, operators, modules, and top modules.

Pure: reports of ranks -> sections. FLOPs are those of one step, where the traces have steps.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rankscope.collector.reports.module_table import INDENT, ModuleKey, order_tree
from rankscope.collector.reports.trace_cells import (
    Cell,
    Cells,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    share_of,
    text_cell,
)
from rankscope.collector.traces.profile_rows import ModelProfile
from rankscope.collector.traces.report import RankReport
from rankscope.measure.uncounted_operators import UncountedOperator
from rankscope.measure.units import NS_PER_S

GIGA, TERA = 10**9, 10**12
FLOPS_OF_MAC = 2
TOP_OF_DEPTH = 3

_PROFILE = Section(
    "flops", "Model profile: floating-point operations",
    "Of the products, in one step (without steps: in the whole trace); a multiply-accumulate (MAC) is 2 FLOP. Model "
    "FLOP: 3 x forward, the convention for a training step; executed: as run, with what is recomputed.",
    columns_of(
        "rank, steps, step ms, forward GMAC, forward GFLOP, recomputed GFLOP, backward GFLOP, model GFLOP, "
        "executed GFLOP"
    ), "No trace was read.",
)  # fmt: skip
_UTILIZATION = Section(
    "flops_utilization", "Model and hardware FLOP utilization",
    "Rates over the time of the steps. MFU: the share of the device's peak that the model's FLOP make, each at the "
    "peak of its type of number; HFU: that of the executed FLOP.",
    columns_of("rank, <types, devices, model TFLOP/s, executed TFLOP/s, MFU %, HFU %, <why not known"),
    "No trace was read.",
)  # fmt: skip
_OPERATORS = Section(
    "flops_operators", "FLOP by operator",
    "In a step, of all ranks together; time is that of the kernels that the operators launched, on a CPU their own.",
    columns_of("<operator, <phase, <type, calls, GFLOP, of executed %, time ms, TFLOP/s"),
    "No products were counted. If shapes are missing: record with record_shapes=True, or capture with shapes.",
)  # fmt: skip
_MODULES = Section(
    "flops_modules", "FLOP by module",
    "In a step, of all ranks together, with the modules inside: in the forward (fwd), repeated in the backward "
    "(recomp.) and in the backward itself (bwd). Time is the device time of what a module launched in all of these, on "
    "a CPU the host's.",
    columns_of(
        "<module, calls, fwd GFLOP, recomp. GFLOP, bwd GFLOP, of executed %, time ms, of time %, TFLOP/s"
    ), "The traces have no modules: record with with_stack=True, or capture with modules.",
)  # fmt: skip
_PARAMETERS = columns_of("parameters")
_WITH_PARAMETERS = _MODULES._replace(
    columns=(*_MODULES.columns, *_PARAMETERS),
    explanation=f"{_MODULES.explanation} Parameters: those of the rank that has the most, with the modules inside, "
    "each once.",
)
_DEPTHS = Section(
    "flops_depths", "Top modules by depth",
    f"The {TOP_OF_DEPTH} modules of each depth of the tree with the most FLOP.",
    columns_of("depth, <module, GFLOP, of executed %, time ms, of time %"), "The traces have no modules.",
)  # fmt: skip
_UNCOUNTED = Section(
    "flops_uncounted", "Operators whose FLOP are not counted",
    "Operators with products that could not be counted, and others with 5 % of the computing time or more that are not "
    "known to be without products: the sums are a lower bound. The library call takes formulas for operators of your "
    "own (flop_formulas).",
    columns_of("rank, <operator, calls, time ms, share of time %, <reason"), "All operators are counted.",
)  # fmt: skip
_NOTES = Section(
    "flops_notes", "Limits of the FLOP", "What the traces do not show.", columns_of("<note"), "Nothing is missing.",
    is_prose=True,
)  # fmt: skip


def build_flops_sections(ranks: Sequence[RankReport], top: int, rank_rows_max: int) -> list[Section]:
    """Return the tables of the profile; none where it was not asked for."""
    found = [(rank.rank, rank.flops) for rank in ranks if rank.flops is not None]
    if not found:
        return []
    profiles = [one for _, one in found]
    operators, executed = _sum_operators(profiles), _sum_executed(profiles)
    uncounted = [_cells_of_uncounted(rank, row) for rank, one in found for row in one.uncounted]
    notes = list(dict.fromkeys(note for one in profiles for note in one.notes))
    return [
        _PROFILE.of([_cells_of_profile(*item) for item in found], rank_rows_max),
        _UTILIZATION.of([_cells_of_utilization(*item) for item in found], rank_rows_max),
        _OPERATORS.of([_cells_of_operator(*item, executed) for item in operators[:top]], top, len(operators)),
        *_build_modules(profiles, top),
        *([_UNCOUNTED.of(uncounted, top)] if uncounted else []),
        *([_NOTES._replace(rows=tuple((text_cell(note),) for note in notes))] if notes else []),
    ]


def _cells_of_profile(rank: int | None, one: ModelProfile) -> Cells:
    steps = one.step_count or 1
    flops = (one.forward_flops, one.recompute_flops, one.backward_flops, one.model_flops, one.executed_flops)
    return (
        text_cell(rank),
        amount(one.step_count),
        ms(one.window_ns / steps),
        *(_giga(None if _is_unknown(one) else value / steps) for value in (one.forward_flops / FLOPS_OF_MAC, *flops)),
    )


def _cells_of_utilization(rank: int | None, one: ModelProfile) -> Cells:
    return (
        text_cell(rank),
        text_cell(", ".join(row.dtype for row in one.by_dtype)),
        amount(one.device_count),
        *(
            amount(None if _is_unknown(one) else value, TERA, 3)
            for value in (one.model_flops_per_s, one.executed_flops_per_s)
        ),
        percent(one.mfu_ratio),
        percent(one.hfu_ratio),
        text_cell(one.utilization_reason),
    )


def _cells_of_uncounted(rank: int | None, row: UncountedOperator) -> Cells:
    return (
        text_cell(rank), text_cell(row.operator), amount(row.count), ms(row.time_ns), percent(row.time_ratio),
        text_cell(row.reason),
    )  # fmt: skip


# -- sums over ranks --------------------------------------------------------------------------------------------------


class _Totals(NamedTuple):
    """Sums of one step, of all ranks: calls (None for what is no module), FLOP by phase, and ns, None where they
    are not known of one of the ranks. `parameters` are the most that a rank has, None where no trace says it.
    """

    calls: float | None
    forward: float
    recompute: float
    backward: float
    time_ns: float | None
    parameters: int | None

    @property
    def flops(self) -> float:
        return self.forward + self.recompute + self.backward

    @property
    def rate(self) -> Cell:
        return amount(self.flops * NS_PER_S / self.time_ns if self.time_ns else None, TERA, 3)


class _Counted(NamedTuple):
    """One row of one rank: calls, FLOP by phase, ns, and the number of steps that these are of."""

    calls: int | None
    flops: tuple[int, int, int]
    time_ns: int | None
    steps: int
    parameters: int | None = None


def _add_up(rows: Sequence[_Counted]) -> _Totals:
    def total(values: Iterable[int | None]) -> float | None:
        known = [value / row.steps for value, row in zip(values, rows, strict=True) if value is not None]
        return sum(known) if len(known) == len(rows) else None

    forward, recompute, backward = (total(row.flops[phase] for row in rows) or 0 for phase in range(3))
    parameters = max((row.parameters for row in rows if row.parameters is not None), default=None)
    return _Totals(
        total(row.calls for row in rows), forward, recompute, backward, total(row.time_ns for row in rows), parameters
    )


def _sum_executed(profiles: Iterable[ModelProfile]) -> float:
    return sum(one.executed_flops / (one.step_count or 1) for one in profiles)


_OperatorKey = tuple[str, str, str]


def _sum_operators(profiles: Iterable[ModelProfile]) -> list[tuple[_OperatorKey, _Totals]]:
    found: dict[_OperatorKey, list[_Counted]] = {}
    for one in profiles:
        for row in one.operators:
            counted = _Counted(row.count, (row.flops, 0, 0), row.time_ns, one.step_count or 1)
            found.setdefault((row.operator, row.phase, row.dtype), []).append(counted)
    sums = [(key, _add_up(rows)) for key, rows in found.items()]
    return sorted(sums, key=lambda item: (-item[1].flops, item[0]))


def _cells_of_operator(key: _OperatorKey, sums: _Totals, executed: float) -> Cells:
    return (
        *map(text_cell, key),
        _calls(sums.calls),
        _giga(sums.flops),
        percent(share_of(sums.flops, executed)),
        ms(sums.time_ns),
        sums.rate,
    )


def _giga(value: float | None) -> Cell:
    return amount(value, GIGA, 3)


def _is_unknown(one: ModelProfile) -> bool:
    """Return whether nothing is known of its FLOPs: no product was counted, and some could not be."""
    return one.executed_flops == 0 and one.is_lower_bound


def _calls(count: float | None) -> Cell:
    return amount(count, decimals=0 if count is None or count == int(count) else 1)


# -- modules ----------------------------------------------------------------------------------------------------------


def _build_modules(profiles: Sequence[ModelProfile], top: int) -> list[Section]:
    """Return the table of the `top` modules with the most FLOP in the order of their tree, with what belongs to none,
    and that of the first of each depth.
    """
    sums, depths = _sum_modules(profiles)
    names = _name_modules(profiles)
    if not sums:
        return [_MODULES]
    executed, time_ns = _sum_executed(profiles), _sum_time(sums, depths)
    largest = sorted((key for key in sums if key[0] is not None), key=lambda key: (-sums[key].flops, depths[key]))
    kept = set(largest[:top])
    shown = [
        key
        for key in order_tree({key: one.flops or one.time_ns or 0 for key, one in sums.items()})
        if key in kept or key[0] is None
    ]
    rows = tuple(_cells_of_module(names[key].short, depths[key], sums[key], executed, time_ns) for key in shown)
    table = _MODULES
    if any(one.parameters is not None for one in sums.values()):
        table = _WITH_PARAMETERS
        rows = tuple((*row, amount(sums[key].parameters)) for row, key in zip(rows, shown, strict=True))
    firsts: dict[int, list[ModuleKey]] = {}
    for key in largest:
        firsts.setdefault(depths[key], []).append(key)
    by_depth = [
        _cells_of_depth(depth, names[key].full, sums[key], executed, time_ns)
        for depth in sorted(firsts)
        for key in firsts[depth][:TOP_OF_DEPTH]
    ]
    return [table._replace(rows=rows, left_out=len(sums) - len(shown)), _DEPTHS.of(by_depth, len(by_depth))]


class _Name(NamedTuple):
    """The name of a module in the tree, below the module that called it, and by itself."""

    short: str
    full: str | None


def _name_modules(profiles: Iterable[ModelProfile]) -> dict[ModuleKey, _Name]:
    """Return how modules are called: by the attributes of the code and their class, `layers.1 (Block)`; where a trace
    does not have these, by the instances of their classes.
    """
    rows = {(row.path, row.name): row for one in profiles for row in one.modules}
    attributes = {path: row.attributes for (path, _), row in rows.items() if path is not None}
    names = {}
    for (path, name), row in rows.items():
        if path is None or row.attributes is None:
            names[path, name] = _Name(name, path)
            continue
        kind, above = name.rpartition("_")[0], attributes.get(path.rpartition("/")[0])
        below = row.attributes.removeprefix(f"{above}.") if above else row.attributes
        names[path, name] = _Name(f"{below or 'model'} ({kind})", f"{row.attributes or 'model'} ({kind})")
    return names


def _sum_modules(profiles: Iterable[ModelProfile]) -> tuple[dict[ModuleKey, _Totals], dict[ModuleKey, int]]:
    found: dict[ModuleKey, list[_Counted]] = {}
    depths: dict[ModuleKey, int] = {}
    for one in profiles:
        for row in one.modules:
            flops = (row.forward_flops, row.recompute_flops, row.backward_flops)
            counted = _Counted(row.count, flops, row.time_ns, one.step_count or 1, row.parameters)
            found.setdefault((row.path, row.name), []).append(counted)
            depths[row.path, row.name] = row.depth
    return {key: _add_up(rows) for key, rows in found.items()}, depths


def _sum_time(sums: Mapping[ModuleKey, _Totals], depths: Mapping[ModuleKey, int]) -> float | None:
    """Return the time of all: that of the roots, and of what belongs to no module."""
    times = [one.time_ns for key, one in sums.items() if depths[key] == 0]
    return sum(time for time in times if time is not None) or None


def _cells_of_module(name: str, depth: int, sums: _Totals, executed: float, time_ns: float | None) -> Cells:
    return (
        text_cell(INDENT * depth + name),
        _calls(sums.calls),
        *(_giga(value) for value in (sums.forward, sums.recompute, sums.backward)),
        percent(share_of(sums.flops, executed)),
        ms(sums.time_ns),
        percent(share_of(sums.time_ns, time_ns)),
        sums.rate,
    )


def _cells_of_depth(depth: int, name: str | None, sums: _Totals, executed: float, time_ns: float | None) -> Cells:
    return (
        text_cell(depth),
        text_cell(name),
        _giga(sums.flops),
        percent(share_of(sums.flops, executed)),
        ms(sums.time_ns),
        percent(share_of(sums.time_ns, time_ns)),
    )
