"""What the agent costs a step, told apart from what the machine does meanwhile:

    python -m bench.alternation [--seconds 300 200] [--size short] [--ranks 1 2] [--windows all]

On a shared machine the same job is 20 % faster or slower a minute later, which hides a cost of 1 %. So one agent lives
through the whole job, and is held again and again *within* it: stretches of steps with it and without it take turns
(A B B A), on all ranks at the same step, a third of a second each, and there are hundreds of them. While the agent is
held its hooks are out of torch, no profiler window is open, its thread builds no report, and its clock stands, so that
the budget and the intervals of reports, samples and windows are those of the time that it was there.

A stretch with the agent ends only when the agent's thread has nothing to do, so that work begun in it is counted in it.

    young    the first five minutes with the agent, in which the head start is spent, mostly on windows
    grown    what follows

Both are quotients of means over all steps, because a mean contains the rare and expensive steps; their intervals are
those of resampled pairs of stretches. Beside them stands what the agent's own meter says of the same time.

Two ranks on two cores leave none to the agent's threads: what they take, training waits for. One rank leaves one free,
as the machines of GPUs do, which have several cores for each.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic_ns, perf_counter_ns, process_time_ns
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from bench.machine import RESULTS, describe_run
from bench.moments import HookSwitch
from bench.overhead import clean_environment, collector
from bench.training import SIZES, TOKENS, Size, Transformer
from rankscope.agent.agent_overhead import WINDOW_CHILDREN
from rankscope.agent.session import Session
from rankscope.measure.records import AgentCost
from rankscope.measure.units import NS_PER_MS, NS_PER_S, s_to_ns

SECONDS = (300.0, 200.0)
STRETCH_S = 0.35
STRETCH_STEPS_MIN = 8
SETTLE_STEPS = 2
"""Left out after a change: the first one has hooks for a part of it only."""
IDLE_NS = 10 * NS_PER_MS
"""The agent's thread is idle so long after a report: then it has been sent."""
YOUNG_S = 300.0
RECORDED_MIN = 0.9
RESAMPLES = 2000
WINDOWS = {
    "all": {},
    "light": {"RANKSCOPE_FULL_WINDOWS": "0"},
    "none": {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"},
}
START_S_MAX = 300.0


class Stretch(NamedTuple):
    """Some steps in a row: how many, their time and the CPU time of the whole process; `on_s` is how long the agent had
    been there at its begin.
    """

    with_agent: bool
    on_s: float
    steps: int
    wall_ns: int
    cpu_ns: int


class Metered(NamedTuple):
    """What the agent says it has cost in its first `on_s` seconds, in ns."""

    on_s: float
    spent_ns: int


class Job(NamedTuple):
    """What is trained, and what of the agent is there."""

    size: str
    ranks: int
    windows: str


class Found(NamedTuple):
    """What rank 0 saw."""

    stretches: list[Stretch]
    metered: list[Metered]


class HeldAgent:
    """An agent that can be held and let go. Its clock is that of the time it was not held."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._switch = HookSwitch(session._training.hooks)
        self._switch.put(hooked=True)
        self._held_ns = 0
        self._held_since_ns: int | None = None
        self._may_report = threading.Event()
        self._may_report.set()
        self._is_reporting = False
        self._reported_ns = 0
        self.metered: list[Metered] = []
        self._begin_ns = monotonic_ns()
        self._hold_thread()

    def _hold_thread(self) -> None:
        """Let the agent's thread see the time that it was not held, and wait with a report while it is."""
        thread: Any = self._session._reporter
        cost, report, samples = thread._cost, thread._report, thread._samples
        find_interval_ns, govern, run = thread._find_interval_ns, cost.govern, samples.run

        def report_when_let_go(*, last: bool = False) -> None:
            self._may_report.wait()
            self._is_reporting = True
            try:
                report(last=last)
            finally:
                self._reported_ns, self._is_reporting = monotonic_ns(), False

        def govern_and_note(now_ns: int) -> AgentCost:
            found: AgentCost = govern(now_ns - self._held_ns)
            spent_ns = sum(ns for part, ns in found.part_ns.items() if part != WINDOW_CHILDREN)
            self.metered.append(Metered((now_ns - self._held_ns - self._begin_ns) / NS_PER_S, spent_ns))
            return found

        thread._report = report_when_let_go
        cost.govern = govern_and_note
        samples.run = lambda now_ns, *, last: run(now_ns - self._held_ns, last=last)
        thread._find_interval_ns = lambda: 2 * find_interval_ns()  # it is held half of the time

    @property
    def on_s(self) -> float:
        """How long it has been there."""
        return (monotonic_ns() - self._begin_ns - self._held_ns) / NS_PER_S

    @property
    def is_busy(self) -> bool:
        """Whether work that has begun is not finished, or a full window is open."""
        scheduler = self._session._training.windows.scheduler
        window = None if scheduler is None else scheduler._window
        has_window = window is not None and window.is_full
        return has_window or self._is_reporting or monotonic_ns() - self._reported_ns < IDLE_NS

    def hold(self) -> None:
        """Take it out of the training, unless it is."""
        if self._held_since_ns is not None:
            return
        self._session.calls.begin_evaluation()
        self._switch.put(hooked=False)
        self._may_report.clear()
        self._held_since_ns = monotonic_ns()

    def let_go(self) -> None:
        """Put it back, unless it is there."""
        if self._held_since_ns is None:
            return
        self._held_ns += monotonic_ns() - self._held_since_ns
        self._held_since_ns = None
        self._switch.put(hooked=True)
        self._session.calls.end_evaluation()
        self._may_report.set()


class Training:
    """The model of the other benchmarks, a step at a time."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self._size = size
        self._tokens = torch.randint(TOKENS, (4096 * size.batch, size.context + 1))
        self._model = DistributedDataParallel(Transformer(size))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._batches: Iterator[Any] = iter(())
        self._wish = torch.zeros(1)

    def step(self, *, goes_on: bool) -> bool:
        """Train one step; return whether any rank wishes to go on."""
        rows = next(self._batches, None)
        if rows is None:
            self._batches = iter(DataLoader(TensorDataset(self._tokens), batch_size=self._size.batch))
            rows = next(self._batches)
        loss = nn.functional.cross_entropy(self._model(rows[0][:, :-1]).flatten(0, 1), rows[0][:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        self._wish.fill_(float(goes_on))
        dist.all_reduce(self._wish, op=dist.ReduceOp.MAX)
        return bool(self._wish.item())


def run_stretch(training: Training, steps_min: int, is_busy: Callable[[], bool]) -> tuple[int, int, int]:
    """Train so many steps and more while any rank is busy; return how many, their time and their CPU time."""
    for _ in range(SETTLE_STEPS):
        training.step(goes_on=True)
    begin_ns, begin_cpu_ns = perf_counter_ns(), process_time_ns()
    steps = 0
    while True:
        goes_on = training.step(goes_on=steps + 1 < steps_min or is_busy())
        steps += 1
        if not goes_on:
            return steps, perf_counter_ns() - begin_ns, process_time_ns() - begin_cpu_ns


def train(size: Size, seconds: float) -> Found:
    """Train with an agent that is there for so many seconds, and held for as many."""
    from rankscope.agent.config import read_config  # noqa: PLC0415 - only a rank needs it

    training = Training(size)
    session = Session.start(read_config(os.environ), os.environ)
    if session is None:
        raise RuntimeError("the agent is not enabled")
    agent = HeldAgent(session)
    steps_min = max(STRETCH_STEPS_MIN, round(1000 * STRETCH_S / size.step_ms))
    stretches = []
    for number in itertools.count():
        with_agent = number % 4 in {1, 2}
        (agent.let_go if with_agent else agent.hold)()
        on_s = agent.on_s
        found = run_stretch(training, steps_min, lambda: agent.is_busy if with_agent else False)  # noqa: B023
        stretches.append(Stretch(with_agent, on_s, *found))
        is_over = torch.tensor([float(on_s >= seconds and number % 4 == 3)])
        dist.broadcast(is_over, 0)
        if is_over.item():
            break
    agent.let_go()
    check_recorded(session, sum(one.steps for one in stretches if one.with_agent))
    session.stop()
    return Found(stretches, agent.metered)


def check_recorded(session: Session, steps: int) -> None:
    """Raise if the agent has not seen the steps that it was there for."""
    recorded = session._training.timer.step
    if not RECORDED_MIN * steps <= recorded:
        raise RuntimeError(f"the agent has recorded {recorded} of {steps} steps: it was not there")


def be_a_rank(options: argparse.Namespace) -> None:
    """One rank of the job; rank 0 writes what it saw."""
    dist.init_process_group("gloo")
    found = train(SIZES[options.size[0]], sum(options.seconds))
    if dist.get_rank() == 0:
        options.out.write_text(json.dumps(found))
    dist.destroy_process_group()


def run_job(job: Job, seconds: Sequence[float]) -> Found:
    """The whole job beside a collector."""
    with collector() as (endpoint, _), tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(job.ranks),
            "-m", "bench.alternation", "--rank", "--size", job.size, "--out", str(out),
            "--seconds", *(str(one) for one in seconds),
        ]  # fmt: skip
        settings = {"OMP_NUM_THREADS": "1", "RANKSCOPE_COLLECTOR": endpoint, **WINDOWS[job.windows]}
        limit_s = 4 * sum(seconds) + START_S_MAX
        subprocess.run(command, env={**clean_environment(), **settings}, check=True, timeout=limit_s)
        stretches, metered = json.loads(out.read_text())
        return Found([Stretch(*row) for row in stretches], [Metered(*row) for row in metered])


class Ratio(NamedTuple):
    """A quotient of means and the middle 95 % of those of resampled pairs."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4f} | {self.low:.4f} to {self.high:.4f}"


Pair = tuple[Stretch, Stretch]


def pairs_of(stretches: Sequence[Stretch]) -> list[Pair]:
    """Neighbors, the one with the agent first."""
    pairs = (stretches[place : place + 2] for place in range(0, len(stretches), 2))
    return [(a, b) if a.with_agent else (b, a) for a, b in pairs]


def quotient(pairs: Sequence[Pair], what: str) -> float:
    """A step with the agent over one without it, in the mean.

    >>> with_agent, without = Stretch(True, 0.0, 3, 33, 9), Stretch(False, 0.0, 2, 20, 6)
    >>> quotient([(with_agent, without)], "wall_ns")
    1.1
    """
    with_agent, without = (
        sum(getattr(pair[at], what) for pair in pairs) / sum(pair[at].steps for pair in pairs) for at in (0, 1)
    )
    return float(with_agent / without)


def ratio_of(pairs: Sequence[Pair], what: str) -> Ratio:
    """The quotient with its interval."""
    chance = random.Random(0)
    found = sorted(quotient(chance.choices(pairs, k=len(pairs)), what) for _ in range(RESAMPLES))
    return Ratio(quotient(pairs, what), found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES)])


def meter_between(metered: Sequence[Metered], begin_s: float, end_s: float) -> float:
    """What the agent says it has cost of that time.

    >>> meter_between([Metered(1.0, 10_000_000), Metered(2.0, 15_000_000), Metered(3.0, 18_000_000)], 1.0, 3.0)
    0.004
    """
    inside = [one for one in metered if begin_s <= one.on_s <= end_s]
    first = inside[0] if begin_s > 0 else Metered(0.0, 0)
    return (inside[-1].spent_ns - first.spent_ns) / s_to_ns(inside[-1].on_s - first.on_s)


def describe(job: Job, found: Found) -> Iterator[str]:
    """The rows of one job."""
    step_ms = statistics.median(one.wall_ns / one.steps for one in found.stretches if not one.with_agent) / 1e6
    last_s = max(one.on_s for one in found.stretches)
    for name, begin_s, end_s in (("young", 0.0, YOUNG_S), ("grown", YOUNG_S, last_s)):
        pairs = [pair for pair in pairs_of(found.stretches) if begin_s <= pair[0].on_s < end_s]
        if pairs:
            meter = 1 + meter_between(found.metered, begin_s, end_s)
            yield (
                f"| {job.ranks} | {step_ms:.1f} ms | {job.windows} | {name} | {ratio_of(pairs, 'wall_ns')} | "
                f"{ratio_of(pairs, 'cpu_ns')} | {meter:.4f} | {len(pairs)} |"
            )


def render(head: str, rows: Sequence[str]) -> str:
    """The result file."""
    lines = [
        "| ranks | step | windows | agent | step time | 95 % | CPU time | 95 % | by the agent's meter | pairs |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    explanation = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2].strip()
    return "\n\n".join(["# What the agent costs a step, within one job", head, explanation, "\n".join(lines)]) + "\n"


def main() -> None:
    """Run the job for each size and choice of windows and write the result; or be one of its ranks."""
    parser = argparse.ArgumentParser(description="What the agent costs a step, within one job.")
    parser.add_argument(
        "--seconds", type=float, nargs="+", default=SECONDS, help="time with the agent, young and grown [300 200]"
    )
    parser.add_argument("--size", choices=sorted(SIZES), nargs="+", default=list(SIZES))
    parser.add_argument("--windows", choices=list(WINDOWS), nargs="+", default=["all"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "alternation.md", help="the file to write")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        be_a_rank(options)
        return
    head = describe_run(f"python -m bench.alternation {' '.join(sys.argv[1:])}".strip())
    rows: list[str] = []
    for job in itertools.starmap(Job, itertools.product(options.size, options.ranks, options.windows)):
        rows += describe(job, run_job(job, options.seconds))
        options.out.write_text(render(head, rows))
    print(render(head, rows))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
