"""Build the tables of kernels that are made on demand: groups of one's own, sequences; and hardware counters."""

import re
from os.path import commonprefix
from typing import NamedTuple

from rankscope.collector.reports.trace_cells import (
    MISSING,
    Cell,
    Cells,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    printable,
    share_of,
    text_cell,
    us,
)
from rankscope.collector.traces.report import CounterSum, KernelGroupRow, SequenceRow, TraceReport

_GROUPS = Section(
    "kernel_groups", "Classes of kernels",
    "Device work by class, found by name, or by the groups that you gave (--kernel-groups): the first that fits "
    "decides. Other is work in none, so that the times sum to all device work.",
    columns_of("<group, calls, names, total ms, share %"), "No device work: the traces are of the CPU alone.",
)  # fmt: skip
OTHER = "other (in no group)"


def build_kernel_groups(report: TraceReport) -> list[Section]:
    """Return the table of all classes or groups, over all ranks, the work in none last; no table without a device."""
    if not any(rank.kernel_groups for rank in report.ranks):
        return []
    found: dict[str | None, list[KernelGroupRow]] = {}
    for rank in report.ranks:
        for row in rank.kernel_groups or ():
            found.setdefault(row.group, []).append(row)
    whole_ns = sum(row.total_ns for rows in found.values() for row in rows)
    total_ns = {group: sum(row.total_ns for row in rows) for group, rows in found.items()}
    ordered = sorted(found.items(), key=lambda item: (item[0] is None, -total_ns[item[0]]))
    rows = [
        (text_cell(OTHER if group is None else group), amount(sum(row.count for row in rows)),
         amount(max(row.name_count for row in rows)), ms(total_ns[group]), percent(share_of(total_ns[group], whole_ns)))
        for group, rows in ordered
    ]  # fmt: skip
    return [_GROUPS.of(rows, len(rows))]


# -- launches ----------------------------------------------------------------------------------------------------------

_LAUNCHES = Section(
    "kernel_launches", "Kernels by launch",
    "Kernels by the operator that launched them, and by blocks of the grid, threads of a block, registers of a thread "
    "and memory that a block shares. Eligible: whether the operator multiplies matrices; use of tensor cores is "
    "inferred from the kernel's name.",
    columns_of(
        "rank, <kernel, <operator, <grid, <block, registers, shared bytes, calls, total ms, share %, mean us, min us, "
        "max us, blocks/SM, occupancy %, <tensor cores, <eligible"
    ),
    "No kernels: record with ProfilerActivity.CUDA on a machine with a GPU.",
)  # fmt: skip
TENSOR_CORES = {True: "yes", False: "no", None: "not known"}


def build_launches(report: TraceReport, top: int) -> list[Section]:
    """Return the table of kernels by launch of each rank; none if it was not asked for."""
    if all(rank.kernel_launches is None for rank in report.ranks):
        return []
    found = [(rank.rank, row) for rank in report.ranks for row in rank.kernel_launches or ()]
    found.sort(key=lambda item: -item[1].total_ns)
    rows = [
        (text_cell(rank), text_cell(row.name), text_cell(row.operator), text_cell(row.grid), text_cell(row.block),
         amount(row.registers), amount(row.shared_memory_bytes), amount(row.count), ms(row.total_ns),
         percent(row.pct / 100), us(row.mean_ns), us(row.min_ns), us(row.max_ns),
         amount(row.blocks_per_sm, decimals=2), percent(row.occupancy_ratio),
         text_cell(TENSOR_CORES[row.uses_tensor_cores]), text_cell("yes" if row.may_use_tensor_cores else "no"))
        for rank, row in found[:top]
    ]  # fmt: skip
    return [_LAUNCHES.of(rows, top, len(found))]


# -- sequences --------------------------------------------------------------------------------------------------------

_SEQUENCES = Section(
    "kernel_sequences", "Sequences of kernels",
    "Kernels and copies that follow each other on a stream within a step, several times: the costliest first. Each "
    "kernel is counted once. Total is the time of the kernels and copies, gaps that inside in which the device was "
    "idle. Many launches of short kernels with gaps are candidates for fusing them, or for a CUDA graph. Names are "
    "without arguments; the JSON has them whole.",
    columns_of("<sequence, length, count, total ms, gaps ms, launches"),
    "No sequence of kernels repeats.",
)  # fmt: skip


def build_sequences(report: TraceReport, top: int) -> list[Section]:
    """Return the table of sequences, over all ranks; no table if it was not asked for."""
    if all(rank.kernel_sequences is None for rank in report.ranks):
        return []
    if not any(rank.devices for rank in report.ranks):
        return [_SEQUENCES._replace(reason="No device work: there are no kernels in the traces.")]
    found: dict[tuple[str, ...], list[SequenceRow]] = {}
    for rank in report.ranks:
        for row in rank.kernel_sequences or ():
            found.setdefault(tuple(row.names), []).append(row)
    ordered = sorted(found.items(), key=lambda item: -sum(row.total_ns + row.gap_ns for row in item[1]))
    texts = _tell_apart([" > ".join(map(shorten_kernel, names)) for names, _ in ordered])
    rows = [
        (text_cell(text), amount(len(names)), amount(sum(row.count for row in rows)),
         ms(sum(row.total_ns for row in rows)), ms(sum(row.gap_ns for row in rows)), amount(_sum_launches(rows)))
        for text, (names, rows) in zip(texts, ordered, strict=True)
    ]  # fmt: skip
    return [_SEQUENCES.of(rows, top)]


def _sum_launches(rows: list[SequenceRow]) -> int | None:
    counts = [row.launch_count for row in rows if row.launch_count is not None]
    return sum(counts) if len(counts) == len(rows) else None


_PARAMETERS = re.compile(r"[<(].*", re.DOTALL)


def shorten_kernel(name: str) -> str:
    """Return the name of a kernel without its return type, namespaces and arguments.

    >>> shorten_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float> >(int)")
    'vectorized_elementwise_kernel'
    >>> shorten_kernel("Memcpy HtoD (Pageable -> Device)"), shorten_kernel("(anonymous namespace)::k")
    ('Memcpy HtoD', 'k')
    """
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return _PARAMETERS.sub("", bare).strip().rpartition("::")[2] or name


def _tell_apart(texts: list[str]) -> list[str]:
    """Return the texts, those that occurred before with a number."""
    seen: dict[str, int] = {}
    found = []
    for text in texts:
        seen[text] = seen.get(text, 0) + 1
        found.append(text if seen[text] == 1 else f"{text} ~{seen[text]}")
    return found


# -- hardware counters ------------------------------------------------------------------------------------------------

_COUNTERS = Section(
    "hardware_counters", "Hardware counters",
    "Counters of CUPTI's range profiler, each by kernel and the operator that launched it, of all ranks together: the "
    "largest first; total and share where a counter adds up. A counter that is 0 everywhere has one row. Names of "
    "kernels are without arguments; the JSON has them whole, with min and max.",
    columns_of("<counter, <kernel, <operator, calls, mean, total, share %"),
    "No counters: record with _ExperimentalConfig(profiler_metrics=[...]).",
)  # fmt: skip
COUNTER_KERNELS_MIN = 3
"""Kernels shown of each counter, however many counters share the rows of the table."""


class _CounterValue(NamedTuple):
    """Values of one counter for one kernel and operator, over all ranks."""

    kernel: str
    operator: str | None
    calls: int
    mean: float
    total: float | None

    @property
    def size(self) -> float:
        """What the rows are sorted by."""
        return self.mean if self.total is None else self.total


def build_counters(report: TraceReport, top: int) -> list[Section]:
    """Return the table of the largest values of each counter, `top` in all; no table where no trace has any."""
    found: dict[str, dict[tuple[str, str | None], list[tuple[int, CounterSum]]]] = {}
    for row in (row for rank in report.ranks for row in rank.hardware_counters):
        for one in row.counters:
            found.setdefault(one.name, {}).setdefault((row.name, row.operator), []).append((row.count, one))
    if not found:
        return []
    shown_max, rows, left_out = max(top // len(found), COUNTER_KERNELS_MIN), [], 0
    start = _find_start(list(found))
    kernels = sorted({kernel for of in found.values() for kernel, _ in of})
    texts = dict(zip(kernels, _tell_apart([*map(shorten_kernel, kernels)]), strict=True))
    for name in sorted(found):
        values = sorted(
            (_add_up(texts[kernel], operator, of) for (kernel, operator), of in found[name].items()),
            key=lambda one: -one.size,
        )
        if not any(one.size for one in values):
            values = [_CounterValue(MISSING, None, sum(one.calls for one in values), 0, values[0].total)]
        whole = sum(one.total or 0 for one in values)
        shown = f"...{name[len(start) :]}" if start else name
        rows += [_counter_cells(shown, one, whole) for one in values[:shown_max]]
        left_out += max(len(values) - shown_max, 0)
    explanation = _COUNTERS.explanation + (f" All counters begin with {printable(start)}." if start else "")
    return [_COUNTERS._replace(explanation=explanation, rows=tuple(rows), left_out=left_out)]


def _find_start(names: list[str]) -> str:
    """Return what all names begin with, up to an underscore; nothing for one name.

    >>> _find_start(["smsp__inst_executed_add.sum", "smsp__inst_executed_mul.sum"]), _find_start(["sm__x", "dram__x"])
    ('smsp__inst_executed_', '')
    """
    shared = commonprefix(names) if len(names) > 1 else ""  # noqa: RUF071 - these are no paths; cut at "_" next
    return shared[: shared.rfind("_") + 1]


def _add_up(kernel: str, operator: str | None, of: list[tuple[int, CounterSum]]) -> _CounterValue:
    calls = sum(count for count, _ in of)
    totals = [one.total for _, one in of if one.total is not None]
    mean = sum(count * one.mean for count, one in of) / calls
    return _CounterValue(kernel, operator, calls, mean, sum(totals) if totals else None)


def _counter_cells(name: str, one: _CounterValue, whole: float) -> Cells:
    return (
        text_cell(name), text_cell(one.kernel), text_cell(one.operator), amount(one.calls),
        _number(one.mean), _number(one.total), percent(share_of(one.total, whole)),
    )  # fmt: skip


def _number(value: float | None) -> Cell:
    """Return a cell of a counter's value, of which only the counter's name knows the unit."""
    return amount(value, decimals=0 if value is None or float(value).is_integer() else 3)
