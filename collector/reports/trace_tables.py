"""The tables of a trace report, once: what the terminal and the page show is made from these sections.

Pure: TraceReport -> sections.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple

from rankscope.collector.reports.trace_cells import (
    MISSING,
    Cells,
    Section,
    amount,
    columns_of,
    mib,
    ms,
    percent,
    rank_list,
    rate,
    share_of,
    us,
    word,
)
from rankscope.collector.traces.report import Breakdown, RankReport, TraceReport
from rankscope.measure.units import NS_PER_S, format_duration

EVENT_TYPES_MAX = 8
"""All kinds there are: cutting a table this short would hide more than it saves."""
GROWTH_STEPS_MAX = 8
"""Of how many steps the growth of memory is spelled out: more make a line that nobody reads."""


# -- the verdict ------------------------------------------------------------------------------------------------------

_VERDICT = Section(
    "verdict", "Verdict and advice",
    "What the comparison of the ranks and the rules say, on what evidence, and what could not be judged.",
    columns_of("<kind, <about, <ranks, <finding, <what to do, <evidence"),
    "No rule found anything, and none had to abstain.", is_prose=True,
)  # fmt: skip


def _verdict(report: TraceReport, top: int) -> Section:
    """`top` cuts what could not be judged or read, never what was found. A finding that advice repeats stands there,
    with what to do, and comes first all the same.
    """
    findings = report.cross_rank.findings if report.cross_rank is not None else []
    found, advised = {one.sentence for one in findings}, {one.sentence for one in report.advice}
    rows = [
        _say("finding", one.cause or one.kind, one.sentence, [one.rank], evidence={"slowdown": one.slowdown_ratio})
        for one in findings
        if one.sentence not in advised
    ]
    rows += [
        _say(one.severity, one.key, one.sentence, one.ranks, action=one.action, evidence=one.evidence)
        for one in sorted(report.advice, key=lambda one: one.sentence not in found)
    ]
    rows += [_say("note", about, sentence) for about, sentence in _notes(report)]
    rows += [_say("abstained", one.key, one.reason) for one in report.abstained[:top]]
    rows += [_say("file error", one.file, one.reason) for one in report.errors[:top]]
    left_out = max(len(report.abstained) - top, 0) + max(len(report.errors) - top, 0)
    return _VERDICT._replace(rows=tuple(rows), left_out=left_out)


def _notes(report: TraceReport) -> list[tuple[str, str]]:
    across, notes = report.cross_rank, []
    if across is None:
        return [("ranks", "One rank's trace: there is nothing to compare it with.")] if report.ranks else []
    if across.refused is not None:
        notes.append(("matching refused", f"Waiting was not told from transfer: {across.refused}"))
    elif not across.findings:
        notes.append(("ranks", "No rank is slower than the others."))
    if across.lower_bound:
        notes.append(("lower bound", "Ranks are missing: there may have been more waiting than is shown."))
    if across.end_disagreement_ns is not None:
        apart = format_duration(across.end_disagreement_ns)
        notes.append(("clocks", f"By the clocks in the traces, the ranks' ends of a collective lie {apart} apart."))
    return notes


def _say(
    kind: str, about: str, sentence: str, ranks: Iterable[int] = (), *, action: str | None = None,
    evidence: Mapping[str, float | int | str | None] | None = None,
) -> Cells:  # fmt: skip
    proof = ", ".join(f"{name} {_plain(value)}" for name, value in (evidence or {}).items())
    return (word(kind), word(about), rank_list(ranks), word(sentence), word(action), word(proof))


def _plain(value: float | int | str | None) -> str:  # noqa: PYI041 - mypy holds that a float is never an int
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"  # noqa: PLR2004 - beyond it .4g drops digits
    return MISSING if value is None else f"{value:,}" if isinstance(value, int) else value


# -- one line a rank --------------------------------------------------------------------------------------------------

_PARTS = (
    "window ms, compute ms, compute %, overlap ms, overlap %, exposed ms, exposed %, other ms, other %, overlapped %"
)
_PARTS_EXPLAINED = (
    "Compute is computing alone, overlap computing and communication at once, exposed communication alone, other idle "
    "time and copies; overlapped is the share of communication hidden behind computing"
)
_NO_STEPS = "No steps: call profiler.step() once a step."
_NO_MEMORY = "No memory events: record with profile_memory=True."
_RANKS = Section(
    "ranks", "Distributed overview, by rank", f"{_PARTS_EXPLAINED}.", columns_of(f"rank, {_PARTS}, <file"),
    "No trace could be used.",
)  # fmt: skip
_STEPS = Section(
    "steps", "Distributed overview, by step",
    f"{_PARTS_EXPLAINED}; launched is the device time of what the step launched, wherever it ran.",
    columns_of(f"rank, step, {_PARTS}, launched ms"), _NO_STEPS,
)  # fmt: skip
_WAITING = Section(
    "waiting", "Wait against transfer, by rank",
    "Of the collectives matched across ranks: wait is time spent for a rank that came later, transfer what moving the "
    "bytes took, late by how much this rank came after the median one.",
    columns_of("rank, wait ms, transfer ms, wait %, came last times, late ms"),
    "No collective was found on more than one rank.",
)  # fmt: skip
_DEVICES = Section(
    "devices", "Device summary",
    "Busy is the share of the trace with device work, utilisation that of the steps with a kernel; SM efficiency and "
    "achieved occupancy are the profiler's estimates; tensor cores is the share of kernel time on them.",
    columns_of("rank, device, <name, kernels, busy %, utilisation %, SM efficiency %, occupancy %, tensor cores %"),
    "No device work: the traces are of the CPU alone.",
)  # fmt: skip
_MODEL = Section(
    "model", "Model summary",
    "The stages of the training step: the host's time, which sums to the steps, and device time of what they launched.",
    columns_of("rank, <stage, host ms, host %, device ms"), _NO_STEPS,
)  # fmt: skip
_MEMORY = Section(
    "memory", "Memory",
    "The allocators' peaks and when they were reached; growth is from the first step's end to the last one's.",
    columns_of("rank, device, peak MiB, at ms, reserved MiB, growth MiB, <growth by step (MiB)"), _NO_MEMORY,
)  # fmt: skip


def _parts(spent: Breakdown) -> Cells:
    alone_ns = spent.compute_ns - spent.overlap_ns
    parts = (alone_ns, spent.overlap_ns, spent.exposed_communication_ns, spent.copy_ns + spent.idle_ns)
    shares = chain.from_iterable((ms(part), percent(share_of(part, spent.window_ns))) for part in parts)
    return (ms(spent.window_ns), *shares, percent(spent.overlap_ratio))


def _ranks(report: TraceReport, rank_rows_max: int) -> Section:
    """What all paths begin with is left out: it tells no rank from another."""
    shared = commonprefix([rank.file for rank in report.ranks])  # noqa: RUF071 - URLs are no paths; cut at a slash next
    shown_from = shared.rfind("/") + 1
    return _by_rank(report, _RANKS, lambda rank: [(*_parts(rank), word(rank.file[shown_from:]))], rank_rows_max)


def _of_steps(rank: RankReport) -> list[Cells]:
    return [
        (word(one.step), *_parts(one), ms(one.launched.busy_ns if one.launched is not None else None))
        for one in rank.steps
    ]


def _of_devices(rank: RankReport) -> list[Cells]:
    return [
        (word(one.device), word(one.name), amount(one.kernel_count), percent(one.busy_ratio),
         percent(one.utilisation_ratio), percent(one.sm_efficiency_ratio), percent(one.achieved_occupancy_ratio),
         percent(one.tensor_core_ratio))
        for one in rank.devices
    ]  # fmt: skip


def _of_model(rank: RankReport) -> list[Cells]:
    whole_ns = sum(one.host_ns for one in rank.model)
    return [
        (word(one.stage.replace("_", " ")), ms(one.host_ns), percent(share_of(one.host_ns, whole_ns)),
         ms(one.device_ns if rank.devices else None))
        for one in (rank.model if rank.steps else ())
    ]  # fmt: skip


def _of_memory(rank: RankReport) -> list[Cells]:
    return [
        (word("CPU" if one.device is None else one.device), mib(one.peak_bytes), ms(one.peak_ns),
         mib(one.reserved_peak_bytes), mib(one.growth_bytes if one.growth_by_step_bytes else None),
         word(_spell_growth(one.growth_by_step_bytes)))
        for one in rank.memory
    ]  # fmt: skip


def _spell_growth(growth_bytes: Sequence[int]) -> str:
    steps = " ".join(mib(size).text for size in growth_bytes[:GROWTH_STEPS_MAX])
    left_out = len(growth_bytes) - GROWTH_STEPS_MAX
    return f"{steps} and {left_out} more" if left_out > 0 else steps


def _by_rank(
    report: TraceReport, section: Section, rows_of: Callable[[RankReport], list[Cells]], rank_rows_max: int
) -> Section:
    """Ranks that a finding names are never the ones left out, wherever they stand."""
    named = {one.rank for one in report.cross_rank.findings} if report.cross_rank is not None else set()
    found = [(rank.rank not in named, (word(rank.rank), *row)) for rank in report.ranks for row in rows_of(rank)]
    kept = sorted(sorted(range(len(found)), key=lambda place: found[place][0])[:rank_rows_max])
    return section.of([found[place][1] for place in kept], rank_rows_max, len(found))


def _waiting(report: TraceReport, rank_rows_max: int) -> Section:
    across = report.cross_rank
    if across is None:
        return _WAITING._replace(reason="One rank's trace: waiting shows only where all ranks are compared.")
    if across.wait_ns is None:
        return _WAITING._replace(reason=f"Waiting was not told from transfer: {across.refused or 'no reason given'}")
    waits, transfers = across.wait_ns, across.transfer_ns or {}

    def of_waiting(rank: RankReport) -> list[Cells]:
        key = str(rank.rank)
        wait_ns, transfer_ns = waits.get(key), transfers.get(key)
        if wait_ns is None:
            return []
        whole_ns = wait_ns + transfer_ns if transfer_ns is not None else None
        late = [one.lateness_ns or 0 for one in across.collectives if one.late_rank == rank.rank]
        share = percent(share_of(wait_ns, whole_ns))
        return [(ms(wait_ns), ms(transfer_ns), share, amount(len(late)), ms(sum(late)))]

    return _by_rank(report, _WAITING, of_waiting, rank_rows_max)


# -- one line a name, of all ranks together ---------------------------------------------------------------------------


class Gathered(NamedTuple):
    """The rows of one name of all ranks. Quantities go by the name of the row's field. `whole_ns` is what all names of
    the table spent.
    """

    rows: Sequence[tuple[int | None, Any]]
    on_device: bool
    whole_ns: int = 0

    @property
    def first(self) -> Any:
        """For what the rows of one name have in common."""
        return self.rows[0][1]

    def all_of(self, quantity: str) -> list[int]:
        """Each rank's; none when one rank does not know, and of a device where there is none."""
        values = [getattr(row, quantity) for _, row in self.rows]
        known = None not in values and (self.on_device or not quantity.startswith("device_"))
        return values if known else []

    def total(self, quantity: str) -> int | None:
        """The sum over the ranks, where it is known."""
        values = self.all_of(quantity)
        return sum(values) if values else None

    def times(self, *quantities: str) -> Cells:
        """How often, then these times."""
        return (amount(self.total("count")), *(ms(self.total(quantity)) for quantity in quantities))

    def mean(self, quantity: str) -> float | None:
        """For each call."""
        return share_of(self.total(quantity), self.total("count"))

    def per_s(self, quantity: str) -> float | None:
        """In each second of the total time."""
        found = share_of(self.total(quantity), self.total("total_ns"))
        return found * NS_PER_S if found is not None else None

    def bus_bandwidth_per_s(self) -> float | None:
        """The ranks' mean, weighed by the time of the transfers; None when one rank does not know."""
        rates, times_ns = self.all_of("bus_bandwidth_bytes_per_s"), self.all_of("transfer_ns")
        if not rates or not times_ns:
            return None
        return share_of(sum(rate * ns for rate, ns in zip(rates, times_ns, strict=True)), sum(times_ns))

    def on_ranks(self, quantity: str) -> Cells:
        """How many ranks, the most that one of them spent, and which."""
        totals: dict[int | None, int] = {}
        for rank, row in self.rows:
            totals[rank] = totals.get(rank, 0) + getattr(row, quantity)
        most = max(totals, key=lambda rank: totals[rank])
        return (amount(len(totals)), ms(totals[most]), word(most))


class _ByName(NamedTuple):
    """How a table of names is made: rows with the same `name` fields are one line, the most `by` first."""

    section: Section
    rows_of: Callable[[RankReport], Sequence[Any]]
    name: tuple[str, ...]
    cells: Callable[[Gathered], Cells]
    by: tuple[str, ...] = ("total_ns",)

    def build(self, report: TraceReport, top: int) -> Section:
        """The section; of more than one rank with three more columns. Without a device the last `by` counts."""
        found: dict[tuple[Any, ...], list[tuple[int | None, Any]]] = {}
        for rank in report.ranks:
            for row in self.rows_of(rank):
                found.setdefault(tuple(getattr(row, field) for field in self.name), []).append((rank.rank, row))
        on_device, several = any(rank.devices for rank in report.ranks), len(report.ranks) > 1
        by = self.by[0] if on_device else self.by[-1]
        whole_ns = sum(getattr(row, by) for rows in found.values() for _, row in rows)
        gathered = [(name, Gathered(rows, on_device, whole_ns)) for name, rows in found.items()]
        gathered.sort(key=lambda item: -(item[1].total(by) or 0))
        rows = [
            (*map(word, name), *self.cells(one), *(one.on_ranks(by) if several else ())) for name, one in gathered[:top]
        ]
        columns = self.section.columns + (columns_of("ranks, most ms, on rank") if several else ())
        return self.section._replace(columns=columns).of(rows, top, len(gathered))


_COLLECTIVES = _ByName(
    Section(
        "collectives", "Communication operators",
        "Summed over the ranks; the total holds the waiting, transfer and bus bandwidth (as in nccl-tests) do not.",
        columns_of("<operation, <group, size, <type, calls, total ms, transfer ms, mean us, moved bytes, busbw GB/s"),
        "No communication in the traces.",
    ),
    lambda rank: rank.collectives, ("op", "group", "group_size", "dtype"),
    lambda one: (*one.times("total_ns", "transfer_ns"), us(one.mean("total_ns")), amount(one.total("bytes")),
                 rate(one.bus_bandwidth_per_s())),
)  # fmt: skip
_EVENT_TYPES = _ByName(
    Section(
        "event_types", "Overview by event type",
        "The time of the steps in which this went on and nothing of higher rank did: the device comes before the host.",
        columns_of("<kind, total ms, share %"), _NO_STEPS,
    ),
    lambda rank: rank.event_types if rank.steps else (), ("kind",),
    lambda one: (ms(one.total("total_ns")), percent(share_of(one.total("total_ns"), one.whole_ns))),
)  # fmt: skip
_OPERATORS = _ByName(
    Section(
        "operators", "Operators",
        "Device time of what an operator launched and its host time; self is without the operators called inside it.",
        columns_of("<operator, calls, device self ms, device total ms, host self ms, host total ms"),
        "No operators: record with ProfilerActivity.CPU.",
    ),
    lambda rank: rank.operators, ("name",),
    lambda one: one.times("device_self_ns", "device_total_ns", "host_self_ns", "host_total_ns"),
    by=("device_self_ns", "host_self_ns"),
)  # fmt: skip
_KERNELS = _ByName(
    Section(
        "kernels", "Kernels",
        "What ran on the devices, the longest in total first; whether on tensor cores is told from the kernel's name.",
        columns_of("<kernel, calls, total ms, share %, mean us, min us, max us, <tensor cores"),
        "No kernels: record with ProfilerActivity.CUDA on a machine with a GPU.",
    ),
    lambda rank: rank.kernels, ("name",),
    lambda one: (*one.times("total_ns"), percent(share_of(one.total("total_ns"), one.whole_ns)),
                 us(one.mean("total_ns")), us(min(one.all_of("min_ns"))), us(max(one.all_of("max_ns"))),
                 word("yes" if one.first.uses_tensor_cores else "no")),
)  # fmt: skip
_COPIES = _ByName(
    Section(
        "copies", "Memory copies", "Copies and sets on the devices by kind; the rate is bytes over time.",
        columns_of("<kind, calls, total ms, moved bytes, rate GB/s"), "No memory copies on a device.",
    ),
    lambda rank: rank.copies, ("name",),
    lambda one: (*one.times("total_ns"), amount(one.total("bytes")), rate(one.per_s("bytes"))),
)  # fmt: skip
_USER_RANGES = _ByName(
    Section(
        "user_ranges", "User ranges", "What the script, or torch itself, marked with record_function.",
        columns_of("<range, calls, host total ms, device total ms"),
        "No ranges: mark parts of the script with torch.profiler.record_function.",
    ),
    lambda rank: rank.user_ranges, ("name",), lambda one: one.times("host_total_ns", "device_total_ns"),
    by=("host_total_ns",),
)  # fmt: skip
_SYNCHRONISATIONS = _ByName(
    Section(
        "synchronisations", "Synchronisation points",
        "Calls in which the host waited for the device: under which operator and, recorded with_stack, on which line.",
        columns_of("<call, <operator, <source line, calls, total ms, max ms"), "No call waited for a device.",
    ),
    lambda rank: rank.synchronisations, ("name", "operator", "source"),
    lambda one: (*one.times("total_ns"), ms(max(one.all_of("max_ns")))),
)  # fmt: skip


# -- the rest ---------------------------------------------------------------------------------------------------------

_MEMORY_OPERATORS = Section(
    "memory_operators", "Memory by operator",
    "What each operator allocated itself, on all ranks, and what of that outlived it.",
    columns_of("<operator, <where, allocations, allocated MiB, kept MiB"), _NO_MEMORY,
)  # fmt: skip
_WARNINGS = Section(
    "warnings", "Warnings", "What was odd in the traces, and what that means for the numbers.",
    columns_of("<warning, files, <ranks"), "No warnings.",
)  # fmt: skip


def _memory_operators(report: TraceReport, top: int) -> Section:
    found: dict[tuple[str, str], tuple[int, int, int]] = {}
    for one in chain.from_iterable(rank.memory for rank in report.ranks):
        for row in one.operators:
            key = (row.operator, "CPU" if one.device is None else "device")
            allocated, kept, count = found.get(key, (0, 0, 0))
            found[key] = (allocated + row.allocated_bytes, kept + row.kept_bytes, count + row.count)
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    rows = [(*map(word, key), amount(count), mib(size), mib(kept)) for key, (size, kept, count) in ordered]
    return _MEMORY_OPERATORS.of(rows, top)


def _warnings(report: TraceReport, top: int) -> Section:
    found: dict[str, list[int | None]] = {}
    for rank in report.ranks:
        for warning in rank.warnings:
            found.setdefault(warning, []).append(rank.rank)
    return _WARNINGS.of([(word(text), amount(len(of)), rank_list(of)) for text, of in found.items()], top)


def build_sections(report: TraceReport, top: int, rank_rows_max: int | None = None) -> list[Section]:
    """All tables in the order in which they are read. `top` limits the rows of each; `rank_rows_max`, when given, those
    of the tables with a line for each rank.
    """
    of_ranks = rank_rows_max or top
    return [
        _verdict(report, top),
        _ranks(report, of_ranks),
        _by_rank(report, _STEPS, _of_steps, of_ranks),
        _waiting(report, of_ranks),
        _COLLECTIVES.build(report, top),
        _by_rank(report, _DEVICES, _of_devices, of_ranks),
        _EVENT_TYPES.build(report, max(top, EVENT_TYPES_MAX)),
        _by_rank(report, _MODEL, _of_model, of_ranks),
        *(table.build(report, top) for table in (_OPERATORS, _KERNELS, _COPIES, _USER_RANGES, _SYNCHRONISATIONS)),
        _by_rank(report, _MEMORY, _of_memory, of_ranks),
        _memory_operators(report, top),
        _warnings(report, top),
    ]
