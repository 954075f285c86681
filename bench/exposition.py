"""What the pages of metrics of a large run cost: `python -m bench.exposition [--ranks 1024 16384]`.

Every rank has everything: a GPU, profiled windows, two kinds of collective, five phases, torch's allocator. Measured in
one process each, side by side: the library's writer with its own compression, and ours with isal, besides zlib.
`--no-library` leaves the first one out, which takes half a minute at 16,384 ranks.

The longest time for which another thread did not get the interpreter is what a thread sees that sleeps for half a
millisecond again and again; beside it stands what it sees while nothing else goes on, which is the machine's own part.

Answers are measured over HTTP on loopback, on a beat as a Prometheus has it, by a process of their own.
"""

import argparse
import gzip
import multiprocessing
import statistics
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from isal import isal_zlib
from msgspec.structs import replace

from bench.machine import RESULTS, describe_run, run_apart
from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.publish.metrics.page_cache import GZIP_LEVEL, GZIP_WINDOW_BITS
from rankscope.collector.publish.metrics.pages import METRICS_PATH, RANKS_PATH, MetricPages, Page, Shard
from rankscope.collector.publish.metrics.text_format import TextFormat
from rankscope.collector.runs.snapshot import RankSnapshot, Snapshot
from tests.full_snapshot import full_rank, full_snapshot, with_runs
from tests.library_exporter import render_by_library

SIZES = (1_024, 16_384)
RANKS_PER_NODE = 8
SHARDS = 8
UNBOUNDED = 10**9
"""`series_max` of a benchmark that is to write everything."""
GZIP_LEVEL_OF_LIBRARY = 9
NAP_S = 0.0005
BASELINE_S = 2.0
SCRAPE_S = 15.0
SCRAPES = 7
SCRAPES_TO_LEARN = 3
MIB = 1 << 20

Times = dict[str, list[float]]


class Result(NamedTuple):
    """What one writer took for one page. Times in seconds; `gap_s` is the longest another thread waited."""

    ranks: int
    writer: str
    page: str
    samples: int
    text_bytes: int
    cpu_s: float
    wall_s: float
    gap_s: float
    gzip: str
    gzip_s: float
    gzip_bytes: int


class Answer(NamedTuple):
    """How long the scrapes of a page, or of pages of one kind, took in the client."""

    page: str
    what: str
    taken_s: list[float]


class Gaps:
    """The longest time that a thread waited for the interpreter beyond what it slept."""

    longest_s = 0.0


@contextmanager
def watch_gaps() -> Iterator[Gaps]:
    """Watch until the block ends."""
    gaps, stop = Gaps(), threading.Event()

    def look() -> None:
        while not stop.is_set():
            began_s = time.perf_counter()
            time.sleep(NAP_S)
            gaps.longest_s = max(gaps.longest_s, time.perf_counter() - began_s - NAP_S)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield gaps
    finally:
        stop.set()
        thread.join()


def build_snapshot(ranks: int) -> Snapshot:
    """One run of so many ranks, each with names and numbers of its own."""
    model, full = full_snapshot(), full_rank(0)
    run = replace(model.runs[0], world_size=ranks, ranks=tuple(_build_rank(full, rank) for rank in range(ranks)))
    return with_runs(model, (run,))


def _build_rank(full: RankSnapshot, rank: int) -> RankSnapshot:
    identity = replace(
        full.identity, rank=rank, local_rank=rank % RANKS_PER_NODE, node=f"node-{rank // RANKS_PER_NODE:04}"
    )
    phases_ns = {name: nanoseconds + 7_919 * rank for name, nanoseconds in full.totals.phases_ns.items()}
    totals = replace(full.totals, step_ns=sum(phases_ns.values()), phases_ns=phases_ns)
    device = replace(full.devices[0], uuid=f"GPU-{rank:032x}", power_watts=400.0 + rank / 64)
    slowdown_ratio = 1.0 + rank / 2**20
    return replace(full, identity=identity, totals=totals, devices=(device,), slowdown_ratio=slowdown_ratio)


def measure_baseline() -> float:
    """The longest gap while nothing goes on."""
    with watch_gaps() as gaps:
        time.sleep(BASELINE_S)
    return gaps.longest_s


def measure_library(ranks: int) -> list[Result]:
    """The library's writer, everything on one page."""
    snapshot = build_snapshot(ranks)
    with watch_gaps() as gaps:
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        text = render_by_library(snapshot, TextFormat.CLASSIC).encode()
        cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
    gzip_s = time.thread_time()
    compressed = gzip.compress(text, GZIP_LEVEL_OF_LIBRARY)
    gzip_s = time.thread_time() - gzip_s
    return [
        Result(
            ranks, "prometheus-client", "everything", _count_samples([text]), len(text), cpu_s, wall_s, gaps.longest_s,
            f"zlib {GZIP_LEVEL_OF_LIBRARY}", gzip_s, len(compressed),
        )
    ]  # fmt: skip


def measure_columns(ranks: int) -> list[Result]:
    """Our writer, page by page, each for the second time: its labels are there then, as they are in a collector."""
    snapshot = build_snapshot(ranks)
    pages = MetricPages(series_max=UNBOUNDED, metrics_ranks_max=0)
    asked = (Page(METRICS_PATH), Page(RANKS_PATH), Page(RANKS_PATH, Shard(0, SHARDS)))
    return [_measure_page(pages, snapshot, page, ranks) for page in asked]


def _measure_page(pages: MetricPages, snapshot: Snapshot, page: Page, ranks: int) -> Result:
    for _ in pages.render(snapshot, page, TextFormat.CLASSIC):
        pass
    with watch_gaps() as gaps:
        cpu_s, wall_s = time.thread_time(), time.perf_counter()
        pieces = list(pages.render(snapshot, page, TextFormat.CLASSIC))
        cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
    sizes: dict[str, tuple[float, int]] = {}
    for name, library in (("isal", isal_zlib), ("zlib", zlib)):
        sizes[name] = _time_compression(library, pieces)
    gzip_s, gzip_bytes = sizes["isal"]
    return Result(
        ranks, "by column", page.name, _count_samples(pieces), sum(map(len, pieces)), cpu_s, wall_s, gaps.longest_s,
        f"isal {GZIP_LEVEL} (zlib {GZIP_LEVEL}: {sizes['zlib'][0]:.2f} s)", gzip_s, gzip_bytes,
    )  # fmt: skip


def _time_compression(library: Any, pieces: list[bytes]) -> tuple[float, int]:
    began_s = time.thread_time()
    compressor = library.compressobj(GZIP_LEVEL, wbits=GZIP_WINDOW_BITS)
    size = sum(len(compressor.compress(piece)) for piece in pieces) + len(compressor.flush())
    return time.thread_time() - began_s, size


def _count_samples(pieces: list[bytes]) -> int:
    return sum(piece.count(b"\n") - piece.count(b"# HELP") - piece.count(b"# TYPE") for piece in pieces)


def measure_answers(ranks: int) -> list[Answer]:
    """How long a scrape takes in the client, which asks for /metrics and the ranks whole, and then, of another server,
    for /metrics and the ranks in shards. The first scrapes of a page, from which the beat is learned, do not count.
    """
    snapshot = build_snapshot(ranks)
    whole = [METRICS_PATH, RANKS_PATH]
    in_shards = [METRICS_PATH, *(f"{RANKS_PATH}?shard={part}/{SHARDS}" for part in range(SHARDS))]
    answers = []
    for targets in (whole, in_shards):
        taken_s = _ask(snapshot, targets)
        answers.append(Answer(targets[0], f"with {targets[1]}", taken_s[0]))
        answers.append(Answer(f"{RANKS_PATH}", f"{len(targets) - 1} pages", [s for each in taken_s[1:] for s in each]))
    return answers


def _ask(snapshot: Snapshot, targets: list[str]) -> list[list[float]]:
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: with_runs(snapshot, snapshot.runs), tuple,
        is_healthy=lambda: None, is_ready=lambda: None,
        metric_pages=MetricPages(series_max=UNBOUNDED, metrics_ranks_max=0),
    )  # fmt: skip
    try:
        return run_apart(scrape, [server.url + target for target in targets])
    finally:
        server.close()


def scrape(urls: list[str]) -> list[list[float]]:
    """Ask for each url on an even beat, each for itself as Prometheus does, at even distances from each other."""
    begin_s = time.monotonic()
    offsets_s = [place * SCRAPE_S / len(urls) for place in range(len(urls))]
    with ThreadPoolExecutor(len(urls)) as threads:
        return list(threads.map(lambda url, offset_s: _scrape_url(url, begin_s + offset_s), urls, offsets_s))


def _scrape_url(url: str, first_s: float) -> list[float]:
    taken_s = []
    for beat in range(SCRAPES):
        time.sleep(max(0.0, first_s + beat * SCRAPE_S - time.monotonic()))
        asked_s = time.perf_counter()
        request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            answer.read()
        taken_s.append(time.perf_counter() - asked_s)
    return taken_s[SCRAPES_TO_LEARN:]


def _in_a_process_of_its_own(what: Callable[[int], Any], ranks: int) -> Any:
    # Not of a pool: those may have no processes of their own, and the client is one.
    with multiprocessing.get_context("spawn").Manager() as manager:
        found = manager.list()
        process = multiprocessing.get_context("spawn").Process(target=_keep, args=(what, ranks, found))
        process.start()
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"{what.__name__} of {ranks} ranks ended with {process.exitcode}")
        return found[0]


def _keep(what: Callable[[int], Any], ranks: int, found: Any) -> None:
    found.append(what(ranks))


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="What the pages of metrics of a large run cost.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--no-library", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS / "exposition.md")
    options = parser.parse_args()
    command = f"python -m bench.exposition --ranks {' '.join(map(str, options.ranks))}"
    head = describe_run(f"{command}{' --no-library' if options.no_library else ''}")
    baseline_s = measure_baseline()
    rows: list[Result] = []
    for ranks in options.ranks:
        if not options.no_library:
            rows += _in_a_process_of_its_own(measure_library, ranks)
        rows += _in_a_process_of_its_own(measure_columns, ranks)
    answers = _in_a_process_of_its_own(measure_answers, max(options.ranks))
    text = write_down(head, rows, answers, baseline_s)
    options.out.write_text(text)
    print(text)


def write_down(head: str, rows: list[Result], answers: list[Answer], baseline_s: float) -> str:
    """The result as Markdown."""
    lines = [
        "# What the pages of metrics cost", "", head, "",
        "One run, every rank with everything. CPU and compression are of one thread. The wait is the longest for",
        f"which another thread did not get the interpreter; with nothing to do here it was {baseline_s * 1e3:.1f} ms,",
        "which is the machine's part.", "",
        "| ranks | writer | page | samples | text | CPU | a sample | time | wait | gzip by | CPU | size |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row.ranks:,} | {row.writer} | {row.page} | {row.samples:,} | {row.text_bytes / MIB:.1f} MiB | "
        f"{row.cpu_s:.2f} s | {row.cpu_s / row.samples * 1e6:.2f} us | {row.wall_s:.2f} s | {row.gap_s * 1e3:.0f} ms | "
        f"{row.gzip} | {row.gzip_s:.2f} s | {row.gzip_bytes / MIB:.2f} MiB |"
        for row in rows
    ]
    lines += [
        "",
        f"Scrapes of {max(row.ranks for row in rows):,} ranks over HTTP, every {SCRAPE_S:.0f} s, each a new snapshot:",
        "the time until all of the answer is read. The client, and whatever else the machine does, share its cores.",
        "", "| page | | scrapes | median | longest |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for page, what, taken_s in answers:
        median_ms, longest_ms = statistics.median(taken_s) * 1e3, max(taken_s) * 1e3
        lines.append(f"| {page} | {what} | {len(taken_s)} | {median_ms:.0f} ms | {longest_ms:.0f} ms |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
