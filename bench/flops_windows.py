"""What a full window with shapes costs, beside a plain one: python -m bench.flops_windows [--pairs 60]

Pairs of windows of two steps of a model of many small layers on the CPU, one plain and one with shapes, in turns as to
which is first. CPU time of the training thread by its own clock: of the steps while they are recorded, and of the end
of the session; of the agent's thread: reading the window. The ratio is the median of the pairs' ratios, with the 95 %
interval of that median by ranks (binomial). Counting is the CPU time of the child's work, done here in place, with its
imports and its start left out.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from bench.machine import RESULTS, describe_run
from bench.windows import STEPS, Training
from rankscope.agent.profiler.reduce_window import reduce_window
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_reduction import make_request
from rankscope.agent.profiler.window_scheduler import DEVICE_WAIT_NS_MAX, RawWindow
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS
from rankscope.measure.window_columns import WindowColumns

PAIRS: Final = 60
PARTS: Final = ("steps", "end the session", "read", "together")
COUNTING: Final = "reduce (child)"
Z_95: Final = 1.96


class Cost(NamedTuple):
    """CPU ns of each part of one window by its name, and how many events it has."""

    parts_ns: dict[str, int]
    events: int


class Steps(Protocol):
    """Anything that can train one step."""

    def step(self) -> None:
        """Train one step, waited for or not."""


def measure(training: Steps, profiler: TorchProfiler, *, shapes: bool, host_only: bool = False) -> Cost:
    """Record, read and reduce one window. A device in use has finished before its session ends, as in the agent."""
    parts_ns: dict[str, int] = {}

    def timed(part: str, action: Callable[[], Any]) -> Any:
        begin_ns = time.thread_time_ns()
        result = action()
        parts_ns[part] = time.thread_time_ns() - begin_ns
        return result

    def train() -> list[StepRecord]:
        return [_train_one(training, number) for number in range(STEPS)]

    profiler.start(full=True, shapes=shapes, host_only=host_only)
    records = timed("steps", train)
    profiler.wait_for_device(DEVICE_WAIT_NS_MAX)
    result = timed("end the session", profiler.stop)
    window = RawWindow(True, records, result, read_wall_minus_host_ns(), {}, {}, 0, has_shapes=shapes)
    window, events = window._replace(host_only=host_only), 0

    def read() -> WindowColumns | None:
        nonlocal events
        found = result.trace_activities()
        events = len(found)
        return read_window(window, found, lambda: None).columns

    columns = timed("read", read)
    assert columns is not None
    parts_ns["together"] = sum(parts_ns.values())
    timed(COUNTING, lambda: reduce_window(make_request(window, columns)))
    return Cost(parts_ns, events)


def _train_one(training: Steps, number: int) -> StepRecord:
    begin_ns = time.monotonic_ns()
    training.step()
    return StepRecord(step=number, start_host_ns=begin_ns, duration_ns=time.monotonic_ns() - begin_ns, phases_ns={})


def run(pairs: int, training: Steps) -> list[tuple[Cost, Cost]]:
    """Return the costs of plain windows and of those with shapes, pair by pair, the first pair left out."""
    profiler = TorchProfiler.find()
    found = []
    for number in range(pairs + 1):
        costs = {}
        for shapes in (False, True) if number % 2 else (True, False):
            costs[shapes] = measure(training, profiler, shapes=shapes)
        if number:
            found.append((costs[False], costs[True]))
    return found


def find_interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median and the bounds of its 95 % interval, from the ranks of the values.

    >>> find_interval([float(value) for value in range(1, 101)])
    (50.5, 40.0, 61.0)
    """
    ordered, count = sorted(values), len(values)
    reach = Z_95 * math.sqrt(count) / 2
    low, high = max(0, round(count / 2 - reach) - 1), min(count - 1, round(count / 2 + reach))
    return statistics.median(ordered), ordered[low], ordered[high]


class ComparedPart(NamedTuple):
    """The median ms of a part in plain windows and in those with shapes, the median of the pairs' ratios and the bounds
    of its interval.
    """

    plain_ms: float
    shaped_ms: float
    ratio: float
    low: float
    high: float


def compare_part(found: list[tuple[Cost, Cost]], part: str) -> ComparedPart:
    """Return how long a part takes in both kinds of windows."""
    pairs_ns = [(plain.parts_ns[part], shaped.parts_ns[part]) for plain, shaped in found]
    plain_ms, shaped_ms = (statistics.median(costs) / NS_PER_MS for costs in zip(*pairs_ns, strict=True))
    return ComparedPart(plain_ms, shaped_ms, *find_interval([b / max(a, 1) for a, b in pairs_ns]))


def describe_part(found: list[tuple[Cost, Cost]], part: str) -> str:
    """Return the medians of a part, and of the pairs' ratios with its 95 % interval.

    >>> pairs = [(Cost({"read": 2_000_000}, 10), Cost({"read": 9_000_000}, 50))] * 20
    >>> describe_part(pairs, "read")
    '2.00 ms plain, 9.00 ms with shapes: 4.50 times (4.50 to 4.50, 20 pairs)'
    """
    one = compare_part(found, part)
    interval = f"({one.low:.2f} to {one.high:.2f}, {len(found)} pairs)"
    return f"{one.plain_ms:.2f} ms plain, {one.shaped_ms:.2f} ms with shapes: {one.ratio:.2f} times {interval}"


def render_costs(
    head: str,
    found: list[tuple[Cost, Cost]],
    parts: Sequence[str],
    *,
    title: str,
    pair_of: str,
    names: tuple[str, str],
    explanation: str | None,
) -> str:
    """Return a result file: a table of these parts, of the two ways of recording with these `names`. `head` is about
    the run, `explanation` the docstring of the program.
    """
    first, second = names
    lines = [
        f"| | {first}, ms | {second}, ms | us an event, {first} | {second} | ratio, 95 % interval |",
        "|---|---|---|---|---|---|",
    ]
    for part in parts:
        one = compare_part(found, part)
        each = [statistics.median(pair[at].parts_ns[part] / pair[at].events / 1000 for pair in found) for at in (0, 1)]
        lines.append(
            f"| {part} | {one.plain_ms:.1f} | {one.shaped_ms:.1f} | {each[0]:.2f} | {each[1]:.2f} | {one.ratio:.2f} "
            f"({one.low:.2f} to {one.high:.2f}) |"
        )
    events = statistics.median(pair[1].events for pair in found)
    text = f"{len(found)} pairs of {pair_of} with {events:,.0f} events each."
    about = (explanation or "").partition("\n\n")[2].strip()
    return "\n\n".join([f"# {title}", head, about, text, "\n".join(lines)]) + "\n"


def render(head: str, found: list[tuple[Cost, Cost]]) -> str:
    """Return the result file."""
    return render_costs(
        head, found, (*PARTS, COUNTING), title="What a full window with shapes costs", pair_of="windows",
        names=("plain", "with shapes"), explanation=__doc__,
    )  # fmt: skip


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What a full window with shapes costs, beside a plain one.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of windows [{PAIRS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "flops-windows.md", help="the file to write")
    options = parser.parse_args()
    head = describe_run(f"python -m bench.flops_windows --pairs {options.pairs}")
    text = render(head, run(options.pairs, Training()))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
