"""Draw what the time of each rank's steps went into, as one bar a rank: their average, or one step that is chosen."""

import html
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import NamedTuple

import msgspec

from rankscope.collector.reports.trace_cells import Cells, Section, columns_of, ms, printable, text_cell
from rankscope.collector.reports.trace_timelines import choose_steps
from rankscope.collector.traces.report import DeviceStep, RankReport, StepReport, TraceReport
from rankscope.measure.units import NS_PER_MS

BARS_MAX = 256
"""Ranks with a bar, those that a finding names first: about 1 MB of page with 100 steps."""
WIDTH, HEIGHT = 1_000, 20
"""Size of the longest bar in SVG units; it is scaled to the page."""
PARTS = {
    "compute": "compute alone", "overlap": "overlap", "communication": "exposed without waiting", "waiting": "waiting",
    "copy": "copy", "idle": "idle",
}  # fmt: skip
_BARS = Section(
    "step_bars", "Steps by rank",
    "The bars in figures. Waiting is the part of the exposed communication in which the rank waited for another one; "
    "exposed without waiting is the rest of it, or all of it where waiting is not known.",
    columns_of(
        "rank, <step, step ms, compute alone ms, overlap ms, exposed without waiting ms, waiting ms, copy ms, idle ms"
    ),
    "No steps: call profiler.step() once a step.", folded_as="The bars in figures",
)  # fmt: skip


class Bar(NamedTuple):
    """Parts of a step or an average in ns, in the order of PARTS; they sum to its length. `waits_known` says whether
    waiting could be told from communication, which has it otherwise.
    """

    parts_ns: tuple[float, ...]
    waits_known: bool


class RankBars(NamedTuple):
    """The bars of one rank: its average, then each step that can be chosen, None where it has no such step."""

    rank: int | None
    name: str
    average: Bar
    steps: list[Bar | None]


def render_bars(report: TraceReport, rows_max: int) -> tuple[Section, str]:
    """Return the table of the bars, and the drawing above it; empty without steps."""
    numbers = list(choose_steps(report.ranks))
    found = [build_bars(rank, numbers) for rank in report.ranks if rank.steps]
    if not found:
        return _BARS, ""
    named = report.named_ranks
    drawn = sorted(sorted(found, key=lambda one: one.rank not in named)[:BARS_MAX], key=found.index)
    rows = [row for one in found for row in _list_rows(one, numbers)]
    return _BARS.of(rows, rows_max), _render_drawing(drawn, numbers, len(found))


def build_bars(rank: RankReport, numbers: Sequence[int]) -> RankBars:
    """Return the bars of a rank that has steps."""
    by_number = {step.step: _divide(one) for step, one in find_compared(rank)}
    whole = list(by_number.values())
    average = Bar(tuple(map(mean, zip(*(one.parts_ns for one in whole), strict=True))), whole[0].waits_known)
    name = printable(f"rank {rank.rank}" if rank.rank is not None else rank.file)
    return RankBars(rank.rank, name, average, [by_number.get(number) for number in numbers])


def find_compared(rank: RankReport) -> list[tuple[StepReport, StepReport | DeviceStep]]:
    """Return each step with its breakdown by the device's clock where every step has bounds by it, else the host's."""
    by_device = all(step.on_device is not None for step in rank.steps)
    return [(step, step.on_device if by_device and step.on_device is not None else step) for step in rank.steps]


def _divide(one: StepReport | DeviceStep) -> Bar:
    waiting_ns = one.waiting_ns or 0
    parts_ns = (
        one.compute_ns - one.overlap_ns,
        one.overlap_ns,
        one.exposed_communication_ns - waiting_ns,
        waiting_ns,
        one.copy_ns,
        one.idle_ns,
    )
    return Bar(parts_ns, one.waiting_ns is not None)


def _list_rows(one: RankBars, numbers: Sequence[int]) -> list[Cells]:
    bars: list[tuple[str | int, Bar | None]] = [("average", one.average), *zip(numbers, one.steps, strict=True)]
    return [
        (text_cell(one.rank), text_cell(name), ms(sum(bar.parts_ns)),
         *(ms(part if bar.waits_known or key != "waiting" else None)
           for key, part in zip(PARTS, bar.parts_ns, strict=True)))
        for name, bar in bars if bar is not None
    ]  # fmt: skip


# -- HTML -------------------------------------------------------------------------------------------------------------


def _render_drawing(drawn: Sequence[RankBars], numbers: Sequence[int], count: int) -> str:
    longest_ns = max(sum(one.average.parts_ns) for one in drawn) or 1
    options = "".join(f'<option value="{place}">step {number}</option>' for place, number in enumerate(numbers, 1))
    waits_known = all(one.average.waits_known for one in drawn)
    names = PARTS if waits_known else {**PARTS, "communication": "exposed communication"}
    legend = "".join(
        f'<li><span class="swatch {key}"></span>{name}</li>'
        for key, name in names.items()
        if waits_known or key != "waiting"
    )
    note = "" if waits_known else " Waiting could not be told from communication, see above."
    cut = f" {len(drawn)} of {count} ranks are drawn." if len(drawn) < count else ""
    rows = "\n".join(_render_bar(one, longest_ns, names) for one in drawn)
    return (
        f"<p>What the time of a step went into, on each rank.{note}{cut}</p>\n"
        '<p><label for="bars-step">Of</label> <select id="bars-step">'
        f'<option value="0">the average of its steps</option>{options}</select></p>\n'
        f'<ul class="legend">{legend}</ul>\n<div id="bars">\n{rows}\n</div>\n'
    )


def _render_bar(one: RankBars, longest_ns: float, names: Mapping[str, str]) -> str:
    views = [one.average, *one.steps]
    parts = msgspec.json.encode([[round(ns) for ns in bar.parts_ns] if bar is not None else None for bar in views])
    rects, at = [], 0.0
    for key, ns in zip(PARTS, one.average.parts_ns, strict=True):
        width = ns * WIDTH / longest_ns
        rects.append(
            f'<rect class="{key}" x="{at:.2f}" y="0" width="{width:.2f}" height="{HEIGHT}">'
            f"<title>{names[key]} {ms(ns).text} ms</title></rect>"
        )
        at += width
    name = html.escape(one.name)
    said = ", ".join(f"{names[key]} {ms(ns).text} ms" for key, ns in zip(PARTS, one.average.parts_ns, strict=True))
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return (
        f'<div class="bar"><span>{name}</span><svg {size} role="img" '
        f'aria-label="{name}: {html.escape(said)}" data-parts="{parts.decode()}">{"".join(rects)}</svg>'
        f"<span>{sum(one.average.parts_ns) / NS_PER_MS:,.1f} ms</span></div>"
    )
