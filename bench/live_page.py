"""What the live page costs the browser and the collector: `python -m bench.live_page`.

A job of 64, 1,024, 4,096 and 16,384 ranks with 64 steps and three open findings is served to a chromium without a GPU.
In the page are timed how long one answer takes to be read and to be drawn, and how long a frame takes while the cursor
walks over the picture. Each is read back from the canvas, so that the browser cannot put it off. At the collector's
side the CPU time of what is asked for, on one thread.
"""

import gzip
import statistics
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from selenium.webdriver import Chrome

from bench.machine import RESULTS, describe_run
from rankscope.collector.publish.api import heat_map
from rankscope.collector.publish.api.live_snapshot import build_live_snapshot
from rankscope.collector.publish.api.machine_views import list_machines
from rankscope.collector.publish.api.rank_views import list_ranks, show_rank
from rankscope.collector.publish.api.step_breakdown import RunTimeBreakdown
from rankscope.collector.publish.routes import GZIP_LEVEL
from rankscope.collector.runs.rank_orders import BY_SLOWDOWN
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.integration.chromium import starting_chromium
from tests.integration.live_pages import LivePage
from tests.integration.live_worlds import STEPS, LiveWorld, huge_run, totals_of

RANKS: Final = (64, 1_024, 4_096, 16_384)
RUN: Final = "measured"
FRAMES: Final = 60
REPEATS: Final = 7
RESULT: Final = RESULTS / "live_page.md"
MS: Final = 1_000.0
MEASURE: Final = """
const [run, frames, done] = arguments;
const { HeatMap, decode } = await import(new URL("live/heat_map.js", document.baseURI));
const canvas = document.body.appendChild(document.createElement("canvas"));
canvas.style.height = "416px";
const time = async (work) => {
  const begin = performance.now();
  const found = await work();
  return [performance.now() - begin, found];
};
const [fetched, body] = await time(async () => (await fetch(`api/v1/runs/${run}/heatmap`)).arrayBuffer());
const [decoded, map] = await time(() => decode(body));
const found = document.body.appendChild(document.createElement("ol"));
const heat = new HeatMap(canvas, { found, onRead() {}, onPick() {}, onView() {} });
const finding = (number, rank) =>
  ({ number, ranks: [rank], since_step: 16, slowdown_ratio: 1.3, cause: "host_cpu", nodes: [] });
heat.setFound([3, 5, 7].map((part, place) => finding(place, Math.floor(map.ranks.length / part))), run);
const settle = () => canvas.getContext("2d").getImageData(0, 0, 1, 1);
const [shown] = await time(() => { heat.show(map); settle(); });
const walked = [];
for (let frame = 0; frame < frames; frame += 1) {
  const cell = { row: Math.floor((frame / frames) * map.ranks.length), column: frame % map.columns.length };
  walked.push((await time(() => { heat.moveTo(cell); settle(); }))[0]);
}
for (const one of [canvas, found]) one.remove();
done({ fetched, decoded, shown, walked });
"""


class Measured(NamedTuple):
    """One size; times in ms. `frame` is the median while the cursor walks, `longest_frame` the longest."""

    ranks: int
    fetch: float
    decode: float
    show: float
    frame: float
    longest_frame: float
    event: float
    map_: float
    compressed: float
    slowest: float
    beside: float
    machines: float
    shares: float
    map_kib: float


def main() -> None:
    """Measure, and write the result."""
    head = describe_run("python -m bench.live_page")
    with starting_chromium() as browser:
        browser.set_window_size(1300, 1200)
        found = [measure(browser, ranks) for ranks in RANKS]
    RESULT.write_text(render(head, found), encoding="utf-8")


def measure(browser: Chrome, ranks: int) -> Measured:
    """One size."""
    run, picture = huge_run(RUN, ranks, ranks // 3)
    world = LiveWorld()
    world.show(run, steps={RUN: picture})
    with world.serve() as server:
        page = LivePage(browser, server).open(f"#run={RUN}")
        page.wait_for_map(STEPS, ranks)
        page.click("#pause")  # the page's own asking would be timed as well
        seen: dict[str, Any] = page.browser.execute_async_script(f"(async () => {{ {MEASURE} }})()", RUN, FRAMES)
    body = heat_map.of_steps(RUN, ranks, picture)
    return Measured(
        ranks=ranks,
        fetch=seen["fetched"],
        decode=seen["decoded"],
        show=seen["shown"],
        frame=statistics.median(seen["walked"]),
        longest_frame=max(seen["walked"]),
        event=time_cpu(lambda: msgspec.json.encode(build_live_snapshot(world.snapshot, RUN))),
        map_=time_cpu(lambda: heat_map.of_steps(RUN, ranks, picture)),
        compressed=time_cpu(lambda: gzip.compress(body, GZIP_LEVEL)),
        slowest=time_cpu(lambda: msgspec.json.encode(list_ranks(run, BY_SLOWDOWN, 0, 10))),
        beside=time_cpu(lambda: msgspec.json.encode(show_rank(run, 2, picture))),
        machines=time_cpu(lambda: msgspec.json.encode(list_machines(run))),
        shares=time_shares(run),
        map_kib=len(gzip.compress(body, GZIP_LEVEL)) / 1024,
    )


def time_cpu(work: Callable[[], object]) -> float:
    """The median CPU time of this thread, in ms."""
    spent = []
    for _ in range(REPEATS):
        begin = time.thread_time()
        work()
        spent.append(time.thread_time() - begin)
    return statistics.median(spent) * MS


def time_shares(run: RunSnapshot) -> float:
    """The same of one stretch of time, added up over all ranks."""
    shares, wall_s = RunTimeBreakdown(), 0.0
    shares.record(run.read_totals(), wall_s)
    spent = []
    for repeat in range(1, REPEATS + 1):
        ranks = (msgspec.structs.replace(rank, totals=totals_of(STEPS + repeat)) for rank in run.ranks)
        later = msgspec.structs.replace(run, ranks=tuple(ranks))
        begin = time.thread_time()
        shares.record(later.read_totals(), wall_s := wall_s + STEPS)
        spent.append(time.thread_time() - begin)
    return statistics.median(spent) * MS


def render(head: str, found: list[Measured]) -> str:
    """The page of the result."""
    in_browser = "\n".join(
        f"| {one.ranks:,} | {one.map_kib:,.0f} KiB | {one.fetch:.0f} ms | {one.decode:.1f} ms | {one.show:.1f} ms | "
        f"{one.frame:.1f} ms | {one.longest_frame:.1f} ms |"
        for one in found
    )
    at_collector = "\n".join(
        f"| {one.ranks:,} | {one.event:.1f} ms | {one.map_:.1f} ms | {one.compressed:.1f} ms | {one.slowest:.1f} ms | "
        f"{one.beside:.1f} ms | {one.machines:.1f} ms | {one.shares:.1f} ms |"
        for one in found
    )
    return f"""# What the live page costs

{head}

{(__doc__ or "").partition(chr(10) * 2)[2]}
## In the browser

Sent is the heat map of {STEPS} steps, compressed. `frame`: the median of {FRAMES} frames while the cursor walks.

| ranks | sent | asked for | read | first drawn | frame | longest frame |
|---|---|---|---|---|---|---|
{in_browser}

## At the collector, CPU time of one thread

An event is made once for all who follow a run, a heat map once for all who look at one; it is compressed for each. The
shares of time are added up every 2 s, of 16,384 ranks every 32 s, and less often the longer a run is.

| ranks | an event | a heat map | compressed | the slowest ranks | one beside its peers | machines | shares of time |
|---|---|---|---|---|---|---|---|
{at_collector}
"""


if __name__ == "__main__":
    main()
