"""What one look at a large job costs the collector: `python -m bench.tick [--ranks 1024 4096 16384]`.

A job of so many data-parallel ranks with 64 steps kept, waiting and transfer of every collective known, is looked at
again and again: healthy, and with one slow rank and a slow machine of eight. Timed are `Tick` (detection, all of it)
and the picture that is taken after it (`snapshot`), both by the CPU time of their one thread.

Memory is what the process grew by when the job was filled, over the ranks; each size has a process of its own.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from time import thread_time_ns
from typing import NamedTuple

import numpy as np

from bench.machine import RESULTS, describe_run, run_apart
from rankscope.collector.config import CollectorConfig
from rankscope.collector.process_tuning import read_resident_bytes
from rankscope.collector.runs.events import RankJoined, ReportAdmitted
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.run import RunState
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import (
    CollectiveRecord,
    GroupInfo,
    HostSample,
    StepRecord,
    WindowBreakdown,
    collectives_to_table,
    steps_to_table,
)
from rankscope.measure.units import NS_PER_MS
from tests.run_ticks import tick_run

SIZES = (1_024, 4_096, 16_384)
STEPS = 64
REPORT_STEPS = 8
RANKS_PER_NODE = 8
LOOKS = 9
WORK_NS, TRANSFER_NS = 100 * NS_PER_MS, 10 * NS_PER_MS
JITTER = 0.02
SLOW_RANK, SLOW_NODE = 5, 3
STATES = {"healthy": (), "a slow rank and a slow node": (SLOW_RANK, *range(SLOW_NODE * 8, SLOW_NODE * 8 + 8))}
SHARES = {"data": 0.02, "forward": 0.3, "optimizer": 0.08, "other": 0.02}


class Result(NamedTuple):
    """Of one size and state: medians of the looks in ms, bytes a rank that the job takes, findings that were open."""

    ranks: int
    state: str
    tick_ms: float
    snapshot_ms: float
    bytes_per_rank: float
    findings: int


def fill(ranks: int, slow: Sequence[int]) -> RunState:
    """A job with all its steps reported, looked at never."""
    random = np.random.default_rng(ranks)
    work_ns = WORK_NS * np.exp(random.normal(0.0, JITTER, (STEPS, ranks)))
    work_ns[:, list(slow)] *= 1.3
    job = RunState("large", CollectorConfig(steps_kept=STEPS))
    for rank in range(ranks):
        job.apply(RankJoined(_hello(rank, ranks), 0))
    group = GroupInfo(label="default_pg", description="default_pg", ranks=tuple(range(ranks)), backend="nccl")
    for first in range(0, STEPS, REPORT_STEPS):
        steps = range(first, first + REPORT_STEPS)
        for rank in range(ranks):
            report = _report(rank, steps, work_ns, (group,) if first == 0 else None)
            job.apply(ReportAdmitted(f"boot-{rank}", ReportFields.of(report), first * WORK_NS, 0.0))
    return job


def _hello(rank: int, ranks: int) -> Hello:
    identity = RankIdentity(
        run="large", rank=rank, local_rank=rank % RANKS_PER_NODE, world_size=ranks, restart_count=0,
        node=f"node{rank // RANKS_PER_NODE:04}", boot_id=f"boot-{rank}", pid=1 + rank,
    )  # fmt: skip
    return Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=10**9)


def _report(rank: int, steps: range, work_ns: np.ndarray, groups: tuple[GroupInfo, ...] | None) -> Report:
    records, collectives = [], []
    duration_ns = 0
    for step in steps:
        mine, longest = int(work_ns[step, rank]), int(work_ns[step].max())
        wait_ns = longest - mine
        phases_ns = {name: int(share * mine) for name, share in SHARES.items()}
        duration_ns = longest + TRANSFER_NS
        phases_ns["backward"] = duration_ns - sum(phases_ns.values())
        records.append(
            StepRecord(
                step=step,
                start_host_ns=step * 10**9,
                duration_ns=duration_ns,
                phases_ns=phases_ns,
                cpu_ns=mine,
                batches=1,
                backwards=1,
            )
        )
        collectives.append(
            CollectiveRecord(
                step=step,
                group="default_pg",
                op="all_reduce",
                start_host_ns=step * 10**9 + mine,
                duration_ns=wait_ns + TRANSFER_NS,
                sequence=step,
                bytes=10**8,
                exposed_ns=wait_ns + TRANSFER_NS,
            )
        )
    last = int(work_ns[steps[-1], rank])
    breakdown = WindowBreakdown(
        first_step=steps[-1], step_count=1, window_ns=duration_ns, compute_ns=last, communication_ns=duration_ns - last,
        overlap_ns=0, exposed_communication_ns=duration_ns - last, copy_ns=0, idle_ns=0, operator_count=1000,
    )  # fmt: skip
    return Report(
        sequence=steps[0] // REPORT_STEPS + 1,
        host_ns=0,
        steps=steps_to_table(records),
        collectives=collectives_to_table(collectives),
        covered_steps=((steps[0], steps[-1]),),
        breakdowns=(breakdown,),
        host=HostSample(host_ns=0, gc_pause_ns=0, gc_collections=0),
        groups=groups,
    )


def measure(ranks: int) -> list[Result]:
    """Both states of one size."""
    found = []
    for state, slow in STATES.items():
        before = read_resident_bytes()
        job = fill(ranks, slow)
        grown = read_resident_bytes() - before
        ticks, pictures = [], []
        findings = 0
        for look in range(1, LOOKS + 1):
            began = thread_time_ns()
            tick_run(job, look * 10**9, 0.0)
            ticks.append(thread_time_ns() - began)
            began = thread_time_ns()
            findings = len(job.snapshot(look * 10**9).open_findings)
            pictures.append(thread_time_ns() - began)
        median = statistics.median
        found.append(
            Result(ranks, state, median(ticks) / NS_PER_MS, median(pictures) / NS_PER_MS, grown / ranks, findings)
        )
    return found


def main() -> None:
    """Measure and write the result down."""
    parser = argparse.ArgumentParser(description="What one look at a large job costs the collector.")
    parser.add_argument("--ranks", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS / "tick.md")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.tick --ranks {' '.join(map(str, options.ranks))}")
    rows = []
    for ranks in options.ranks:
        rows += run_apart(measure, ranks)
    text = _write(head, rows)
    options.out.write_text(text)
    print(text)


def _write(head: str, rows: Sequence[Result]) -> str:
    lines = [
        "# What one look at a large job costs the collector", "", head, "",
        f"{STEPS} steps kept, one thread. A look is detection over all ranks (`Tick`); the picture is what the",
        "exporter and the API read, taken after each look. Memory is the growth of the process while the job was",
        "filled, over the ranks; the second state of a size finds memory there that the first one gave back.", "",
        "| ranks | state | look | picture | memory a rank | findings |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row.ranks} | {row.state} | {row.tick_ms:.0f} ms | {row.snapshot_ms:.0f} ms | "
        f"{row.bytes_per_rank / 1024:.1f} KiB | {row.findings} |"
        for row in rows
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
