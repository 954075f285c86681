"""Run a script with the agent until a capture of a few of its steps is written, and end it: for `rankscope profile`.

The script runs in a process of its own, or in ranks that torchrun starts, beside a collector that counts its steps.
Nothing of the surrounding settings of the agent holds there.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, TextIO

import psutil

from rankscope.collector.demo.running_collector import RunningCollector, running_collector
from rankscope.measure.capture_limits import CAPTURE_STEP_MIN
from rankscope.measure.child_command import build_child_command

RUN: Final = "profile"
POLL_S: Final = 0.1
END_S_MAX: Final = 10.0
"""Longest time for the ranks to end after SIGTERM: the agent alone may wait for 3 s."""
COUNT_S_MAX: Final = 5.0
"""Longest time for the collector to say how many steps a script had that has ended."""

SETTINGS: Final = {
    "RANKSCOPE_RUN": RUN,
    "RANKSCOPE_CAPTURE_OPTIONS": "shapes, stacks, modules",
    # The whole run is for the capture, whatever it costs.
    "RANKSCOPE_CAPTURE_PAUSE_S_MAX": "600",
    "RANKSCOPE_COLLECTIVE_WINDOWS": "false",
    "RANKSCOPE_FULL_WINDOWS": "false",
    "RANKSCOPE_DEVICE_WINDOWS": "off",
    "RANKSCOPE_DEVICE_TIMES": "false",
    "RANKSCOPE_SIDECAR": "false",
    "RANKSCOPE_GPU": "false",
    "RANKSCOPE_CONSTANT_NODE_SAMPLES": "false",
}
KEPT: Final = "RANKSCOPE_DEBUG"


class Script(NamedTuple):
    """What is profiled: the words of its command line, whether the first is a module, the number of ranks for torchrun
    (None: without it), the steps that are skipped and those that are captured after them.
    """

    words: Sequence[str]
    is_module: bool = False
    ranks: int | None = None
    skip: int = 5
    steps: int = 3

    @property
    def schedule(self) -> str:
        """The setting `capture_schedule` for its steps: the profiler is prepared in the last skipped one, if it can be.

        >>> Script(["train.py"]).schedule, Script(["train.py"], skip=2).schedule
        ('skip_first=4, warmup=1, active=3', 'skip_first=2, warmup=0, active=3')
        """
        warmup = min(1, self.skip - CAPTURE_STEP_MIN)
        return f"skip_first={self.skip - warmup}, warmup={warmup}, active={self.steps}"

    @property
    def captured(self) -> str:
        """The name of the folder with its steps.

        >>> Script(["train.py"]).captured
        'steps-5-7'
        """
        return f"steps-{self.skip}-{self.skip + self.steps - 1}"


class EndedScript(NamedTuple):
    """How it ended: the folder of the traces, complete unless there is a `problem`; the exit status of the script, None
    where it was still running.
    """

    traces: Path
    problem: str = ""
    exit_status: int | None = None


def profile_script(script: Script, folder: Path, out: TextIO | None = None) -> EndedScript:
    """Run a script until the traces of all ranks are in `folder`, and end it; or until it ends by itself. It has our
    input and output; with `out`, a file of the system, it prints there. Raises UnavailableError without a collector,
    OSError when it cannot be started.
    """
    files = folder / RUN
    with _ending_by_signals(), running_collector() as collector:
        environment = build_environment(os.environ, script, folder, collector.agents)
        # In a session of its own, so that Ctrl-C is ours: we end the script.
        child = subprocess.Popen(  # noqa: S603
            build_command(script), env=environment, stdout=out, start_new_session=True
        )
        try:
            while not (found := find_traces(files, script.ranks or 1)) and child.poll() is None:
                time.sleep(POLL_S)
        finally:
            end(child, is_launcher=script.ranks is not None)
        if (files / script.captured) in (found or find_traces(files, script.ranks or 1)):
            return EndedScript(files / script.captured)
        if found:
            return EndedScript(files, describe_cut(script, found[0].name))
        return EndedScript(files, describe_missing(script, child.returncode, _count_steps(collector)), child.returncode)


def build_command(script: Script) -> list[str]:
    """Return the command that runs the script with the agent in this interpreter. A mistake in the settings ends it."""
    agent = ["-m", "rankscope.agent", "--strict", *(["-m"] if script.is_module else []), *script.words]
    if script.ranks is None:
        return [sys.executable, *agent]
    return build_child_command(
        sys.executable, "torch.distributed.run", "--standalone", "--nproc-per-node", str(script.ranks), *agent
    )


def build_environment(
    environment: Mapping[str, str], script: Script, folder: Path, agents: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of the script: ours with these settings of the agent, and no others. `agents` are those of
    its collector.
    """
    kept = {name: value for name, value in environment.items() if name == KEPT or not name.startswith("RANKSCOPE")}
    return {
        **kept,
        **SETTINGS,
        **agents,
        "RANKSCOPE_CAPTURE_FOLDER": str(folder),
        "RANKSCOPE_CAPTURE_SCHEDULE": script.schedule,
    }


def find_traces(folder: Path, ranks: int) -> list[Path]:
    """Return the folders of captures in which each rank has its file; a file that is there is whole."""
    names = [f"rank-{rank}.pt.trace.json.gz" for rank in range(ranks)]
    return [found for found in sorted(folder.glob("steps-*")) if all((found / name).exists() for name in names)]


def describe_cut(script: Script, name: str) -> str:
    """Return the sentence about a capture that has fewer steps than were asked for.

    >>> describe_cut(Script(["train.py"]), "steps-5-6")
    'the capture ended after steps-5-6 instead of steps-5-7; the line above says why. Choose other steps by --skip and \
--steps.'
    """
    return (
        f"the capture ended after {name} instead of {script.captured}; the line above says why. Choose other steps by "
        "--skip and --steps."
    )


def describe_missing(script: Script, exit_status: int, steps: int | None) -> str:
    """Return the sentence about a script that ended before its capture was complete. `steps`: how many it had; None
    where that is not known.

    >>> describe_missing(Script(["train.py"]), 0, 4)
    'no profile: the script ended with exit status 0 before the capture was complete. It had 4 steps, and 8 are \
needed: 5 to skip (--skip) and 3 to capture (--steps).'
    """
    how = f"was killed by signal {-exit_status}" if exit_status < 0 else f"ended with exit status {exit_status}"
    needed = f"{script.skip + script.steps} are needed: {script.skip} to skip (--skip) and {script.steps} to capture"
    needed += " (--steps)."
    if steps is None:
        had = f"How many steps it had is not known; {needed}"
    elif steps == 0:
        had = f"No step of it was seen, where a step ends with optimizer.step(); {needed}"
    elif steps < script.skip + script.steps:
        had = f"It had {steps} step{'' if steps == 1 else 's'}, and {needed}"
    else:
        had = f"It had {steps} steps, which is enough: a line above says why there is no capture."
    return f"no profile: the script {how} before the capture was complete. {had}"


def end(child: "subprocess.Popen[bytes]", *, is_launcher: bool, patience_s: float = END_S_MAX) -> None:
    """End a script and everything that it has started: SIGTERM to the ranks, SIGKILL to what is left `patience_s`
    later.

    A launcher is killed first: it would print a report of each rank that ends. Helpers of a rank, as workers of a data
    loader, end after it: it would raise if they ended before.
    """
    if child.poll() is not None:
        return
    main = psutil.Process(child.pid)
    members = _children_of(main)
    ranks = _children_of(main, recursive=False) if is_launcher else [main]
    if is_launcher:
        child.kill()
        child.wait()
    for rank in ranks:
        with contextlib.suppress(psutil.Error):
            rank.terminate()
    try:
        psutil.wait_procs(ranks, patience_s)
    finally:  # also where a second Ctrl-C has cut the waiting
        members += [one for rank in ranks for one in _children_of(rank)]  # what was started meanwhile
        for process in (*ranks, *members):
            with contextlib.suppress(psutil.Error):
                process.kill()
        child.wait()


def _children_of(process: psutil.Process, *, recursive: bool = True) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=recursive))
    except psutil.Error:
        return []


def _count_steps(collector: RunningCollector) -> int | None:
    """Return the number of steps of the rank with the fewest, as reported; None where no rank has reported."""
    deadline_s = time.monotonic() + COUNT_S_MAX
    run = None
    with contextlib.suppress(OSError):  # a collector that is gone knows no more
        run = collector.read_run(RUN)
        while time.monotonic() < deadline_s and (run is None or any(rank.up for rank in run.ranks)):
            time.sleep(POLL_S)
            run = collector.read_run(RUN)
    if run is None or not run.ranks:
        return None
    return min(rank.totals.steps for rank in run.ranks)


@contextlib.contextmanager
def _ending_by_signals() -> Iterator[None]:
    """Raise SystemExit on SIGTERM and SIGHUP meanwhile, so that the script ends too."""

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
