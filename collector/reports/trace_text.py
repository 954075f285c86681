"""Render a trace report for a terminal: the verdict as a list, other sections as tables of aligned columns."""

import textwrap
from collections.abc import Iterable, Sequence

from rankscope.collector.reports.difference_tables import build_difference_sections
from rankscope.collector.reports.trace_cells import MISSING, Cell, Section, printable
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces.report import UNKNOWN_DEVICE, TraceReport

WIDTH = 120
NAME_WIDTH_MIN = 10
"""Names are not shortened below this, so that kernels stay distinct; a table may then be wider than `width`."""
SOURCE_WIDTH_MIN = 26
"""Places in the code are shortened last, and at their start: the end has the line."""
GAP = "  "
NARROW_GAP = " "
"""Gap of a table that is still too wide after names were shortened."""
CUT = "..."
FINDING_COLUMNS = 6
"""Columns of the verdict: kind, about, ranks, finding, what to do, evidence."""


def render_text(report: TraceReport, top: int, width: int = WIDTH, sort_by: str | None = None) -> str:
    """Return all tables, at most `top` rows of each, in lines of `width` columns; of a comparison only its own.
    `sort_by` is that of `build_sections`.
    """
    sections = build_difference_sections(report.comparison, top) or build_sections(report, top, sort_by=sort_by)
    return "\n\n".join([headline(report), *("\n".join(render_section(section, width)) for section in sections)])


def headline(report: TraceReport) -> str:
    """Return the ranks, steps, events, backends and devices of a report in one line."""
    ranks = report.ranks
    worlds = [rank.world_size for rank in ranks if rank.world_size is not None]
    of_world = f" of {max(worlds)}" if worlds else ""
    kinds = sorted({f"{rank.backend or 'no backend'} on {rank.device or 'no device'}" for rank in ranks})
    steps = len({step.step for rank in ranks for step in rank.steps})
    events = sum(rank.event_count for rank in ranks)
    counts = [f"{_count(len(ranks), 'rank')}{of_world}", _count(steps, "step"), _count(events, "event")]
    if ranks and all(rank.device == UNKNOWN_DEVICE for rank in ranks):
        del counts[1]  # they have steps, which are not divided
    return printable("; ".join([", ".join(counts), *kinds]))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def shorten(text: str, width: int) -> str:
    """Return the text with its middle cut out: names of kernels differ at their start and end.

    >>> shorten("ampere_sgemm_128x64_nn", 15), shorten("relu", 15)
    ('ampere...x64_nn', 'relu')
    """
    if len(text) <= width:
        return text
    kept = max(width - len(CUT), 0)
    front = kept - kept // 2
    return f"{text[:front]}{CUT}{text[len(text) - kept // 2 :]}"[:width]


def shorten_front(text: str, width: int) -> str:
    """Return the text with its start cut off.

    >>> shorten_front("src/models/attention.py:120 (forward)", 31)
    '...s/attention.py:120 (forward)'
    """
    return text if len(text) <= width else f"{CUT}{text[len(text) - max(width - len(CUT), 0) :]}"[:width]


def shorten_apart(texts: Sequence[str], width: int) -> list[str]:
    """Return the texts shortened, those that would become equal with a number: rows that differ stay different.

    >>> shorten_apart(["void gemm<a>(int)", "void gemm<b>(int)", "relu", "void gemm<a>(int)"], 13)
    ['void ...(int)', 'void...int)~2', 'relu', 'void ...(int)']
    """
    texts_of: dict[str, list[str]] = {}
    found = []
    for text in texts:
        short = shorten(text, width)
        same = texts_of.setdefault(short, [])
        if text not in same:
            same.append(text)
        number = same.index(text) + 1
        mark = f"~{number}" if number > 1 else ""
        found.append(shorten(text, width - len(mark)) + mark)
    return found


def render_section(section: Section, width: int) -> list[str]:
    """Return one table in lines of `width` columns, with its title and explanation."""
    lines = [section.title.upper(), *textwrap.wrap(section.explanation, width)]
    if not section.rows:
        return [*lines, *textwrap.wrap(section.reason, width, initial_indent=GAP, subsequent_indent=GAP)]
    lines += _list(section, width) if section.is_prose else _table(section, width)
    return [*lines, left_out_line(section)] if section.left_out else lines


def left_out_line(section: Section) -> str:
    """Return the line with the number of rows that `top` cut off, and the option that shows them."""
    return f"{GAP}{_count(section.left_out, 'more row')} not shown: raise --top to see them"


def _table(section: Section, width: int) -> list[str]:
    widths = _fit(section, width)
    gap = GAP if sum(widths) + len(GAP) * (len(widths) - 1) <= width else NARROW_GAP
    aligned = [(column.align, size) for column, size in zip(section.columns, widths, strict=True)]

    def line(texts: list[str]) -> str:
        cells = (
            f"{text:<{size}}" if align == "left" else f"{text:>{size}}"
            for text, (align, size) in zip(texts, aligned, strict=True)
        )
        return gap.join(cells).rstrip()

    heads = [line([column.head for column in section.columns]), line([column.unit for column in section.columns])]
    columns = [_shorten_column([row[place] for row in section.rows], *one) for place, one in enumerate(aligned)]
    body = [line(list(row)) for row in zip(*columns, strict=True)]
    return [head for head in heads if head] + body


def _shorten_column(cells: Sequence[Cell], align: str, width: int) -> list[str]:
    texts = [cell.text for cell in cells]
    if align != "left":
        return texts
    return [shorten_front(text, width) for text in texts] if _has_places(cells) else shorten_apart(texts, width)


def _has_places(cells: Iterable[Cell]) -> bool:
    return any(cell.source is not None for cell in cells)


def _fit(section: Section, width: int) -> list[int]:
    """Return widths of columns that fit their cells; the widest columns of text are shortened until the line fits."""
    widths = [
        max(len(column.head), len(column.unit), *(len(row[place].text) for row in section.rows))
        for place, column in enumerate(section.columns)
    ]
    names = [place for place, column in enumerate(section.columns) if column.align == "left"]
    least = {
        place: SOURCE_WIDTH_MIN if _has_places(row[place] for row in section.rows) else NAME_WIDTH_MIN
        for place in names
    }
    over = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while over > 0 and (wide := [place for place in names if widths[place] > least[place]]):
        widest = max(wide, key=lambda place: widths[place])
        others = [widths[place] for place in wide if place != widest]
        cut = min(over, max(widths[widest] - max([least[widest], *others]), 1))
        widths[widest] -= cut
        over -= cut
    return widths


def _list(section: Section, width: int) -> list[str]:
    return (
        _list_findings(section, width) if len(section.columns) == FINDING_COLUMNS else _list_sentences(section, width)
    )


def _list_sentences(section: Section, width: int) -> list[str]:
    """Return the first cell of each row as a sentence, the others behind it in parentheses."""
    heads = [column.head for column in section.columns[1:]]
    lines = []
    for first, *others in section.rows:
        more = ", ".join(
            f"{head} {cell.text}" for head, cell in zip(heads, others, strict=True) if cell.text != MISSING
        )
        lines += _wrap(f"- {first.text}{f' ({more})' if more else ''}", width, "")
    return lines


def _list_findings(section: Section, width: int) -> list[str]:
    lines = []
    for kind, about, ranks, sentence, action, evidence in section.rows:
        where = f" (rank{'' if ranks.text.isdigit() else 's'} {ranks.text})" if ranks.text != MISSING else ""
        lines += _wrap(f"[{kind.text}] {about.text}{where}: {sentence.text}", width, "")
        lines += [
            line for label, cell in (("do", action), ("evidence", evidence)) for line in _more(label, cell, width)
        ]
    return lines


def _more(label: str, cell: Cell, width: int) -> list[str]:
    return [] if cell.text == MISSING else _wrap(f"{label}: {cell.text}", width, "    ")


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=f"{indent}    ")
