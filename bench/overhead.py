"""What the agent costs a training job: the same script (DDP, FSDP2) with and without it, side by side.

    python -m bench.overhead [--pairs 10] [--seconds 15] [--parallel ddp fsdp] [--leave-out ARM] [--out FILE]

A round runs the script once in each arm, one after the other, the next round in the opposite order (A B C, C B A), so
that a machine that becomes slower or faster by itself favors none of them. What is compared is always two runs of one
round. In the place of a collector, which mostly has a machine of its own, a receiver takes in and acknowledges what the
ranks send, and compares nothing: what a collector costs is measured elsewhere (`docs/scale.md`).
"""

import argparse
import contextlib
import json
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bench.machine import RESULTS, describe_run
from bench.training import PARALLEL, SIZES
from rankscope.agent.agent_overhead import WINDOW_CHILDREN
from rankscope.measure.messages import Report
from tests.integration.listening_collector import listening

RANKS = 2
PAIRS = 10
SECONDS = 15.0
WARMUP_S = 2.0
"""Left out at the begin of each run: torch allocates and DDP rebuilds its buckets, and the agent takes a window of its
own after a few steps."""
START_S_MAX = 120.0
"""For importing torch and meeting, on a busy machine."""
SLOWER_MAX = 8.0
"""A run may take this many times as long as the steps are meant to."""
END_S_MAX = 60.0
COLLECTOR_START_S_MAX = 60.0
INTERVAL_ROUNDS_MIN = 6
"""The median of fewer values lies outside of all of them with more than 5 % probability: 2 * 0.5**5 is 6 %."""
RESAMPLES = 10_000

SCRIPT = Path(__file__).with_name("training.py")

WITHOUT = "without the agent"
ARMS: dict[str, dict[str, str] | None] = {
    WITHOUT: None,
    "all on": {},
    "windows off": {"RANKSCOPE_COLLECTIVE_WINDOWS": "0", "RANKSCOPE_FULL_WINDOWS": "0"},
}
"""What is set for the agent in each arm, over its defaults; None: it is not there."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the script: rank 0's median and mean step, and the CPU time of its process over the steps.

    `rss_bytes` and `pss_bytes` are the memory of that process at its end.
    `meter` is the larger of the two ranks' own `overhead_ratio` since the start, `full_steps` how many steps full
    windows broke down, warm-up included; both None without the agent. `settled` is what each part has cost rank 0 in
    the second half of its reports, as a ratio of that time; empty without the agent.
    """

    median_ns: float
    mean_ns: float
    cpu_ns: float
    rss_bytes: int
    pss_bytes: int
    meter: float | None = None
    full_steps: int | None = None
    settled: Mapping[str, float] = field(default_factory=dict)


Round = dict[str, Run]


class Job(NamedTuple):
    """What is trained: a size of `training.SIZES`, in parallel by `ddp` or `fsdp`."""

    size: str
    parallel: str


class Ratios(NamedTuple):
    """A quotient of two arms over all rounds; `low` and `high` bound the median with 95 % confidence, None for fewer
    than INTERVAL_ROUNDS_MIN rounds, which have no such bounds.
    """

    median: float
    low: float | None
    high: float | None
    smallest: float
    largest: float

    @property
    def interval(self) -> str:
        """The bounds for a table."""
        return "none" if self.low is None or self.high is None else f"{self.low:.4f} to {self.high:.4f}"


# -- running ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def collector() -> Iterator[tuple[str, str]]:
    """A collector with its defaults; where agents reach it, and its HTTP address."""
    command = [
        sys.executable, "-m", "rankscope.collector", "serve", "--announce",
        "--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0",
    ]  # fmt: skip
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment(), text=True
    )
    try:
        if child.stdout is None or not select.select([child.stdout], [], [], COLLECTOR_START_S_MAX)[0]:
            raise TimeoutError(f"the collector did not say where it listens within {COLLECTOR_START_S_MAX:.0f} s")
        announced = json.loads(child.stdout.readline())
        yield announced["endpoint"], announced["metrics_url"].removesuffix("/metrics")
    finally:
        end(child)


def clean_environment() -> dict[str, str]:
    """This environment without anything that would set up an agent."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE")}


def end(child: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """End a program of ours: asked, then made to."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S_MAX)


def run_once(arm: str, job: Job, seconds: float, run: str) -> Run:
    """One run in one arm. Raises RuntimeError with what the ranks said when they did not train to the end."""
    changes = ARMS[arm]
    environment = clean_environment() | {"OMP_NUM_THREADS": "1"}
    with listening() as receiver:
        if changes is not None:
            environment |= {"RANKSCOPE_COLLECTOR": receiver.endpoint, "RANKSCOPE_RUN": run, **changes}
        measured = train(environment, job, seconds, with_agent=changes is not None)
        lives = [life for life in receiver.lives if life.reports]
    steps_ns: list[int] = measured["steps_ns"]
    last = [life.reports[-1] for life in lives]
    return Run(
        median_ns=statistics.median(steps_ns),
        mean_ns=statistics.fmean(steps_ns),
        cpu_ns=measured["cpu_ns"] / len(steps_ns),
        rss_bytes=measured["memory_bytes"]["rss"],
        pss_bytes=measured["memory_bytes"]["pss"],
        meter=max((report.overhead_ratio for report in last if report.overhead_ratio is not None), default=None),
        full_steps=max((report.totals.windows for report in last), default=None),
        settled=find_settled(lives[0].reports) if lives else {},
    )


def find_settled(reports: Sequence[Report]) -> dict[str, float]:
    """What each part has cost since the report in the middle, over the time since."""
    middle, last = reports[len(reports) // 2], reports[-1]
    elapsed_ns = max(1, last.host_ns - middle.host_ns)
    return {part: (ns - middle.cost.part_ns.get(part, 0)) / elapsed_ns for part, ns in last.cost.part_ns.items()}


def train(environment: dict[str, str], job: Job, seconds: float, *, with_agent: bool) -> dict[str, Any]:
    """What rank 0 of one job wrote. Both ranks and the launcher are bounded in time."""
    step_ms = SIZES[job.size].step_ms
    limit_s = START_S_MAX + SLOWER_MAX * (WARMUP_S + seconds)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+b") as said:
        out = Path(folder) / "steps.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
            *(["-m", "rankscope.agent"] if with_agent else []), str(SCRIPT),
            "--size", job.size, "--parallel", job.parallel, "--warmup", str(math.ceil(WARMUP_S * 1000 / step_ms)),
            "--steps", str(math.ceil(seconds * 1000 / step_ms)), "--limit-s", str(limit_s), "--out", str(out),
        ]  # fmt: skip
        child = subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(limit_s + END_S_MAX)
        finally:
            end(child)
        if child.returncode != 0 or not out.exists():
            said.seek(0)
            raise RuntimeError(f"a run of {job} ended with {child.returncode}:\n{said.read().decode(errors='replace')}")
        measured: dict[str, Any] = json.loads(out.read_text())
        return measured


def measure(job: Job, pairs: int, seconds: float) -> list[Round]:
    """All rounds of one job, said as they come."""
    rounds: list[Round] = []
    for number in range(pairs):
        order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
        found = {arm: run_once(arm, job, seconds, f"{job.parallel}-{job.size}-{number}-{arm}") for arm in order}
        rounds.append(found)
        medians = ", ".join(f"{arm} {found[arm].median_ns / 1e6:.2f} ms" for arm in ARMS)
        print(f"{job.parallel}, {job.size}, round {number + 1} of {pairs}: {medians}", flush=True)
    return rounds


# -- comparing --------------------------------------------------------------------------------------------------------


def compare(ratios: Sequence[float]) -> Ratios:
    """The median of the ratios with a bootstrap interval: the middle 95 % of the medians of resampled rounds.

    >>> compare([1.0] * 6)
    Ratios(median=1.0, low=1.0, high=1.0, smallest=1.0, largest=1.0)
    >>> compare([1.0]).interval
    'none'
    """
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    has_interval = len(ratios) >= INTERVAL_ROUNDS_MIN
    return Ratios(
        median=statistics.median(ratios),
        low=medians[int(0.025 * RESAMPLES)] if has_interval else None,
        high=medians[int(0.975 * RESAMPLES)] if has_interval else None,
        smallest=min(ratios),
        largest=max(ratios),
    )


def ratios_of(rounds: Sequence[Round], arm: str, what: str) -> list[float]:
    """By round, the step time of the arm over that of the same round without the agent."""
    return [getattr(found[arm], what) / getattr(found[WITHOUT], what) for found in rounds]


# -- writing ----------------------------------------------------------------------------------------------------------

EXPLANATION = f"""
Each round runs the script of `bench/training.py` once in each arm, the order turned round every time; a
ratio is that of two runs of one round, 1.01 means 1 % more than without the agent.

- **median step**: what an ordinary step costs. Profiler windows fall on few steps, which a median does not see.
- **mean step**: the whole time, windows included. A run is the begin of a job, where the agent spends its head start
  (`docs/cost.md`): a long job pays less.
- **CPU time**: what the process of rank 0 used for a step, all its threads together. Where cores are left over, as for
  most jobs on GPUs, the agent's own thread takes nothing from training; here the two ranks have {{cores}} cores.

{RANKS} ranks on gloo, `OMP_NUM_THREADS=1`, the first {WARMUP_S:g} s of steps left out. On the same machine a receiver
takes in and acknowledges what the ranks send, in the place of a collector. *95 %* is the middle of a bootstrap of the
median over the rounds: where it holds 1, the difference was not measurable here.

The agent's own meter (`docs/cost.md`) sees less than these ratios can, since the machine's own unrest is not in it. By
part, it is shown for the second half of a run, when the head start is spent: per cent of the time.
"""


LEGEND = (
    "Every round: the median step in ms and, in brackets, the mean and the CPU time of a step; the agent's own meter; "
    "how many steps its full windows broke down."
)
NAMES = {"ddp": "DDP", "fsdp": "FSDP2"}
WAYS = {"median step": "median_ns", "mean step": "mean_ns", "CPU time": "cpu_ns"}


def render(head: str, pairs: int, seconds: float, results: dict[Job, list[Round]]) -> str:
    """The result file."""
    parts = [
        "# What the agent costs a training job",
        head,
        EXPLANATION.strip().format(cores=len(os.sched_getaffinity(0))),
    ]
    for job, rounds in results.items():
        step_ms = statistics.median(found[WITHOUT].median_ns for found in rounds) / 1e6
        parts += [
            f"## {NAMES[job.parallel]}, steps of {step_ms:.1f} ms",
            f"{SIZES[job.size]}; {pairs} rounds of {seconds:g} s of steps if they took {SIZES[job.size].step_ms} ms.",
            render_summary(rounds),
            render_settled(rounds),
            render_memory(rounds),
            LEGEND,
            render_rounds(rounds),
        ]
    return "\n\n".join(parts) + "\n"


def render_settled(rounds: Sequence[Round]) -> str:
    """What the agent's own meter says of each part in the second half of the runs: the median over the rounds."""
    arms = list(ARMS)[1:]
    parts = [part for part in rounds[0][arms[0]].settled if part != WINDOW_CHILDREN]
    lines = ["| arm | " + " | ".join(parts) + " | together |", "|---" * (2 + len(parts)) + "|"]
    for arm in arms:
        shares = [statistics.median([found[arm].settled.get(part, 0.0) for found in rounds]) for part in parts]
        lines.append(f"| {arm} | " + " | ".join(f"{100 * share:.3f}" for share in [*shares, sum(shares)]) + " |")
    return "\n".join(lines)


def render_memory(rounds: Sequence[Round]) -> str:
    """The memory of rank 0's process at its end with the agent less that without, over the rounds."""
    lines = ["| arm | memory added | median | smallest | largest |", "|---|---|---|---|---|"]
    for arm in list(ARMS)[1:]:
        for what in ("rss_bytes", "pss_bytes"):
            added = [(getattr(found[arm], what) - getattr(found[WITHOUT], what)) / 2**20 for found in rounds]
            spread = f"{statistics.median(added):.1f} MiB | {min(added):.1f} | {max(added):.1f}"
            lines.append(f"| {arm} | {what.partition('_')[0].upper()} | {spread} |")
    return "\n".join(lines)


def render_summary(rounds: Sequence[Round]) -> str:
    """One row for each arm with the agent and each way to compare."""
    lines = ["| arm | ratio of | median | 95 % | smallest | largest |", "|---|---|---|---|---|---|"]
    for arm in list(ARMS)[1:]:
        for way, what in WAYS.items():
            found = compare(ratios_of(rounds, arm, what))
            numbers = f"{found.median:.4f} | {found.interval} | {found.smallest:.4f} | {found.largest:.4f}"
            lines.append(f"| {arm} | {way} | {numbers} |")
    return "\n".join(lines)


def render_rounds(rounds: Sequence[Round]) -> str:
    """One row for each round."""
    lines = ["| round | " + " | ".join(ARMS) + " |", "|---" * (1 + len(ARMS)) + "|"]
    for number, found in enumerate(rounds, start=1):
        lines.append(f"| {number} | " + " | ".join(render_run(found[arm]) for arm in ARMS) + " |")
    return "\n".join(lines)


def render_run(run: Run) -> str:
    """One run as a cell."""
    text = f"{run.median_ns / 1e6:.3f} ({run.mean_ns / 1e6:.3f}, {run.cpu_ns / 1e6:.3f})"
    if run.meter is not None:
        text += f", meter {100 * run.meter:.2f} %"
    return text if not run.full_steps else f"{text}, {run.full_steps} full"


def main() -> None:
    """Measure both sizes and write the result."""
    parser = argparse.ArgumentParser(description="What the agent costs a training job.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"rounds of each size [{PAIRS}]")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"nominal time of a run's steps [{SECONDS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "overhead.md", help="the file to write")
    parser.add_argument("--leave-out", choices=list(ARMS)[1:], help="an arm to do without, to save time")
    parser.add_argument("--size", choices=list(SIZES), help="only this step size; for less time")
    parser.add_argument("--parallel", choices=PARALLEL, nargs="+", default=list(PARALLEL), help="[both]")
    options = parser.parse_args()
    command = f"python -m bench.overhead --pairs {options.pairs} --seconds {options.seconds:g}"
    command += f" --parallel {' '.join(options.parallel)}"
    if options.leave_out is not None:
        del ARMS[options.leave_out]
        command += f' --leave-out "{options.leave_out}"'
    if options.size is not None:
        command += f" --size {options.size}"
    head = describe_run(command)
    sizes = list(SIZES) if options.size is None else [options.size]
    jobs = [Job(size, parallel) for parallel in options.parallel for size in sizes]
    results = {job: measure(job, options.pairs, options.seconds) for job in jobs}
    text = render(head, options.pairs, options.seconds, results)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
