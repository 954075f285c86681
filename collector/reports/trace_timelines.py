"""Draw the ranks' timelines on a page: one line a rank on one clock, of the whole trace or of one step, with arrows
from who waited to who came late. The page's script draws; this is its content, as JSON in a block that browsers do not
run.
"""

import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rankscope.collector.reports.trace_cells import printable, rank_list
from rankscope.collector.traces.clock_offsets import BOUND_SHARE, BY_ONE_HOST
from rankscope.collector.traces.report import RankReport, SharedClock, StepTimeline, Timeline, TraceReport
from rankscope.measure.units import format_duration

TIMELINES_SHOWN_MAX = 64
"""Timelines drawn at once. The page's field for ranks selects them."""
BINS_MAX = 100_000
"""Bins of all timelines together, of the whole and of the steps: about 1.5 MB of page. More are merged."""
STEPS_CHOSEN_MAX = 100
"""Steps that can be chosen, the longest."""
ARROWS_MAX = 20
"""Waits drawn at once, the longest of those in sight."""
PARTS = {
    "compute": "compute alone", "overlap": "overlap", "communication": "exposed communication", "copy": "copy",
    "host": "host only", "idle": "idle",
}  # fmt: skip


class _Lane(NamedTuple):
    """One rank's line. `start_ns` is when its trace begins on the axis, `steps` the starts of its steps on it."""

    rank: int
    report: RankReport
    start_ns: int


def render_timelines(report: TraceReport) -> str:
    """Return the section of the timelines, or the reason why there are none."""
    head = '<section id="timelines" aria-labelledby="timelines-title">\n<h2 id="timelines-title">Timelines</h2>\n'
    drawn = [rank for rank in report.ranks if rank.timeline is not None]
    if not drawn:
        return f'{head}<p class="reason">No timeline: no trace shows any work.</p>\n</section>\n'
    clock = report.cross_rank.clock if report.cross_rank is not None else None
    starts_ns = _find_starts(drawn, clock)
    lanes = [
        _Lane(place if rank.rank is None else rank.rank, rank, (starts_ns or {}).get(str(rank.rank), 0))
        for place, rank in enumerate(drawn)
    ]
    steps = choose_steps(drawn)
    bins = sum(_count_bins(rank, steps) for rank in drawn)
    merged = max(1, -(-bins // BINS_MAX))
    content = {
        "shown_max": TIMELINES_SHOWN_MAX,
        "arrows_max": ARROWS_MAX,
        "first": _first_shown(report, lanes),
        "lanes": [_write_lane(lane, steps, merged, aligned=starts_ns is not None) for lane in lanes],
        "waits": _write_waits(report, lanes) if starts_ns is not None else [],
    }
    has_waits = report.cross_rank is not None and bool(report.cross_rank.waits)
    controls = _render_controls(lanes, steps, merged, _describe_clock(drawn, clock, has_waits=has_waits))
    return f"{head}{controls}{_render_block(content)}</section>\n"


def _find_starts(drawn: Sequence[RankReport], clock: SharedClock | None) -> Mapping[str, int] | None:
    """Return by rank where its trace begins on the clock of all; None where one is not on it."""
    if len(drawn) == 1:
        return {str(drawn[0].rank): 0}
    found = clock.starts_ns if clock is not None else {}
    return found if all(str(rank.rank) in found for rank in drawn) else None


def _describe_clock(drawn: Sequence[RankReport], clock: SharedClock | None, *, has_waits: bool) -> str:
    if len(drawn) == 1:
        return "Times count from the first event of the trace."
    if clock is None or _find_starts(drawn, clock) is None:
        reason = clock.refused if clock is not None else None
        why = reason or "a trace does not say its rank"
        return (
            "Each rank is on its own clock, which begins with its trace, or with its step where one is drawn, and no "
            f"waiting is drawn: {why}."
        )
    how = "all are on one host" if clock.how == BY_ONE_HOST else f"by {clock.how}"
    sentence = f"All ranks are on one clock ({how}), from the first event of the earliest trace."
    if clock.error_bound_ns is not None:
        within = format_duration(clock.error_bound_ns)
        sentence += (
            f" In {BOUND_SHARE * 100:.0f} % or more of the collectives that ranks leave together, they end within "
            f"{within} of each other."
        )
    if clock.offset_bound_ns:
        sentence += f" Two of their clocks may still be apart by up to {format_duration(clock.offset_bound_ns)}."
    if has_waits:
        sentence += (
            " An arrow leads from where a rank began to wait to where the rank it waited for came: of the waits in "
            f"sight the {ARROWS_MAX} longest are drawn."
        )
    return sentence


# -- what is drawn ----------------------------------------------------------------------------------------------------


def choose_steps(drawn: Sequence[RankReport]) -> dict[int, int]:
    """Return the steps that can be chosen with the length of each on its slowest rank, in order: STEPS_CHOSEN_MAX, the
    longest.
    """
    longest_ns: dict[int, int] = {}
    for one in (one for rank in drawn for one in rank.step_timelines):
        longest_ns[one.step] = max(longest_ns.get(one.step, 0), one.window_ns)
    kept = sorted(longest_ns, key=lambda step: (-longest_ns[step], step))[:STEPS_CHOSEN_MAX]
    return {step: longest_ns[step] for step in sorted(kept)}


def _count_bins(rank: RankReport, steps: Mapping[int, int]) -> int:
    shown = [one for one in rank.step_timelines if one.step in steps]
    return sum(len(one.compute) for one in (rank.timeline, *shown) if one is not None)


def _write_lane(lane: _Lane, steps: Mapping[int, int], merged: int, *, aligned: bool) -> dict[str, object]:
    """Return one rank's line: the whole trace first, then each step that can be chosen, None where it has no such."""
    rank = lane.report
    by_step = {one.step: one for one in rank.step_timelines}
    views = [_write_view(rank.timeline, lane.start_ns, merged)] if rank.timeline is not None else []
    for step in steps:
        one = by_step.get(step)
        # On clocks of their own the steps of all ranks begin together.
        views.append(_write_view(one, lane.start_ns if aligned else -one.start_ns, merged) if one is not None else None)
    return {
        "rank": lane.rank,
        "name": printable(f"rank {rank.rank}" if rank.rank is not None else rank.file),
        "marks": [[one.step, one.start_ns + lane.start_ns] for one in rank.step_timelines],
        "views": views,
    }


def _write_view(timeline: Timeline | StepTimeline, shift_ns: int, merged: int) -> dict[str, object] | None:
    """Return one timeline with `merged` bins in one; `parts` holds the nanoseconds of each part in each of `count`
    bins, and nothing for a part that is 0 in all.
    """
    return {
        "count": -(-len(timeline.compute) // merged),
        "start_ns": timeline.start_ns + shift_ns,
        "window_ns": timeline.window_ns,
        "bin_ns": timeline.bin_ns * merged,
        "parts": [
            [sum(bins[start : start + merged]) for start in range(0, len(bins), merged)] if any(bins) else []
            for bins in (timeline.compute, timeline.overlap, timeline.communication, timeline.copy, timeline.host)
        ],
    }


def _write_waits(report: TraceReport, lanes: Sequence[_Lane]) -> list[dict[str, Any]]:
    """Return the waits on the axis, the longest first."""
    starts_ns = {lane.rank: lane.start_ns for lane in lanes}
    return [
        {
            "rank": one.rank,
            "late": one.late_rank,
            "start_ns": starts_ns[one.rank] + one.start_ns,
            "late_ns": starts_ns[one.late_rank] + one.late_start_ns,
            "wait_ns": one.wait_ns,
            "op": printable(one.op),
        }
        for one in (report.cross_rank.waits if report.cross_rank is not None else ())
        if one.rank in starts_ns and one.late_rank in starts_ns
    ]


def _first_shown(report: TraceReport, lanes: Sequence[_Lane]) -> str:
    """Return the ranks drawn first: those in findings, then the lowest."""
    named = report.named_ranks
    ranks = sorted((lane.rank for lane in lanes), key=lambda rank: (rank not in named, rank))
    return rank_list(ranks[:TIMELINES_SHOWN_MAX]).text


# -- HTML -------------------------------------------------------------------------------------------------------------


def _render_controls(lanes: Sequence[_Lane], steps: Mapping[int, int], merged: int, clock: str) -> str:
    shown = min(len(lanes), TIMELINES_SHOWN_MAX)
    note = f"{shown} of {len(lanes)} ranks are drawn, at most {TIMELINES_SHOWN_MAX} at once."
    if merged > 1:
        note += f" To limit the size of the page, {merged} bins are drawn as one."
    slowest = max(steps, key=lambda step: steps[step], default=None)
    options = "".join(
        f'<option value="{place}"{" selected" if step == slowest else ""}>step {step}, '
        f"{format_duration(steps[step])}{' (the slowest)' if step == slowest and len(steps) > 1 else ''}</option>"
        for place, step in enumerate(steps, 1)
    )
    legend = "".join(f'<li><span class="swatch {part}"></span>{name}</li>' for part, name in PARTS.items())
    return (
        f"<p>{html.escape(printable(clock))} Point at a line, or focus it and use the left and right keys.</p>\n"
        f'<p id="note">{note}</p>\n'
        '<p><label for="picked">Ranks to draw</label> <input id="picked" type="text" autocomplete="off" '
        'spellcheck="false" aria-describedby="note" placeholder="0-7, 12"> '
        f'<label for="view">of</label> <select id="view"><option value="0">the whole trace</option>{options}</select>'
        f'</p>\n<ul class="legend">{legend}</ul>\n<div id="lanes"></div>\n'
        '<p id="readout" aria-live="polite">&nbsp;</p>\n'
    )


def _render_block(content: object) -> str:
    return f'<script type="application/json" id="timeline-bins">{as_json(content)}</script>\n'


def as_json(content: object) -> str:
    """Return JSON that cannot end its script block: every `<` is escaped, `</script` and `<!--` with it."""
    return msgspec.json.encode(content).decode().replace("<", "\\u003c")
