"""Run real jobs with gloo, 2 to 4 ranks, whose truth is what their own script has written down.

    python -m tests.second_table.score --real --times 5

A collector of its own listens on the loopback; what it says at the end is read from its API, as a user would. The true
loss of a step is the longest of what its ranks did on purpose in it, over all time in steps.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.machine import describe_run
from tests.second_table import disturbances as of
from tests.second_table.families import SAYS
from tests.second_table.judging import is_near

SCRIPT: Final = Path(__file__).parent / "real_training.py"
START_S_MAX: Final = 240.0
JOB_S_MAX: Final = 600.0
LOOK_S: Final = 3.0
NOBODY: Final = frozenset[int]()
INFORMS: Final = frozenset({"uneven_work", "data_bound", "cpu_pressure", "run_slowdown", "imbalance", "periodic_work"})

OWN_WORK: Final = SAYS[of.ASLEEP] | {"periodic_work"}
"""What a rank does by itself after its optimizer at regular distances is work of its own, whatever it is."""


class Case(NamedTuple):
    """A kind of job: `amount` is its period, length of turns (0: at random) or ms; `who` are the ranks to be named,
    `causes` say why.
    """

    name: str
    ranks: int
    case: str
    amount: int
    steps: int
    who: frozenset[int]
    causes: frozenset[str]


CASES: Final = (
    Case("2 ranks read slowly in turns of 25 steps", 2, "turns", 25, 500, NOBODY, SAYS[of.LOADER] | {"uneven_work"}),
    Case("3 ranks in turns of 25 steps", 3, "turns", 25, 500, NOBODY, SAYS[of.LOADER] | {"uneven_work"}),
    Case("2 ranks at random", 2, "turns", 0, 500, NOBODY, SAYS[of.LOADER] | {"uneven_work"}),
    Case("3 ranks at random", 3, "turns", 0, 500, NOBODY, SAYS[of.LOADER] | {"uneven_work"}),
    Case("3 ranks in turns of 5 steps", 3, "turns", 5, 500, NOBODY, SAYS[of.LOADER] | {"uneven_work"}),
    Case("rank 1 of 2 stalls each 4th step", 2, "stall", 4, 500, frozenset({1}), OWN_WORK),
    Case("rank 1 of 2 stalls each 10th step", 2, "stall", 10, 900, frozenset({1}), OWN_WORK),
    Case("every rank's garbage collector, each 30 steps", 3, "gc", 30, 900, NOBODY, SAYS[of.GC]),
    Case("rank 0 saves slowly each 60 steps", 3, "save", 60, 1200, frozenset({0}), SAYS[of.SAVE]),
    Case("loader of 12 of 16 ms, one process", 1, "loader", 0, 1500, NOBODY, frozenset({"data_bound"})),
    Case("loader of 12 of 16 ms, 2 ranks", 2, "loader", 0, 1500, NOBODY, frozenset({"data_bound"})),
    Case("rank 1 of 2 reads slowly, buffers in its model", 2, "read", 60, 500, frozenset({1}), SAYS[of.LOADER]),
    Case("rank 1 of 3 sleeps after its optimizer, buffers", 3, "log", 60, 500, frozenset({1}), SAYS[of.ASLEEP]),
    Case("rank 1 of 2 sleeps in backward", 2, "backward", 40, 700, frozenset({1}), SAYS[of.ASLEEP]),
    Case("rank 0 of 3 works before a barrier each 40 steps", 3, "barrier", 40, 1000, frozenset({0}), OWN_WORK),
    Case("healthy, 4 ranks", 4, "healthy", 0, 900, NOBODY, frozenset()),
)


class Ran(NamedTuple):
    """A job that ran: whether all that did it were named, whom else, and the lost share as stated and as it was."""

    named: bool
    accused: frozenset[int]
    cause: bool
    lost: tuple[float, float]
    said: str

    def is_right(self, case: Case) -> bool:
        return self.named and self.accused == case.who and (self.cause or not case.causes)


def run_jobs(times: int, cases: Sequence[Case] = CASES) -> str:
    """Run every case so many times; return the page of results."""
    head = describe_run(f"python -m tests.second_table.score --real --times {times}")
    about = (
        "*right*: the ranks named are those that did it, nobody else is, and the cause is said. *accused* are runs "
        "that named a rank that did not; *lost* is right within 0.02 or a fifth."
    )
    columns = "| job | runs | right | accused | cause | lost | said in the last run |"
    lines = ["# Real jobs of the second table", "", head, "", about, "", columns, "|---|---:|---:|---:|---:|---:|---|"]
    for case in cases:
        ran = [run_once(case) for _ in range(times)]
        accused = sum(not one.accused <= case.who for one in ran)
        lost = sum(is_near(*one.lost) for one in ran)
        right = sum(one.is_right(case) for one in ran)
        cause = sum(one.cause for one in ran) if case.causes else ""
        share = f"{lost} (stated {ran[-1].lost[0]:.2f}, true {ran[-1].lost[1]:.2f})"
        said = ran[-1].said.replace("|", "/")
        lines.append(f"| {case.name} | {times} | {right} | {accused} | {cause} | {share} | {said} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def run_once(case: Case, collector_program: Sequence[str] = ("-m", "rankscope.collector")) -> Ran:
    """Run a job beside a collector of its own, started by Python with these arguments."""
    wire, http = _free_ports(2)
    name = f"real-{secrets.token_hex(4)}"
    serve = [sys.executable, *collector_program, "serve", "--listen", f"tcp://127.0.0.1:{wire}"]
    with tempfile.TemporaryDirectory() as folder:
        collector = subprocess.Popen(
            [*serve, "--http-listen", f"127.0.0.1:{http}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _await_collector(http)
            _run_training(case, Path(folder), name, wire, http)
            run = _ask(http, f"/api/v1/runs/{name}?ranks=none") or {}
        finally:
            collector.terminate()
            collector.wait(30)
        return _judge(case, run, _read_lost(case, Path(folder)))


def _run_training(case: Case, folder: Path, name: str, wire: int, http: int) -> None:
    arguments = [case.case, str(case.amount), str(folder), str(case.steps)]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(case.ranks)]
    job = subprocess.Popen(
        [*launch, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(SCRIPT), *arguments],
        env={**_environment(), "RANKSCOPE_COLLECTOR": f"tcp://127.0.0.1:{wire}", "RANKSCOPE_RUN": name},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + JOB_S_MAX
    while job.poll() is None:
        if time.monotonic() > deadline:
            job.terminate()
            job.wait(30)
        time.sleep(LOOK_S)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (_ask(http, f"/api/v1/runs/{name}?ranks=none") or {}).get("end") is None:
        time.sleep(1)


def _environment() -> dict[str, str]:
    return {**os.environ, "RANKSCOPE": "1", "OMP_NUM_THREADS": "1"}


def _await_collector(http: int) -> None:
    deadline = time.monotonic() + START_S_MAX
    while _ask(http, "/api/v1/runs") is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no collector answers at 127.0.0.1:{http} after {START_S_MAX:.0f} s")
        time.sleep(0.2)


def _ask(http: int, path: str) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}{path}", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, urllib.error.URLError):
        return None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _read_lost(case: Case, folder: Path) -> float:
    """Return the share of the time in steps that was lost, from what the ranks have written down."""
    written = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(case.ranks)]
    if case.case in ("loader", "healthy"):
        return 0.0
    longest: dict[int, float] = {}
    for one in written:
        for step, began, ended in one["done"]:
            longest[step] = max(longest.get(step, 0.0), ended - began)
    took = max(one["end"] for one in written) - min(one["begins"][0] for one in written)
    return float(sum(longest.values()) / took)


def _judge(case: Case, run: dict[str, Any], lost: float) -> Ran:
    findings: Sequence[dict[str, Any]] = run.get("findings", ())
    goodput = run.get("goodput", {})
    steps_ns = goodput.get("productive_ns", 0) + goodput.get("slow_ns", 0)
    named = frozenset(rank for one in findings if one["kind"] not in INFORMS - case.causes for rank in one["ranks"])
    says = any({one["kind"], one["cause"]} & case.causes for one in findings)
    return Ran(
        named=case.who <= named,
        accused=named,
        cause=says,
        lost=(goodput.get("slow_ns", 0) / max(1, steps_ns), lost),
        said="; ".join(_describe(findings)) or f"no finding ({run.get('abstained')})",
    )


def _describe(findings: Sequence[dict[str, Any]]) -> Iterator[str]:
    for one in findings:
        yield f"{one['kind']} {one['ranks'] or ''} since {one['since_step']} {one['cause']}"
