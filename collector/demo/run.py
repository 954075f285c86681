"""Run the demo: start a collector and a torchrun training, show a live table, print the verdict."""

import importlib.util
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import msgspec

from rankscope.collector.demo.result import DemoResult, build_result
from rankscope.collector.demo.running_collector import RunningCollector, end_process, running_collector
from rankscope.collector.reports.status_text import render_run
from rankscope.collector.reports.summary import summarise
from rankscope.collector.reports.terminal_colors import choose_colors
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

RUN = "demo"
REFRESH_S = 1.0
LAST_REPORTS_S_MAX = 15.0
CLEAR = "\x1b[H\x1b[2J"
START_S = 15.0
"""Time to the first step: every rank imports torch."""

STEP_CORE_S = 0.0375
"""CPU time of a step of one rank: four ranks on two cores need 75 ms."""

SLOW_STEP_S = 0.15
"""Delay of a slow step: FAULT_S of train.py, which cannot be imported without torch."""

AGENT_ENVIRONMENT = {
    # A demo lasts a minute: windows are frequent enough to be seen, at a cost too high for real training.
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.5",
    "RANKSCOPE_FULL_WINDOW_INTERVAL_S": "2",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.1",
    "RANKSCOPE_REPORT_INTERVAL_S": "0.5",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoOptions:
    """The options of the command. Steps count from 0; `slow_from` is the first slow one."""

    ranks: int
    steps: int
    fault: str
    slow_rank: int
    slow_from: int
    json_path: Path | None


def run_demo(options: DemoOptions, out: TextIO) -> int:
    """Run the demo and return 0 when the training ran to its end, else 1.

    Raises UnavailableError when torch is missing or a process cannot be started.
    """
    if importlib.util.find_spec("torch") is None:
        text = "the demo trains a model and needs PyTorch: pip install torch, or `make demo` in a checkout"
        raise UnavailableError(text)
    if options.json_path is not None:
        _check_writable(options.json_path)
    out.write(f"{describe(options, len(os.sched_getaffinity(0)))}\n")
    out.flush()
    with ending_on_sigterm(), running_collector() as collector, _training(options, collector) as training:
        samples = _watch(training, collector, out)
        run = _wait_for_ends(collector)
    result, colors = build_result(run, samples), choose_colors(out, os.environ)
    out.write(
        f"{CLEAR if out.isatty() else ''}{render_run(run, colors)}\n\n{summarise(run)}\n{samples} samples at /metrics\n"
    )
    if options.json_path is not None:
        _write_json(result, options.json_path)
    return 0 if training.returncode == 0 else 1


def describe(options: DemoOptions, cores: int) -> str:
    """Return the announcement: what is trained, the fault, and the time expected on `cores` idle cores.

    >>> four = DemoOptions(ranks=4, steps=160, fault="host", slow_rank=2, slow_from=60, json_path=None)
    >>> describe(four, cores=2)  # 15 s + 160 steps of 75 ms + 100 of them 150 ms longer
    'demo: trains a small transformer for 160 steps on 4 ranks; rank 2 is slow from step 60 on. Takes about 45 s, \
longer on a busy machine.'
    """
    slow_steps = max(0, options.steps - options.slow_from) if options.fault != "none" else 0
    expected_s = START_S + options.steps * STEP_CORE_S * max(1.0, options.ranks / cores) + slow_steps * SLOW_STEP_S
    fault = f"rank {options.slow_rank} is slow from step {options.slow_from} on" if slow_steps else "no rank is slow"
    return (
        f"demo: trains a small transformer for {options.steps} steps on {options.ranks} ranks; {fault}. "
        f"Takes about {math.ceil(expected_s / 5) * 5} s, longer on a busy machine."
    )


# -- the training -----------------------------------------------------------------------------------------------------


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
def _training(options: DemoOptions, collector: RunningCollector) -> Iterator["subprocess.Popen[bytes]"]:
    script = Path(__file__).with_name("train.py")
    command = build_child_command(
        sys.executable, "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks),
        "-m", "rankscope.agent", str(script),
        "--steps", str(options.steps), "--fault", options.fault,
        "--slow-rank", str(options.slow_rank), "--slow-from", str(options.slow_from),
    )  # fmt: skip
    environment = {**os.environ, **AGENT_ENVIRONMENT, **collector.agents}
    environment |= {"RANKSCOPE_RUN": RUN, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=environment)  # noqa: S603
    try:
        yield child
    finally:
        end_process(child)


# -- watching ---------------------------------------------------------------------------------------------------------


def _watch(training: "subprocess.Popen[bytes]", collector: RunningCollector, out: TextIO) -> int:
    """Show the table until the training ends; return the largest number of samples that /metrics had."""
    samples = 0
    while training.poll() is None:
        run = collector.read_run(RUN)
        if run is not None:
            prefix = CLEAR if out.isatty() else "\n"
            out.write(f"{prefix}{render_run(run)}\nlive page: {collector.page}\n")
            out.flush()
            samples = max(samples, count_samples(collector))
        with suppress(subprocess.TimeoutExpired):
            training.wait(REFRESH_S)
    return samples


def _wait_for_ends(collector: RunningCollector) -> RunSnapshot:
    """Return the run when the collector knows how every rank ended, or after LAST_REPORTS_S_MAX."""
    deadline_s = time.monotonic() + LAST_REPORTS_S_MAX
    run = collector.read_run(RUN)
    while time.monotonic() < deadline_s and (run is None or any(rank.up for rank in run.ranks)):
        time.sleep(REFRESH_S / 4)
        run = collector.read_run(RUN)
    if run is None:
        text = "no report of the training reached the collector; see what the ranks printed"
        raise UnavailableError(text)
    return run


def count_samples(collector: RunningCollector) -> int:
    """Return the number of samples at /metrics: lines of Prometheus' text format that do not begin with `#`."""
    text = collector.read("/metrics").decode()
    return sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def _check_writable(path: Path) -> None:
    """Raise UnavailableError before the training starts if the file cannot be written. An existing file is kept."""
    with _naming(path):
        path.open("ab").close()


def _write_json(result: DemoResult, path: Path) -> None:
    with _naming(path):
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot write {path} (from --json): {error.strerror}; name a path that can be written"
        raise UnavailableError(text) from error
