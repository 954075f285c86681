"""How counts of floating-point operations differ: python -m tests.benchmarks.flops [--out FILE]

Each model runs forward and backward once; its operations are counted by hand (tests/flop_models.py), by rankscope from
a trace with shapes, by torch's FlopCounterMode, and by torch's profiler with `with_flops`. The figures are ratios to
the count by hand, which includes what is recomputed. Of the checkpoint that is not reentrant torch stops before the
last product that it repeats (4,194,304); a trace of a CPU has its operator all the same, so that rankscope's count of
what is recomputed is an upper bound there, and says so.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from rankscope.collector.traces import analyze
from tests.benchmarks.machine import RESULTS, describe_run
from tests.flop_models import MODELS, record

HEAD = "| model | by hand: forward | backward | recomputed | rankscope | FlopCounterMode | profiler, with_flops |"


def count_from_trace(path: Path) -> int:
    (rank,) = analyze(str(path), flops=True).ranks
    return rank.flops.executed_flops if rank.flops is not None else 0


def count_by_torch(run: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    total: int = counter.get_total_flops()
    return total


def count_by_profiler(run: Callable[[], None]) -> int:
    """Sum what the profiler counts of each operator; it also counts additions and multiplications of elements."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as recorded:
        run()
    total: int = sum(event.flops or 0 for event in recorded.events() or ())
    return total


def build_row(name: str, folder: Path) -> str:
    torch.manual_seed(0)
    known = MODELS[name]()
    path = record(known.run, folder / "trace.json")
    total = known.forward + known.backward + known.recompute
    counts = (count_from_trace(path), count_by_torch(known.run), count_by_profiler(known.run))
    by_hand = (known.forward, known.backward, known.recompute)
    cells = [name, *(f"{value:,}" for value in by_hand), *(f"{count / total:.3f}" for count in counts)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "flops.md")
    options = parser.parse_args()
    head = describe_run("python -m tests.benchmarks.flops")
    with tempfile.TemporaryDirectory() as folder:
        rows = [build_row(name, Path(folder)) for name in MODELS]
    explanation = (__doc__ or "").split("\n\n", 1)[1].strip()
    table = "\n".join([HEAD, "|---|" + "---:|" * 6, *rows])
    options.out.write_text(f"# Counts of floating-point operations\n\n{head}\n\n{explanation}\n\n{table}\n")
    print(table)


if __name__ == "__main__":
    main()
