"""What a rank sends: python -m bench.wire [--seconds 60] [--size short] [--parallel ddp] [--out FILE]

The job of `bench/training.py` runs with the agent at its defaults, and a witness between the ranks and a
collector keeps every message. Counted are the frames of the numbered messages of each rank, without what TCP and ZeroMQ
put around them (2 to 9 bytes a frame, some 60 a packet), the first SETTLE_REPORTS left out. The bound is that
of docs/cost.md for the same steps and collectives.
"""

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from bench.machine import RESULTS, describe_run, render_result
from bench.overhead import NAMES, Job, clean_environment, collector, train
from bench.training import PARALLEL, SIZES
from rankscope.measure.codec import encode
from rankscope.measure.messages import Report
from tests.contract.test_report_bytes import (
    BREAKDOWN_BYTES,
    COLLECTIVE_BYTES,
    COVERED_BYTES,
    DEVICE_BYTES,
    FIXED_BYTES,
    STEP_BYTES,
)
from tests.integration.wire_tap import Delivered, tapping

SECONDS = 60.0
SETTLE_REPORTS = 5
"""They bring the process groups and what a young job is looked at for."""
DAY_S = 86_400


class Traffic(NamedTuple):
    """What one rank sent in `seconds`; `bound_bytes` is the most that the same records may take."""

    seconds: float
    reports: int
    steps: int
    collectives: int
    sent_bytes: int
    bound_bytes: int
    largest_bytes: int


def count(delivered: Delivered) -> Traffic:
    """One life's reports, the first ones left out."""
    reports = [message for _, message in sorted(delivered.numbered.items()) if isinstance(message, Report)]
    kept = reports[SETTLE_REPORTS:]
    sizes = [len(encode(report)) for report in kept]
    return Traffic(
        seconds=(kept[-1].host_ns - reports[SETTLE_REPORTS - 1].host_ns) / 1e9,
        reports=len(kept),
        steps=sum(report.steps.row_count for report in kept),
        collectives=sum(report.collectives.table.row_count for report in kept),
        sent_bytes=sum(sizes),
        bound_bytes=sum(find_bound(report) for report in kept),
        largest_bytes=max(sizes),
    )


def find_bound(report: Report) -> int:
    """The most bytes that so many records take, without phases of the user's own."""
    return (
        FIXED_BYTES
        + STEP_BYTES * report.steps.row_count
        + COLLECTIVE_BYTES * report.collectives.table.row_count
        + BREAKDOWN_BYTES * len(report.breakdowns)
        + COVERED_BYTES * len(report.covered_steps)
        + DEVICE_BYTES * len(report.devices)
    )


def run(job: Job, seconds: float) -> list[Traffic]:
    """What each rank of one job sent."""
    with collector() as (endpoint, _), tapping(int(endpoint.rpartition(":")[2])) as tap:
        environment = clean_environment() | {"OMP_NUM_THREADS": "1", "RANKSCOPE_COLLECTOR": tap.endpoint}
        train(environment, job, seconds, with_agent=True)
        if tap.problems:
            raise RuntimeError(f"the witness could not read everything: {tap.problems}")
        return [count(delivered) for delivered in tap.delivered.values()]


def render(head: str, results: dict[Job, list[Traffic]]) -> str:
    """The result file."""
    lines = [
        "| job | steps/s | collectives/s | reports/s | bytes/s of a rank | bound | largest report | a day |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for job, ranks in results.items():
        rates = [
            statistics.fmean(getattr(rank, what) / rank.seconds for rank in ranks)
            for what in ("steps", "collectives", "reports", "sent_bytes", "bound_bytes")
        ]
        steps, collectives, reports, sent, bound = (f"{rate:,.1f}" for rate in rates)
        largest = max(rank.largest_bytes for rank in ranks)
        lines.append(
            f"| {NAMES[job.parallel]}, {job.size} | {steps} | {collectives} | {reports} | {sent} | {bound} | "
            f"{largest:,} | {rates[3] * DAY_S / 1e6:,.0f} MB |"
        )
    return render_result("What a rank sends", head, __doc__, "\n".join(lines))


def main() -> None:
    """Run each job once and write the result."""
    parser = argparse.ArgumentParser(description="What a rank sends.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"nominal time of a run's steps [{SECONDS}]")
    parser.add_argument("--size", choices=list(SIZES), nargs="+", default=list(SIZES))
    parser.add_argument("--parallel", choices=PARALLEL, nargs="+", default=list(PARALLEL))
    parser.add_argument("--out", type=Path, default=RESULTS / "wire.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.wire --seconds {options.seconds:g}")
    jobs = [Job(size, parallel) for parallel in options.parallel for size in options.size]
    text = render(head, {job: run(job, options.seconds) for job in jobs})
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
