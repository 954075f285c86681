"""What each part of taking in a report costs: `python -m tests.benchmarks.ingest [--ranks 1024 4096 16384]`

The collector's own code without its sockets and threads, in one process: frames are decoded, admitted, handled and
settled in batches of BATCH, as they come at 16,384 reports a second, and half way through each second there is a tick
with its look, the references for its picture, and what is handed to the store. Only CPU time of the one thread counts,
so that it holds on a busy machine too; sockets and encryption come on top (tests/benchmarks/load.py measures all).
"""

import argparse
import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Final, TypeVar

from rankscope.collector.config import CollectorConfig
from rankscope.collector.history.recorder import Recorder
from rankscope.collector.ingest.admission import Admission, Admitted
from rankscope.collector.state.events import RankJoined, ReportAdmitted, Tick
from rankscope.collector.state.job import JobState
from rankscope.collector.state.saved import Clocks
from rankscope.collector.state.snapshot import Snapshot
from rankscope.collector.store.database import Database
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.units import NS_PER_MS, NS_PER_S, ns_to_s
from tests.benchmarks.load_reports import RUN, JobReports, build_hello
from tests.benchmarks.machine import RESULTS, describe_run

SIZES: Final = (1_024, 4_096, 16_384)
SECONDS: Final = 8
"""Reports of each rank; the first two are left out."""
BATCH: Final = 160
"""16,384 reports a second, and 10 ms between two turns of the receiving thread."""
PER_REPORT: Final = ("decode", "admit", "handle", "settle")
PER_TICK: Final = ("look", "references", "store")
T = TypeVar("T")


class Meter:
    """CPU ns by part, one number for each second."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, list[int]] = {name: [] for name in (*PER_REPORT, *PER_TICK, "picture")}

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


class Collector:
    """The state of one run, with a store in a folder."""

    def __init__(self, ranks: int, folder: Path) -> None:
        config = CollectorConfig(ranks_max=ranks)
        self.job, self._admission = JobState(RUN, config), Admission(1, ranks)
        self._recorder = Recorder(Database(folder / "store.db"), config, lambda _where: None)
        for rank in range(ranks):
            hello = build_hello(RUN, rank, ranks, boot_of(rank))
            self._admission.hello(boot_of(rank).encode(), hello)
            self.job.handle(RankJoined(hello, 0))

    def admit(self, rank: int, report: Report, now_ns: int) -> ReportAdmitted:
        """The event that a report is."""
        verdict = self._admission.number(boot_of(rank).encode(), report.sequence)
        if not isinstance(verdict, Admitted):
            raise ValueError(f"report {report.sequence} of rank {rank} is {verdict}")  # noqa: TRY004 - no type is wrong
        return ReportAdmitted(verdict.identity.boot_id, report, now_ns, ns_to_s(now_ns))

    def tick(self, meter: Meter, now_ns: int) -> None:
        """A look, a picture and what is saved."""
        clocks = Clocks(now_ns, ns_to_s(now_ns))
        meter.time("look", lambda: self.job.handle(Tick(now_ns, clocks.wall_s)))
        draft = meter.time("references", lambda: self.job.draft(now_ns))
        snapshot = Snapshot(wall_s=clocks.wall_s, version="0", runs=[draft])
        meter.time("store", lambda: self._recorder.tick([self.job], snapshot, clocks))
        meter.time("picture", draft.build)


def boot_of(rank: int) -> str:
    """A rank's life."""
    return f"boot-{rank:08}"


def measure(ranks: int) -> Meter:
    """One size."""
    meter, reports = Meter(), JobReports(ranks, range(ranks))
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(ranks, Path(folder))
        for number in range(1, SECONDS + 1):
            meter.begin()
            now_ns = number * NS_PER_S
            for first in range(0, ranks, BATCH):
                own = range(first, min(ranks, first + BATCH))
                frames = [encode(reports.build(rank, number, now_ns)) for rank in own]
                take_batch(collector, meter, own, frames, now_ns=now_ns)
                if ranks // 2 in own:
                    collector.tick(meter, now_ns)
    return meter


def take_batch(collector: Collector, meter: Meter, own: range, frames: list[bytes], *, now_ns: int) -> None:
    """What the two threads of a collector do with what one turn has read."""
    messages = meter.time("decode", lambda: [decode(frame) for frame in frames])
    found = [message for message in messages if isinstance(message, Report)]
    events = meter.time(
        "admit", lambda: [collector.admit(rank, report, now_ns) for rank, report in zip(own, found, strict=True)]
    )
    meter.time("handle", lambda: [collector.job.handle(event) for event in events])
    meter.time("settle", collector.job.settle)


def render(head: str, meters: dict[int, Meter]) -> str:
    """The result file."""
    lines = [
        f"| ranks | {' | '.join(PER_REPORT)} | together | {' | '.join(PER_TICK)} | picture |",
        "|---" * (len(PER_REPORT) + len(PER_TICK) + 3) + "|",
    ]
    for ranks, meter in meters.items():
        us = [meter.median_ns(name) / ranks / 1e3 for name in PER_REPORT]
        ms = [meter.median_ns(name) / NS_PER_MS for name in (*PER_TICK, "picture")]
        cells = [f"{value:.1f} us" for value in (*us, sum(us))] + [f"{value:.0f} ms" for value in ms]
        lines.append(f"| {ranks:,} | {' | '.join(cells)} |")
    explanation = (__doc__ or "").partition("\n\n")[2].strip()
    units = "The first five are of a report, the others of a tick; `picture` is made only when somebody asks for it."
    return "\n\n".join(["# What taking in a report costs", head, explanation, units, "\n".join(lines)]) + "\n"


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="What each part of taking in a report costs.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS / "ingest.md")
    options = parser.parse_args()
    head = describe_run(f"python -m tests.benchmarks.ingest --ranks {' '.join(map(str, options.ranks))}")
    meters = {}
    for ranks in options.ranks:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            meters[ranks] = pool.apply(measure, (ranks,))
    text = render(head, meters)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
