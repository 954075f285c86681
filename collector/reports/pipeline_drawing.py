"""Draw one step of a pipeline: a line a stage, with forward, backward and bubble by time."""

import html
from collections.abc import Mapping

from rankscope.collector.reports.trace_cells import ms
from rankscope.collector.traces.report import PipelineLane, PipelinePicture, TraceReport
from rankscope.measure.units import NS_PER_MS

WIDTH, HEIGHT = 1_000, 20
"""Size of a line in SVG units; it is scaled to the page."""
KINDS = {
    "forward": "forward", "backward": "backward", "either": "forward or backward", "bubble": "bubble", "other": "other",
}  # fmt: skip


def render_pipeline(report: TraceReport) -> str:
    """Return the drawing; empty where the run is no pipeline, or its ranks have no step in common."""
    staged = report.cross_rank.pipeline if report.cross_rank is not None else None
    picture = staged.picture if staged is not None else None
    if picture is None:
        return ""
    end_ns = max(1, *(lane.start_ns + lane.window_ns for lane in picture.lanes))
    used = {segment.kind for lane in picture.lanes for segment in lane.segments}
    legend = "".join(f'<li><span class="swatch {key}"></span>{KINDS[key]}</li>' for key in KINDS if key in used)
    rows = "\n".join(_render_lane(lane, end_ns) for lane in picture.lanes)
    scale = f"<span>0 ms</span><span>{end_ns / NS_PER_MS:,.1f} ms</span>"
    return (
        f'<p>{html.escape(_describe(picture, used))}</p>\n<ul class="legend">{legend}</ul>\n<div id="stages">\n{rows}\n'
        f'<div class="bar scale" aria-hidden="true"><span></span><span>{scale}</span><span></span></div>\n</div>\n'
    )


def _describe(picture: PipelinePicture, used: set[str]) -> str:
    """Return what is drawn, and what its kinds rest on."""
    said = f"Step {picture.step}, the slowest that all stages have."
    if not picture.is_aligned:
        said += " The ranks are not on one clock, see above: each begins at 0."
    if "either" in used:
        said += (
            " Forward or backward: the first and the last stage do both between two messages, and the traces do not "
            "show where one ends."
        )
    said += " Other: what no message speaks of, such as weight gradients on their own, the optimizer, and transfers."
    if len(picture.lanes) < picture.rank_count:
        said += f" {len(picture.lanes)} of {picture.rank_count} ranks are drawn."
    left_out = sum(lane.left_out_count for lane in picture.lanes)
    if left_out:
        said += f" {left_out:,} pieces at the end of lines are left out."
    return said


def _render_lane(lane: PipelineLane, end_ns: int) -> str:
    rects = []
    for one in lane.segments:
        start_ns = lane.start_ns + one.start_ns
        rects.append(
            f'<rect class="{one.kind}" x="{start_ns * WIDTH / end_ns:.2f}" y="0" '
            f'width="{one.length_ns * WIDTH / end_ns:.2f}" height="{HEIGHT}">'
            f"<title>{KINDS[one.kind]} {ms(one.length_ns).text} ms, from {ms(start_ns).text} ms</title></rect>"
        )
    sums_ns = sum_by_kind(lane)
    said = ", ".join(f"{KINDS[kind]} {ms(sums_ns[kind]).text} ms" for kind in KINDS if kind in sums_ns)
    name = f"stage {lane.stage}, rank {lane.rank}"
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
    return (
        f'<div class="bar"><span title="{name}">{name}</span><svg {size} role="img" aria-label="{name}: {said}">'
        f"{''.join(rects)}</svg><span>{lane.window_ns / NS_PER_MS:,.1f} ms</span></div>"
    )


def sum_by_kind(lane: PipelineLane) -> Mapping[str, int]:
    """Return the ns of each kind of a lane."""
    found: dict[str, int] = {}
    for one in lane.segments:
        found[one.kind] = found.get(one.kind, 0) + one.length_ns
    return found
