"""Simulate pairs of runs, keep them in a store as the collector does, compare them, and judge what was said.

python -m tests.simulation.compared fresh    the rows of bench/results/compare.md: 660 pairs, 7 minutes

The truth is that of the simulated steps themselves: how long they took, and what the ranks did in them. Of the first
pairs those with an even number were looked at while the first limits were chosen, those with an odd number were not;
the present limits were derived, and judged on the pairs from FRESH on, which nobody had looked at.
"""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from rankscope.collector.comparison.run_comparison import RunComparison, compare_sides
from rankscope.collector.comparison.run_side import Selection, read_side
from rankscope.collector.comparison.verdict import describe_comparison, find_named_parts
from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.run import RunState
from rankscope.collector.runs.saved_runs import collect_finished_steps, save_run
from rankscope.collector.steps.run_start import WARMUP_STEPS
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.rank_intervals import RankIntervals
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.units import ns_to_s
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.program import HOST, KERNEL, READ
from tests.simulation.ranks import RUN, Windows
from tests.simulation.topology import Topology
from tests.simulation.world import Outcome, Scenario, World

STEPS: Final = 320
INTERVAL_S: Final = 2.0
"""A run of 320 steps lasts 34 s or more here: 17 intervals, as a run of 17 minutes has by default."""
WINDOWS: Final = Windows(length=1, distance=32)
RANKS: Final = 4
CHANGE_MIN: Final = 1.05
"""Pairs whose steps differ by less than this are no planted change, and are not counted."""
PAIRS: Final = 50
KINDS: Final = ("dp", "fsdp", "tp", "ep")
PLANTS: Final = (
    ("data_loading", 1.08), ("gpu_compute", 1.08), ("slow_link", 1.4), ("host_cpu", 1.08), ("one slow rank", 1.1),
    ("data_loading", 1.3), ("gpu_compute", 1.2), ("slow_link", 1.7), ("host_cpu", 1.3), ("one slow rank", 1.3),
)  # fmt: skip
"""Cause and size of what is slower in B, on all ranks or one; the sizes of links hide partly behind the backward."""
DECIDABLE: Final = ("quiet", "usual", "checkpoints", "evaluations", "jittery", "uneven_batches")
"""Noises by which the mean of so few steps is known to less than the margin."""
HARD: Final = ("shared_nodes", "bursts", "rough")
"""Noises by which it is known to several percent: much has to be `not known`, and nothing may be wrong."""
HARD_PAIRS: Final = 12
FRESH: Final = 3_000
"""Number of the first fresh pair."""
FRESH_PAIRS: Final = 300
FRESH_HARD_PAIRS: Final = 60


@dataclass(frozen=True)
class Pair:
    """Two runs of the same work; `plant` is what is slower in the second, None: nothing."""

    number: int
    kind: str
    noise: str
    plant: tuple[str, float] | None = None
    steps: int = STEPS

    def scenarios(self) -> tuple[Scenario, Scenario]:
        """Return both runs, which share no chance."""
        tp = 2 if self.kind == "tp" else 1
        topology = Topology.mesh(dp=RANKS // tp, tp=tp, ep=2 if self.kind == "ep" else 1)
        a = Scenario(
            topology=topology, kind=self.kind, noise=NOISES[self.noise], steps=self.steps,
            seed=10_000 + 2 * self.number, windows=WINDOWS,
        )  # fmt: skip
        return a, replace(a, seed=a.seed + 1, faults=self._find_faults())

    def _find_faults(self) -> tuple[Fault, ...]:
        if self.plant is None:
            return ()
        cause, ratio = self.plant
        if cause == "one slow rank":
            return (Fault(cause="gpu_compute", ranks=(self.number % RANKS,), ratio=ratio, begin=0),)
        return (Fault(cause=cause, ranks=tuple(range(RANKS)), ratio=ratio, begin=0),)


class Judged(NamedTuple):
    """A comparison of a pair and the truth: B's mean step over A's, and the part that has most of the difference."""

    pair: Pair
    found: RunComparison
    true_ratio: float
    true_part: str

    @property
    def is_right(self) -> bool:
        """Whether the verdict says what is true: the part with most of the difference first, or no difference."""
        if self.pair.plant is None:
            return self.found.outcome == "no difference"
        named = find_named_parts(self.found)
        return self.found.outcome == "slower" and bool(named) and named[0].name == self.true_part


class RecordedWorld(World):
    """A simulated run whose steps and intervals are kept as the collector does, without detection."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario, CollectorConfig(), RunState)
        self.batch = WriteBatch()
        self._intervals = RankIntervals(INTERVAL_S)

    def _look(self) -> None:
        run, wall_s = self.end.run, ns_to_s(self.now_ns)
        for step in collect_finished_steps(run, wall_s):
            self.batch.add_step(RUN, step)
        is_last = self.step == self.scenario.steps
        if self._intervals.is_due(RUN, 0, wall_s, is_last=is_last):
            interval = self._intervals.update(run.snapshot(self.now_ns), 0, wall_s, is_last=is_last)
            if interval is not None:
                self.batch.add_interval(RUN, interval)

    def keep(self, path: Path) -> Outcome:
        """Run it, write it to a new store, and return what happened in it."""
        while self.advance():
            pass
        clocks = Clocks(self.now_ns, ns_to_s(self.now_ns))
        saved = save_run(self.end.run, clocks)
        assert saved is not None
        self.batch.put_run(saved.run)
        self.batch.collectives[RUN] = saved.collectives
        for rank in range(len(self.ranks)):
            self.batch.ranks[RUN, rank] = 0, saved.save_rank(rank, clocks)
        with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
            store.write(self.batch)
        return self.outcome()


def compare_pair(pair: Pair, folder: Path) -> Judged:
    """Simulate both runs of a pair, compare them from their stores, and judge it."""
    outcomes, sides = [], []
    for name, scenario in zip("ab", pair.scenarios(), strict=True):
        path = folder / f"{pair.number}-{pair.plant is not None}-{name}.db"
        outcomes.append(RecordedWorld(scenario).keep(path))
        sides.append(read_side(path, Selection(RUN)))
    found = compare_sides(sides[0], sides[1])
    return Judged(pair, found, *find_truth(*outcomes))


def find_truth(a: Outcome, b: Outcome) -> tuple[float, str]:
    """Return B's mean step over A's, and the part whose mean over ranks and steps differs most; work of the devices is
    computing, of the loader waiting for data, of the host idle, and all else is communication that nothing hides.
    """
    of_a, of_b = (_mean_parts(outcome) for outcome in (a, b))
    part = max(of_a, key=lambda name: abs(of_b[name] - of_a[name]))
    return sum(of_b.values()) / sum(of_a.values()), part


def _mean_parts(outcome: Outcome) -> dict[str, float]:
    mean = {kind: float(ns[WARMUP_STEPS:].mean()) for kind, ns in outcome.worked_ns.items()}
    step_ns = float(outcome.step_ns[WARMUP_STEPS:].mean())
    return {
        "compute": mean[KERNEL],
        "data wait": mean[READ],
        "idle without data wait": mean[HOST],
        "exposed communication": step_ns - sum(mean.values()),
    }


def list_pairs(
    remainder: int, count: int = PAIRS, noises: Sequence[str] = DECIDABLE, steps: int = STEPS, first: int = 0
) -> list[Pair]:
    """Return `count` planted pairs and as many equal ones whose numbers, from `first` on, leave this remainder when
    halved.
    """
    found = []
    for place in range(count):
        number = first + 2 * place + remainder
        kind, noise = KINDS[place % len(KINDS)], noises[place // len(KINDS) % len(noises)]
        found.append(Pair(number, kind, noise, PLANTS[place % len(PLANTS)], steps))
        found.append(Pair(1_000 + number, kind, noise, None, steps))
    return found


def judge_pairs(pairs: Iterable[Pair]) -> list[Judged]:
    """Return all pairs judged, but for planted ones whose steps differ by less than CHANGE_MIN."""
    judged = []
    for pair in pairs:
        with tempfile.TemporaryDirectory() as folder:
            one = compare_pair(pair, Path(folder))
        if pair.plant is None or one.true_ratio >= CHANGE_MIN:
            judged.append(one)
            if not one.is_right:
                print(describe_wrong(one), file=sys.stderr)
    return judged


def describe_wrong(one: Judged) -> str:
    """Return what was said of a pair beside the truth."""
    return f"{one.pair}: {one.true_ratio:.3f}, {one.true_part}; said: {describe_comparison(one.found)}"


def count_right(judged: Sequence[Judged], *, is_planted: bool) -> str:
    """Return how many planted or equal pairs were judged right, not known and wrong, as cells of a table."""
    chosen = [one for one in judged if (one.pair.plant is not None) == is_planted]
    right = sum(one.is_right for one in chosen)
    unknown = sum(one.found.outcome == "not known" for one in chosen)
    return f"{right} of {len(chosen)} | {unknown} | {len(chosen) - right - unknown}"


def main(words: Sequence[str]) -> None:
    """Print the rows of these sets of pairs: `0` (looked at), `1` (held out) and `fresh`; by default of all."""
    for name in words or ("0", "1", "fresh"):
        is_fresh = name == "fresh"
        counts = (FRESH_PAIRS, FRESH_HARD_PAIRS) if is_fresh else (PAIRS, HARD_PAIRS)
        title = {"0": "looked at", "1": "held out"}.get(name, name)
        for noises, count in zip((DECIDABLE, HARD), counts, strict=True):
            remainder, first = (0, FRESH) if is_fresh else (int(name), 0)
            judged = judge_pairs(list_pairs(remainder, count, noises, first=first))
            for is_planted in (True, False):
                what = "planted" if is_planted else "equal"
                cells = count_right(judged, is_planted=is_planted)
                print(f"| {title} | {', '.join(noises)} | {what} | {cells} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
