"""Render the list of trace files: what each was recognized as, its span and its steps. Pure: values -> text."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from rankscope.collector.reports.trace_cells import MISSING, printable
from rankscope.collector.traces.recognized import Recognized
from rankscope.collector.traces.spans import Span
from rankscope.measure.units import NS_PER_MS, NS_PER_S, format_duration

HEADS = ("RANK", "KNOWN FROM", "CYCLE", "WORLD", "HOST", "FIRST EVENT (UTC)", "LENGTH", "STEPS", "FILE")


def render_list(found: Sequence[Recognized], spans: Mapping[str, Span]) -> str:
    """Return a line for each file, under a line of heads; `spans` are by path, of the files that could be read."""
    rows = [HEADS, *(_describe(one, spans.get(one.file.path)) for one in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), file])
        for *cells, file in rows
    )


def _describe(one: Recognized, span: Span | None) -> tuple[str, ...]:
    world = one.origin.world_size if one.origin is not None else None
    host = one.origin.host if one.origin is not None else None
    note = f"  (same content as {one.same_as})" if one.same_as is not None else ""
    texts = [MISSING if value is None else printable(str(value)) for value in (one.rank, one.rank_from)]
    cells = [f"{one.cycle} of {one.cycles}", MISSING if world is None else str(world), printable(host or MISSING)]
    return (*texts, *cells, *_describe_span(span), printable(one.file.path + note))


def _describe_span(span: Span | None) -> tuple[str, str, str]:
    if span is None:
        return (MISSING, MISSING, MISSING)
    start = describe_time(span.start_ns) if span.is_wall_clock else MISSING
    return (start, format_duration(span.end_ns - span.start_ns), describe_steps(span.steps))


def describe_time(host_ns: int) -> str:
    """Return a time since 1970 as text, to the ms below it.

    >>> describe_time(1_700_000_000_123_999_999)
    '2023-11-14 22:13:20.123'
    """
    at = datetime.fromtimestamp(host_ns // NS_PER_S, tz=timezone.utc)
    return f"{at:%Y-%m-%d %H:%M:%S}.{host_ns % NS_PER_S // NS_PER_MS:03}"


def describe_steps(steps: Sequence[int]) -> str:
    """Return step numbers as text; where some between the first and the last are missing, with how many there are.

    >>> describe_steps([3, 4, 5]), describe_steps([7]), describe_steps([3, 9]), describe_steps([])
    ('3-5', '7', '3-9 (2 steps)', '-')
    """
    if not steps:
        return MISSING
    first, last = min(steps), max(steps)
    text = str(first) if first == last else f"{first}-{last}"
    return text if last - first + 1 == len(steps) else f"{text} ({len(steps)} steps)"
