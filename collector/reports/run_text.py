"""Render a run report for a terminal."""

from rankscope.collector.reports.run_report import RunReport
from rankscope.collector.reports.run_sections import build_sections, headline
from rankscope.collector.reports.trace_text import WIDTH, render_section


def render_text(report: RunReport, top: int, width: int = WIDTH) -> str:
    """Return the headline and every table, at most `top` rows of each, in lines of `width` columns."""
    sections = ("\n".join(render_section(section, width)) for section in build_sections(report, top))
    return "\n\n".join([headline(report), *sections])
