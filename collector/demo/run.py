"""Run the demo: start a collector and a torchrun training, show it live, print what was found."""

import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple, TextIO

from rankscope.collector.demo.result import DemoResult, build_result
from rankscope.collector.demo.running_collector import RunningCollector, end_process, running_collector
from rankscope.collector.demo.screen import (
    SLOW_STEP_S,
    DemoOptions,
    ProgressLog,
    describe_planted,
    find_planted,
    write_end,
    write_live,
)
from rankscope.collector.reports.terminal_colors import Colors, choose_colors
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

RUN = "demo"
REFRESH_S = 1.0
LAST_REPORTS_S_MAX = 15.0
LINES_OF_FAILURE_MAX = 80
CLEAR = "\x1b[H\x1b[2J"
START_S = 15.0
"""Time to the first step: every rank imports torch."""

STEP_CORE_S = 0.0375
"""CPU time of a step of one rank: four ranks on two cores need 75 ms."""

AGENT_ENVIRONMENT = {
    # A demo lasts a minute: windows are frequent enough to be seen, at a cost too high for real training.
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.5",
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "2",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.1",
    "RANKSCOPE_REPORT_INTERVAL_S": "0.5",
}


def run_demo(options: DemoOptions, out: TextIO, give: Callable[[DemoResult], object]) -> int:
    """Run the demo and return 0 when the training ran to its end, else 1. At a terminal the page stays open until
    Ctrl-C.

    `give` gets the result. Raises UnavailableError when torch is missing or a process cannot be started.
    """
    if importlib.util.find_spec("torch") is None:
        text = "the demo trains a model and needs PyTorch: pip install torch, or `make demo` in a checkout"
        raise UnavailableError(text)
    out.write(f"{describe(options, len(os.sched_getaffinity(0)))}\n")
    out.flush()
    colors = choose_colors(out, os.environ)
    with ending_on_sigterm(), running_collector() as collector, tempfile.TemporaryFile("w+") as said:
        with _training(options, collector, said) as training:
            watched = _watch(training, collector, options, out, colors)
            run = _wait_for_ends(collector, training, said)
        end = write_end(run, options, watched.named_by_step, colors)
        out.write(f"{CLEAR if out.isatty() else ''}{end}\n{describe_next(options.fault, sys.argv[0])}\n")
        give(build_result(run, watched.samples))
        if training.returncode != 0:
            out.write(_read_last(said))
        elif out.isatty():
            _keep_open(collector.page, out)
    return 0 if training.returncode == 0 else 1


def describe_next(fault: str, program: str) -> str:
    """Return what to try next: commands that run as they stand. `program` is the command that was typed.

    >>> describe_next("data", "-c").splitlines()[0]
    'Next:     python -m rankscope.collector demo --fault host'
    """
    other = "data" if fault == "host" else "host"
    folder = Path(program).parent
    command, torchrun = "python -m rankscope.collector", "torchrun"
    if Path(program).name == "rankscope":
        is_on_path = shutil.which("rankscope") is not None
        prefix = "" if is_on_path else f"{os.path.relpath(folder)}/"
        command, torchrun = f"{prefix}rankscope", f"{prefix}torchrun"
    return f"Next:     {command} demo --fault {other}\nYour job: RANKSCOPE=1 {torchrun} --nproc-per-node N train.py"


def _keep_open(page: str, out: TextIO) -> None:
    """Leave the collector running until Ctrl-C."""
    out.write(f"The live page stays open until Ctrl-C: {page}\n")
    out.flush()
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _read_last(said: IO[str]) -> str:
    """Return the end of what the ranks of a failed training printed."""
    said.seek(0)
    lines = said.read().splitlines()[-LINES_OF_FAILURE_MAX:]
    return "\n".join(["The training failed. It printed last:", *lines, ""])


def describe(options: DemoOptions, cores: int) -> str:
    """Return the announcement: what is trained, the fault, and the time expected on `cores` idle cores.

    >>> four = DemoOptions(ranks=4, steps=160, fault="data", slow_rank=2, slow_from=60)
    >>> describe(four, cores=2)  # 15 s + 160 steps of 75 ms + 100 of them 150 ms longer
    'demo: trains a small transformer for 160 steps on 4 ranks; rank 2 waits 150 ms longer for each batch from step 60 \
on. Takes about 45 s, longer on a busy machine.'
    """
    slow_steps = options.steps - options.slow_from if options.is_planted else 0
    expected_s = START_S + options.steps * STEP_CORE_S * max(1.0, options.ranks / cores) + slow_steps * SLOW_STEP_S
    fault = describe_planted(options) if slow_steps else "no rank is slow"
    ranks = "rank" if options.ranks == 1 else "ranks"
    return (
        f"demo: trains a small transformer for {options.steps} steps on {options.ranks} {ranks}; {fault}. "
        f"Takes about {math.ceil(expected_s / 5) * 5} s, longer on a busy machine."
    )


# -- the two processes ------------------------------------------------------------------------------------------------


@contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in this context, so that child processes are ended as after an error; a second one
    is ignored, as that is under way then. Does nothing on a thread that is not the main one, which gets no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _training(options: DemoOptions, collector: RunningCollector, said: IO[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the training; `said` gets what its ranks print, which is shown if it fails."""
    script = Path(__file__).with_name("train.py")
    command = build_child_command(
        sys.executable, "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks),
        "-m", "rankscope.agent", str(script),
        "--steps", str(options.steps), "--fault", options.fault,
        "--slow-rank", str(options.slow_rank), "--slow-from", str(options.slow_from),
    )  # fmt: skip
    environment = {**os.environ, **AGENT_ENVIRONMENT, **collector.agents}
    environment |= {"RANKSCOPE_RUN": RUN, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=environment, stdout=said, stderr=said)  # noqa: S603
    try:
        yield child
    finally:
        end_process(child)


# -- watching ---------------------------------------------------------------------------------------------------------


class Watched(NamedTuple):
    """What was seen while the training ran: how far it was when the slow rank was first named (None: it was not), and
    the largest number of samples that /metrics had.
    """

    named_by_step: int | None
    samples: int


def _watch(
    training: "subprocess.Popen[bytes]", collector: RunningCollector, options: DemoOptions, out: TextIO, colors: Colors
) -> Watched:
    """Show the run until the training ends: at a terminal as a screen, elsewhere a line for each thing that happens."""
    named_by_step, samples, log = None, 0, ProgressLog(options, collector.page)
    while training.poll() is None:
        run = collector.read_run(RUN)
        if run is not None:
            if named_by_step is None and find_planted(run.open_findings, options) is not None:
                named_by_step = max(rank.totals.steps for rank in run.ranks)
            if out.isatty():
                out.write(f"{CLEAR}{write_live(run, options, collector.page, colors)}\n")
            else:
                out.writelines(f"{line}\n" for line in log.describe_news(run))
            out.flush()
            samples = max(samples, count_samples(collector))
        with suppress(subprocess.TimeoutExpired):
            training.wait(REFRESH_S)
    return Watched(named_by_step, samples)


def _wait_for_ends(collector: RunningCollector, training: "subprocess.Popen[bytes]", said: IO[str]) -> RunSnapshot:
    """Return the run when the collector knows how every rank ended, or after LAST_REPORTS_S_MAX."""
    deadline_s = time.monotonic() + LAST_REPORTS_S_MAX
    run = collector.read_run(RUN)
    while time.monotonic() < deadline_s and (run is None or any(rank.up for rank in run.ranks)):
        time.sleep(REFRESH_S / 4)
        run = collector.read_run(RUN)
    if run is None:
        text = "no report of the training reached the collector"
        raise UnavailableError(f"{text}. {_read_last(said)}" if training.returncode else text)
    return run


def count_samples(collector: RunningCollector) -> int:
    """Return the number of samples at /metrics: lines of Prometheus' text format that do not begin with `#`."""
    text = collector.read("/metrics").decode()
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))
