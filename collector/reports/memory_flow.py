"""Draw memory flow as SVG: time to the right, addresses upwards, one rectangle a lifetime.

Below the rectangles, on the same scale of bytes, stands the area of all that is not drawn one by one. The chart has
no script and loads nothing; names in it come from files that are not trusted and are escaped.
"""

import html
from collections.abc import Sequence
from typing import Final

from rankscope.collector.reports.trace_cells import printable
from rankscope.measure.memory_flow import FlowRectangle, MemoryFlow
from rankscope.measure.memory_timeline import CATEGORIES, MemoryCategory
from rankscope.measure.units import format_duration

WIDTH: Final = 1_200
HEIGHT: Final = 600
"""Size of the drawing of one device, without its texts, in SVG units."""
LEFT, TEXTS, MARGIN = 90, 64, 20
COLORS: Final = {
    MemoryCategory.PARAMETERS: "#4269d0",
    MemoryCategory.GRADIENTS: "#ff725c",
    MemoryCategory.OPTIMIZER_STATE: "#a463f2",
    MemoryCategory.ACTIVATIONS: "#3ca951",
    MemoryCategory.TEMPORARY: "#efb118",
    MemoryCategory.UNKNOWN: "#9498a0",
}
MERGED_COLOR: Final = "#c9ccd1"
MIB: Final = 1 << 20
GIB: Final = 1 << 30


def render_flow(flows: Sequence[tuple[str, MemoryFlow]]) -> str:
    """Return one SVG with charts below each other, each with what it is of; there must be one."""
    part = HEIGHT + TEXTS + MARGIN
    bodies = "".join(f'<g transform="translate(0 {place * part})">{_render(name, flow)}</g>\n'
                     for place, (name, flow) in enumerate(flows))  # fmt: skip
    width = LEFT + WIDTH + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {part * len(flows)}" font-family="sans-serif" '
        f'font-size="14">\n<rect width="{width}" height="{part * len(flows)}" fill="#fff"/>\n{bodies}</svg>\n'
    )


def _render(name: str, flow: MemoryFlow) -> str:
    merged = max(flow.merged_bytes, default=0)
    whole = max(1, flow.height_bytes + merged)
    x_scale, y_scale = WIDTH / max(1, flow.span_ns), HEIGHT / whole
    base = TEXTS + HEIGHT - merged * y_scale
    rects = "".join(_render_rectangle(one, x_scale, y_scale, base) for one in flow.rectangles)
    peak_x = LEFT + flow.peak_ns * x_scale
    return (
        f"{_render_texts(name, flow, merged)}"
        f'<rect x="{LEFT}" y="{TEXTS}" width="{WIDTH}" height="{HEIGHT}" fill="#f6f7f9"/>\n'
        f"{_render_merged(flow.merged_bytes, y_scale)}{rects}"
        f'<path d="M{peak_x:.2f} {TEXTS}V{TEXTS + HEIGHT}" stroke="#000" stroke-dasharray="4 4" fill="none">'
        f"<title>peak: {_in_bytes(flow.peak_bytes)} after {format_duration(flow.peak_ns)}</title></path>\n"
    )


def _render_rectangle(one: FlowRectangle, x_scale: float, y_scale: float, base: float) -> str:
    x, width = LEFT + one.start_ns * x_scale, max((one.end_ns - one.start_ns) * x_scale, 0.5)
    y, height = base - (one.offset_bytes + one.bytes) * y_scale, max(one.bytes * y_scale, 0.2)
    lived = "not freed" if one.is_open else f"freed after {format_duration(one.end_ns - one.start_ns)}"
    kind = MemoryCategory(one.kind)
    said = (
        f"{_in_bytes(one.bytes)}, {CATEGORIES[kind].replace('_', ' ')}, from {format_duration(one.start_ns)}, {lived}"
    )
    named = f"{said}: {one.name}" if one.name else said
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{COLORS[kind]}" '
        f'stroke="#fff" stroke-width=".2"><title>{html.escape(printable(named))}</title></rect>\n'
    )


def _render_merged(merged: Sequence[int], y_scale: float) -> str:
    """Return the area of what is not drawn one by one, a step for each part of the time."""
    if not any(merged):
        return ""
    bottom, step = TEXTS + HEIGHT, WIDTH / len(merged)
    points = "".join(f"V{bottom - size * y_scale:.2f}H{LEFT + (place + 1) * step:.2f}"
                     for place, size in enumerate(merged))  # fmt: skip
    return f'<path d="M{LEFT} {bottom}{points}V{bottom}Z" fill="{MERGED_COLOR}"/>\n'


def _render_texts(name: str, flow: MemoryFlow, merged: int) -> str:
    title = (
        f"Memory flow of {name}: {format_duration(flow.span_ns)} to the right, addresses upwards without the ranges "
        f"that were never used; peak {_in_bytes(flow.peak_bytes)} (dashed line)"
    )
    under = f"{len(flow.rectangles):,} lifetimes are drawn, the largest ones"
    if flow.merged_count:
        under += f"; {flow.merged_count:,} smaller ones are merged into the gray area at the bottom"
    if flow.older_bytes:
        under += f"; the area has {_in_bytes(flow.older_bytes)} that were allocated before the first event"
    used = sorted({one.kind for one in flow.rectangles})
    legend = "".join(
        f'<rect x="{LEFT + 150 * place}" y="46" width="12" height="12" fill="{COLORS[MemoryCategory(kind)]}"/>'
        f'<text x="{LEFT + 150 * place + 18}" y="57">{CATEGORIES[kind].replace("_", " ")}</text>'
        for place, kind in enumerate(used)
    )
    return (
        f'<text x="{LEFT}" y="18" font-weight="bold">{html.escape(title)}</text><text x="{LEFT}" y="38">{under}</text>'
        f'{legend}<text x="4" y="{TEXTS + 12}">{_in_bytes(flow.height_bytes + merged)}</text>\n'
    )


def _in_bytes(size: int) -> str:
    """Return a size for the reader.

    It has at most ten characters below 1 TiB, for which there is room beside the drawing.

    >>> _in_bytes(3 << 19), _in_bytes(100), _in_bytes(80 << 30)
    ('1.50 MiB', '100 B', '80.00 GiB')
    """
    if size >= GIB:
        return f"{size / GIB:.2f} GiB"
    return f"{size / MIB:,.2f} MiB" if size >= MIB // 100 else f"{size} B"
