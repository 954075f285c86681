"""What the agent costs a step, told apart from what the machine does meanwhile:

    python -m tests.benchmarks.alternation [--pairs 30] [--size short] [--windows all light none] [--ranks 1 2]

On a shared machine the same job is 20 % faster or slower a minute later, which hides a cost of 1 %. So here the agent
comes and goes *within* one job: stretches of steps with it and without it take turns (A B B A), on all ranks at the
same step, and each stretch is compared with its neighbour, seconds away. The steps right after it came or went are left
out.

`light` leaves out the full windows, which a young agent takes more often than a grown one (every 20 s): what is left is
what every ordinary step pays, hooks, collective windows, reports and samples.

Two ranks on two cores leave none to the agent's threads: what they take, training waits for. One rank leaves one free,
as the machines of GPUs do, which have several cores for each.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.benchmarks.machine import RESULTS, describe_run
from tests.benchmarks.overhead import Ratios, clean_environment, collector, compare
from tests.benchmarks.training import SIZES, TOKENS, Size, Transformer

PAIRS = 30
STRETCH_S = {"short": 1.5, "long": 4.0}
"""Long enough for a median; short enough that the machine is the same in the next."""
SETTLE_STEPS = 12
"""Left out after a change: the agent's warm-up, its first windows, and its threads that come and go."""
WINDOWS = {
    "all": {},
    "light": {"RANKSCOPE_FULL_WINDOWS": "0"},
    "none": {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"},
}
LIMIT_S = 900


class Stretch(NamedTuple):
    """Some steps in a row: their mean and median time, and the CPU time of the whole process for a step."""

    with_agent: bool
    mean_ns: float
    median_ns: float
    cpu_ns: float


class Job(NamedTuple):
    """What is trained, and what of the agent is there."""

    size: str
    ranks: int
    windows: str


def train(size: Size, pairs: int, stretch_steps: int) -> list[Stretch]:
    """Train, and let the agent come and go."""
    from rankscope.agent.config import read_config  # noqa: PLC0415 - only a rank needs it
    from rankscope.agent.session import Session  # noqa: PLC0415

    torch.manual_seed(0)
    tokens = torch.randint(TOKENS, (4096 * size.batch, size.context + 1))
    model = DistributedDataParallel(Transformer(size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches: Iterator[Any] = iter(())
    stretches = []
    for number in range(2 * pairs):
        with_agent = number % 4 in {1, 2}
        session = Session.start(read_config(os.environ), os.environ) if with_agent else None
        ends_ns: list[int] = []
        cpu_ns = 0
        for step in range(SETTLE_STEPS + stretch_steps + 1):
            rows = next(batches, None)
            if rows is None:
                batches = iter(DataLoader(TensorDataset(tokens), batch_size=size.batch))
                rows = next(batches)
            loss = nn.functional.cross_entropy(model(rows[0][:, :-1]).flatten(0, 1), rows[0][:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == SETTLE_STEPS:
                cpu_ns = process_time_ns()
            if step >= SETTLE_STEPS:
                ends_ns.append(perf_counter_ns())
        cpu_ns = process_time_ns() - cpu_ns
        steps_ns = [after - before for before, after in itertools.pairwise(ends_ns)]
        median_ns = statistics.median(steps_ns)
        stretches.append(Stretch(with_agent, statistics.fmean(steps_ns), median_ns, cpu_ns / len(steps_ns)))
        if session is not None:
            session.stop()
        dist.barrier()
    return stretches


def be_a_rank(options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 writes what it saw."""
    dist.init_process_group("gloo")
    stretches = train(SIZES[options.size], options.pairs, options.stretch_steps)
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(stretches))
    dist.destroy_process_group()


def run_job(job: Job, pairs: int) -> list[Stretch]:
    """The whole job beside a collector."""
    stretch_steps = round(STRETCH_S[job.size] * 1000 / SIZES[job.size].step_ms)
    with collector() as (endpoint, _), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stretches.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks),
            "-m", "tests.benchmarks.alternation", "--rank", "--size", job.size, "--pairs", str(pairs),
            "--stretch-steps", str(stretch_steps), "--out", str(out),
        ]  # fmt: skip
        settings = {"OMP_NUM_THREADS": "1", "RANKSCOPE_COLLECTOR": endpoint, **WINDOWS[job.windows]}
        subprocess.run(command, env={**clean_environment(), **settings}, check=True, timeout=LIMIT_S)
        return [Stretch(*row) for row in json.loads(out.read_text())]


def ratios_of(stretches: list[Stretch], what: str) -> Ratios:
    """Each stretch with the agent over its neighbour without it."""
    pairs = [stretches[place : place + 2] for place in range(0, len(stretches), 2)]
    found = []
    for pair in pairs:
        with_agent, without = sorted(pair, key=lambda one: not one.with_agent)
        found.append(getattr(with_agent, what) / getattr(without, what))
    return compare(found)


WAYS = {"mean step": "mean_ns", "median step": "median_ns", "CPU time": "cpu_ns"}


def render(head: str, found: dict[Job, list[Stretch]]) -> str:
    """The result file."""
    lines = [
        "| ranks | step | windows | ratio of | median | 95 % | smallest | largest | pairs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for job, stretches in found.items():
        step_ms = statistics.median(one.median_ns for one in stretches if not one.with_agent) / 1e6
        for way, what in WAYS.items():
            r = ratios_of(stretches, what)
            lines.append(
                f"| {job.ranks} | {step_ms:.1f} ms | {job.windows} | {way} | {r.median:.4f} | "
                f"{r.interval} | {r.smallest:.3f} | {r.largest:.3f} | {len(stretches) // 2} |"
            )
    explanation = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    return "\n\n".join(["# What the agent costs a step, within one job", head, explanation, "\n".join(lines)]) + "\n"


def main() -> None:
    """Run the job for each size and choice of windows and write the result; or be one of its ranks."""
    parser = argparse.ArgumentParser(description="What the agent costs a step, within one job.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"stretches of each kind [{PAIRS}]")
    parser.add_argument("--size", choices=sorted(SIZES), nargs="+", default=list(SIZES))
    parser.add_argument("--windows", choices=list(WINDOWS), nargs="+", default=["all", "light", "none"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "alternation.md", help="the file to write")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stretch-steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        options.size = options.size[0]
        be_a_rank(options)
        return
    head = describe_run(f"python -m tests.benchmarks.alternation {' '.join(sys.argv[1:])}".strip())
    found = {}
    for job in itertools.starmap(Job, itertools.product(options.size, options.ranks, options.windows)):
        found[job] = run_job(job, options.pairs)
        for way, what in WAYS.items():
            print(job, way, ratios_of(found[job], what), flush=True)
    text = render(head, found)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
