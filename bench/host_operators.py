"""What a session of the host's operators costs, beside Kineto's with shapes: python -m bench.host_operators

Pairs of sessions of two steps of a model of many small layers on the CPU, one of torch's legacy profiler and one of
Kineto, both with shapes, in turns as to which is first. CPU time of the training thread by its own clock: of the steps
while they are recorded, and of the end of the session; of the agent's thread: reading it. The ratio is the median of
the pairs' ratios, with the 95 % interval of that median by ranks (binomial).
"""

import argparse
from pathlib import Path

from bench.flops_windows import PAIRS, PARTS, Cost, measure, render_costs
from bench.machine import RESULTS, describe_run
from bench.windows import Training
from rankscope.agent.profiler.torch_profiler import TorchProfiler


def run(pairs: int) -> list[tuple[Cost, Cost]]:
    """Return the costs of Kineto's sessions and of those of the host alone, pair by pair, the first pair left out."""
    profiler, training = TorchProfiler.find(), Training()
    found = []
    for number in range(pairs + 1):
        costs = {}
        for host_only in (False, True) if number % 2 else (True, False):
            costs[host_only] = measure(training, profiler, shapes=True, host_only=host_only)
        if number:
            found.append((costs[False], costs[True]))
    return found


def render(head: str, found: list[tuple[Cost, Cost]]) -> str:
    """Return the result file."""
    return render_costs(
        head, found, PARTS, title="What a session of the host's operators costs", pair_of="sessions",
        names=("Kineto", "host's operators"), explanation=__doc__,
    )  # fmt: skip


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What a session of the host's operators costs, beside Kineto's.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of sessions [{PAIRS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "host-operators.md", help="the file to write")
    options = parser.parse_args()
    text = render(describe_run(f"python -m bench.host_operators --pairs {options.pairs}"), run(options.pairs))
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
