"""What captures and scopes cost: python -m bench.captures [--repeat 5] [--out FILE]

One process trains a transformer on the CPU, and captures three steps with each option, through the same code as the
agent. `stop` is the time for which the end of the capture holds up training, `save` that for which writing the file
holds up Python threads, each for one event; the ratio of events is to a capture without options. `step` is the CPU time
of the training thread in a captured step relative to one that is not captured. The smallest of all repetitions.

A scope is entered and left in a loop; the smallest of all repetitions, without the loop itself.
"""

import argparse
import gc
import json
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from bench.machine import RESULTS, describe_run
from bench.training import SIZES, TOKENS, Transformer
from rankscope.agent import scope
from rankscope.agent.capture_settings import OPTIONS, CaptureSteps, RecordOptions
from rankscope.agent.captures.marked_ranges import MarkedRanges
from rankscope.agent.captures.trace_captures import make_profile
from rankscope.agent.guard import Guard

REPEAT, STEPS, LOOPS = 5, 3, 20_000


class Cost(NamedTuple):
    """What one capture took."""

    stop_ns: int
    save_ns: int
    events: int
    step_cpu_ns: float


class Training:
    """A transformer on the CPU, and random tokens."""

    def __init__(self) -> None:
        size = SIZES["short"]
        torch.manual_seed(0)
        self._model = Transformer(size)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._rows = torch.randint(TOKENS, (size.batch, size.context + 1))

    def step(self) -> None:
        """Do one step."""
        loss = nn.functional.cross_entropy(self._model(self._rows[:, :-1]).flatten(0, 1), self._rows[:, 1:].flatten())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def measure_step(self, between: Callable[[], object] = lambda: None) -> float:
        """Return the CPU time of a step in ns, of the mean of STEPS; `between` is called after each."""
        spent_ns = 0
        for _ in range(STEPS):
            begin_ns = time.thread_time_ns()
            self.step()
            spent_ns += time.thread_time_ns() - begin_ns
            between()
        return spent_ns / STEPS


def capture(training: Training, options: RecordOptions, path: Path) -> Cost:
    """Capture three steps as the agent does."""
    ranges = MarkedRanges(Guard(error_budget=1))
    profile = make_profile(CaptureSteps(0, 0, STEPS - 1), options)
    profile.start()
    ranges.begin(options)
    step_cpu_ns = training.measure_step(profile.step)
    ranges.end()
    begin_ns = time.perf_counter_ns()
    profile.stop()
    stopped_ns = time.perf_counter_ns()
    profile.export_chrome_trace(str(path))
    saved_ns = time.perf_counter_ns()
    events = sum(one.get("ph") == "X" for one in json.loads(path.read_bytes())["traceEvents"])
    del profile
    gc.collect()
    return Cost(stopped_ns - begin_ns, saved_ns - stopped_ns, events, step_cpu_ns)


def choose_smaller(one: Cost, other: Cost) -> Cost:
    """Return the smaller of each number."""
    return Cost(
        min(one.stop_ns, other.stop_ns),
        min(one.save_ns, other.save_ns),
        min(one.events, other.events),
        min(one.step_cpu_ns, other.step_cpu_ns),
    )


def measure_captures(repeat: int) -> tuple[float, dict[str, Cost]]:
    """Return the CPU time of a step without a capture in ns, and the smallest costs with each option."""
    training, found, steps_ns = Training(), dict[str, Cost](), []
    training.measure_step()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeat):
            steps_ns.append(training.measure_step())
            for name in ("", *OPTIONS):
                options = RecordOptions(**{name: True} if name else {})
                cost = capture(training, options, Path(folder) / "trace.json")
                found[name] = choose_smaller(cost, found.get(name, cost))
    return min(steps_ns), found


def measure_scopes(repeat: int) -> dict[str, float]:
    """Return the ns of a scope by the way it is used, while no capture is on."""
    kept = scope("kept")
    decorated = scope("decorated")(_do_nothing)

    def enter() -> None:
        with scope("entered"):
            pass

    def enter_kept() -> None:
        with kept:
            pass

    empty_ns = _time(_do_nothing, repeat)
    ways = {"with scope(...)": enter, "with an object that is kept": enter_kept, "a decorated function": decorated}
    return {name: _time(call, repeat) - empty_ns for name, call in ways.items()}


def _do_nothing() -> None:
    pass


def _time(call: Callable[[], None], repeat: int) -> float:
    return min(timeit.repeat(call, number=LOOPS, repeat=repeat)) / LOOPS * 1e9


def render(head: str, step_ns: float, costs: dict[str, Cost], scopes: dict[str, float]) -> str:
    """The result file."""
    plain = costs[""].events
    rows = [
        f"| {name or 'none'} | {one.events:,} | {one.events / plain:.2f} | {one.stop_ns / one.events / 1e3:.1f} | "
        f"{one.save_ns / one.events / 1e3:.1f} | {(one.stop_ns + one.save_ns) / 1e6:.0f} | "
        f"{one.step_cpu_ns / step_ns:.2f} |"
        for name, one in costs.items()
    ]
    columns = "| option | events | events, ratio | stop, us an event | save, us an event | both, ms | step, ratio |"
    captures = "\n".join([columns, "|---|---|---|---|---|---|---|", *rows])
    idle = "\n".join(["| scope | us |", "|---|---|", *(f"| {name} | {ns / 1e3:.2f} |" for name, ns in scopes.items())])
    explanation = (__doc__ or "").partition("\n\n")[2].strip()
    size = f"The model: {SIZES['short']}; a step takes {step_ns / 1e6:.1f} ms of CPU without a capture."
    return f"# What captures and scopes cost\n\n{head}\n\n{explanation}\n\n{size}\n\n{captures}\n\n{idle}\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What captures and scopes cost.")
    parser.add_argument("--repeat", type=int, default=REPEAT, help=f"repetitions [{REPEAT}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "captures.md", help="the file to write")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    head = describe_run(f"python -m bench.captures --repeat {options.repeat}")
    text = render(head, *measure_captures(options.repeat), measure_scopes(options.repeat))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
