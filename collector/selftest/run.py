"""Run the selftest: a collector, a training for each fault, and a table of what was said."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple, TextIO

import msgspec

from rankscope.collector.demo.run import ending_on_sigterm
from rankscope.collector.demo.running_collector import RunningCollector, running_collector
from rankscope.collector.reports.trace_cells import printable
from rankscope.collector.runs.run_end_words import FAILURE
from rankscope.collector.selftest.cases import CASES, CPU_PRESSURE, FIRST_STEP, RANK, RANKS, Case, Verdict, judge
from rankscope.collector.selftest.other_work import OtherWork
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError

DEADLINE_S: Final = 180.0
"""How long a sentence may take, with the start of the training: that of a hang takes 20 s, the imports of four ranks as
long on two busy cores."""
POLL_S: Final = 0.5
END_S_MAX: Final = 45.0
"""torchrun ends its ranks by SIGTERM, and after 30 s by SIGKILL: a stopped rank hears of no SIGTERM."""
OUTPUT_BYTES_SHOWN: Final = 2_000

AGENT_ENVIRONMENT: Final = {
    # A fault lasts seconds here: reports and windows are as frequent as they are nowhere else.
    "RANKSCOPE_COLLECTIVE_WINDOW_S": "0.5",
    "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.2",
    "RANKSCOPE_REPORT_INTERVAL_S": "0.5",
    "RANKSCOPE_STALL_S": "3",
    "RANKSCOPE_FAULTS_ALLOWED": "1",
    "OMP_NUM_THREADS": "1",
}


RIGHT: Final = "right"
WRONG: Final = "wrong"
NOT_REACHED: Final = "not reached"
GRADES: Final = {RIGHT: "right", WRONG: "WRONG", NOT_REACHED: "-    "}
"""How a line of the table begins."""
FREE_CORES_MIN: Final = 1.5
"""Cores that other processes have to leave: two carry four ranks. Of two idle ones more than 1.8 are free."""


class Result(NamedTuple):
    """The verdict on one kind of fault, the seconds from the start of its training until then, and how many cores
    other processes used meanwhile.
    """

    kind: str
    verdict: Verdict
    took_s: float
    others_cores: float = 0.0
    cores: int = 2


class KindReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of one kind of fault. `outcome` is `right` (its sentence was there, and no other rank was accused),
    `wrong`, or `not reached`: it could not be tried, `reason` says why. `is_right` is the first of these. `expected`
    says which sentence is right, `said` is that one, or the last other one (empty: nothing was said), `line` what
    samples have shown beside it (empty: nothing yet), `accuses` one that is not about the faulty rank alone, empty
    without one. `steps` is how many steps after the fault's first one the last reported one was then, `took_s` the time
    from the start of the training, `others_cores` how many cores other processes used in that time.
    """

    kind: str
    outcome: str
    is_right: bool
    reason: str = ""
    expected: str
    said: str
    line: str
    accuses: str
    steps: int
    took_s: float
    others_cores: float


class SelftestReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that `rankscope selftest --json` prints. `load` is the mean number of processes that ran or wanted to before
    the test, on `cores` cores. `right` and `not_reached` are numbers of kinds.
    """

    schema: int = 1
    rank: int = RANK
    ranks: int = RANKS
    first_step: int = FIRST_STEP
    load: float
    cores: int
    right: int
    not_reached: int
    kinds: tuple[KindReport, ...]


def run_selftest(kinds: Sequence[str], out: TextIO) -> SelftestReport:
    """Try each kind of fault, print a table while that goes on, and return what was said.

    Raises UnavailableError when torch is missing, a process cannot be started, or a training does not report, and
    SystemExit after SIGTERM, when the collector and the training have been ended.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("the selftest trains a model and needs PyTorch in this environment: pip install torch")
    out.write(
        f"selftest: a training of {RANKS} ranks for each of {len(kinds)} faults, on rank {RANK} from step {FIRST_STEP} "
        "on; 20 to 60 s each, longer on a busy machine\n"
    )
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    out.write(describe_load(load, cores))
    out.flush()
    results: list[Result] = []
    with ending_on_sigterm(), running_collector() as collector:
        for kind in kinds:
            results.append(_try_kind(kind, CASES[kind], collector))
            out.write(f"{describe(results[-1])}\n")
            out.flush()
    kinds_found = tuple(map(build_report, results))
    right, not_reached = (sum(one.outcome == outcome for one in kinds_found) for outcome in (RIGHT, NOT_REACHED))
    beside = f"; {not_reached} were not reached on this machine at this time" if not_reached else ""
    out.write(f"{right} of {len(results)} faults were found, with the right cause and no other rank accused{beside}\n")
    return SelftestReport(load=load, cores=cores, right=right, not_reached=not_reached, kinds=kinds_found)


def build_report(result: Result) -> KindReport:
    """Return a result as `--json` has it."""
    verdict = result.verdict
    outcome, reason = grade(result)
    return KindReport(
        kind=result.kind,
        outcome=outcome,
        is_right=outcome == RIGHT,
        reason=reason,
        expected=describe_expected(CASES[result.kind]),
        said=verdict.said,
        line=verdict.line,
        accuses=verdict.wrong,
        steps=verdict.steps,
        took_s=round(result.took_s, 1),
        others_cores=round(result.others_cores, 2),
    )


def describe_load(load: float, cores: int) -> str:
    """Return a line about other work on this machine before the test begins; empty where there is little.

    `load` is the mean number of processes that run or want to, over the last minute.

    >>> describe_load(0.4, cores=2), describe_load(7.25, cores=2)[:47]
    ('', 'this machine is busy: 7.2 processes on 2 cores.')
    """
    if load < cores:
        return ""
    return (
        f"this machine is busy: {load:.1f} processes on {cores} cores. gil_spin and cpu_hog may not be reached, since "
        "every rank waits for a core\n"
    )


def grade(result: Result) -> tuple[str, str]:
    """Return the outcome of a kind of fault, RIGHT, WRONG or NOT_REACHED, and the reason of the last.

    Ranks that wait for a core because of other work are no mistake of the monitor.
    """
    verdict, is_busy = result.verdict, result.cores - result.others_cores < FREE_CORES_MIN
    accuses = bool(verdict.wrong) and not (is_busy and verdict.wrong_cause == CPU_PRESSURE)
    if verdict.is_right and not accuses:
        return RIGHT, ""
    if verdict.last_step is not None and verdict.last_step < FIRST_STEP:
        return NOT_REACHED, (
            f"the fault begins at step {FIRST_STEP}, and the training had only reached step {verdict.last_step} after "
            f"{result.took_s:.0f} s"
        )
    if is_busy and CASES[result.kind].needs_cores:
        return NOT_REACHED, (
            f"other processes used {result.others_cores:.1f} of {result.cores} cores meanwhile, so every rank waited "
            "for a core and the fault was not the intended one; run this kind on an idle machine"
        )
    return WRONG, ""


def describe(result: Result) -> str:
    """Return the result in lines: the fault, after how many steps and seconds, and what was said."""
    verdict, (outcome, reason) = result.verdict, grade(result)
    after = f"after {verdict.steps} steps of the fault, {result.took_s:.0f} s from the start"
    lines = [f"{GRADES[outcome]}  {result.kind:<18}  {after}"]
    if reason:
        lines.append(f"       not reached: {reason}")
    if not verdict.is_right:
        lines.append(f"       expected: {describe_expected(CASES[result.kind])}")
    lines.append(f"       said: {printable(verdict.said) if verdict.said else 'nothing'}")
    if verdict.line:
        lines.append(f"       line: {printable(verdict.line)}")
    if verdict.wrong:
        lines.append(f"       not about rank {RANK} alone: {printable(verdict.wrong)}")
    return "\n".join(lines)


def describe_expected(case: Case) -> str:
    """Return which sentence is right."""
    words = f', with "{case.in_words or case.words}"' if case.words else ""
    if case.kind == FAILURE:
        return f"the end of the run as {case.cause}, rank {RANK} as the first to fail{words}"
    line = ", and a line of train.py" if case.line else ""
    return f"a {case.kind} with the cause {case.cause} about rank {RANK} alone{words}{line}"


def _try_kind(kind: str, case: Case, collector: RunningCollector) -> Result:
    run, begin_s = f"selftest-{kind}", time.monotonic()
    verdict, took_s, others = Verdict("", 0, is_right=False), 0.0, OtherWork()
    with tempfile.TemporaryFile() as output, _training(case.order(kind), run, collector, output) as training:
        while not verdict.is_right and took_s < DEADLINE_S:
            with suppress(subprocess.TimeoutExpired):
                training.wait(POLL_S)
                time.sleep(POLL_S)  # it has ended: the sidecar's notice of that may still come
            others.update()
            took_s = time.monotonic() - begin_s
            snapshot = collector.read_run(run)
            if snapshot is not None:
                verdict = judge(case, snapshot)
            elif training.poll() is not None and verdict.last_step is None:
                output.seek(max(0, output.tell() - OUTPUT_BYTES_SHOWN))
                text = output.read().decode(errors="replace")
                raise UnavailableError(f"the training for {kind} ended before it reported; it printed: {text}")
        others_cores = others.measure_cores(took_s)
    return Result(kind, verdict, took_s, others_cores, len(os.sched_getaffinity(0)))


@contextmanager
def _training(
    fault: str, run: str, collector: RunningCollector, output: IO[bytes]
) -> Iterator["subprocess.Popen[bytes]"]:
    script = Path(__file__).with_name("train.py")
    command = build_child_command(
        sys.executable, "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
        "-m", "rankscope.agent", str(script),
    )  # fmt: skip
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE")}
    environment = {**foreign, **AGENT_ENVIRONMENT, **collector.agents}
    environment |= {"RANKSCOPE_RUN": run, "RANKSCOPE_FAULT": fault}
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
    try:
        yield child
    finally:
        _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End torchrun, which ends its ranks; where it does not, end it and them."""
    import psutil  # noqa: PLC0415 - after a training only

    below = []
    with suppress(psutil.Error):
        below = psutil.Process(child.pid).children()
    child.terminate()
    try:
        child.wait(END_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    for rank in below:
        with suppress(psutil.Error):
            rank.kill()
