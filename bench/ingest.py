"""CPU time of the collector's own code for each report and tick: `python -m bench.ingest`

The collector's code without its sockets and threads, in one process: frames are decoded and admitted, and their events
applied and flushed in batches of BATCH, as they come at 16,384 reports a second. Half way through each second there is
a tick with its detection pass, a lazy snapshot, and what is handed to the store, whose thread does not run: pending
changes are dropped. Only CPU time of the one thread counts, so it holds on a busy machine too; sockets and encryption
come on top (bench/load.py measures all).

The first report of each rank has STEPS_BEFORE steps, so that the step table is as full as it ever gets. No profiler
window has covered them, so detection compares the phases in all of them, which is the most that a pass may have to do.
One window ends in the seconds that count: matching each of its two steps is given by itself, and counts for no report.
Memory is what the process has grown by since before the ranks joined: at the end, and at the highest in the seconds
that count. Samples of garbage collection, breakdowns and allocators take minutes or hours to fill their rings: they are
not full here, and take up to 9 KiB a rank more.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from bench.load_reports import RUN, WINDOW_STEPS, JobReports, build_hello
from bench.machine import RESULTS, describe_run, render_result, run_apart
from rankscope.collector.config import CollectorConfig
from rankscope.collector.ingest.admission import Admission, Admitted
from rankscope.collector.process_tuning import limit_malloc_arenas, raise_gc_threshold
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import RankJoined, ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.run_recorder import Recorder
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.table import Table
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s
from tests.integration.fault_figures import read_peak_bytes, read_resident_bytes
from tests.run_ticks import tick_run

SIZES: Final = (1_024, 4_096, 16_384)
STEPS_BEFORE: Final = 252
"""With the steps of SECONDS more the 256 that are kept."""
SECONDS: Final = 10
"""Reports of each rank that count but for the first two: those of the steps 252 to 261. A window ends with step 259."""
BATCH: Final = 160
"""16,384 reports a second, and 10 ms between two turns of the receiving thread."""
PER_REPORT: Final = ("receive", "apply", "flush")
PER_TICK: Final = ("detection pass", "lazy snapshot", "store")
KIB: Final = 1024
CLEAR_REFS: Final = Path("/proc/self/clear_refs")
RESET_PEAK: Final = "5"
"""What clear_refs takes to count the highest use of memory anew, proc(5)."""
T = TypeVar("T")


class Meter:
    """CPU ns by part, one number for each second."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, list[int]] = {name: [] for name in (*PER_REPORT, *PER_TICK, "snapshot")}

    def begin(self) -> None:
        """Another second."""
        for seconds in self.spent_ns.values():
            seconds.append(0)

    def time(self, name: str, work: Callable[[], T]) -> T:
        """Do the work on that part's account."""
        began_ns = thread_time_ns()
        done = work()
        self.spent_ns[name][-1] += thread_time_ns() - began_ns
        return done

    def median_ns(self, name: str) -> float:
        """Of the seconds after the first two."""
        return statistics.median(self.spent_ns[name][2:])

    @property
    def resolving_ns(self) -> float:
        """What flushing took longer, for each of the two steps, in the second in which a profiler window ended."""
        return (max(self.spent_ns["flush"][2:]) - self.median_ns("flush")) / WINDOW_STEPS


class Memory(NamedTuple):
    """What the process has grown by, in bytes: at the end, and at the highest."""

    grown: int
    peak: int


class Result(NamedTuple):
    """Of one size."""

    meter: Meter
    memory: Memory


class Collector:
    """The state of one run, with a store in a folder."""

    def __init__(self, ranks: int, folder: Path) -> None:
        config = CollectorConfig(ranks_max=ranks)
        self.run, self._admission = RunState(RUN, config), Admission(1, ranks)
        self._recorder = Recorder(Database(folder / "store.db"), config, lambda _where: None)
        for rank in range(ranks):
            hello = build_hello(RUN, rank, ranks, boot_of(rank))
            self._admission.hello(boot_of(rank).encode(), hello)
            self.run.apply(RankJoined(hello, 0))

    def receive(self, rank: int, frame: bytes, now_ns: int) -> ReportAdmitted:
        """The event that a report is."""
        report = decode(frame)
        if not isinstance(report, Report):
            raise TypeError(f"rank {rank} has sent a {type(report).__name__}; reports are made here")
        verdict = self._admission.number(boot_of(rank).encode(), report.sequence)
        if not isinstance(verdict, Admitted):
            raise ValueError(f"report {report.sequence} of rank {rank} is {verdict}")  # noqa: TRY004 - no type is wrong
        return ReportAdmitted(verdict.identity.boot_id, ReportFields.of(report, frame), now_ns, ns_to_s(now_ns))

    def tick(self, meter: Meter, now_ns: int) -> None:
        """Tick, detect, and hand a snapshot and the changes to the store."""
        clocks = Clocks(now_ns, ns_to_s(now_ns))
        meter.time("detection pass", lambda: tick_run(self.run, now_ns, clocks.wall_s))
        lazy = meter.time("lazy snapshot", lambda: self.run.lazy_snapshot(now_ns))
        snapshot = Snapshot(wall_s=clocks.wall_s, version="0", runs=[lazy])
        meter.time("store", lambda: self._recorder.tick([self.run], snapshot, clocks))
        self._recorder._pending = WriteBatch()
        meter.time("snapshot", lazy.build)


def boot_of(rank: int) -> str:
    """Return the boot id of a rank."""
    return f"boot-{rank:08}"


def measure(ranks: int) -> Result:
    """One size."""
    limit_malloc_arenas()
    raise_gc_threshold()
    meter, reports = Meter(), JobReports(ranks, range(ranks))
    pid = os.getpid()
    before_bytes = read_resident_bytes(pid)
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(ranks, Path(folder))
        peak_bytes = 0
        for number in (1, *range(STEPS_BEFORE + 1, STEPS_BEFORE + SECONDS + 1)):
            meter.begin()
            CLEAR_REFS.write_text(RESET_PEAK)
            now_ns = number * NS_PER_S
            for first in range(0, ranks, BATCH):
                own = range(first, min(ranks, first + BATCH))
                made = [reports.build(rank, number, now_ns) for rank in own]
                frames = [encode(tell_more_steps(report) if number == 1 else report) for report in made]
                take_batch(collector, meter, own, frames, now_ns=now_ns)
                if ranks // 2 in own:
                    collector.tick(meter, now_ns)
            peak_bytes = max(peak_bytes, read_peak_bytes(pid)) if number > 1 else 0
        grown_bytes = read_resident_bytes(pid) - before_bytes
    return Result(meter, Memory(grown_bytes, peak_bytes - before_bytes))


def tell_more_steps(report: Report) -> Report:
    """The same report with STEPS_BEFORE steps, all as long as its one."""
    steps = report.steps
    columns = [np.repeat(steps.column(name), STEPS_BEFORE) for name in steps.names]
    columns[steps.names.index("step")] = np.arange(STEPS_BEFORE)
    data = np.stack(columns).astype("<i8").tobytes()
    return msgspec.structs.replace(report, steps=Table(steps.names, STEPS_BEFORE, data))


def take_batch(collector: Collector, meter: Meter, own: range, frames: list[bytes], *, now_ns: int) -> None:
    """Do what the two threads of a collector do with one batch of frames."""
    came = list(zip(own, frames, strict=True))
    events = meter.time("receive", lambda: [collector.receive(rank, frame, now_ns) for rank, frame in came])
    meter.time("apply", lambda: [collector.run.apply(event) for event in events])
    meter.time("flush", collector.run.flush_reports)


def render(head: str, results: dict[int, Result]) -> str:
    """The result file."""
    columns = (
        "ranks",
        *PER_REPORT,
        "total",
        *PER_TICK,
        "snapshot",
        "step of collectives",
        "memory a rank",
        "maximum",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for ranks, (meter, memory) in results.items():
        us = [meter.median_ns(name) / ranks / 1e3 for name in PER_REPORT]
        ms = [*(meter.median_ns(name) / NS_PER_MS for name in (*PER_TICK, "snapshot")), meter.resolving_ns / NS_PER_MS]
        cells = [f"{value:.1f} us" for value in (*us, sum(us))] + [f"{value:.0f} ms" for value in ms]
        cells += [f"{value / ranks / KIB:.1f} KiB" for value in memory]
        lines.append(f"| {ranks:,} | {' | '.join(cells)} |")
    units = "The first four are of a report, the others of a tick; a snapshot is built only on request."
    title = "CPU time of the collector for each report and tick"
    return render_result(title, head, __doc__, units, "\n".join(lines))


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="CPU time of the collector's own code for each report and tick.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS / "ingest.md")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.ingest --ranks {' '.join(map(str, options.ranks))}")
    results = {}
    for ranks in options.ranks:
        results[ranks] = run_apart(measure, ranks)
    text = render(head, results)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
