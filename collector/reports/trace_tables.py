"""Build the tables of a trace report, for the terminal and the page.

Pure: TraceReport -> sections.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple

from rankscope.collector.reports.asked_tables import (
    build_all_to_all_sections,
    build_critical_sections,
    build_roofline_sections,
)
from rankscope.collector.reports.cycle_table import build_cycle_sections
from rankscope.collector.reports.difference_tables import build_difference_sections
from rankscope.collector.reports.flops_tables import build_flops_sections
from rankscope.collector.reports.kernel_tables import (
    TENSOR_CORES,
    build_counters,
    build_kernel_groups,
    build_launches,
    build_sequences,
)
from rankscope.collector.reports.memory_tables import NO_MEMORY, build_allocations, build_by_operator, build_stretch
from rankscope.collector.reports.module_table import build_modules
from rankscope.collector.reports.sorted_tables import build_operator_groups, build_range_kernels, build_sorted_sections
from rankscope.collector.reports.source_links import source_cell
from rankscope.collector.reports.trace_cells import (
    MISSING,
    Cells,
    Section,
    amount,
    at_least,
    columns_of,
    mib,
    ms,
    percent,
    rank_list,
    rate,
    share_of,
    size_range,
    text_cell,
    us,
)
from rankscope.collector.traces.report import Breakdown, CrossRank, PipelineReport, QueueRow, RankReport, TraceReport
from rankscope.collector.traces.standings import describe_leader
from rankscope.measure.units import NS_PER_S, format_duration

EVENT_TYPES_MAX = 8
"""All kinds: a table this short is never cut."""
STEPS_NAMED_MAX = 8
"""Steps that a note names."""
NAME_SHOWN_MAX = 80
"""Characters of a kernel's name in a sentence."""
GROWTH_STEPS_MAX = 8
"""Steps whose growth of memory is listed."""


# -- the verdict ------------------------------------------------------------------------------------------------------

_VERDICT = Section(
    "verdict", "Verdict and advice",
    "Findings of the comparison of ranks and of the rules, with their evidence; then notes, and files that could not "
    "be used.",
    columns_of("<kind, <about, <ranks, <finding, <what to do, <evidence"),
    "No rule found anything.", is_prose=True,
)  # fmt: skip
_NOT_JUDGED = Section(
    "not_judged", "Not judged",
    "Rules that these traces are not enough for, with the reason.",
    columns_of("<kind, <about, <ranks, <finding, <what to do, <evidence"),
    "Every rule of the advice could judge.", is_prose=True,
)  # fmt: skip


def _verdict(report: TraceReport, top: int) -> Section:
    """Return the verdict. `top` cuts the files that could not be read, never findings. A finding that advice repeats is
    shown as that advice, before the others.
    """
    findings = report.cross_rank.findings if report.cross_rank is not None else []
    repeated = {one.sentence for one in findings if any(one.sentence in advice.sentence for advice in report.advice)}
    rows = [
        _verdict_row(
            "finding", one.cause or one.kind, one.sentence, one.ranks, evidence={"slowdown": one.slowdown_ratio}
        )
        for one in findings
        if one.sentence not in repeated
    ]
    rows += [
        _verdict_row(one.severity, one.key, one.sentence, one.ranks, action=one.action, evidence=one.evidence)
        for one in sorted(report.advice, key=lambda one: not any(said in one.sentence for said in repeated))
    ]
    rows += [_verdict_row("note", about, sentence) for about, sentence in _notes(report)]
    rows += [_verdict_row("file error", one.file, one.reason) for one in report.errors[:top]]
    return _VERDICT._replace(rows=tuple(rows), left_out=max(len(report.errors) - top, 0))


def _not_judged(report: TraceReport, top: int) -> Section:
    """Return the rules that abstained, folded on a page."""
    count = len(report.abstained)
    what = "1 rule could not judge" if count == 1 else f"{count} rules could not judge"
    rows = [_verdict_row("abstained", one.key, one.reason) for one in report.abstained]
    return _NOT_JUDGED._replace(folded_as=f"{what}, and why").of(rows, top)


def _note_time(report: TraceReport) -> list[tuple[str, str]]:
    """Return where the time of one rank went, if no rule found anything."""
    if report.advice or len(report.ranks) != 1 or not report.ranks[0].window_ns:
        return []
    (one,) = report.ranks
    shares = [
        (one.compute_ns, f"computing{_name_largest(one)}"),
        (one.exposed_communication_ns, "communicating and not computing, waits included"),
        (one.copy_ns, "copying only"),
        (one.idle_ns, "idle" if one.devices else "in no operator"),
    ]
    what = "the device" if one.devices else "the host"
    parts = [f"{percent(share_of(ns, one.window_ns)).text} % {text}" for ns, text in shares if ns]
    return [("time", f"Of {format_duration(one.window_ns)}, {what} was {'; '.join(parts)}.")]


def _name_largest(one: RankReport) -> str:
    """Return the class of kernels with the most time, and the kernel; on a CPU the operator."""
    if not one.devices:
        first = max(one.operators, key=lambda row: row.host_self_ns, default=None)
        return f", the most in {first.name}" if first is not None else ""
    own = [row for row in one.kernels if not row.is_communication]
    if not own:
        return ""
    whole_ns = sum(row.total_ns for row in own)
    by_class: dict[str, int] = {}
    for row in own:
        by_class[row.kind] = by_class.get(row.kind, 0) + row.total_ns
    kind = max(by_class, key=lambda name: by_class[name])
    share = percent(share_of(by_class[kind], whole_ns)).text
    return f" ({share} % of the kernels' time in {kind} kernels; the longest in total is {_shorten(own[0].name)})"


def _shorten(name: str) -> str:
    """Return a name as far as a sentence can hold it."""
    return name if len(name) <= NAME_SHOWN_MAX else f"{name[: NAME_SHOWN_MAX - 3]}..."


def _note_lost(report: TraceReport) -> list[tuple[str, str]]:
    """Return how many launches of all ranks have no work, and which steps are not judged for it."""
    lost = sum(one.signs.lost_launch_count or 0 for one in report.ranks)
    if not lost:
        return []
    launched = sum(one.signs.launch_count or 0 for one in report.ranks)
    steps = sorted({step.step for one in report.ranks for step in one.steps if not step.is_judged})
    text = (
        f"{lost:,} of {launched:,} launches have no work in the traces: the profiler lost it, or it went into graphs "
        "that were captured."
    )
    if steps:
        text += f" Not judged, and not compared: {_name_steps(steps)}."
    return [("lost work", text)]


def _name_steps(steps: Sequence[int]) -> str:
    named = ", ".join(map(str, steps[:STEPS_NAMED_MAX]))
    more = f" and {len(steps) - STEPS_NAMED_MAX:,} more" if len(steps) > STEPS_NAMED_MAX else ""
    return f"step{'s' * (len(steps) > 1)} {named}{more}"


def _notes(report: TraceReport) -> list[tuple[str, str]]:
    across, notes = report.cross_rank, [*_note_empty(report), *_note_lost(report)]
    if across is None:
        alone = [("ranks", "One rank's trace: there is nothing to compare it with.")] if report.ranks else []
        return [*_note_time(report), *notes, *alone]
    if across.refused is not None:
        notes.append(("matching refused", f"Waiting could not be separated from transfer: {across.refused}"))
    elif not across.findings:
        notes.append(("ranks", _describe_no_finding(report, across)))
    if across.pipeline is not None:
        notes.append(("pipeline", _describe_pipeline(across.pipeline)))
    if across.lower_bound:
        world_is_known = any(one.world_size is not None for one in report.ranks)
        missing = (
            "Ranks are missing" if world_is_known else "The traces do not say how many ranks there were; if some are"
        )
        more = "there may have been more waiting than is shown."
        notes.append(("lower bound", f"{missing}: {more}" if world_is_known else f"{missing} missing, {more}"))
    if across.end_disagreement_ns is not None:
        apart = format_duration(across.end_disagreement_ns)
        notes.append(
            (
                "clocks",
                f"With the offset of each rank's clock subtracted, ranks end a collective {apart} apart in the median.",
            )
        )
    return notes


def _note_empty(report: TraceReport) -> list[tuple[str, str]]:
    """Return a note about the ranks whose rows are all zeros since nothing of them could be measured."""
    empty = [one for one in report.ranks if not one.window_ns]
    if not empty:
        return []
    known = {one.rank for one in empty if one.rank is not None}
    traces, their = f"The traces of ranks {rank_list(known).text} have", "their"
    if not known:
        traces = "Traces that name no rank have"
    elif len(known) == 1:
        traces, their = f"The trace of rank {next(iter(known))} has", "its"
    what = "no work of a known device, and no operators that stand in for it"
    return [("no work", f"{traces} {what}: the zeros in {their} rows are not measurements.")]


def _describe_pipeline(found: PipelineReport) -> str:
    least, most = (pick(stage.work_ns for stage in found.stages) for pick in (min, max))
    unpaired = f" {found.unpaired_count:,} sends and receives could not be paired." if found.unpaired_count else ""
    chunks = " (several chunks each)" if found.is_interleaved else ""
    return (
        f"The {len(found.stages)} stages of the pipeline{chunks} work {format_duration(least)} to "
        f"{format_duration(most)} in a step; {(found.bubble_ratio or 0.0) * 100:.0f} % of their time is bubble."
        f"{unpaired}"
    )


def _describe_no_finding(report: TraceReport, across: CrossRank) -> str:
    if across.pipeline_refused is not None:
        return f"The ranks were not compared: {across.pipeline_refused}."
    if across.pipeline is not None and not across.standings:
        return (
            "No stage is named as slow. Ranks within a stage were not compared: each stage has one rank here, or its "
            "ranks have no step in common."
        )
    if not across.standings:
        lacking = "The ranks have no step in common" if any(one.steps for one in report.ranks) else "There are no steps"
        return f"{lacking}: whether one is slow is not known."
    return describe_leader(across.standings, across.undecided)


def _verdict_row(
    kind: str, about: str, sentence: str, ranks: Iterable[int] = (), *, action: str | None = None,
    evidence: Mapping[str, float | int | str | None] | None = None,
) -> Cells:  # fmt: skip
    proof = ", ".join(f"{name} {_plain(value)}" for name, value in (evidence or {}).items())
    return (
        text_cell(kind),
        text_cell(about),
        rank_list(ranks),
        text_cell(sentence),
        text_cell(action),
        text_cell(proof),
    )


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
_ONE_RANK = "One rank's trace: waiting shows only where all ranks are compared."
_RANKS = Section(
    "ranks", "Distributed overview, by rank", f"{_PARTS_EXPLAINED}.", columns_of(f"rank, {_PARTS}, <file"),
    "No trace could be used.",
)  # fmt: skip
_DEVICE_STEPS = Section(
    "device_steps", "Distributed overview, by step, by the device's clock",
    f"{_PARTS_EXPLAINED}. From the first work that a step launched to that of the next one; the last ends with its "
    "work. Ranks are compared by these steps: a host that runs ahead ends its own before their work begins.",
    columns_of(f"rank, step, {_PARTS}, starts ms"), "No device, or no steps whose work is in order.",
)  # fmt: skip
_STEPS = Section(
    "steps", "Distributed overview, by step, by the host's clock",
    f"{_PARTS_EXPLAINED}; launched is the device time of the step's launches, in this step or a later one.",
    columns_of(f"rank, step, {_PARTS}, launched ms"), _NO_STEPS,
)  # fmt: skip
_WAITING = Section(
    "waiting", "Wait against transfer, by rank",
    "Over the collectives matched across ranks: wait is time spent waiting for a later rank, transfer the time that "
    "moving the bytes took, late the time by which this rank entered after the median one, caused the time that "
    "other ranks waited in collectives that this rank entered last. Collectives that run at the same time each count, "
    "so sums may exceed the time of the steps.",
    columns_of("rank, wait ms, transfer ms, wait %, entered last times, late ms, caused ms"),
    "No collective was found on more than one rank.",
)  # fmt: skip
_WAITS = Section(
    "waits", "Longest waits for another rank",
    "In a collective for the last rank to enter, or for the sender of a message; by the step that launched it.",
    columns_of("step, rank, waited ms, for rank, <operation, <group"),
    "No rank waited for another one.",
)  # fmt: skip
_PIPELINE = Section(
    "pipeline", "Stages of the pipeline",
    "Of a step on one rank, in the mean: work is the step without waits, bubble the waits for messages and other "
    "stages that computing does not hide, before the first backward message (warm-up), after the last forward one "
    "(drain), and in between (steady).",
    columns_of("stage, <ranks, work ms, work to other stages, bubble ms, bubble %, warm-up ms, steady ms, drain ms"),
    "No messages of a pipeline between these ranks.",
)  # fmt: skip
_DEVICES = Section(
    "devices", "Device summary",
    "Busy is the share of the trace with device work, utilization that of the steps with a kernel; SM efficiency and "
    "achieved occupancy are the profiler's estimates; tensor cores is the share of kernel time on them, by the names "
    "of kernels. Of captures by rankscope also the processors: of the process 100 % are one core, of the machine all.",
    columns_of("rank, device, <name, kernels, busy %, utilization %, SM efficiency %, occupancy %, tensor cores %"),
    "No device work: the traces are of the CPU alone.",
)  # fmt: skip
_IDLE_TIME = Section(
    "idle_time", "Idle time of devices and streams, by kind",
    "Gaps between pieces of work. Host wait: the work after the gap was launched in it; kernel wait: it was launched "
    "before, and waited for another stream, a dependency or its own start; other: its launch is not in the trace.",
    columns_of(
        "rank, device, <stream, window ms, idle ms, idle %, gaps, longest ms, host wait ms, host wait %, "
        "kernel wait ms, kernel wait %, other ms, other %"
    ), "No device work: the traces are of the CPU alone.",
)  # fmt: skip
_LAUNCH_QUEUE = Section(
    "launch_queue", "Launch delay and queue of the devices, over time",
    "By step of the host, without steps by tenths of the trace. The delay is from the call that launches work to its "
    "start, the queue the work launched and not started, over time. Empty is the time without a queue, starved that in "
    "which all launched work had ended too: the device had nothing to do.",
    columns_of(
        "rank, device, <period, window ms, launches, delay us, p99 delay us, queue, p99 queue, max queue, empty %, "
        "starved %"
    ), "No device work whose launch is in the trace.",
)  # fmt: skip
_STEP_EVENT_TYPES = Section(
    "step_event_types", "Overview by event type, by step",
    "Each step by the host's clock, by kind; where kinds overlap, only the first counts.",
    columns_of(
        "rank, step, kernel ms, memcpy ms, memset ms, communication ms, runtime ms, data loader ms, operator ms, "
        "other ms"
    ), _NO_STEPS,
)  # fmt: skip
_BANDWIDTHS = Section(
    "bandwidths", "Bandwidth of memory copies",
    "Of each copy and set, as the profiler wrote it, else its bytes over its time: the least, quantiles (interpolated "
    "between copies) and the most.",
    columns_of("rank, <kind, copies, min GB/s, p25 GB/s, median GB/s, p75 GB/s, p90 GB/s, max GB/s"),
    "No memory copies of known size on a device.",
)  # fmt: skip
_MODEL = Section(
    "model", "Model summary",
    "The stages of the training step: host time, which sums to the steps, and device time of their launches.",
    columns_of("rank, <stage, host ms, host %, device ms"), _NO_STEPS,
)  # fmt: skip
_MEMORY = Section(
    "memory", "Memory",
    "The allocators' peaks and when they were reached; growth is from the first step's end to the last one's.",
    columns_of("rank, device, peak MiB, at ms, reserved MiB, growth MiB, <growth by step (MiB)"), NO_MEMORY,
)  # fmt: skip


_MEMORY_PEAK = Section(
    "memory_peak", "Memory at the peak, by category",
    "Older is what was allocated before the trace: it counts as unknown unless the capture has noted what it is. "
    "Parameters, gradients and optimizer state are known by such notes only. Activations were allocated before a "
    "backward and there when it began; fragmentation is 1 - allocated / reserved.",
    columns_of(
        "rank, device, peak MiB, older MiB, parameters MiB, gradients MiB, optimizer state MiB, activations MiB, "
        "temporary MiB, unknown MiB, fragmentation %, <model recorded"
    ), NO_MEMORY,
)  # fmt: skip


def _parts(spent: Breakdown) -> Cells:
    alone_ns = spent.compute_ns - spent.overlap_ns
    parts = (alone_ns, spent.overlap_ns, spent.exposed_communication_ns, spent.copy_ns + spent.idle_ns)
    shares = chain.from_iterable((ms(part), percent(share_of(part, spent.window_ns))) for part in parts)
    return (ms(spent.window_ns), *shares, percent(spent.overlap_ratio))


def _ranks(report: TraceReport, rank_rows_max: int) -> Section:
    """Return the overview by rank, with the common start of all paths left out."""
    shared = commonprefix([rank.file for rank in report.ranks])  # noqa: RUF071 - URLs are no paths; cut at a slash next
    shown_from = shared.rfind("/") + 1
    return _by_rank(report, _RANKS, lambda rank: [(*_parts(rank), text_cell(rank.file[shown_from:]))], rank_rows_max)


def _of_steps(rank: RankReport) -> list[Cells]:
    return [
        (text_cell(one.step), *_parts(one), ms(one.launched.busy_ns if one.launched is not None else None))
        for one in rank.steps
    ]


def _of_device_steps(rank: RankReport) -> list[Cells]:
    found = [(one.step, one.on_device) for one in rank.steps]
    return [
        (text_cell(step), *_parts(on_device), ms(on_device.start_ns))
        for step, on_device in found
        if on_device is not None
    ]


def _of_devices(rank: RankReport) -> list[Cells]:
    """Return a line for each device, and two for the processors where a capture has noted their use."""
    nothing = text_cell(None)
    use = rank.cpu_use
    cpu = [] if use is None else [("CPU, process", use.process_ns / use.window_ns), ("CPU, machine", use.system_ratio)]
    found: list[Cells] = [(nothing, text_cell(name), nothing, percent(ratio), *(nothing,) * 4) for name, ratio in cpu]
    found += [
        (text_cell(one.device), text_cell(one.name), amount(one.kernel_count), percent(one.busy_ratio),
         percent(one.utilization_ratio), percent(one.sm_efficiency_ratio), percent(one.achieved_occupancy_ratio),
         at_least(one.tensor_core_ratio, one.tensor_core_unknown_ratio))
        for one in rank.devices
    ]  # fmt: skip
    return found


def _of_idle_time(rank: RankReport) -> list[Cells]:
    return [
        (text_cell(one.device), text_cell("all" if one.is_device else one.stream), ms(one.window_ns), ms(one.idle_ns),
         percent(share_of(one.idle_ns, one.window_ns)), amount(one.gap_count), ms(one.longest_ns),
         *chain.from_iterable(
             (ms(part), percent(share_of(part, one.idle_ns)))
             for part in (one.host_wait_ns, one.kernel_wait_ns, one.other_ns)
         ))
        for one in rank.idle_time
    ]  # fmt: skip


def _of_launch_queue(rank: RankReport) -> list[Cells]:
    return [
        (text_cell(one.device), text_cell(_name_period(one)), ms(one.window_ns), amount(one.launch_count),
         us(one.delay_median_ns), us(one.delay_p99_ns), amount(one.queue_median), amount(one.queue_p99),
         amount(one.queue_max), percent(share_of(one.empty_ns, one.window_ns)),
         percent(share_of(one.starved_ns, one.window_ns)))
        for one in rank.launch_queue
    ]  # fmt: skip


def _name_period(one: QueueRow) -> str:
    if one.step is not None:
        return f"step {one.step}"
    return "all" if one.part is None else f"tenth {one.part}"


def _of_step_event_types(rank: RankReport) -> list[Cells]:
    return [
        (text_cell(one.step), *map(ms, (one.kernel_ns, one.memcpy_ns, one.memset_ns, one.communication_ns,
                                        one.runtime_ns, one.data_loader_ns, one.cpu_op_ns, one.other_ns)))
        for one in rank.step_event_types
    ]  # fmt: skip


def _of_bandwidths(rank: RankReport) -> list[Cells]:
    return [
        (text_cell(one.name), amount(one.bandwidth_count), rate(one.bandwidth_min_bytes_per_s),
         rate(one.bandwidth_p25_bytes_per_s), rate(one.bandwidth_median_bytes_per_s),
         rate(one.bandwidth_p75_bytes_per_s), rate(one.bandwidth_p90_bytes_per_s), rate(one.bandwidth_max_bytes_per_s))
        for one in rank.copies if one.bandwidth_count
    ]  # fmt: skip


def _bandwidths(report: TraceReport, rank_rows_max: int) -> list[Section]:
    """Return the table of bandwidths; none where no size of a copy is known, as on a CPU."""
    found = _by_rank(report, _BANDWIDTHS, _of_bandwidths, rank_rows_max)
    return [found] if found.rows else []


def _of_model(rank: RankReport) -> list[Cells]:
    whole_ns = sum(one.host_ns for one in rank.model)
    return [
        (text_cell(one.stage.replace("_", " ")), ms(one.host_ns), percent(share_of(one.host_ns, whole_ns)),
         ms(one.device_ns if rank.devices else None))
        for one in (rank.model if rank.steps else ())
    ]  # fmt: skip


def _of_memory(rank: RankReport) -> list[Cells]:
    return [
        (text_cell("CPU" if one.device is None else one.device), mib(one.peak_bytes), ms(one.peak_ns),
         mib(one.reserved_peak_bytes), mib(one.growth_bytes if one.growth_by_step_bytes else None),
         text_cell(_format_growth(one.growth_by_step_bytes)))
        for one in rank.memory
    ]  # fmt: skip


def _of_memory_peak(rank: RankReport) -> list[Cells]:
    return [
        (text_cell("CPU" if one.device is None else one.device), mib(one.timeline.peak_bytes),
         mib(one.timeline.older_bytes), *map(mib, one.timeline.peak_by_category.values()),
         percent(one.timeline.fragmentation), text_cell("yes" if one.timeline.has_model else "no"))
        for one in rank.memory if one.timeline is not None
    ]  # fmt: skip


def _format_growth(growth_bytes: Sequence[int]) -> str:
    steps = " ".join(mib(size).text for size in growth_bytes[:GROWTH_STEPS_MAX])
    left_out = len(growth_bytes) - GROWTH_STEPS_MAX
    return f"{steps} and {left_out} more" if left_out > 0 else steps


def _by_rank(
    report: TraceReport, section: Section, rows_of: Callable[[RankReport], list[Cells]], rank_rows_max: int
) -> Section:
    """Return a table with a line for each rank; ranks that a finding names are never left out."""
    named = report.named_ranks
    found = [(rank.rank not in named, (text_cell(rank.rank), *row)) for rank in report.ranks for row in rows_of(rank)]
    kept = sorted(sorted(range(len(found)), key=lambda place: found[place][0])[:rank_rows_max])
    return section.of([found[place][1] for place in kept], rank_rows_max, len(found))


def _waiting(report: TraceReport, rank_rows_max: int) -> Section:
    across = report.cross_rank
    if across is None:
        return _WAITING._replace(reason=_ONE_RANK)
    if across.wait_ns is None:
        return _WAITING._replace(
            reason=f"Waiting could not be separated from transfer: {across.refused or 'no reason given'}"
        )
    waits, transfers = across.wait_ns, across.transfer_ns or {}

    def of_waiting(rank: RankReport) -> list[Cells]:
        key = str(rank.rank)
        wait_ns, transfer_ns = waits.get(key), transfers.get(key)
        if wait_ns is None:
            return []
        whole_ns = wait_ns + transfer_ns if transfer_ns is not None else None
        last = [one for one in across.collectives if one.late_rank == rank.rank]
        late_ns = sum(one.lateness_ns or 0 for one in last)
        caused_ns = sum(sum((one.wait_ns or {}).values()) for one in last)
        share = percent(share_of(wait_ns, whole_ns))
        return [(ms(wait_ns), ms(transfer_ns), share, amount(len(last)), ms(late_ns), ms(caused_ns))]

    return _by_rank(report, _WAITING, of_waiting, rank_rows_max)


def _waits(report: TraceReport, top: int) -> Section:
    across = report.cross_rank
    if across is None:
        return _WAITS._replace(reason=_ONE_RANK)
    waits = _WAITS
    if across.refused is not None:
        waits = _WAITS._replace(reason=f"Waiting could not be separated from transfer: {across.refused}")
    rows = [
        (text_cell(one.step), text_cell(one.rank), ms(one.wait_ns), text_cell(one.late_rank), text_cell(one.op),
         text_cell(one.group))
        for one in across.waits
    ]  # fmt: skip
    return waits.of(rows, top, across.wait_count)


def _pipeline(report: TraceReport, top: int) -> Section:
    across = report.cross_rank
    if across is None or across.pipeline is None:
        reason = across.pipeline_refused if across is not None else None
        return _PIPELINE._replace(reason=f"Not compared: {reason}." if reason is not None else _PIPELINE.reason)
    rows = [
        (text_cell(one.stage), rank_list(one.ranks), ms(one.work_ns), amount(one.work_ratio, decimals=2),
         ms(one.bubble_ns), percent(one.bubble_ratio), ms(one.warm_up_ns), ms(one.steady_ns), ms(one.drain_ns))
        for one in across.pipeline.stages
    ]  # fmt: skip
    return _PIPELINE.of(rows, top)


# -- one line a name, of all ranks together ---------------------------------------------------------------------------


class Gathered(NamedTuple):
    """Rows with one name, of all ranks. A quantity is a field of the row; `whole_ns` is the sum over all names of the
    table.
    """

    rows: Sequence[tuple[int | None, Any]]
    on_device: bool
    whole_ns: int = 0

    @property
    def first(self) -> Any:
        """The first row, for the fields that all rows of one name share."""
        return self.rows[0][1]

    def all_of(self, quantity: str) -> list[int]:
        """Return the quantity of each row; empty when one is unknown, or for device time without a device."""
        values = [getattr(row, quantity) for _, row in self.rows]
        known = None not in values and (self.on_device or not quantity.startswith("device_"))
        return values if known else []

    def total(self, quantity: str) -> int | None:
        """Return the sum over the ranks, None when one is unknown."""
        values = self.all_of(quantity)
        return sum(values) if values else None

    def times(self, *quantities: str) -> Cells:
        """Return a cell of the count, then one of the sum of each time."""
        return (amount(self.total("count")), *(ms(self.total(quantity)) for quantity in quantities))

    def mean(self, quantity: str) -> float | None:
        """Return the quantity per call."""
        return share_of(self.total(quantity), self.total("count"))

    def per_s(self, quantity: str) -> float | None:
        """Return the quantity per second of total time."""
        found = share_of(self.total(quantity), self.total("total_ns"))
        return found * NS_PER_S if found is not None else None

    def bus_bandwidth_per_s(self) -> float | None:
        """Return the mean over the ranks, weighted by transfer time; None when one is unknown."""
        rates, times_ns = self.all_of("bus_bandwidth_bytes_per_s"), self.all_of("transfer_ns")
        if not rates or not times_ns:
            return None
        return share_of(sum(rate * ns for rate, ns in zip(rates, times_ns, strict=True)), sum(times_ns))

    def weighted(self, quantity: str) -> float | None:
        """Return the mean over the ranks where it is known, weighted by total time."""
        known = [(getattr(row, quantity), row.total_ns) for _, row in self.rows if getattr(row, quantity) is not None]
        return share_of(sum(value * ns for value, ns in known), sum(ns for _, ns in known))

    def on_ranks(self, quantity: str) -> Cells:
        """Return cells of the number of ranks, the largest total of one, and that rank."""
        totals: dict[int | None, int] = {}
        for rank, row in self.rows:
            totals[rank] = totals.get(rank, 0) + getattr(row, quantity)
        most = max(totals, key=lambda rank: totals[rank])
        return (amount(len(totals)), ms(totals[most]), text_cell(most))


class _ByName(NamedTuple):
    """A table by name: rows with the same `name` fields are one line, the largest `by` first."""

    section: Section
    rows_of: Callable[[RankReport], Sequence[Any]]
    name: tuple[str, ...]
    cells: Callable[[Gathered], Cells]
    by: tuple[str, ...] = ("total_ns",)

    def build(self, report: TraceReport, top: int) -> Section:
        """Return the section; several ranks add three columns. Without a device it is sorted by the last `by`."""
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
            (*map(text_cell, name), *self.cells(one), *(one.on_ranks(by) if several else ()))
            for name, one in gathered[:top]
        ]
        columns = self.section.columns + (columns_of("ranks, most ms, on rank") if several else ())
        return self.section._replace(columns=columns).of(rows, top, len(gathered))


def _with_sources(table: _ByName, report: TraceReport) -> _ByName:
    """Return the table with a column of places in the code, where any are known."""
    if not any(row.sources for rank in report.ranks for row in table.rows_of(rank)):
        return table
    by = table.by[0] if any(rank.devices for rank in report.ranks) else table.by[-1]

    def cells(one: Gathered) -> Cells:
        places = chain.from_iterable(row.sources for _, row in one.rows)
        return (*table.cells(one), source_cell(places, one.total(by)))

    return table._replace(
        section=table.section._replace(columns=table.section.columns + columns_of("<source")), cells=cells
    )


def _with_steps(table: _ByName, report: TraceReport) -> _ByName:
    """Return the table of ranges with a column of host time for each step of the ranks that have the range, where the
    steps of all ranks are known.
    """
    steps = {rank.rank: len(rank.steps) for rank in report.ranks}
    if len(steps) < len(report.ranks) or not all(steps.values()):
        return table

    def cells(one: Gathered) -> Cells:
        count = sum(steps[rank] for rank in {rank for rank, _ in one.rows})
        return (*table.cells(one), ms(share_of(one.total("host_total_ns"), count)))

    return table._replace(
        section=table.section._replace(columns=table.section.columns + columns_of("host ms a step")), cells=cells
    )


_COLLECTIVES = _ByName(
    Section(
        "collectives", "Communication operators",
        "Summed over the ranks; the total includes waiting, transfer and bus bandwidth (as in nccl-tests) do not.",
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
        "Time of the steps by kind; where kinds overlap, only the first counts, the device before the host.",
        columns_of("<kind, total ms, share %"), _NO_STEPS,
    ),
    lambda rank: rank.event_types if rank.steps else (), ("kind",),
    lambda one: (ms(one.total("total_ns")), percent(share_of(one.total("total_ns"), one.whole_ns))),
)  # fmt: skip
_OPERATORS = _ByName(
    Section(
        "operators", "Operators",
        "Device time of an operator's launches, and its host time; self is without the operators called inside it. "
        "Recorded with_stack, the source is the function of your own code from which most of its time was called; of "
        "operators in the backward the one that called backward(), with --modules that of the forward.",
        columns_of("<operator, calls, device self ms, device total ms, host self ms, host total ms"),
        "No operators: record with ProfilerActivity.CPU.",
    ),
    lambda rank: rank.operators, ("name",),
    lambda one: one.times("device_self_ns", "device_total_ns", "host_self_ns", "host_total_ns"),
    by=("device_self_ns", "host_self_ns"),
)  # fmt: skip
_OPERATOR_SHAPES = _ByName(
    Section(
        "operator_shapes", "Operators by shape",
        "Operators as above, by the shapes and types of their inputs; without shapes where none were recorded.",
        columns_of("<operator, <inputs, calls, device self ms, device total ms, host self ms, host total ms"),
        "No operators: record with ProfilerActivity.CPU.",
    ),
    lambda rank: rank.operator_shapes or (), ("name", "shapes"),
    lambda one: one.times("device_self_ns", "device_total_ns", "host_self_ns", "host_total_ns"),
    by=("device_self_ns", "host_self_ns"),
)  # fmt: skip
_OPERATOR_ARGUMENTS = _ByName(
    Section(
        "operator_arguments", "Operators by arguments",
        "Operators as above, by all that was recorded of their inputs: shapes and types, and of each input its "
        "strides, such as `(64, 1)`, or its value. Total times are in the JSON and the tables as files.",
        columns_of("<operator, <inputs, <strides or value, calls, device self ms, host self ms"),
        "No operators: record with ProfilerActivity.CPU.",
    ),
    lambda rank: rank.operator_arguments or (), ("name", "shapes", "arguments"),
    lambda one: one.times("device_self_ns", "host_self_ns"),
    by=("device_self_ns", "host_self_ns"),
)  # fmt: skip
_KERNELS = _ByName(
    Section(
        "kernels", "Kernels",
        "Kernels on the devices, the longest in total first; use of tensor cores is inferred from the name. "
        "Blocks per SM and occupancy are the profiler's estimates, weighted with time. "
        "Recorded with_stack, the source is the function of your own code that launched the most of it.",
        columns_of(
            "<kernel, calls, total ms, share %, mean us, min us, max us, blocks/SM, occupancy %, <tensor cores"
        ),
        "No kernels: record with ProfilerActivity.CUDA on a machine with a GPU.",
    ),
    lambda rank: rank.kernels, ("name",),
    lambda one: (*one.times("total_ns"), percent(share_of(one.total("total_ns"), one.whole_ns)),
                 us(one.mean("total_ns")), us(min(one.all_of("min_ns"))), us(max(one.all_of("max_ns"))),
                 amount(one.weighted("blocks_per_sm"), decimals=2), percent(one.weighted("occupancy_ratio")),
                 text_cell(TENSOR_CORES[one.first.uses_tensor_cores])),
)  # fmt: skip
_COPIES = _ByName(
    Section(
        "copies", "Memory copies",
        "Copies and sets on the devices by kind; the rate is bytes over time. Host is the time of the calls that made "
        "them.",
        columns_of("<kind, calls, total ms, host ms, moved bytes, rate GB/s"), "No memory copies on a device.",
    ),
    lambda rank: rank.copies, ("name",),
    lambda one: (*one.times("total_ns", "host_total_ns"), amount(one.total("bytes")), rate(one.per_s("bytes"))),
)  # fmt: skip
_USER_RANGES = _ByName(
    Section(
        "user_ranges", "User ranges", "Ranges marked by the script or by torch: scopes and record_function.",
        columns_of("<range, calls, host total ms, device total ms"),
        "No ranges: mark parts of the script with torch.profiler.record_function, in captures rankscope.agent.scope.",
    ),
    lambda rank: rank.user_ranges, ("name",), lambda one: one.times("host_total_ns", "device_total_ns"),
    by=("host_total_ns",),
)  # fmt: skip
_SYNCHRONIZATIONS = _ByName(
    Section(
        "synchronizations", "Synchronization points",
        "Calls in which the host waited for the device: under which operator and, with stacks, from which function "
        "(source).",
        columns_of("<call, <operator, <source, calls, total ms, max ms"), "No call waited for a device.",
    ),
    lambda rank: rank.synchronizations, ("name", "operator", "source"),
    lambda one: (*one.times("total_ns"), ms(max(one.all_of("max_ns")))),
)  # fmt: skip


# -- collectives by size, of all ranks together -----------------------------------------------------------------------

_COLLECTIVE_SIZES = Section(
    "collective_sizes", "Collectives by size",
    "Over the calls of all ranks. Skew is the time between the first rank's arrival and the last one's; algorithm "
    "(alg) and bus bandwidth are as in nccl-tests, over the transfers of collectives matched on all members, else over "
    "the calls' durations: then they are lower bounds, for a call may wait.",
    columns_of(
        "<operation, <group, size, bytes, <nodes, calls, median us, max us, skew us, max skew us, alg GB/s, "
        "min bus GB/s, bus GB/s, max bus GB/s, <over"
    ),
    "No communication in the traces.",
)  # fmt: skip
_NODES = {True: "one", False: "several", None: MISSING}


def _collective_sizes(report: TraceReport, top: int) -> Section:
    rows = [
        (text_cell(one.op), text_cell(one.group), amount(one.group_size),
         size_range(one.size_from_bytes, one.size_to_bytes), text_cell(_NODES[one.is_inside_node]), amount(one.count),
         us(one.duration_median_ns), us(one.duration_max_ns), us(one.skew_median_ns), us(one.skew_max_ns),
         rate(one.algorithm_bandwidth_median_bytes_per_s), rate(one.bus_bandwidth_min_bytes_per_s),
         rate(one.bus_bandwidth_median_bytes_per_s), rate(one.bus_bandwidth_max_bytes_per_s),
         text_cell(one.bandwidth_from))
        for one in report.collective_sizes
    ]  # fmt: skip
    return _COLLECTIVE_SIZES.of(rows, top)


# -- memory at the peak, warnings --------------------------------------------------------------------------------------

_WARNINGS = Section(
    "warnings", "Warnings", "Irregularities in the traces, and their effect on the numbers.",
    columns_of("<warning, files, <ranks"), "No warnings.", is_prose=True,
)  # fmt: skip


_MEMORY_LARGEST = Section(
    "memory_largest", "Largest memory at the peak",
    "What was there at the peak of each rank, by the operator that allocated it; memory older than the trace is not.",
    columns_of("rank, <device, <operator, <where, <category, bytes MiB, allocations, largest MiB"), NO_MEMORY,
)  # fmt: skip


def _memory_largest(report: TraceReport, top: int) -> Section:
    found = [
        (rank.rank, "CPU" if one.device is None else str(one.device), row)
        for rank in report.ranks
        for one in rank.memory
        for row in (one.timeline.at_peak if one.timeline is not None else ())
    ]
    found.sort(key=lambda item: -item[2].bytes)
    rows: list[Cells] = [
        (text_cell(rank), text_cell(device), text_cell(row.operator), text_cell(row.source),
         text_cell(row.category.replace("_", " ")), mib(row.bytes), amount(row.count), mib(row.largest_bytes))
        for rank, device, row in found
    ]  # fmt: skip
    return _MEMORY_LARGEST.of(rows, top)


def _warnings(report: TraceReport, top: int) -> Section:
    found: dict[str, list[int | None]] = {}
    for rank in report.ranks:
        for warning in rank.warnings:
            found.setdefault(warning, []).append(rank.rank)
    return _WARNINGS.of([(text_cell(text), amount(len(of)), rank_list(of)) for text, of in found.items()], top)


def _build_by_name(report: TraceReport, top: int) -> list[Section]:
    tables = (
        _with_sources(_OPERATORS, report),
        _with_sources(_KERNELS, report),
        _COPIES,
        _with_steps(_USER_RANGES, report),
    )
    return [table.build(report, top) for table in tables]


def build_sections(
    report: TraceReport, top: int, rank_rows_max: int | None = None, sort_by: str | None = None
) -> list[Section]:
    """Return all tables in reading order, a comparison in front. `top` limits the rows of each; `rank_rows_max`, if
    given, those of the tables with a line for each rank. With `sort_by`, a key of sorted_tables, stages, operators,
    kernels, copies and ranges are the summaries sorted by it.
    """
    of_ranks = rank_rows_max or top
    by_inputs = [
        table
        for table in (_OPERATOR_SHAPES, _OPERATOR_ARGUMENTS)
        if any(getattr(rank, table.section.key) is not None for rank in report.ranks)
    ]
    return [
        *build_difference_sections(report.comparison, top),
        *build_cycle_sections(report.cycles, of_ranks),
        _verdict(report, top),
        _not_judged(report, top),
        _ranks(report, of_ranks),
        _by_rank(report, _STEPS, _of_steps, of_ranks),
        _by_rank(report, _DEVICE_STEPS, _of_device_steps, of_ranks),
        _waiting(report, of_ranks),
        _waits(report, top),
        _pipeline(report, of_ranks),
        *build_critical_sections(report.critical_path, top),
        _COLLECTIVES.build(report, top),
        _collective_sizes(report, top),
        *build_all_to_all_sections(report.all_to_all, top, of_ranks),
        _by_rank(report, _DEVICES, _of_devices, of_ranks),
        _by_rank(report, _IDLE_TIME, _of_idle_time, of_ranks),
        _by_rank(report, _LAUNCH_QUEUE, _of_launch_queue, of_ranks),
        _EVENT_TYPES.build(report, max(top, EVENT_TYPES_MAX)),
        _by_rank(report, _STEP_EVENT_TYPES, _of_step_event_types, of_ranks),
        *([] if sort_by else [_by_rank(report, _MODEL, _of_model, of_ranks)]),
        *build_modules(report, top),
        *build_flops_sections(report.ranks, top, of_ranks),
        *(build_sorted_sections(report, top, sort_by) if sort_by else _build_by_name(report, top)),
        *_bandwidths(report, of_ranks),
        *build_operator_groups(report, top),
        *build_range_kernels(report, top),
        *(table.build(report, top) for table in (*by_inputs, _SYNCHRONIZATIONS)),
        *build_roofline_sections(report.ranks, top),
        *build_kernel_groups(report),
        *build_launches(report, top),
        *build_sequences(report, top),
        *build_counters(report, top),
        _by_rank(report, _MEMORY, _of_memory, of_ranks),
        _by_rank(report, _MEMORY_PEAK, _of_memory_peak, of_ranks),
        _memory_largest(report, top),
        build_by_operator(report, top),
        *build_stretch(report, top, of_ranks),
        *build_allocations(report, top),
        _warnings(report, top),
    ]
