"""A run report as one page that needs nothing else: no server, no network, no script. Whatever a run, a node or a
finding is called, it stays text: everything is escaped, and the page's policy lets nothing run.
"""

import html
from collections.abc import Sequence
from typing import Final

from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.run_sections import TOP, build_sections, headline
from rankscope.collector.reports.trace_page import hash_of, read_asset, render_section
from rankscope.collector.storage.run_reader import CurvePoint
from rankscope.measure.units import NS_PER_MS

WIDTH: Final = 1_000
HEIGHT: Final = 240
"""Of the drawing, in its own units: it is scaled to the page."""


def render_page(report: RunReport, top: int = TOP) -> str:
    """The page; at most `top` rows of each table."""
    style = read_asset("trace_page.css")
    sections = build_sections(report, top)
    said = html.escape(headline(report))
    policy = f"default-src 'none'; style-src '{hash_of(style)}'; base-uri 'none'; form-action 'none'"
    contents = "".join(f'<li><a href="#{one.key}">{html.escape(one.title)}</a></li>' for one in sections)
    bodies = "".join(render_section(one) for one in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>rankscope: {said}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the run</a>\n<header><h1>rankscope</h1><p>{said}</p></header>\n'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        f'<main id="main">\n{_draw(report.curve)}{bodies}</main>\n'
        "</body>\n</html>\n"
    )


def _draw(points: tuple[CurvePoint, ...]) -> str:
    """The step time over the run as two lines, from 0; the table below has the numbers."""
    if len(points) < 2:  # noqa: PLR2004 - one point is no line
        return ""
    top_ns = max(point.longest_ns for point in points) or 1
    longest = _line([point.longest_ns for point in points], top_ns)
    median = _line([point.median_ns for point in points], top_ns)
    said = f"Step time over the run, from 0 to {top_ns / NS_PER_MS:,.1f} ms: the longest of any rank, and the median."
    return (
        f'<figure><svg role="img" aria-label="{html.escape(said)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" '
        f'preserveAspectRatio="none" height="{HEIGHT}">'
        f'<polyline fill="none" stroke="#d9822b" stroke-width="1" points="{longest}"/>'
        f'<polyline fill="none" stroke="#2f62b5" stroke-width="2" points="{median}"/></svg>'
        f"<figcaption>{html.escape(said)}</figcaption></figure>\n"
    )


def _line(values_ns: Sequence[float], top_ns: float) -> str:
    last = len(values_ns) - 1
    return " ".join(
        f"{place * WIDTH / last:.1f},{HEIGHT - value * (HEIGHT - 2) / top_ns:.1f}"
        for place, value in enumerate(values_ns)
    )
