"""What windows with shapes of several ranks cost a run: python -m bench.shared_windows [--pairs]

A DDP training (gloo, under torchrun) of many small layers on the CPU. A round has four cycles of equally many steps, in
an order that shifts by one each round: no rank has a window; one rank has one; all ranks have one at the same step;
each rank has one, at different steps. A window is that of the agent: two steps with shapes, its end at the begin of the
third, once its collectives are over, and another thread then reads it, as the agent's does. Measured is the wall time
of a cycle on rank 0, which all ranks share since each step has an all-reduce. What windows cost is the cycle's time
less that of the cycle without in the same round: the median of the rounds with the 95 % interval of that median by
ranks (binomial). Ratios are of medians, over that of one rank. Where ranks share cores, windows at the same step share
them too. The benchmark begins the windows itself, at these steps of a cycle: the rule by which the agent chooses its
steps is no part of it.

With a core for each rank (--pairs): as many ranks as cores, each with its threads on one core of its own, and in a
round only the cycles without a window, with one rank's, and with all ranks' at one step. The difference is that of the
last two in the same round, the median and its interval as above. It would be 0 if windows of all ranks took equally
long and disturbed nothing but the rank that has them, since the run waits for one of them in any case.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.flops_windows import find_interval
from bench.machine import RESULTS, describe_run
from bench.windows import STEPS, WIDTH
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_reading import read_window
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.agent.steps.open_collectives import SETTLE_S, SETTLE_S_LAST
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.units import NS_PER_MS

ROUNDS: Final = 60
PAIRS: Final = 200
LAYERS: Final = 60
NONE, ONE, TOGETHER, APART = "no rank", "one rank", "all ranks at one step", "each rank at a step of its own"
ARMS: Final = (NONE, ONE, TOGETHER, APART)
PAIRED_ARMS: Final = (NONE, ONE, TOGETHER)
FIRST: Final = 4
"""The step of a cycle at which its first window begins."""
APART_STEPS: Final = 6
"""Steps from one rank's window to the next one's. The last window has as many to be read in."""
LIMIT_S: Final = 1800.0


def find_begin(arm: str, rank: int) -> int | None:
    """Return the step of the cycle at which this rank's window begins; None: it has none.

    >>> [[find_begin(arm, rank) for rank in range(2)] for arm in ARMS]
    [[None, None], [None, 4], [4, 4], [4, 10]]
    """
    if arm == NONE or (arm == ONE and rank != 1):
        return None
    return FIRST + (APART_STEPS * rank if arm == APART else 0)


class Windows:
    """The windows of one rank, begun and ended between steps."""

    def __init__(self) -> None:
        self._profiler = TorchProfiler.find()
        self._is_on = False
        self._reader: threading.Thread | None = None

    def on_boundary(self, step: int, begin: int | None) -> None:
        """Begin or end a window before this step of the cycle."""
        if begin is not None and step == begin:
            self.wait()
            self._profiler.start(full=True, shapes=True)
            self._is_on = True
        elif self._is_on and begin is not None and step >= begin + STEPS:
            self._end(SETTLE_S)

    def _end(self, limit_s: float) -> None:
        """End the window if its collectives are over within this time, as the agent does, and have it read."""
        if not self._profiler.settle(limit_s):
            return
        result, self._is_on = self._profiler.stop(), False
        window = RawWindow(True, (), result, read_wall_minus_host_ns(), {}, {}, 0, has_shapes=True)
        self._reader = threading.Thread(target=_read, args=(window,))
        self._reader.start()

    def wait(self) -> None:
        """Wait until the last window has ended and been read. Raises TimeoutError when its collectives never end."""
        if self._is_on:
            self._end(SETTLE_S_LAST)
        if self._is_on:
            raise TimeoutError("the collectives of a window are not over")
        if self._reader is not None:
            self._reader.join()


def _read(window: RawWindow) -> None:
    read_window(window, window.result.trace_activities(), lambda: None)


def train(rounds: int, arms: Sequence[str]) -> dict[str, list[int]]:
    """Train on this rank; return the ns of each cycle by its arm, the first round left out."""
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)
    batch, windows = torch.randn(4, WIDTH), Windows()
    found: dict[str, list[int]] = {arm: [] for arm in arms}
    for number in range(rounds + 1):
        for place in range(len(arms)):
            arm = arms[(number + place) % len(arms)]
            windows.wait()
            dist.barrier()
            begin_ns = time.monotonic_ns()
            for step in range(FIRST + APART_STEPS * ranks):
                windows.on_boundary(step, find_begin(arm, rank))
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
            if number:
                found[arm].append(time.monotonic_ns() - begin_ns)
    windows.wait()
    return found


def use_own_core() -> None:
    """Run this process, and the threads that it will begin, on one core that no other rank uses."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ["LOCAL_RANK"])]})


def run_ranks(ranks: int, rounds: int, *options: str) -> dict[str, list[int]]:
    """Return what rank 0 of so many has measured. Raises CalledProcessError, TimeoutExpired."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cycles.json"
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
            "-m", "bench.shared_windows", "--rank-out", str(out), "--rounds", str(rounds), *options,
        ]  # fmt: skip
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=LIMIT_S)
        found: dict[str, list[int]] = json.loads(out.read_text())
    return found


def find_costs(found: Mapping[str, Sequence[int]]) -> dict[str, tuple[float, float, float]]:
    """Return what the windows of each arm cost the run, ms: the median and the bounds of its interval.

    >>> found = {arm: [100_000_000 + 1_000_000 * n] * 40 for n, arm in enumerate(ARMS)}
    >>> find_costs(found)[TOGETHER]
    (2.0, 2.0, 2.0)
    """
    return {arm: find_difference(found, arm, NONE) for arm in ARMS[1:]}


def find_difference(found: Mapping[str, Sequence[int]], arm: str, other: str) -> tuple[float, float, float]:
    """Return by how much a cycle takes longer than another one of the same round, ms: median and interval."""
    return find_interval([(a - b) / NS_PER_MS for a, b in zip(found[arm], found[other], strict=True)])


def render_pairs(ranks: int, found: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the section of the ranks with a core of their own.

    >>> found = {NONE: [100 * NS_PER_MS] * 40, ONE: [110 * NS_PER_MS] * 40, TOGETHER: [112 * NS_PER_MS] * 40}
    >>> print(render_pairs(2, found)[1].splitlines()[-1])
    | difference | 2.0 | 2.0 to 2.0 | 0.20 |
    """
    (one, *_), rows = find_difference(found, ONE, NONE), []
    for name, arm, other in ((ONE, ONE, NONE), (TOGETHER, TOGETHER, NONE), ("difference", TOGETHER, ONE)):
        median, low, high = find_difference(found, arm, other)
        rows.append(f"| {name} | {median:.1f} | {low:.1f} to {high:.1f} | {median / one:.2f} |")
    head = ["| windows with shapes | cost to the run, ms | 95 % interval | of one rank's |", "|---|---|---|---|"]
    text = f"{len(found[NONE])} rounds of {ranks} ranks."
    return [f"## With a core for each rank\n\n{text}", "\n".join([*head, *rows])]


def render(
    head: str, results: Mapping[int, Mapping[str, Sequence[int]]], pairs: tuple[int, Mapping[str, Sequence[int]]] | None
) -> str:
    """Return the result file; `pairs` is what as many ranks as cores have measured, None: was not asked for."""
    lines = [
        "| ranks | windows with shapes | cost to the run, ms | 95 % interval | of one rank's |",
        "|---|---|---|---|---|",
    ]
    for ranks, found in results.items():
        costs = find_costs(found)
        for arm, (median, low, high) in costs.items():
            ratio = median / costs[ONE][0]
            lines.append(f"| {ranks} | {arm} | {median:.1f} | {low:.1f} to {high:.1f} | {ratio:.2f} |")
    rounds = len(next(iter(results.values()))[NONE])
    steps = {
        ranks: statistics.median(found[NONE]) / NS_PER_MS / (FIRST + APART_STEPS * ranks)
        for ranks, found in results.items()
    }
    text = f"{rounds} rounds. A step without windows: " + ", ".join(
        f"{ms:.1f} ms with {n} ranks" for n, ms in steps.items()
    )
    about = (__doc__ or "").partition("\n\n")[2].strip()
    title = "# What windows with shapes of several ranks cost a run"
    section = [] if pairs is None else render_pairs(*pairs)
    return "\n\n".join([title, head, about, text + ".", "\n".join(lines), *section]) + "\n"


def main() -> None:
    """Measure and write the result, or train as one rank."""
    parser = argparse.ArgumentParser(description="What windows with shapes of several ranks cost a run.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], help="ranks of the runs [2 4]")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds of four cycles [{ROUNDS}]")
    parser.add_argument(
        "--pairs", type=int, nargs="?", const=PAIRS, default=0,
        help=f"also with a core for each rank, so many rounds [{PAIRS}]",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / "shared-windows.md", help="the file to write")
    parser.add_argument("--rank-out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--own-core", action="store_true", help=argparse.SUPPRESS)
    options: Any = parser.parse_args()
    if options.rank_out is not None:
        if options.own_core:
            use_own_core()
        dist.init_process_group("gloo")
        found = train(options.rounds, PAIRED_ARMS if options.own_core else ARMS)
        if dist.get_rank() == 0:
            options.rank_out.write_text(json.dumps(found))
        dist.destroy_process_group()
        return
    ranks = " ".join(map(str, options.ranks))
    more = f" --pairs {options.pairs}" if options.pairs else ""
    head = describe_run(f"python -m bench.shared_windows --ranks {ranks} --rounds {options.rounds}{more}")
    cores = len(os.sched_getaffinity(0))
    results = {ranks: run_ranks(ranks, options.rounds) for ranks in options.ranks}
    pairs = (cores, run_ranks(cores, options.pairs, "--own-core")) if options.pairs else None
    text = render(head, results, pairs)
    options.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
