"""How many ranks one collector holds behind relays: `python -m bench.fan_in --ranks 1024 8192 16384 32768`

Eight ranks a node, a report a second of each rank, a batch a second of each node, encrypted (CURVE) over loopback TCP
(fan_in_nodes.py). The collector is `rankscope serve` as an operator starts it. Nodes and collector share the machine:
CPU time is the kernel's account of the collector's process, so it holds whatever else runs there; ranks report less
often where the machine does not let the collector keep up, and the table says how often they did. Without reports the
collector still compares the ranks every second: that is what it takes idle. One report a second of every rank takes
`ranks * us a report` and that.

Last, one real relay in a process of its own, with the ranks of a node behind it on real sockets.
"""

import argparse
import json
import math
import multiprocessing
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench.fan_in_nodes import Progress, Task, describe, run_nodes
from bench.load import PROBES, find_pages
from bench.load_collector import read_publisher
from bench.load_probe import SCRAPE_S, Probe, Scrape
from bench.load_reports import RANKS_PER_NODE, RUN
from bench.load_results import describe_scrapes, find_quantile
from bench.machine import RESULTS, describe_run
from rankscope.collector.keys import make_keys
from rankscope.measure.key_files import ClientKeys, read_key_pair, read_public_key
from rankscope.measure.units import ns_to_s
from tests.integration.fault_figures import read_cpu_s, read_resident_bytes
from tests.integration.light_ranks import crew_of
from tests.integration.relaying import relaying
from tests.integration.serving import serving

SIZES: Final = (1_024, 8_192, 16_384, 32_768)
SECONDS: Final = 45.0
RANKS_PER_PROCESS: Final = 8_192
START_S_MAX: Final = 60.0
SETTLE_S_MAX: Final = 180.0
LOOK_S: Final = 0.5
ROUNDS_TO_SETTLE: Final = 3
"""Reports of every rank before measuring; the first ones tell of all process groups."""
IDLE_S: Final = 8.0
SETTLE_RELAY_S: Final = 5.0
HTTP_S_MAX: Final = 180.0


class _RankCounts(msgspec.Struct):
    reports_admitted: int
    reports_duplicate: int
    report_gaps: int


class _RunCounts(msgspec.Struct):
    """What is read of the run's picture."""

    ranks: tuple[_RankCounts, ...]


class FanIn(NamedTuple):
    """The figures of one size. Per second, of the measured seconds; `made` and what follows to the very end."""

    ranks: int
    seconds: float
    reports_per_s: float
    batches_per_s: float
    cores: float
    idle_cores: float
    us_a_report: float
    resident_bytes: int
    publisher_cores: float
    publisher_bytes: int
    visible_s: tuple[float, ...]
    answered_s: tuple[float, ...]
    scrapes: tuple[Scrape, ...]
    loader_cores: float
    made: int
    admitted: int
    duplicates: int
    gaps: int
    resends: int


class RelayCost(NamedTuple):
    """What one relay takes: CPU time for a report with all that belongs to it, and memory."""

    reports_per_s: float
    us_a_report: float
    resident_bytes: int


class Collector:
    """A `rankscope serve` with keys. Made by `collecting`."""

    def __init__(self, folder: Path, ranks: int) -> None:
        make_keys(folder, [], relays=["node"], force=False)
        server = read_public_key(str(folder / "collector.pub"), "collector_key_file")
        self.keys = ClientKeys(server, read_key_pair(str(folder / "node.key"), "key_file"))
        settings = {
            "listen": "tcp://127.0.0.1:0", "http-listen": "127.0.0.1:0", "ranks-max": str(ranks + PROBES),
            "store": str(folder / "store.db"),
            "key-file": f"{folder}/collector.key", "allowed-keys": f"{folder}/allowed",
        }  # fmt: skip
        command = [sys.executable, "-m", "rankscope.collector", "serve", "--announce"]
        command += [word for name, value in settings.items() for word in (f"--{name}", value)]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.pid = self._child.pid
        stdout = self._child.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], START_S_MAX)[0]:
            self.close()
            raise TimeoutError("the collector did not say where it listens")
        announced = json.loads(stdout.readline())
        self.endpoint: str = announced["endpoint"]
        self.url: str = announced["metrics_url"].removesuffix("/metrics")

    def read_run(self) -> _RunCounts:
        """What it has taken in of each rank."""
        return msgspec.json.decode(self._read(f"/api/v1/runs/{RUN}"), type=_RunCounts)

    def close(self) -> None:
        """End it."""
        self._child.kill()
        self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()

    def _read(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=HTTP_S_MAX) as answer:
            body: bytes = answer.read()
        return body


class Nodes:
    """All nodes of the job, in processes of RANKS_PER_PROCESS ranks. Made by `running`."""

    def __init__(self, count: int, collector: Collector) -> None:
        context = multiprocessing.get_context("spawn")
        self._controls: list[Connection] = []
        self.processes: list[SpawnProcess] = []
        for first in range(0, count, RANKS_PER_PROCESS):
            task = Task(range(first, min(first + RANKS_PER_PROCESS, count)), count, collector.endpoint, collector.keys)
            mine, theirs = context.Pipe()
            self._controls.append(mine)
            self.processes.append(context.Process(target=run_nodes, args=(task, theirs), daemon=True))

    def say(self, word: str) -> Progress:
        """Tell each process a word; where all of them stand together."""
        for control in self._controls:
            control.send(word)
        found: list[Progress] = []
        for control in self._controls:
            if not control.poll(SETTLE_S_MAX):
                raise TimeoutError(f"a process of nodes does not answer to {word!r}")
            found.append(control.recv())
        sums = {name: sum(getattr(one, name) for one in found) for name in Progress._fields}
        return Progress(**sums | {"behind_ns": max(one.behind_ns for one in found)})

    def wait_for(self, rounds: int = 0, held_max: int | None = None) -> Progress:
        """Where they stand once every rank is welcome, all have made so many reports and hold no more than that."""
        end_s = time.monotonic() + SETTLE_S_MAX
        while (
            (found := self.say("look")).welcomed < found.ranks
            or found.made < rounds * found.ranks
            or (held_max is not None and found.held > held_max)
        ):
            if time.monotonic() > end_s:
                raise TimeoutError(f"not within {SETTLE_S_MAX:.0f} s: {describe(found)}")
            time.sleep(LOOK_S)
        return found


@contextmanager
def running(count: int) -> Iterator[tuple[Collector, Nodes]]:
    """A collector and so many ranks behind relays; neither outlives the block."""
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(Path(folder), count)
        nodes = Nodes(count, collector)
        try:
            for process in nodes.processes:
                process.start()
            yield collector, nodes
        finally:
            for process in nodes.processes:
                process.kill()
                process.join()
            collector.close()


def measure(count: int, seconds: float, idle_s: float = IDLE_S, warm_s: float = SCRAPE_S) -> FanIn:
    """A job of so many ranks for so long, after it has settled."""
    with running(count) as (collector, nodes):
        nodes.wait_for()
        nodes.say("report")
        nodes.wait_for(rounds=ROUNDS_TO_SETTLE)
        probe = Probe(collector.endpoint, collector.url, collector.keys, find_pages(count))
        probe.start()
        time.sleep(warm_s)  # the first scrape of a large page waits for it
        publisher_cpu_s, _ = read_publisher(collector.pid)
        before, cpu_s, began_s = nodes.say("look"), read_cpu_s(collector.pid), time.monotonic()
        time.sleep(seconds)
        cpu_s, took_s = read_cpu_s(collector.pid) - cpu_s, time.monotonic() - began_s
        publisher = read_publisher(collector.pid)
        after = nodes.say("look")
        looks = probe.end().since(began_s)
        resident_bytes = read_resident_bytes(collector.pid)
        nodes.say("stop")
        last = nodes.wait_for(held_max=0)
        idle_cpu_s, began_s = read_cpu_s(collector.pid), time.monotonic()
        time.sleep(idle_s)
        idle_cores = (read_cpu_s(collector.pid) - idle_cpu_s) / (time.monotonic() - began_s)
        run = collector.read_run()
        reports = after.made - before.made
        return FanIn(
            ranks=count,
            seconds=took_s,
            reports_per_s=reports / took_s,
            batches_per_s=(after.batches - before.batches) / took_s,
            cores=cpu_s / took_s,
            idle_cores=idle_cores,
            us_a_report=1e6 * (cpu_s - idle_cores * took_s) / max(1, reports),
            resident_bytes=resident_bytes,
            publisher_cores=(publisher[0] - publisher_cpu_s) / took_s,
            publisher_bytes=publisher[1],
            visible_s=tuple(age for _, age in looks.ages),
            answered_s=tuple(answer for _, answer in looks.answered),
            scrapes=tuple(looks.scrapes),
            loader_cores=ns_to_s(after.cpu_ns - before.cpu_ns) / took_s,
            made=last.made,
            admitted=sum(rank.reports_admitted for rank in run.ranks),
            duplicates=sum(rank.reports_duplicate for rank in run.ranks),
            gaps=sum(rank.report_gaps for rank in run.ranks),
            resends=last.resends,
        )


def measure_relay(seconds: float) -> RelayCost:
    """A relay that carries the ranks of a node, which report 40 times as often as ranks do."""
    with (
        serving() as served,
        relaying(served.endpoint, batch_interval_s=1.0) as relay,
        crew_of("relay", RANKS_PER_NODE, relay.endpoint) as crew,
    ):
        time.sleep(SETTLE_RELAY_S)
        reports, cpu_s, began_s = crew.reports(), read_cpu_s(relay.pid), time.monotonic()
        time.sleep(seconds)
        reports, cpu_s, took_s = crew.reports() - reports, read_cpu_s(relay.pid) - cpu_s, time.monotonic() - began_s
        return RelayCost(reports / took_s, 1e6 * cpu_s / max(1, reports), read_resident_bytes(relay.pid))


def render_relay(cost: RelayCost) -> str:
    """The line about a relay."""
    return (
        f"One relay with the {RANKS_PER_NODE} ranks of a node: {cost.us_a_report:.0f} us a report at "
        f"{cost.reports_per_s:.0f} reports a second, {cost.resident_bytes / 2**20:.0f} MiB."
    )


def render(found: list[FanIn]) -> str:
    """The table."""
    columns = (
        "ranks", "nodes", "s", "reports/s", "batches/s", "collector, cores", "of them idle", "us a report", "MiB",
        "publisher, cores", "MiB", "visible p50 / p99", "answered p99 / longest", "longest scrapes",
        "nodes' own cores", "made", "admitted", "twice", "gaps", "sent again",
    )  # fmt: skip
    lines = [f"| {' | '.join(columns)} |", "|" + "---:|" * len(columns)]
    lines += [
        f"| {one.ranks:,} | {-(-one.ranks // RANKS_PER_NODE):,} | {one.seconds:.0f} | {one.reports_per_s:,.0f} "
        f"| {one.batches_per_s:,.0f} | {one.cores:.2f} | {one.idle_cores:.2f} | {one.us_a_report:.0f} "
        f"| {one.resident_bytes / 2**20:,.0f} | {one.publisher_cores:.2f} | {one.publisher_bytes / 2**20:,.0f} "
        f"| {find_quantile(one.visible_s, 0.5):.2f} / {find_quantile(one.visible_s, 0.99):.2f} s "
        f"| {1e3 * find_quantile(one.answered_s, 0.99):.0f} / {1e3 * max(one.answered_s, default=math.nan):.0f} ms "
        f"| {describe_scrapes(one.scrapes)} | {one.loader_cores:.2f} | {one.made:,} | {one.admitted:,} "
        f"| {one.duplicates:,} | {one.gaps:,} | {one.resends:,} |"
        for one in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure each size, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--no-result", action="store_true", help="only print")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # so that the collector ends too
    sizes = " ".join(map(str, options.ranks))
    head = describe_run(f"python -m bench.fan_in --ranks {sizes} --seconds {options.seconds:g}")
    found = []
    for count in options.ranks:
        found.append(measure(count, options.seconds))
        print(render(found[-1:]), flush=True)
    cost = render_relay(measure_relay(options.seconds))
    print(cost)
    if not options.no_result:
        text = f"# One collector, ranks behind relays\n\n{head}\n\n{__doc__}\n{render(found)}\n\n{cost}\n"
        (RESULTS / "fan_in.md").write_text(text)


if __name__ == "__main__":
    main()
