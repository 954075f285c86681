"""How counts of floating-point operations differ: python -m bench.flops [--others FOLDER] [--out FILE]

Each model runs forward and backward once. The figures are ratios to the count by hand (tests/flop_models.py): one row
of a model is of its forward, the other of a whole step, with what is recomputed. They are counted by

- rankscope, from a trace with shapes of the whole step,
- torch's FlopCounterMode,
- torch's profiler with `with_flops`, which also counts additions and multiplications of elements,
- DeepSpeed's FlopsProfiler, which sees the forward alone and prints three times its FLOPs for a step; for a checkpoint
  the four times that it prints with `recompute_fwd_factor=1`,
- torchinfo, which counts the multiply-accumulates of a forward, 2 FLOPs each,
- fvcore's FlopCountAnalysis, which traces the forward by torch.jit and calls a multiply-accumulate one FLOP, here 2.

Of the checkpoint that is not reentrant torch stops before the last product that it repeats (4,194,304); a trace of a
CPU has its operator all the same, so that rankscope's count of what is recomputed is an upper bound there, and says so.

The last three are no requirement of the tests. `--others` is a folder with them, to be used with the torch of this
Python; without it their columns are empty:

    DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation --target FOLDER \\
        deepspeed torchinfo fvcore hjson py-cpuinfo einops iopath yacs tabulate termcolor portalocker
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import logging
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from bench.machine import RESULTS, describe_run
from rankscope.collector.traces import analyze
from tests.flop_models import MODELS, TENSOR_PARALLEL, Known, make_tensor_parallel, one_of_two_ranks, record

DEEPSPEED, TORCHINFO, FVCORE = "deepspeed", "torchinfo", "fvcore"
HEAD: Final = (
    "| model | of | by hand | rankscope | FlopCounterMode | profiler, with_flops | DeepSpeed | torchinfo | fvcore |\n"
    "|---|---|" + "---:|" * 7
)
FLOPS_OF_MAC: Final = 2
ALL: Final = {**MODELS, TENSOR_PARALLEL: make_tensor_parallel}


class Count(NamedTuple):
    """FLOPs of the forward, and of the whole step; None where they are not counted."""

    forward: int | None
    step: int | None


def make(name: str) -> Known:
    """Return a model of which nothing is left of another count."""
    torch.manual_seed(0)
    return ALL[name]()


def count_by_hand(name: str) -> Count:
    known = make(name)
    return Count(known.forward, known.forward + known.backward + known.recompute)


def count_from_trace(name: str) -> Count:
    with tempfile.TemporaryDirectory() as folder:
        (rank,) = analyze(str(record(make(name).run, Path(folder) / "trace.json")), flops=True).ranks
    flops = rank.flops
    return Count(None, None) if flops is None else Count(flops.forward_flops, flops.executed_flops)


def count_by_torch(name: str) -> Count:
    def count(run: Callable[[], object]) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        total: int = counter.get_total_flops()
        return total

    known = make(name)
    return Count(count(known.run_forward), count(known.run))


def count_by_profiler(name: str) -> Count:
    def count(run: Callable[[], object]) -> int:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_flops=True) as recorded:
            run()
        return sum(event.flops or 0 for event in recorded.events() or ())

    known = make(name)
    return Count(count(known.run_forward), count(known.run))


def count_by_deepspeed(name: str) -> Count:
    known = make(name)
    profiler = importlib.import_module("deepspeed.profiling.flops_profiler").FlopsProfiler(known.model)
    profiler.start_profile()
    try:
        known.run_forward()
        forward = int(profiler.get_total_flops())
    finally:
        profiler.end_profile()
    return Count(forward, (4 if known.recompute else 3) * forward)


def count_by_torchinfo(name: str) -> Count:
    known = make(name)
    found = importlib.import_module(TORCHINFO).summary(known.model, input_data=list(known.inputs), verbose=0)
    return Count(FLOPS_OF_MAC * int(found.total_mult_adds), None)


def count_by_fvcore(name: str) -> Count:
    known = make(name)
    analysis = importlib.import_module("fvcore.nn").FlopCountAnalysis(known.model, known.inputs)
    found = analysis.unsupported_ops_warnings(enabled=False).uncalled_modules_warnings(enabled=False)
    return Count(FLOPS_OF_MAC * int(found.total()), None)


OURS: Final = (count_from_trace, count_by_torch, count_by_profiler)
OTHERS: Final[Mapping[str, Callable[[str], Count]]] = {
    DEEPSPEED: count_by_deepspeed,
    TORCHINFO: count_by_torchinfo,
    FVCORE: count_by_fvcore,
}


def load_others(folder: Path | None) -> dict[str, str]:
    """Return the versions of the other tools that can be imported; say of the others why they cannot be."""
    if folder is not None:
        sys.path.append(str(folder))
    logging.disable(logging.WARNING)
    found = {}
    for name in OTHERS:
        try:
            importlib.import_module(name)
            found[name] = importlib.metadata.version(name)
        except Exception as error:  # noqa: BLE001 - whatever another tool raises on this machine
            print(f"{name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return found


def count_apart(count: Callable[[str], Count], name: str) -> Count:
    """Return what another tool counts; nothing where it raises, which is said. What it prints is left out."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return count(name)
    except Exception as error:  # noqa: BLE001 - as above
        print(f"{count.__name__}, {name}: {type(error).__name__}: {error}", file=sys.stderr)
        return Count(None, None)


def build_rows(name: str, counts: Sequence[Count | None]) -> list[str]:
    """Return the rows of a model: its forward and its step, each count over that by hand.

    >>> build_rows("MLP", [Count(10, 30), Count(5, None), None])
    ['| MLP | forward | 10 | 0.500 | - |', '| | step | 30 | - | - |']
    """
    by_hand, *others = counts
    assert by_hand is not None
    rows = []
    for place, first in enumerate((f"| {name} | forward |", "| | step |")):
        truth = by_hand[place]
        assert truth
        cells = [one[place] if one is not None else None for one in others]
        ratios = ["-" if cell is None else f"{cell / truth:.3f}" for cell in cells]
        rows.append(f"{first} {truth:,} | {' | '.join(ratios)} |")
    return rows


def count_all(others: Mapping[str, str]) -> str:
    """Return the table, in `one_of_two_ranks`. Other tools count last, since they replace functions of torch."""
    found: dict[str, list[Count | None]] = {
        name: [count_by_hand(name), *(count(name) for count in OURS)] for name in ALL
    }
    for tool, count in OTHERS.items():
        for name, counts in found.items():
            counts.append(count_apart(count, name) if tool in others else None)
    rows = [row for name, counts in found.items() for row in build_rows(name, counts)]
    return "\n".join([HEAD, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", type=Path, help="folder with DeepSpeed and torchinfo")
    parser.add_argument("--out", type=Path, default=RESULTS / "flops.md")
    options = parser.parse_args()
    head = describe_run("python -m bench.flops --others FOLDER")
    others = load_others(options.others)
    with one_of_two_ranks():
        table = count_all(others)
    versions = ", ".join(f"{name} {version}" for name, version in others.items())
    head = f"{head}\n| other tools | {versions or 'none'} |"
    explanation = (__doc__ or "").split("\n\n", 1)[1].strip()
    options.out.write_text(f"# Counts of floating-point operations\n\n{head}\n\n{explanation}\n\n{table}\n")
    print(table)


if __name__ == "__main__":
    main()
