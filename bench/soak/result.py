"""The page with the result of a soak."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bench.soak.plan import KINDS, Shape
from bench.soak.run import SoakResult, SoakSettings
from bench.soak.watch import S_PER_MIN, MemorySample, Trend

ROWS: Final = 30
"""Of the memory over time."""

MIB: Final = 1 << 20
BARS: Final = "▁▂▃▄▅▆▇█"


def render(result: SoakResult, head: str) -> str:
    """The page, in Markdown."""
    shape, settings = result.shape, result.settings
    minutes = result.seconds / S_PER_MIN
    parts: tuple[tuple[str, Iterable[str]], ...] = (
        (f"# {shape.ranks:,} ranks and one collector through {minutes:.0f} minutes of faults", [head]),
        ("", _say_what(shape, settings)),
        ("", _say_verdict(result)),
        ("## Faults", _say_faults(result)),
        ("## Memory", _say_memory(result)),
        ("## What became of every step", _say_accounts(result)),
    )
    lines = [line for title, body in parts for line in (*([title, ""] if title else []), *body, "")]
    return "\n".join(lines)


def _say_what(shape: Shape, settings: SoakSettings) -> Iterator[str]:
    yield f"{shape.runs} runs of {shape.nodes_per_run} nodes of {shape.ranks_per_node} ranks, each with a connection,"
    yield "a buffer and a spill of its own (run soak-0 has room for 8 reports and no disk: it must lose some), a report"
    yield f"of three steps every {settings.interval_s:g} s, over CURVE to one `rankscope serve` with a store. Its pages"
    yield f"are read every {settings.scrape_s:g} s."


def _say_verdict(result: SoakResult) -> Iterator[str]:
    if result.problems:
        yield f"**{len(result.problems)} problems:**"
        yield ""
        yield from (f"- {problem}" for problem in result.problems[:ROWS])
    else:
        yield "**Nothing lost that is not counted, no counter went backwards, /readyz said what was so.**"
    yield ""
    watch, left = result.watch, result.left
    cpu_s, waited_s = sum(watch.cpu_s.values()), sum(watch.waited_s.values())
    yield f"- {result.collectors} collectors one after the other; {len(result.faults)} faults"
    yield f"- {watch.scrapes} scrapes, the longest {watch.longest_scrape_s:.1f} s; {watch.scrapes_failed} had no answer"
    yield f"- {watch.weak} pages and /readyz said that nothing could be written to the store"
    yield f"- {watch.comparisons:,} times a counter was compared with itself on the page before"
    yield (
        f"- CPU of the collectors {cpu_s:.0f} s, which is {cpu_s / result.seconds:.2f} cores; their threads waited "
        f"{waited_s:.0f} s for a core that others had"
    )
    yield (
        f"- {left.reports:,} reports of {left.lives:,} killed lives delivered from the disk, {left.lives_left} lives "
        f"left there; {result.resends:,} frames sent again by the lives of the end"
    )
    yield f"- counted by the collectors: {_say_reasons(result)}"


def _say_reasons(result: SoakResult) -> str:
    total: Counter[str] = Counter()
    for reasons in result.watch.reasons.values():
        for (name, reason), count in reasons.items():
            total[f"{name.removeprefix('rankscope_').removesuffix('_total')} {reason}"] += count
    return ", ".join(f"{count:,} {what}" for what, count in sorted(total.items())) or "nothing"


def _say_faults(result: SoakResult) -> Iterator[str]:
    counts = Counter(done.planned.kind for done in result.faults)
    yield "| fault | times | lasted, s | until all is well again, s: median, longest |"
    yield "|---|---|---|---|"
    for kind in KINDS:
        done = [one for one in result.faults if one.planned.kind == kind]
        if not done:
            continue
        lasted = [one.planned.duration_s for one in done]
        healed = [one.healed_s for one in done]
        yield (
            f"| {kind} | {counts[kind]} | {min(lasted):.0f} to {max(lasted):.0f} "
            f"| {statistics.median(healed):.1f}, {max(healed):.1f} |"
        )
    if not result.has_small_disk:
        yield ""
        yield "No small disk could be mounted (that needs root): the disk was not filled."
    yield ""
    yield "When, in seconds from the start: " + "; ".join(
        f"{one.began_s:.0f} {one.planned.kind}" for one in result.faults
    )


def _say_memory(result: SoakResult) -> Iterator[str]:
    warm_up = f"after the first {result.settings.warm_up_s:.0f} s of each process"
    yield f"- collector: {_say_trend(result.collector_trend)}, {warm_up}"
    yield f"- nodes ({result.shape.ranks_per_node} ranks each): {_say_trend(result.node_trend)} a node, {warm_up}"
    yield ""
    collector = _by_interval(result.watch.collector_memory, result.seconds)
    node = _by_interval(result.watch.node_memory, result.seconds)
    yield f"collector `{_draw(collector)}` {min(collector):.0f} to {max(collector):.0f} MiB"
    yield ""
    yield f"node, mean `{_draw(node)}` {min(node):.0f} to {max(node):.0f} MiB"
    yield ""
    yield "| minute | collector MiB | node MiB, mean |"
    yield "|---|---|---|"
    minutes = result.seconds / S_PER_MIN / len(collector)
    for number, (mine, theirs) in enumerate(zip(collector, node, strict=True)):
        yield f"| {number * minutes:.1f} | {mine:.1f} | {theirs:.1f} |"


def _say_trend(trend: Trend | None) -> str:
    if trend is None:
        return "no process lived long enough for a slope"
    return f"{trend.mib_per_min:+.3f} MiB/min over {trend.minutes:.0f} minutes of {trend.processes} processes"


def _by_interval(samples: Sequence[MemorySample], seconds: float) -> list[float]:
    """The mean MiB of a process in each of ROWS parts of the time; of a part without a sample, the one before."""
    sums: list[list[int]] = [[] for _ in range(ROWS)]
    for sample in samples:
        sums[min(ROWS - 1, int(sample.at_s / seconds * ROWS))].append(sample.resident_bytes)
    means: list[float] = []
    for part in sums:
        means.append(statistics.fmean(part) / MIB if part else (means[-1] if means else 0.0))
    return means


def _draw(values: Sequence[float]) -> str:
    """A line of bars from 0 to the largest."""
    top = max(values) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] for value in values)


def _say_accounts(result: SoakResult) -> Iterator[str]:
    yield "Of the lives that lived at the end; what killed ones had left was delivered before."
    yield ""
    yield "| run | restarts | made | published | elsewhere | overwritten | dropped | late | gaps | unaccounted |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in result.runs:
        yield (
            f"| {one.run} | {one.restarts} | {one.made:,} | {one.published:,} | {one.elsewhere:,} "
            f"| {one.overwritten:,} | {one.dropped:,} | {one.late:,} | {one.gaps:,} | {one.unaccounted} |"
        )
