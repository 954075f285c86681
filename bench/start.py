"""What the agent adds to the start of a training process: python -m bench.start [--rounds 15] [--out FILE]

A script that imports torch and makes one step (`bench/first_step.py`) is started without rankscope, with it
installed but not asked for, and with the agent in it, one after the other in every round and in the opposite order in
the next. A time is from the start of the process, by the machine's monotonic clock; *median*, *smallest* and *largest*
are of the rounds, each of which compares its own runs. To import torch takes a second or more, and on a machine that is
not steady some hundred ms more or less: *fastest* compares the fastest run of each arm, *CPU* the least CPU time that
the whole process used up to there. The parts are measured in processes of their own, each import and call in its turn
after `import torch`.

The *account* is of what the agent itself does up to the first step, in CPU time: what comes before the script, the
cheapest run less the cheapest run, though some of that torch would import itself; the session, its imports and its
start, as they happen amid the import of torch; what other threads of the process use from then to the end of the first
step, and what the step takes on its own thread, both more than without, by medians. Not in it: what torch's imports
take longer for it, such as collections of garbage that has more to walk over.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple

from bench.machine import RESULTS, describe_run
from bench.overhead import clean_environment, collector

ROUNDS = 15
RUN_S_MAX = 120.0
SCRIPT = Path(__file__).with_name("first_step.py")
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""What a launcher says to the only rank of a job."""
WITHOUT = "without rankscope"
INSTALLED = "installed, not asked for"
AGENT = "with the agent"
ARMS: dict[str, tuple[list[str], dict[str, str]]] = {
    WITHOUT: ([str(SCRIPT)], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}),
    INSTALLED: ([str(SCRIPT)], {}),
    AGENT: (["-m", "rankscope.agent", str(SCRIPT)], {}),
}
"""What python is started with, and what is set. Torch looks for backends such as rankscope unless it is told not to."""
MOMENTS = {"script begins": "begun", "torch imported": "imported", "first step done": "stepped"}
PARTS = """
import gc, json, os, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
gc.disable()  # as agent/launch.py does around its imports
took = {}
def measure(name, action):
    begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    result = action()
    took[name + ", CPU"] = time.thread_time_ns() - begin_cpu_ns
    took[name] = time.perf_counter_ns() - begin_ns
    return result
measure("import numpy, zmq, msgspec", lambda: [__import__(n) for n in NAMES])
measure("import rankscope.agent.session", lambda: __import__("rankscope.agent.session"))
from rankscope.agent.session import Session
session = measure("Session.start", lambda: Session.start({}, os.environ))
print(json.dumps(took))
session.stop()
""".replace("NAMES", repr(["numpy", "zmq", "msgspec"]))


class Times(NamedTuple):
    """When a moment was, in ms from the start of the process, and the CPU time that the process had used."""

    after_ms: float
    cpu_ms: float


class Start(NamedTuple):
    """One start: its moments, and the CPU time of what the account asks for, in ms, by name."""

    moments: dict[str, Times]
    account_ms: dict[str, float]


def run(arguments: list[str], environment: dict[str, str]) -> Any:
    """What a python started so printed in its last line. Raises CalledProcessError when it failed."""
    command = [sys.executable, *arguments]
    compiled = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, env=compiled, capture_output=True, text=True, timeout=RUN_S_MAX, check=True, cwd=Path.cwd()
    )
    return json.loads(done.stdout.splitlines()[-1])


def run_arm(arm: str, endpoint: str) -> Start:
    """One start."""
    arguments, changes = ARMS[arm]
    environment = clean_environment() | RANK | {"OMP_NUM_THREADS": "1"} | changes
    if arm == AGENT:
        environment["RANKSCOPE_COLLECTOR"] = endpoint
    start_ns = monotonic_ns()
    measured = run(arguments, environment)
    times_ns, cpu_ns = measured["times_ns"], measured["cpu_ns"]
    moments = {moment: Times((times_ns[key] - start_ns) / 1e6, cpu_ns[key] / 1e6) for moment, key in MOMENTS.items()}
    return Start(moments, {name: took_ns / 1e6 for name, took_ns in measured["account_ns"].items()})


def measure_arms(rounds: int, endpoint: str) -> list[dict[str, Start]]:
    """Each round's times by arm."""
    found = []
    for number in range(rounds):
        order = list(ARMS) if number % 2 == 0 else list(reversed(ARMS))
        found.append({arm: run_arm(arm, endpoint) for arm in order})
        print(f"round {number + 1} of {rounds}: {found[-1]}", flush=True)
    return found


def measure_parts(rounds: int, endpoint: str) -> dict[str, list[float]]:
    """ms of each part in each round."""
    environment = clean_environment() | RANK | {"OMP_NUM_THREADS": "1", "RANKSCOPE_COLLECTOR": endpoint}
    runs = [run(["-c", PARTS], environment) for _ in range(rounds)]
    return {name: [run[name] / 1e6 for run in runs] for name in sorted(runs[0])}


def render(head: str, arms: list[dict[str, Start]], parts: dict[str, list[float]]) -> str:
    """The result file."""
    lines = [
        "| arm | from the start to | ms more than without: median | smallest | largest | fastest | CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in list(ARMS)[1:]:
        for moment in MOMENTS:
            more = [found[arm].moments[moment].after_ms - found[WITHOUT].moments[moment].after_ms for found in arms]
            lines.append(f"| {arm} | {moment} | {render_spread(more)} | {render_least(arms, arm, moment)} |")
    account = find_account(arms)
    lines += ["", "| account of the agent | CPU ms |", "|---|---|"]
    lines += [f"| {name} | {took:.1f} |" for name, took in account.items()]
    lines += [f"| together | {sum(account.values()):.1f} |"]
    lines += ["", "| part | ms: median | smallest | largest |", "|---|---|---|---|"]
    lines += [f"| {name} | {render_spread(took)} |" for name, took in parts.items()]
    whole = statistics.median(found[WITHOUT].moments["first step done"].after_ms for found in arms)
    explanation = (__doc__ or "").partition("\n\n")[
        2
    ].strip() + f"\n\nWithout rankscope the first step is done {whole:.0f}"
    return "\n\n".join(
        ["# What the agent adds to the start", head, f"{explanation} ms after the start.", "\n".join(lines)]
    )


def find_account(arms: list[dict[str, Start]]) -> dict[str, float]:
    """What the agent itself takes up to the first step, in ms of CPU time."""
    begun = _find_least(arms, AGENT, "script begins").cpu_ms - _find_least(arms, WITHOUT, "script begins").cpu_ms

    def find_more(name: str) -> float:
        own, other = (statistics.median(found[arm].account_ms[name] for found in arms) for arm in (AGENT, WITHOUT))
        return own - other

    return {
        "before the script": begun,
        "the session, amid the import of torch": find_more("session"),
        "other threads, from then to the first step": find_more("other threads"),
        "the first step itself": find_more("step"),
    }


def _find_least(arms: list[dict[str, Start]], arm: str, moment: str) -> Times:
    return Times(*(min(kind) for kind in zip(*(found[arm].moments[moment] for found in arms), strict=True)))


def render_least(arms: list[dict[str, Start]], arm: str, moment: str) -> str:
    """What the fastest and the cheapest run take more than without rankscope, as cells."""
    least = [_find_least(arms, which, moment) for which in (arm, WITHOUT)]
    return " | ".join(f"{own - other:.1f}" for own, other in zip(*least, strict=True))


def render_spread(values: list[float]) -> str:
    """Median, smallest and largest as cells."""
    return f"{statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f}"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What the agent adds to the start of a training process.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"runs of each arm [{ROUNDS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "start.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.start --rounds {options.rounds}")
    with collector() as (endpoint, _):
        run_arm(AGENT, endpoint)  # compiles
        arms = measure_arms(options.rounds, endpoint)
        parts = measure_parts(options.rounds, endpoint)
    text = render(head, arms, parts) + "\n"
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
