"""Render a trace report as a fragment of HTML that a notebook shows below the cell: no script, no style sheet.

The verdict comes first; every other table folds under its title. A notebook keeps the fragment in its file, so it is
bounded: `analyze --html` writes the whole report as a page.
"""

import html
from typing import Final

from rankscope.collector.reports.trace_cells import Cell, Section, TableColumn
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.reports.trace_text import headline, shorten
from rankscope.collector.traces.report import TraceReport

ROWS_MAX: Final = 10
VERDICTS_MAX: Final = 40
"""Findings, advice and abstentions: some rules have one a rank."""
TEXT_MAX: Final = 600
"""Characters of a cell: names of C++ kernels have thousands."""
OPEN: Final = frozenset({"comparison", "cycles", "verdict", "findings"})
"""Sections that are shown unfolded."""


def render_fragment(report: TraceReport) -> str:
    """Return the report with at most ROWS_MAX rows of each table, its tables without rows left out."""
    shown = [section for section in build_sections(report, ROWS_MAX) if section.rows]
    bodies = "\n".join(map(_render_section, shown))
    return f'<div class="rankscope-report">\n<p><strong>{_text(headline(report))}</strong></p>\n{bodies}\n</div>'


def _render_section(section: Section) -> str:
    rows = section.rows[: VERDICTS_MAX if section.is_prose else ROWS_MAX]
    left_out = section.left_out + len(section.rows) - len(rows)
    more = f"<p>{left_out:,} more not shown</p>" if left_out else ""
    heads = "".join(_render_cell("th", column.head, column.unit, column) for column in section.columns)
    body = "\n".join(f"<tr>{''.join(map(_render_data, row, section.columns))}</tr>" for row in rows)
    is_open = " open" if section.key in OPEN else ""
    return (
        f"<details{is_open}><summary>{_text(section.title)}</summary>\n<p>{html.escape(section.explanation)}</p>\n"
        f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>\n{more}</details>"
    )


def _render_data(cell: Cell, column: TableColumn) -> str:
    return _render_cell("td", cell.text, "", column)


def _render_cell(tag: str, text: str, unit: str, column: TableColumn) -> str:
    small = f" <small>{html.escape(unit)}</small>" if unit else ""
    return f'<{tag} style="text-align: {column.align}">{_text(text)}{small}</{tag}>'


def _text(text: str) -> str:
    return html.escape(shorten(text, TEXT_MAX))
