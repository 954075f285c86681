"""What memory a collector takes after hours: `python -m bench.memory [--ranks 1024] [--hours 2]`

A minute of load shows the least of it: rings of samples fill with every report. So here the ranks of a load test make
`--speed` reports a second, and memory is told by how many each has made: at one a second these are seconds. All else is
as in bench/load.py: real connections, keys, a store, scrapes.

What grows with time itself is not hastened: lines of the history, and findings of a job whose steps take ten times as
long as they may.
"""

import argparse
from pathlib import Path
from typing import Final, NamedTuple

from bench.load import SETTLE_S_MAX, Ranks, collecting, find_pages, is_welcome, running
from bench.load_collector import MIB, LoadCollector
from bench.load_probe import Probe
from bench.machine import RESULTS, describe_run, render_result
from rankscope.uplink.reconnect import CONNECTS_PER_S

RANKS: Final = 1_024
HOURS: Final = 2.0
SPEED: Final = 10
POINTS: Final = (10, 60, 300, 900, 1_800, 3_600, 7_200, 14_400, 28_800)
"""Reports of each rank at which memory is told."""
REPORTS_PER_HOUR: Final = 3_600
SLOWNESS_MAX: Final = 4
"""A machine that cannot keep up may take so many times as long."""
KIB: Final = 1 << 10


class Point(NamedTuple):
    """Resident memory in bytes after so many reports of each rank."""

    reports: int
    resident_bytes: int


class Growth(NamedTuple):
    """Of one size: the process before anybody connected, and what it took later on."""

    ranks: int
    bare_bytes: int
    points: list[Point]


def measure(count: int, reports: int, speed: int) -> Growth:
    """A job of so many ranks until each has made so many reports."""
    connect_s = count / CONNECTS_PER_S
    with collecting(count) as collector:
        bare_bytes = collector.read_usage().resident_bytes
        with running(count, collector, connect_s, waits_for_word=True, speed=speed) as ranks:
            ranks.wait_for(is_welcome, SETTLE_S_MAX, "all ranks are connected")
            points = [Point(0, collector.read_usage().resident_bytes)]
            probe = Probe(collector.endpoint, collector.url, collector.keys, find_pages(count))
            probe.start()
            ranks.begin_reports()
            points += [_wait_for(ranks, collector, at, speed) for at in sorted({*POINTS, reports}) if at <= reports]
            probe.end()
            ranks.stop()
    return Growth(count, bare_bytes, points)


def _wait_for(ranks: Ranks, collector: LoadCollector, reports: int, speed: int) -> Point:
    """When each rank has made so many."""
    ranks.wait_for(
        lambda found: found.made >= reports * found.ranks, SLOWNESS_MAX * (reports / speed + 60.0), f"{reports} reports"
    )
    return Point(reports, collector.read_usage().resident_bytes)


def render(head: str, growths: list[Growth]) -> str:
    """The result file."""
    lines = ["| ranks | reports of each rank | as time | resident | KiB a rank |", "|---|---|---|---|---|"]
    for ranks, bare_bytes, points in growths:
        lines.append(f"| {ranks:,} | before they connect | | {bare_bytes / MIB:.0f} MiB | |")
        for reports, resident_bytes in points:
            each = (resident_bytes - bare_bytes) / ranks / KIB
            hours, minutes = divmod(reports // 60, 60)
            lines.append(
                f"| {ranks:,} | {reports:,} | {hours}:{minutes:02} h | {resident_bytes / MIB:.0f} MiB | {each:.1f} |"
            )
    return render_result("What memory a collector takes after hours", head, __doc__, "\n".join(lines))


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="What memory a collector takes after hours.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[RANKS])
    parser.add_argument("--hours", type=float, default=HOURS, help=f"of a report a second [{HOURS:g}]")
    parser.add_argument("--speed", type=int, default=SPEED, help=f"reports a second of each rank [{SPEED}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.md")
    options = parser.parse_args()
    arguments = f"--ranks {' '.join(map(str, options.ranks))} --hours {options.hours:g} --speed {options.speed}"
    head = describe_run(f"python -m bench.memory {arguments}")
    reports = round(options.hours * REPORTS_PER_HOUR)
    text = render(head, [measure(count, reports, options.speed) for count in options.ranks])
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
