"""Render a run report as a self-contained HTML page without script. All names are escaped, and the page's content
security policy forbids scripts.
"""

import html
from collections.abc import Sequence
from typing import Final

from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.run_sections import TOP, answer, build_sections, headline
from rankscope.collector.reports.trace_cells import Section
from rankscope.collector.reports.trace_page import hash_of, read_asset, render_section
from rankscope.collector.storage.run_reader import CurvePoint
from rankscope.measure.units import format_duration

WIDTH: Final = 1_000
HEIGHT: Final = 240
"""Size of the drawing in SVG units; it is scaled to the page."""


def render_page(report: RunReport, top: int = TOP) -> str:
    """Return the page, with at most `top` rows of each table."""
    sections = build_sections(report, top)
    return frame_page(headline(report), sections, _render_curve(report.curve), answer(report))


def frame_page(title: str, sections: Sequence[Section], before: str = "", verdict: Sequence[str] = ()) -> str:
    """Return a page with a title and these sections, each in the contents. `before` is HTML that precedes them, and
    `verdict` has the lines above the title, the first one in bold.
    """
    style = read_asset("trace_page.css")
    title = html.escape(title)
    first, *others = map(html.escape, verdict or [""])
    answered = f"<p><strong>{first}</strong></p>" + "".join(f"<p>{line}</p>" for line in others) if verdict else ""
    policy = f"default-src 'none'; style-src '{hash_of(style)}'; base-uri 'none'; form-action 'none'"
    contents = "".join(f'<li><a href="#{one.key}">{html.escape(one.title)}</a></li>' for one in sections)
    bodies = "".join(render_section(one) for one in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>rankscope: {title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the run</a>\n'
        f"<header><h1>rankscope</h1>{answered}<p>{title}</p></header>\n"
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        f'<main id="main">\n{before}{bodies}</main>\n'
        "</body>\n</html>\n"
    )


def _render_curve(points: tuple[CurvePoint, ...]) -> str:
    """Return a figure of the step time over the run, as two lines from 0; empty for fewer than two points."""
    if len(points) < 2:  # noqa: PLR2004 - one point is no line
        return ""
    top_ns = max(point.longest_ns for point in points) or 1
    longest = _scale_line([point.longest_ns for point in points], top_ns)
    median = _scale_line([point.median_ns for point in points], top_ns)
    text = f"Step time over the run, from 0 to {format_duration(top_ns)}: the longest of any rank, and the median."
    return (
        f'<figure><svg role="img" aria-label="{html.escape(text)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" '
        f'preserveAspectRatio="none" height="{HEIGHT}">'
        f'<polyline fill="none" stroke="#d9822b" stroke-width="1" points="{longest}"/>'
        f'<polyline fill="none" stroke="#2f62b5" stroke-width="2" points="{median}"/></svg>'
        f"<figcaption>{html.escape(text)}</figcaption></figure>\n"
    )


def _scale_line(values_ns: Sequence[float], top_ns: float) -> str:
    last = len(values_ns) - 1
    return " ".join(
        f"{place * WIDTH / last:.1f},{HEIGHT - value * (HEIGHT - 2) / top_ns:.1f}"
        for place, value in enumerate(values_ns)
    )
