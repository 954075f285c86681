"""Render incidents as a table for a terminal: a line of facts for each, and its sentence below."""

import textwrap
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Final

from rankscope.collector.detect.finding_words import write_lost
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.reports.finding_text import render_facts
from rankscope.collector.reports.trace_cells import printable
from rankscope.measure.units import format_length

UNKNOWN: Final = "-"
SENTENCE_WIDTH: Final = 116
INDENT: Final = "      "
CELL_LENGTH_MAX: Final = 24
"""Longer names of runs and causes are cut, so that the other columns stay in place."""
COST: Final = "cost so far"
HEADS: Final = ("id", "state", "severity", "since (UTC)", "for", "run", "kind", "subject", "cause", COST)
NO_NOTES: Final[Mapping[int, Sequence[str]]] = {}
NUMBERS: Final = frozenset({"id", "for", COST})


def render_incidents(
    incidents: Sequence[Incident],
    now_wall_s: float,
    *,
    with_sentences: bool = True,
    notes: Mapping[int, Sequence[str]] = NO_NOTES,
) -> str:
    """Return the table, in the order given. Times of day are UTC, the cost is as in sentences. `notes`
    are lines below an incident, by its id; they are not wrapped, so that an address stays whole.
    """
    rows = [(incident, _build_cells(incident, now_wall_s)) for incident in incidents]
    widths = {head: max([len(head), *(len(row[head]) for _, row in rows)]) for head in HEADS}
    lines = [_render_line({head: head for head in HEADS}, widths)]
    for incident, row in rows:
        lines.append(_render_line(row, widths))
        lines += _render_sentences(incident) if with_sentences else []
        lines += [f"{INDENT}{line}" for line in notes.get(incident.id, ())]
    return "\n".join(lines)


def count_incidents(incidents: Sequence[Incident]) -> str:
    """Return the number of incidents and of open ones as text.

    >>> count_incidents([])
    'no incident'
    """
    if not incidents:
        return "no incident"
    still_open = sum(incident.is_open for incident in incidents)
    return f"{len(incidents)} incident{'s' if len(incidents) > 1 else ''}, {still_open} open"


def _build_cells(incident: Incident, now_wall_s: float) -> dict[str, str]:
    """Return the cells of an incident by head."""
    return {
        "id": str(incident.id),
        "state": incident.state,
        "severity": incident.severity,
        "since (UTC)": format_utc(incident.opened_wall_s),
        "for": format_length(incident.open_for_s(now_wall_s)),
        "run": _shorten(incident.run),
        "kind": _shorten(incident.kind),
        "subject": _shorten(incident.subject),
        "cause": _shorten(incident.cause),
        COST: write_lost(incident.lost_rank_seconds) or UNKNOWN,
    }


def _render_line(cells: Mapping[str, str], widths: Mapping[str, int]) -> str:
    padded = [cell.rjust(widths[head]) if head in NUMBERS else cell.ljust(widths[head]) for head, cell in cells.items()]
    return "  ".join(padded).rstrip()


def _render_sentences(incident: Incident) -> list[str]:
    texts = [incident.headline, *render_facts(incident)]
    if incident.resolved_reason:
        texts.append(f"resolved: {incident.resolved_reason}")
    return [
        line
        for text in texts
        for line in textwrap.wrap(printable(text), SENTENCE_WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
    ]


def format_utc(wall_s: float) -> str:
    """Return a time as text, in UTC.

    >>> format_utc(0)
    '1970-01-01 00:00:00'
    """
    return datetime.fromtimestamp(wall_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _shorten(text: str) -> str:
    text = printable(text)
    return text if len(text) <= CELL_LENGTH_MAX else f"{text[: CELL_LENGTH_MAX - 3]}..."
