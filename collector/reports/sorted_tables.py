"""Build the summaries that `--sort-by` orders: stages, operators, kernels, copies and ranges with calls, total, mean,
most and least, on the host and on the devices. Pure: TraceReport -> sections.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rankscope.collector.reports.trace_cells import (
    Cells,
    Section,
    amount,
    columns_of,
    mib,
    ms,
    percent,
    share_of,
    text_cell,
    us,
)
from rankscope.collector.traces.operator_groups import KERNELS_OF_A_ROW_MAX
from rankscope.collector.traces.report import OperatorGroupRow, RangeKernelRow, RankReport, TraceReport
from rankscope.measure.errors import SettingError

KEYS = (
    "cpu_total", "cpu_avg", "cpu_max", "cpu_min", "gpu_total", "gpu_avg", "gpu_max", "gpu_min", "calls", "memory",
)  # fmt: skip
ALIASES = {
    "cpu_time_total": "cpu_total", "cpu_time": "cpu_avg", "cuda_time_total": "gpu_total", "cuda_time": "gpu_avg",
    "device_time_total": "gpu_total", "device_time": "gpu_avg", "count": "calls", "cpu_memory_usage": "memory",
    "cuda_memory_usage": "memory",
}  # fmt: skip
"""What torch's key_averages().table() calls them."""
_COLUMNS = (
    "calls, CPU ms, CPU mean us, CPU max us, CPU min us, CPU %, GPU ms, GPU mean us, GPU max us, GPU min us, GPU %, "
    "memory MiB"
)
_EXPLAINED = (
    "Over all ranks: total, and mean, most and least of one call (of a stage: of one step), on the host and on the "
    "devices, with what is called inside; shares are of the sum of the table. Sorted by {key}."
)


class _Amounts(NamedTuple):
    """What a table shows of one row of one rank; None where that is not known or does not apply."""

    name: str
    calls: int
    cpu_total: int | None = None
    cpu_max: int | None = None
    cpu_min: int | None = None
    gpu_total: int | None = None
    gpu_max: int | None = None
    gpu_min: int | None = None
    memory: int | None = None


def choose_sort_key(text: str | None) -> str | None:
    """Return the key of a name of the user's, also of one that torch has for it. Raises SettingError.

    >>> choose_sort_key("cuda_time_total"), choose_sort_key("CPUTotal"), choose_sort_key(None)
    ('gpu_total', 'cpu_total', None)
    """
    if text is None:
        return None
    plain = {key.replace("_", ""): key for key in KEYS} | {key.replace("_", ""): to for key, to in ALIASES.items()}
    found = plain.get(text.lower().replace("_", "").replace("-", ""))
    if found is None:
        raise SettingError(f"--sort-by is {text!r}; it is one of {', '.join(KEYS)}")
    return found


def build_sorted_sections(report: TraceReport, top: int, key: str) -> list[Section]:
    """Return the summaries, each sorted by the key."""
    tables: Sequence[tuple[str, str, str, Callable[[RankReport], Iterable[_Amounts]]]] = (
        ("sorted_stages", "Model", "<stage", _of_stages),
        ("sorted_operators", "Operators", "<operator", _of_operators),
        ("sorted_kernels", "Kernels", "<kernel", _of_kernels),
        ("sorted_memory", "Memory copies and sets", "<kind", _of_copies),
        ("sorted_ranges", "User ranges", "<range", _of_ranges),
    )
    sections = []
    for name, title, head, rows_of in tables:
        section = Section(
            name, title, _EXPLAINED.format(key=key), columns_of(f"{head}, {_COLUMNS}"), "None in the traces."
        )
        sections.append(_build(section, [one for rank in report.ranks for one in rows_of(rank)], top, key))
    return sections


def _build(section: Section, found: Sequence[_Amounts], top: int, key: str) -> Section:
    by_name: dict[str, list[_Amounts]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one)
    rows = [_merge(of_name) for of_name in by_name.values()]
    rows.sort(key=lambda one: (-(_value(one, key) or 0), one.name))
    cpu_ns, gpu_ns = (_sum(getattr(one, field) for one in rows) for field in ("cpu_total", "gpu_total"))
    return section.of([_cells_of(one, cpu_ns, gpu_ns) for one in rows], top)


def _merge(rows: Sequence[_Amounts]) -> _Amounts:
    """Return the rows of one name of all ranks as one."""

    def known(field: str) -> list[int]:
        return [value for one in rows if (value := getattr(one, field)) is not None]

    return _Amounts(
        name=rows[0].name,
        calls=sum(one.calls for one in rows),
        cpu_total=_sum(known("cpu_total")),
        cpu_max=max(known("cpu_max"), default=None),
        cpu_min=min(known("cpu_min"), default=None),
        gpu_total=_sum(known("gpu_total")),
        gpu_max=max(known("gpu_max"), default=None),
        gpu_min=min(known("gpu_min"), default=None),
        memory=_sum(known("memory")),
    )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _value(one: _Amounts, key: str) -> float | None:
    if key.endswith("_avg"):
        return share_of(getattr(one, f"{key.removesuffix('_avg')}_total"), one.calls)
    value: float | None = getattr(one, key)
    return value


def _cells_of(one: _Amounts, cpu_ns: int | None, gpu_ns: int | None) -> Cells:
    return (
        text_cell(one.name), amount(one.calls),
        ms(one.cpu_total), us(share_of(one.cpu_total, one.calls)), us(one.cpu_max), us(one.cpu_min),
        percent(share_of(one.cpu_total, cpu_ns)),
        ms(one.gpu_total), us(share_of(one.gpu_total, one.calls)), us(one.gpu_max), us(one.gpu_min),
        percent(share_of(one.gpu_total, gpu_ns)), mib(one.memory),
    )  # fmt: skip


# -- the rows of a rank -----------------------------------------------------------------------------------------------


def _of_stages(rank: RankReport) -> Iterable[_Amounts]:
    for row in rank.model:
        device_ns = row.device_ns if rank.devices else None
        yield _Amounts(row.stage, row.count, row.host_ns, row.host_max_ns, row.host_min_ns, device_ns)


def _of_operators(rank: RankReport) -> Iterable[_Amounts]:
    for row in rank.operators:
        host = _Amounts(
            row.name, row.count, row.host_total_ns, row.host_max_ns, row.host_min_ns, memory=row.allocated_bytes
        )
        if rank.devices:
            host = host._replace(gpu_total=row.device_total_ns, gpu_max=row.device_max_ns, gpu_min=row.device_min_ns)
        yield host


def _of_kernels(rank: RankReport) -> Iterable[_Amounts]:
    for row in rank.kernels:
        yield _Amounts(row.name, row.count, gpu_total=row.total_ns, gpu_max=row.max_ns, gpu_min=row.min_ns)


def _of_copies(rank: RankReport) -> Iterable[_Amounts]:
    for row in rank.copies:
        times = {"gpu_total": row.total_ns, "gpu_max": row.max_ns, "gpu_min": row.min_ns}
        yield _Amounts(row.name, row.count, row.host_total_ns, memory=row.bytes, **times)


def _of_ranges(rank: RankReport) -> Iterable[_Amounts]:
    for row in rank.user_ranges:
        one = _Amounts(row.name, row.count, row.host_total_ns, row.host_max_ns, row.host_min_ns, row.device_total_ns)
        if row.device_count == row.count:  # one range on the device for each on the host: no call is in several
            one = one._replace(gpu_max=row.device_max_ns, gpu_min=row.device_min_ns)
        yield one


# -- operators in groups ----------------------------------------------------------------------------------------------

_GROUPS = Section(
    "operator_groups", "Operators in groups",
    "Operators by thread and by the innermost frames around them, as asked for; the kernels that each launched itself "
    "stand beneath it, with their number and their time. Launch delay is the mean time from the start of the operator "
    "to its first own launch; of a kernel from the start of the launching call to that of the kernel.",
    columns_of(
        "rank, <operator, <thread, <frames, calls, device self ms, device total ms, host self ms, host total ms, "
        "launch delay us"
    ), "No operators: record with ProfilerActivity.CPU.",
)  # fmt: skip


def build_operator_groups(report: TraceReport, top: int) -> list[Section]:
    """Return the table of operators in groups of each rank; none if it was not asked for."""
    if all(rank.operator_groups is None for rank in report.ranks):
        return []
    found = [(rank, row) for rank in report.ranks for row in rank.operator_groups or ()]
    found.sort(key=lambda item: (-item[1].device_self_ns, -item[1].host_self_ns))
    rows = [cells for rank, row in found[:top] for cells in _lines_of(rank, row)]
    return [_GROUPS._replace(rows=tuple(rows), left_out=max(len(found) - top, 0))]


def _lines_of(rank: RankReport, row: OperatorGroupRow) -> Iterable[Cells]:
    def on_device(ns: int) -> int | None:
        return ns if rank.devices else None

    yield (
        text_cell(rank.rank), text_cell(row.name), text_cell(row.thread), text_cell(" < ".join(row.frames)),
        amount(row.count), ms(on_device(row.device_self_ns)), ms(on_device(row.device_total_ns)),
        ms(row.host_self_ns), ms(row.host_total_ns), us(row.launch_delay_ns),
    )  # fmt: skip
    nothing: Any = text_cell(None)
    for one in row.kernels:
        yield (
            nothing, text_cell(f"  {one.name}"), nothing, nothing, amount(one.count), ms(one.total_ns), nothing,
            nothing, nothing, us(one.delay_ns),
        )  # fmt: skip


# -- kernels in user ranges -------------------------------------------------------------------------------------------

_RANGE_KERNELS = Section(
    "range_kernels", "Kernels in user ranges",
    "What was launched in the ranges of each name, also in ranges inside of them, by autograd's thread too; beneath it "
    f"the kernels and copies with the most, {KERNELS_OF_A_ROW_MAX} at most. The share is of all device work of the "
    "rank, of a kernel that of its range. Own is what was launched in no range inside.",
    columns_of("rank, <range, launched, total ms, share %, mean us, min us, max us, own ms"),
    "No device work: the traces are of the CPU alone.",
)  # fmt: skip
NO_RANGE = "(in no range, or launched before the record)"


def build_range_kernels(report: TraceReport, top: int) -> list[Section]:
    """Return the table of the kernels in the user ranges of each rank; none if it was not asked for."""
    if all(rank.range_kernels is None for rank in report.ranks):
        return []
    found: dict[tuple[int, str | None], list[RangeKernelRow]] = {}
    for place, rank in enumerate(report.ranks):
        for row in rank.range_kernels or ():
            found.setdefault((place, row.range_name), []).append(row)
    total_ns = {key: sum(row.total_ns for row in rows) for key, rows in found.items()}
    ordered = sorted(found.items(), key=lambda item: (item[0][1] is None, -total_ns[item[0]]))
    work_ns = [sum(row.own_ns for row in rank.range_kernels or ()) for rank in report.ranks]
    rows = [
        cells
        for (place, name), of_range in ordered[:top]
        for cells in _lines_of_range(report.ranks[place].rank, name, of_range, work_ns[place])
    ]
    return [_RANGE_KERNELS._replace(rows=tuple(rows), left_out=max(len(ordered) - top, 0))]


def _lines_of_range(
    rank: int | None, name: str | None, rows: Sequence[RangeKernelRow], work_ns: int
) -> Iterable[Cells]:
    whole_ns, count = sum(row.total_ns for row in rows), sum(row.count for row in rows)
    yield (
        text_cell(rank), text_cell(NO_RANGE if name is None else name), amount(count), ms(whole_ns),
        percent(share_of(whole_ns, work_ns)), us(share_of(whole_ns, count)), us(min(row.min_ns for row in rows)),
        us(max(row.max_ns for row in rows)), ms(sum(row.own_ns for row in rows)),
    )  # fmt: skip
    for row in rows[:KERNELS_OF_A_ROW_MAX]:
        yield (
            text_cell(None), text_cell(f"  {row.name}"), amount(row.count), ms(row.total_ns),
            percent(share_of(row.total_ns, whole_ns)), us(row.mean_ns), us(row.min_ns), us(row.max_ns), ms(row.own_ns),
        )  # fmt: skip
