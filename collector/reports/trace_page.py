"""Render a trace report as a self-contained HTML page.

The page's content security policy allows its own style sheet and script by their hashes and nothing else, so a kernel
named `<script>` stays a name. The timelines are JSON in a block that browsers do not run.
"""

import base64
import hashlib
import html
import re
from importlib.resources import files

from rankscope.collector.reports.pipeline_drawing import render_pipeline
from rankscope.collector.reports.source_links import make_link
from rankscope.collector.reports.step_bars import render_bars
from rankscope.collector.reports.trace_cells import MISSING, Cell, Section, TableColumn
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_text import headline, left_out_line
from rankscope.collector.reports.trace_timelines import render_timelines
from rankscope.collector.traces.report import TraceReport

TOP = 20
RANK_ROWS_MAX = 1_000
"""Rows of the tables with a line for each rank: about 1 MB of page each."""
LONG_MIN = 60
"""Characters of a cell from which on its column is at least as wide as a short line of text."""
WORD_BROKEN_MIN = 17
"""Characters of a word that may be broken: the longest words of sentences have fewer."""
_WORDS = re.compile(r"(\s+)")
_BREAKS = re.compile(r"(?<=[_/<>(\[,;])(?=\S)|(?<=::)(?=\S)")
SCRIPTS = ("trace_page.js", "timelines.js", "step_bars.js")


def render_page(
    report: TraceReport,
    top: int = TOP,
    source_url: str | None = None,
    sort_by: str | None = None,
    reload_s: int | None = None,
) -> str:
    """Return the page: at most `top` rows of each table, but a row for each rank up to RANK_ROWS_MAX. `source_url` is
    the template of links to places in the code (`source_links.make_link`), `sort_by` that of `build_sections`. It
    reloads itself every `reload_s`, and says so; None for never.
    """
    style, script = read_asset("trace_page.css"), "".join(map(read_asset, SCRIPTS))
    sections = build_sections(report, top, max(top, RANK_ROWS_MAX), sort_by)
    links = [(section.key, section.title) for section in sections]
    drawings = {"pipeline": render_pipeline(report)}
    bodies = [render_section(section, drawings.get(section.key, ""), source_url) for section in sections]
    after_ranks = [section.key for section in sections].index("ranks") + 1
    links.insert(after_ranks, ("timelines", "Timelines"))
    bodies.insert(after_ranks, render_timelines(report))
    bars, drawing = render_bars(report, max(top, RANK_ROWS_MAX))
    links.insert(after_ranks + 1, (bars.key, bars.title))
    bodies.insert(after_ranks + 1, render_section(bars, drawing))
    title = html.escape(headline(report))
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    refresh = f'<meta http-equiv="refresh" content="{reload_s}">\n' if reload_s is not None else ""
    reloads = f"<p>Reloads every {reload_s} s while rankscope analyze --watch runs.</p>" if reload_s is not None else ""
    contents = "".join(f'<li><a href="#{key}">{html.escape(text)}</a></li>' for key, text in links)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n{refresh}'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>rankscope: {title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the verdict</a>\n'
        f"<header><h1>rankscope</h1><p>{title}</p>{reloads}</header>\n"
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


def render_section(section: Section, drawing: str = "", source_url: str | None = None) -> str:
    """Return one table as a section of a page, below a drawing of it as HTML, or the reason why it is empty."""
    body = (
        _render_table(section, source_url) if section.rows else f'<p class="reason">{html.escape(section.reason)}</p>'
    )
    if section.rows and section.folded_as:
        body = f"<details>\n<summary>{html.escape(section.folded_as)}</summary>\n{body}\n</details>"
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-title">\n'
        f'<h2 id="{section.key}-title">{html.escape(section.title)}</h2>\n{drawing}{body}\n</section>\n'
    )


def _render_table(section: Section, source_url: str | None) -> str:
    shown = _find_columns(section)
    heads = "".join(_render_head(section.columns[place]) for place in shown)
    # A narrow window shows a row of sentences as a block, which would be no row to a screen reader without its role.
    role = ' role="row"' if section.is_prose else ""
    render = _render_sentence if section.is_prose else _render_cell
    rows = "\n".join(
        f"<tr{role}>{''.join(render(row[place], section.columns[place], source_url) for place in shown)}</tr>"
        for row in section.rows
    )
    more = f'\n<p class="more">{left_out_line(section).strip()}</p>' if section.left_out else ""
    kind = ' class="prose" role="table"' if section.is_prose else ""
    return (
        f'<div class="scroll" role="region" aria-labelledby="{section.key}-title" tabindex="0">\n'
        f"<table{kind}>\n<caption>{html.escape(section.explanation)}</caption>\n"
        f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>{more}"
    )


def _find_columns(section: Section) -> list[int]:
    """Return the places of the columns to show: of a table of sentences those with a cell that is not missing."""
    return [
        place
        for place in range(len(section.columns))
        if not section.is_prose or any(row[place].text != MISSING for row in section.rows)
    ]


def _render_head(column: TableColumn) -> str:
    unit = f' <span class="unit">{html.escape(column.unit)}</span>' if column.unit else ""
    return f'<th scope="col" class="{column.align}">{html.escape(column.head)}{unit}</th>'


def _render_cell(cell: Cell, column: TableColumn, source_url: str | None) -> str:
    order = f' data-sort="{cell.order!r}"' if cell.order is not None else ""
    if column.align == "right":
        return f'<td class="right"{order}>{html.escape(cell.text)}</td>'
    kind = "left long" if len(cell.text) > LONG_MIN else "left"
    return f'<td class="{kind}"{order}>{_render_text(cell, source_url)}</td>'


def _render_sentence(cell: Cell, column: TableColumn, source_url: str | None) -> str:
    """Return a cell that has its column's head at hand, for a window too narrow for columns."""
    kind = f"{column.align} none" if cell.text == MISSING else column.align
    kind += " long" if len(cell.text) > LONG_MIN else ""
    order = f' data-sort="{cell.order!r}"' if cell.order is not None else ""
    head = html.escape(column.head)
    return f'<td role="cell" class="{kind}"{order} data-head="{head}">{_render_text(cell, source_url)}</td>'


def _render_text(cell: Cell, source_url: str | None) -> str:
    """Return the text of a cell as HTML, a link where it is a place in the code and the template makes one."""
    link = make_link(source_url, *cell.source) if cell.source is not None else None
    text = break_names(cell.text)
    return text if link is None else f'<a href="{html.escape(link)}">{text}</a>'


def break_names(text: str) -> str:
    """Return the text as HTML in which long words, such as names of kernels, may be broken behind their separators.

    >>> break_names("ncclDevKernel_AllReduce<float>(int) took 1,000 ms")
    'ncclDevKernel_<wbr>AllReduce&lt;<wbr>float&gt;<wbr>(<wbr>int) took 1,000 ms'
    """
    return "".join(
        "<wbr>".join(map(html.escape, _BREAKS.split(part))) if len(part) >= WORD_BROKEN_MIN else html.escape(part)
        for part in _WORDS.split(text)
    )
