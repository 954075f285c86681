"""What a session of the host's operators costs, beside Kineto's with shapes: python -m tests.benchmarks.host_operators

Pairs of sessions of two steps of a model of many small layers on the CPU, one of torch's first profiler and one of
Kineto, both with shapes, in turns as to which is first. CPU time of the training thread by its own clock: of the steps
while they are recorded, and of the end of the session; of the agent's thread: reading it. The ratio is the median of
the pairs' ratios, with the 95 % interval of that median by ranks (binomial).
"""

import argparse
import statistics
from pathlib import Path

from rankscope.agent.profiler.torch_profiler import TorchProfiler
from tests.benchmarks.flops_windows import PAIRS, PARTS, Cost, compare_part, measure
from tests.benchmarks.machine import RESULTS, describe_run
from tests.benchmarks.windows import Training


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
    lines = ["| | Kineto, ms | host's operators, ms | us an event, Kineto | host's operators | ratio, 95 % interval |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    for part in PARTS:
        one = compare_part(found, part)
        each = [statistics.median(pair[at].parts_ns[part] / pair[at].events / 1000 for pair in found) for at in (0, 1)]
        lines.append(
            f"| {part} | {one.plain_ms:.1f} | {one.shaped_ms:.1f} | {each[0]:.2f} | {each[1]:.2f} | {one.ratio:.2f} "
            f"({one.low:.2f} to {one.high:.2f}) |"
        )
    events = statistics.median(pair[1].events for pair in found)
    text = f"{len(found)} pairs of sessions with {events:,.0f} events each."
    explanation = (__doc__ or "").partition("\n\n")[2].strip()
    return (
        "\n\n".join(["# What a session of the host's operators costs", head, explanation, text, "\n".join(lines)])
        + "\n"
    )


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description="What a session of the host's operators costs, beside Kineto's.")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of sessions [{PAIRS}]")
    parser.add_argument("--out", type=Path, default=RESULTS / "host-operators.md", help="the file to write")
    options = parser.parse_args()
    text = render(
        describe_run(f"python -m tests.benchmarks.host_operators --pairs {options.pairs}"), run(options.pairs)
    )
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
