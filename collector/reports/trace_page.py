"""Render a trace report as a self-contained HTML page.

The page's content security policy allows its own style sheet and script by their hashes and nothing else, so a kernel
named `<script>` stays a name. The timelines are JSON in a block that browsers do not run.
"""

import base64
import hashlib
import html
from importlib.resources import files

import msgspec

from rankscope.collector.reports.trace_cells import Cell, Column, Section, printable, rank_list
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_text import headline, left_out_line
from rankscope.collector.traces.report import RankReport, Timeline, TraceReport

TOP = 20
RANK_ROWS_MAX = 1_000
"""Rows of the tables with a line for each rank: about 1 MB of page each."""
TIMELINES_SHOWN_MAX = 16
"""Timelines drawn at once, as many as fit on a screen. The page's field for ranks selects them."""
BINS_MAX = 200_000
"""Bins of all timelines together: about 5 MB of page. More are merged."""
PARTS = ("compute", "overlap", "communication", "copy")


def render_page(report: TraceReport, top: int = TOP) -> str:
    """Return the page: at most `top` rows of each table, but a row for each rank up to RANK_ROWS_MAX."""
    style, script = read_asset("trace_page.css"), read_asset("trace_page.js")
    sections = build_sections(report, top, max(top, RANK_ROWS_MAX))
    links = [(section.key, section.title) for section in sections]
    bodies = [render_section(section) for section in sections]
    after_ranks = [section.key for section in sections].index("ranks") + 1
    links.insert(after_ranks, ("timelines", "Timelines"))
    bodies.insert(after_ranks, _render_timelines(report))
    title = html.escape(headline(report))
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = "".join(f'<li><a href="#{key}">{html.escape(text)}</a></li>' for key, text in links)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>rankscope: {title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the verdict</a>\n<header><h1>rankscope</h1><p>{title}</p></header>\n'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n<main id="main">\n{"".join(bodies)}</main>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def read_asset(name: str) -> str:
    """Return the text of a style sheet or a script in page_assets."""
    return (files("rankscope.collector.reports") / "page_assets" / name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Return the source expression of an inline style or script for a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# -- tables -----------------------------------------------------------------------------------------------------------


def render_section(section: Section) -> str:
    """Return one table as a section of a page, or the reason why it is empty."""
    body = _render_table(section) if section.rows else f'<p class="reason">{html.escape(section.reason)}</p>'
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-title">\n'
        f'<h2 id="{section.key}-title">{html.escape(section.title)}</h2>\n{body}\n</section>\n'
    )


def _render_table(section: Section) -> str:
    heads = "".join(_render_head(column) for column in section.columns)
    rows = "\n".join(f"<tr>{''.join(map(_render_cell, row, section.columns))}</tr>" for row in section.rows)
    more = f'\n<p class="more">{left_out_line(section).strip()}</p>' if section.left_out else ""
    kind = ' class="prose"' if section.is_prose else ""
    return (
        f'<div class="scroll" role="region" aria-labelledby="{section.key}-title" tabindex="0">\n'
        f"<table{kind}>\n<caption>{html.escape(section.explanation)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>{more}"
    )


def _render_head(column: Column) -> str:
    unit = f' <span class="unit">{html.escape(column.unit)}</span>' if column.unit else ""
    return f'<th scope="col" class="{column.align}">{html.escape(column.head)}{unit}</th>'


def _render_cell(cell: Cell, column: Column) -> str:
    order = f' data-sort="{cell.order!r}"' if cell.order is not None else ""
    return f'<td class="{column.align}"{order}>{html.escape(cell.text)}</td>'


# -- timelines --------------------------------------------------------------------------------------------------------


def _render_timelines(report: TraceReport) -> str:
    drawn = [rank for rank in report.ranks if rank.timeline is not None]
    head = '<section id="timelines" aria-labelledby="timelines-title">\n<h2 id="timelines-title">Timelines</h2>\n'
    if not drawn:
        return f'{head}<p class="reason">No timeline: no trace shows any work.</p>\n</section>\n'
    merged = -(-sum(len(rank.timeline.compute) for rank in drawn if rank.timeline is not None) // BINS_MAX)
    lanes = [
        _lane_of(place, rank, rank.timeline, merged) for place, rank in enumerate(drawn) if rank.timeline is not None
    ]
    content = {"shown_max": TIMELINES_SHOWN_MAX, "first": _first_shown(report, drawn), "lanes": lanes}
    shown = min(len(drawn), TIMELINES_SHOWN_MAX)
    note = f"{shown} of {len(drawn)} ranks are drawn, at most {TIMELINES_SHOWN_MAX} at once."
    if merged > 1:
        note += f" To limit the size of the page, {merged} bins are drawn as one."
    legend = "".join(
        f'<li><span class="swatch {part}"></span>{name}</li>'
        for part, name in zip(
            (*PARTS, "idle"), ("compute alone", "overlap", "communication alone", "copy", "idle"), strict=True
        )
    )
    return (
        f"{head}<p>Breakdown of the time, from the first event of each rank's trace: the lines of "
        "two ranks are not aligned to one clock. Point at a line, or focus it and use the arrow keys.</p>\n"
        f'<p id="note">{note}</p>\n'
        '<p><label for="picked">Ranks to draw</label> <input id="picked" type="text" autocomplete="off" '
        f'spellcheck="false" aria-describedby="note" placeholder="0-7, 12"></p>\n<ul class="legend">{legend}</ul>\n'
        '<div id="lanes"></div>\n<p id="readout" aria-live="polite">&nbsp;</p>\n'
        f'<script type="application/json" id="timeline-bins">{_as_json(content)}</script>\n</section>\n'
    )


def _lane_of(place: int, rank: RankReport, timeline: Timeline, merged: int) -> dict[str, object]:
    """Return one timeline with `merged` bins in one; `parts` holds the nanoseconds of each part in each bin."""
    parts = [
        [sum(bins[start : start + merged]) for start in range(0, len(bins), merged)]
        for bins in (timeline.compute, timeline.overlap, timeline.communication, timeline.copy)
    ]
    return {
        "rank": place if rank.rank is None else rank.rank,
        "name": printable(f"rank {rank.rank}" if rank.rank is not None else rank.file),
        "start_ns": timeline.start_ns,
        "bin_ns": timeline.bin_ns * merged,
        "parts": parts,
    }


def _first_shown(report: TraceReport, drawn: list[RankReport]) -> str:
    """Return the ranks drawn first: those in findings, then the lowest."""
    named = {one.rank for one in report.cross_rank.findings} if report.cross_rank is not None else set()
    ranks = [place if rank.rank is None else rank.rank for place, rank in enumerate(drawn)]
    return rank_list(sorted(ranks, key=lambda rank: rank not in named)[:TIMELINES_SHOWN_MAX]).text


def _as_json(content: object) -> str:
    """Return JSON that cannot end its script block: every `<` is escaped, `</script` and `<!--` with it."""
    return msgspec.json.encode(content).decode().replace("<", "\\u003c")
