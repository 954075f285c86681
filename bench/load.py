"""What a job of many ranks costs its collector: `python -m bench.load --ranks 64 1024 4096`

Every rank has a connection of its own over loopback TCP, encrypted (CURVE), and makes a report a second with the
agent's own encoder and delivery code (load_ranks.py). The collector is `rankscope serve` with a store, as an operator
starts it. Ranks and collector share the machine: CPU time is the kernel's account of the collector's process, so it
holds whatever else runs; latencies are what they are there.

`--storm` measures two storms of connects instead: all ranks within STORM_S of each other, and again after the collector
was killed and started anew.
"""

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.load_collector import LoadCollector, Usage
from bench.load_probe import SCRAPE_S, Looks, Probe, read_body
from bench.load_ranks import RANKS_PER_PROCESS, Progress, Task, run_ranks
from bench.load_reports import HELD_MAX, PERIOD_NS, RUN, SLOW_RANK
from bench.load_results import Load, Storm, render
from bench.machine import RESULTS, describe_run
from rankscope.measure.units import NS_PER_S, s_to_ns
from rankscope.uplink.reconnect import CONNECTS_PER_S

SIZES: Final = (64, 1_024, 4_096)
SECONDS: Final = 45.0
BEGIN_S: Final = 3.0
"""Until then every process has made its sockets."""
BEGIN_S_PER_RANK: Final = 1 / 1_500
STORM_S: Final = 3.0
SETTLE_S_MAX: Final = 180.0
DRAIN_S_MAX: Final = 120.0
LOOK_S: Final = 0.25
TELL_S_MAX: Final = 30.0
"""How long a picture may be older than the acknowledgement of what should be in it."""
PROBES: Final = 1
SHARD_RANKS: Final = 2_048
"""Of more ranks each shard of the page of ranks has a scrape of its own."""
WARM_S: Final = 3 * SCRAPE_S
"""The first scrape of a large page waits for it; and reports of the first seconds name all process groups."""
NICE_FROM: Final = 4_096
NICENESS: Final = 19
"""Of so many ranks the makers give way to the collector, which on machines of its own would have the cores to itself:
they take as much as it does. Fewer ranks need no such thing, and other work on the machine would stop them."""


class _RankCounts(msgspec.Struct):
    reports_admitted: int
    reports_duplicate: int
    report_gaps: int


class _Finding(msgspec.Struct):
    kind: str
    ranks: tuple[int, ...]


class _RunCounts(msgspec.Struct):
    """What is read of a run's picture."""

    ranks: tuple[_RankCounts, ...]
    findings: tuple[_Finding, ...]


class Measured(NamedTuple):
    """What was measured of one size in so many seconds, in which so many reports were made."""

    seconds: float
    made: int
    before: Usage
    after: Usage
    looks: Looks


class Ranks:
    """All ranks of the job, in processes of RANKS_PER_PROCESS. Made by `running`."""

    def __init__(
        self, count: int, collector: LoadCollector, connect_s: float, *, waits_for_word: bool, speed: int
    ) -> None:
        niceness = NICENESS if count >= NICE_FROM else 0
        context = multiprocessing.get_context("spawn")
        begin_ns = time.monotonic_ns() + s_to_ns(BEGIN_S + count * BEGIN_S_PER_RANK)
        self.begin_s = begin_ns / NS_PER_S
        self._controls: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        for first in range(0, count, RANKS_PER_PROCESS):
            own = range(first, min(first + RANKS_PER_PROCESS, count))
            task = Task(
                own, count, collector.endpoint, collector.keys, s_to_ns(connect_s), begin_ns, waits_for_word, niceness,
                PERIOD_NS // speed,
            )  # fmt: skip
            mine, theirs = context.Pipe()
            self._controls.append(mine)
            self.processes.append(context.Process(target=run_ranks, args=(task, theirs), daemon=True))
        self._last: list[Progress | None] = [None] * len(self.processes)

    def look(self) -> Progress | None:
        """Where all of them stand together; None before each has told."""
        for place, control in enumerate(self._controls):
            # After its last word a process ends, and its pipe with it.
            while not self._is_done(place) and control.poll():
                self._last[place] = control.recv()
        known = [one for one in self._last if one is not None]
        if len(known) < len(self._last):
            return None
        sums = {name: sum(getattr(one, name) for one in known) for name in Progress._fields}
        return Progress(**sums)._replace(
            behind_ns=max(one.behind_ns for one in known),
            welcomed_ns=min(one.welcomed_ns for one in known),
            is_done=all(one.is_done for one in known),
        )

    def _has_lost_one(self) -> bool:
        """Whether a process is gone without its last word: those that are through end before the others."""
        gone = [place for place, process in enumerate(self.processes) if not process.is_alive()]
        self.look()  # what they said last may not have been read
        return not all(map(self._is_done, gone))

    def _is_done(self, place: int) -> bool:
        last = self._last[place]
        return last is not None and last.is_done

    def wait_for(self, is_so: Callable[[Progress], bool], seconds_max: float, what: str) -> Progress:
        """Where they stand once it is so. Raises TimeoutError with where they stood last."""
        end_s = time.monotonic() + seconds_max
        while (found := self.look()) is None or not is_so(found):
            if time.monotonic() > end_s or self._has_lost_one():
                raise TimeoutError(f"{what}: not within {seconds_max:.0f} s, at last {found}")
            time.sleep(LOOK_S)
        return found

    def begin_reports(self) -> None:
        """Once all are there."""
        for control in self._controls:
            control.send("report")

    def stop(self) -> Progress:
        """No more reports; where they stand once everything is delivered."""
        for control in self._controls:
            control.send("stop")
        return self.wait_for(lambda found: found.is_done, DRAIN_S_MAX, "everything is delivered")


@contextmanager
def running(
    count: int, collector: LoadCollector, connect_s: float, *, waits_for_word: bool = False, speed: int = 1
) -> Iterator[Ranks]:
    """Ranks that begin to connect soon, and make `speed` reports a second from then on or from `begin_reports` on; they
    do not outlive the block.
    """
    ranks = Ranks(count, collector, connect_s, waits_for_word=waits_for_word, speed=speed)
    for process in ranks.processes:
        process.start()
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            process.kill()
            process.join()


@contextmanager
def collecting(count: int) -> Iterator[LoadCollector]:
    """A collector with room for the ranks and the probe, its keys and its store in a folder that goes with it."""
    with tempfile.TemporaryDirectory() as folder:
        collector = LoadCollector(Path(folder), count + PROBES)
        try:
            yield collector
        finally:
            collector.close()


def measure_load(count: int, seconds: float, *, scrapes: bool = True, warm_s: float = 0.0) -> Load:
    """A job of so many ranks for so long, after it has settled and been scraped for `warm_s`."""
    connect_s = count / CONNECTS_PER_S
    with collecting(count) as collector, running(count, collector, connect_s, waits_for_word=True) as ranks:
        ranks.wait_for(is_welcome, SETTLE_S_MAX, "all ranks are connected")
        ranks.begin_reports()
        ranks.wait_for(is_settled, SETTLE_S_MAX, "all ranks report")
        probe = Probe(collector.endpoint, collector.url, collector.keys, find_pages(count) if scrapes else ())
        probe.start()
        time.sleep(warm_s)
        before, began_s = collector.read_usage(), time.monotonic()
        made = _expect(ranks.look()).made
        time.sleep(seconds)
        after, took_s = collector.read_usage(), time.monotonic() - began_s
        made = _expect(ranks.look()).made - made
        looks = probe.end().since(began_s if warm_s else 0.0)
        last = ranks.stop()
        measured = Measured(took_s, made, before, after, looks)
        return build_load(count, measured, last, read_counts(collector, last.made))


def find_pages(count: int) -> tuple[str, ...]:
    """The pages that are scraped of so many ranks: one for them all, or one for each shard."""
    shards = -(-count // SHARD_RANKS)
    ranks = [f"/metrics/ranks?shard={shard}/{shards}" for shard in range(shards)] if shards > 1 else ["/metrics/ranks"]
    return ("/metrics", *ranks)


def measure_storm(count: int) -> Storm:
    """All ranks connect within STORM_S; then the collector is killed and started anew."""
    with collecting(count) as collector, running(count, collector, STORM_S) as ranks:
        ranks.wait_for(is_settled, SETTLE_S_MAX, "all ranks are connected")
        first_s = time.monotonic() - ranks.begin_s
        used = collector.read_usage()
        collector.kill()
        killed_s = time.monotonic()
        collector.start()
        started_s = time.monotonic()
        killed_ns = s_to_ns(killed_s)
        ranks.wait_for(
            lambda found: found.welcomed_ns > killed_ns and is_settled(found), SETTLE_S_MAX, "all are connected again"
        )
        again_s = time.monotonic() - started_s
        usage = collector.read_usage()
        last = ranks.stop()
        counts = read_counts(collector, last.made)
        resident = max(used.resident_bytes_max, usage.resident_bytes_max)
        return Storm(
            ranks=count, settled_s=first_s, again_s=again_s, start_s=started_s - killed_s,
            cpu_s=used.whole_cpu_s, cpu_again_s=usage.whole_cpu_s, resident_bytes=resident, made=last.made,
            dropped=last.reports_dropped, gaps=sum(rank.report_gaps for rank in counts.ranks),
        )  # fmt: skip


def is_welcome(found: Progress) -> bool:
    """Whether the collector knows every rank."""
    return found.welcomed == found.ranks


def is_settled(found: Progress) -> bool:
    """Whether every rank is welcome and holds no backlog."""
    return found.welcomed == found.ranks and found.made >= found.ranks and found.held <= HELD_MAX * found.ranks


def build_load(count: int, measured: Measured, last: Progress, counts: _RunCounts) -> Load:
    """The figures of one size; `last` and `counts` are of the end."""
    seconds, made, before, after, looks = measured
    cpu = {name: (used - before.cpu_s.get(name, 0.0)) / seconds for name, used in after.cpu_s.items()}
    return Load(
        ranks=count,
        seconds=seconds,
        reports_per_s=made / seconds,
        made=last.made,
        acknowledged=last.made - last.held - last.reports_dropped,
        admitted=sum(rank.reports_admitted for rank in counts.ranks),
        duplicates=sum(rank.reports_duplicate for rank in counts.ranks),
        gaps=sum(rank.report_gaps for rank in counts.ranks),
        found_slow_rank=any(SLOW_RANK in finding.ranks for finding in counts.findings),
        cores=cpu,
        resident_bytes=after.resident_bytes_max,
        resident_bytes_last=after.resident_bytes,
        publisher_cores=(after.publisher_cpu_s - before.publisher_cpu_s) / seconds,
        publisher_bytes=after.publisher_bytes_max,
        visible_s=tuple(age for _, age in looks.ages),
        answered_s=tuple(answer for _, answer in looks.answered),
        read_pauses_s=tuple(pause for _, pause in looks.read_pauses),
        scrapes=tuple(looks.scrapes),
        makers_behind_s=last.behind_ns / NS_PER_S,
    )


def read_counts(collector: LoadCollector, made: int) -> _RunCounts:
    """What the collector knows of the run, once it shows all reports that were made, or TELL_S_MAX later."""
    end_s = time.monotonic() + TELL_S_MAX
    while True:
        _, body = read_body(f"{collector.url}/api/v1/runs/{RUN}")
        counts = msgspec.json.decode(body, type=_RunCounts)
        if sum(rank.reports_admitted for rank in counts.ranks) >= made or time.monotonic() > end_s:
            return counts
        time.sleep(LOOK_S)


def _expect(found: Progress | None) -> Progress:
    if found is None:
        raise RuntimeError("the ranks have told nothing")
    return found


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="What a job of many ranks costs its collector.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"measured time of each size [{SECONDS:g}]")
    parser.add_argument("--storm", action="store_true", help="measure storms of connects instead")
    parser.add_argument("--no-scrapes", action="store_true", help="nobody asks for the metrics meanwhile")
    parser.add_argument("--out", type=Path, default=None, help="the file to write")
    options = parser.parse_args()
    arguments = f"--ranks {' '.join(map(str, options.ranks))}"
    if options.storm:
        head = describe_run(f"python -m bench.load --storm {arguments}")
        text = render(head, [], [measure_storm(count) for count in options.ranks])
    else:
        head = describe_run(f"python -m bench.load {arguments} --seconds {options.seconds:g}")
        loads = [
            measure_load(count, options.seconds, scrapes=not options.no_scrapes, warm_s=WARM_S)
            for count in options.ranks
        ]
        text = render(head, loads, [])
    out = options.out or RESULTS / ("storm.md" if options.storm else "load.md")
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
