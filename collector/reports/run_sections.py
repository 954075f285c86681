"""Build the tables of a run report, for the terminal and the page."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from rankscope.collector.detect.finding import order_findings
from rankscope.collector.detect.finding_words import write_lost
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.reports.blocked_lines_table import build_blocked_lines
from rankscope.collector.reports.finding_text import render_facts
from rankscope.collector.reports.incident_table import format_utc
from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.summary import describe_checkpoints, find_costliest
from rankscope.collector.reports.terminal_colors import BOLD, PLAIN, Colors
from rankscope.collector.reports.trace_cells import (
    MISSING,
    Cell,
    Section,
    amount,
    columns_of,
    ms,
    percent,
    printable,
    rank_list,
    text_cell,
)
from rankscope.collector.reports.trace_text import WIDTH, render_section
from rankscope.collector.runs.compilations import describe_compilations
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.run_end_words import (
    describe_end,
    describe_first_to_fail,
    describe_lost,
    describe_no_first,
    find_failure,
    name_first,
)
from rankscope.collector.runs.run_energy import describe_run_energy
from rankscope.collector.runs.run_origin import describe_origin
from rankscope.collector.steps.expert_loads import describe_experts
from rankscope.collector.steps.layer_times import list_layer_facts
from rankscope.collector.steps.pipeline_stages import list_pipeline_facts
from rankscope.collector.storage.run_reader import CurvePoint
from rankscope.measure.units import NS_PER_MS, format_duration, format_length, format_share

TOP: Final = 20
"""Default number of rows of a table; the JSON has all."""
LINES_SHOWN_MAX: Final = 5
"""Source lines listed of a finding."""


def headline(report: RunReport) -> str:
    """Return the run in one line."""
    length_s = report.changed_wall_s - report.begun_wall_s
    state = "over" if report.is_over else "not over"
    if report.end is not None:
        state = describe_end(report.end)
    return printable(
        f"run {report.run}: {report.world_size} ranks, {report.steps} steps, {format_length(max(0.0, length_s))} since "
        f"{format_utc(report.begun_wall_s)} UTC, {state}"
    )


def build_sections(report: RunReport, top: int = TOP) -> list[Section]:
    """Return every table, with at most `top` rows of each."""
    return [
        _facts(report),
        _findings(report, top),
        *([_not_judged(report, top)] if report.not_judged else []),
        _lines(report, top),
        _incidents(report, top),
        _worst_ranks(report, top),
        *_blocked(report, top),
        _time(report),
        _curve(report, top),
        *([_compiled(report, top)] if report.compilations.frames else []),
    ]


def _facts(report: RunReport) -> Section:
    section = Section("facts", "The run", "The run as of its last report.", columns_of("<what, <value"), "")
    ratio, origin = report.goodput.goodput_ratio, describe_origin(report.origin)
    checkpoints = describe_checkpoints(report.checkpoints)
    compiled = describe_compilations(report.compilations)
    energy = describe_run_energy(report.energy)
    rows = {
        "id": report.run_id or report.run,
        **({"origin": origin} if origin else {}),
        "ranks": str(report.world_size),
        "attempts": f"{report.attempts}, {report.restart_count} of them restarts that torchrun counted",
        "steps": f"{report.steps} in the last attempt, {report.steps_kept} in the history",
        "step time": "-" if report.step_ns_median is None else format_duration(report.step_ns_median),
        "goodput": "-" if ratio is None else f"{format_share(ratio)} of {format_duration(report.goodput.wall_ns)}",
        **_describe_flops(report),
        **({"energy": energy} if energy else {}),
        **({"checkpoints": checkpoints[0]} if checkpoints else {}),
        **({"compilation": "; ".join(compiled)} if compiled else {}),
        **list_pipeline_facts(report.pipeline),
        **list_layer_facts(report.layers),
        **{f"experts{f' ({n})' * (n > 1)}": text for n, text in enumerate(describe_experts(report.experts), 1)},
        **({"copies from the host": report.host_copies_said} if report.host_copies_said else {}),
        "reports": f"{report.reports}, {report.reports_lost} lost; {report.steps_late} steps came too late",
        **{f"ended: {reason}": ranks for reason, ranks in report.ends.items()},
        **_describe_failure(report.end),
        **({"changed settings": "; ".join(one.text for one in report.settings.past)} if report.settings.past else {}),
        **({"injected faults": report.injected_faults} if report.injected_faults else {}),
    }
    return section.of([(text_cell(name), text_cell(value)) for name, value in rows.items()], len(rows))


def _describe_flops(report: RunReport) -> dict[str, str]:
    """Return MFU and HFU where they are known."""
    bound = "at most " if report.hfu_is_upper_bound else ""
    ratios = {"MFU": ("", report.mfu_ratio), "HFU": (bound, report.hfu_ratio)}
    return {
        name: f"{bound}{100 * ratio:.1f} % in the last minute of steps"
        for name, (bound, ratio) in ratios.items()
        if ratio is not None
    }


def _describe_failure(end: RunEnd | None) -> dict[str, str]:
    """Return who failed first and which ranks were lost, by head."""
    if end is None:
        return {}
    lines = {
        name_first(end): describe_no_first(end) if end.first is None else describe_first_to_fail(end.first),
        "lost": describe_lost(end),
    }
    return {name: text for name, text in lines.items() if text}


def _findings(report: RunReport, top: int) -> Section:
    section = Section(
        "findings", "Findings", "All findings of the run, the most severe first, then the costliest.",
        columns_of("<kind, <cause, <ranks, <finding, <do, <cost"), "None.", is_prose=True,
    )  # fmt: skip
    found = order_findings(report.findings)
    rows = [
        (text_cell(one.kind), text_cell(one.cause), rank_list(one.ranks), text_cell(one.sentence),
         text_cell(one.suggestion), _cost(one.lost_rank_seconds))
        for one in found
    ]  # fmt: skip
    return section.of(rows, top)


def _not_judged(report: RunReport, top: int) -> Section:
    """Return what was not judged, folded on a page."""
    kinds = f"{len(report.not_judged)} kind{'' if len(report.not_judged) == 1 else 's'}"
    section = Section(
        "not_judged", "Not judged", "Kinds of finding that could not be judged at the end of the run, with the reason.",
        columns_of("<kind, <reason"), "None.", is_prose=True, folded_as=f"{kinds} of finding not judged, and why",
    )  # fmt: skip
    return section.of([(text_cell(kind), text_cell(why)) for kind, why in sorted(report.not_judged.items())], top)


def _lines(report: RunReport, top: int) -> Section:
    section = Section(
        "lines", "Source lines",
        "Of findings about ranks: what lines of the script cost a rank and its peer in a step, by samples, those first "
        "that cost the rank most more.",
        columns_of("<about, <line, <calls, rank ms, peer ms, steps"), "No samples.",
    )  # fmt: skip
    rows = [
        (text_cell(f"finding {found.number}, rank {lines.rank}"), text_cell(one.line),
         text_cell("; ".join(filter(None, (one.call, one.inside, one.waits_in)))),
         amount(one.ns, NS_PER_MS, 1), amount(one.peer_ns, NS_PER_MS, 1), Cell(str(lines.steps), lines.steps))
        for found in report.findings
        if (lines := found.lines) is not None and lines.steps
        for one in lines.lines[:LINES_SHOWN_MAX]
    ]  # fmt: skip
    return section.of(rows, top)


def _compiled(report: RunReport, top: int) -> Section:
    section = Section(
        "compilation", "Compilation",
        "What torch.compile has compiled in the last attempt, on all ranks together, the longest first; beside it the "
        "longest in one step.",
        columns_of("<frame, times, again, time ms, longest ms, rank, step, <last guard that failed"), "",
    )  # fmt: skip
    rows = [
        (text_cell(one.frame or "(not told)"), amount(one.compiled), amount(one.recompiled),
         amount(one.duration_ns, NS_PER_MS, 1), amount(one.longest_ns, NS_PER_MS, 1), amount(one.longest_rank),
         amount(None if one.longest_step < 0 else one.longest_step),
         text_cell(f"{one.reason} (runs uncompiled now: torch's limit)" if one.gives_up else one.reason))
        for one in report.compilations.frames
    ]  # fmt: skip
    return section.of(rows, top)


def _incidents(report: RunReport, top: int) -> Section:
    section = Section(
        "incidents", "Incidents", "Findings grouped by root cause, the newest first.",
        columns_of("<state, <what, <ranks, <finding, <do, <cost"), "None.", is_prose=True,
    )  # fmt: skip
    rows = [
        (text_cell(one.state), text_cell(_describe(one, report.changed_wall_s)), rank_list(one.ranks),
         text_cell(one.sentence), text_cell(one.suggestion), _cost(one.lost_rank_seconds))
        for one in reversed(report.incidents)
    ]  # fmt: skip
    return section.of(rows, top)


def _describe(incident: Incident, now_wall_s: float) -> str:
    length = format_length(incident.open_for_s(now_wall_s))
    ended = f", {incident.resolved_reason}" if incident.resolved_reason else ""
    opened = format_utc(incident.opened_wall_s)
    return f"{incident.id}, {incident.severity}, {incident.cause}, since {opened} UTC, for {length}{ended}"


def _worst_ranks(report: RunReport, top: int) -> Section:
    section = Section(
        "ranks", "Worst ranks",
        "By cost, then by slowdown. Means are over all steps of the last day of the run, slow or not.",
        columns_of("rank, <node, steps, slowdown, own time ms, caused wait ms, rank-hours lost, <ended"), "None.",
    )  # fmt: skip
    rows = [
        (text_cell(one.rank), text_cell(one.node), amount(one.steps), amount(one.slowdown_ratio, decimals=3),
         ms(one.own_ns), ms(one.wait_caused_ns), _hours(one.lost_rank_seconds), text_cell(one.ended))
        for one in report.worst_ranks
    ]  # fmt: skip
    return section.of(rows, top, len(report.worst_ranks))


def _blocked(report: RunReport, top: int) -> list[Section]:
    """Return the table of blocking lines of the worst ranks; nothing where no rank has told any, as without GPUs."""
    told = [(one.rank, one.blocking_calls) for one in report.worst_ranks if one.blocking_calls]
    return [build_blocked_lines(told, top)] if told else []


def _time(report: RunReport) -> Section:
    section = Section(
        "time", "Where the time went", "The parts sum to the time of the run.", columns_of("<part, <time, share %"),
        "No time yet.",
    )  # fmt: skip
    spent = report.goodput
    parts = {
        "productive steps": spent.productive_ns,
        "lost in slow steps": spent.slow_ns,
        "start-up": spent.startup_ns,
        "between steps": spent.between_steps_ns,
        "stalls": spent.stalled_ns,
        "restarts": spent.restart_ns,
        "not reported": spent.unreported_ns,
    }
    if not spent.wall_ns:
        return section
    rows = [
        (text_cell(name), text_cell(format_duration(ns)), percent(ns / spent.wall_ns)) for name, ns in parts.items()
    ]
    return section.of(rows, len(rows))


def _curve(report: RunReport, top: int) -> Section:
    section = Section(
        "curve", "Step time over the run", "Consecutive steps, merged where there are many: the mean of their medians "
        "over the ranks, and the longest of any rank.",
        columns_of("attempt, <steps, <until (UTC), median ms, longest ms"), "No step is in the history.",
    )  # fmt: skip
    points = merge_points(report.curve, top)
    rows = [
        (text_cell(one.attempt), text_cell(f"{one.first_step}-{one.last_step}"), text_cell(format_utc(one.wall_s)),
         ms(one.median_ns), ms(one.longest_ns))
        for one in points
    ]  # fmt: skip
    return section.of(rows, len(rows))


def merge_points(points: Sequence[CurvePoint], points_max: int) -> list[CurvePoint]:
    """Return the same steps in about `points_max` points, each of one attempt."""
    size = max(1, -(-len(points) // max(1, points_max)))
    found = []
    for _, of_attempt in groupby(points, key=lambda point: point.attempt):
        listed = list(of_attempt)
        found += [_join(listed[place : place + size]) for place in range(0, len(listed), size)]
    return found


def _join(points: Sequence[CurvePoint]) -> CurvePoint:
    steps = sum(point.steps for point in points)
    return CurvePoint(
        attempt=points[0].attempt,
        first_step=points[0].first_step,
        last_step=points[-1].last_step,
        steps=steps,
        wall_s=points[-1].wall_s,
        median_ns=sum(point.median_ns * point.steps for point in points) / steps,
        longest_ns=max(point.longest_ns for point in points),
    )


def _cost(rank_seconds: float | None) -> Cell:
    return Cell(MISSING) if rank_seconds is None else Cell(write_lost(rank_seconds) or "nothing", rank_seconds)


def _hours(rank_seconds: float | None) -> Cell:
    return amount(rank_seconds, 3_600, 2)


def answer(report: RunReport) -> list[str]:
    """Return the verdict: what cost the run the most, else how it failed, and below it what to do about that."""
    found = find_costliest(report.findings) or find_failure(report.end)
    if found is None:
        return ["No finding is stored of this run."]
    return [printable(found.headline), *render_facts(found)]


def render_text(report: RunReport, top: int, width: int = WIDTH, colors: Colors = PLAIN) -> str:
    """Return the verdict, bold on a terminal, the headline and every table, at most `top` rows of each, in lines of
    `width` columns.
    """
    verdict, *advice = answer(report)
    first = "\n".join([colors.paint(verdict, BOLD), *(f"  {line}" for line in advice)])
    sections = ("\n".join(render_section(section, width)) for section in build_sections(report, top))
    return "\n\n".join([first, headline(report), *sections])
