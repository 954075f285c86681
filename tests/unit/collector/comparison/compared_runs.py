"""Runs with given steps in a store, and sides of a comparison written out by hand."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np

from rankscope.collector.comparison.run_side import RunSide, Selection
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.saved_runs import SavedStory
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.rank_intervals import SUMS
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import MS, WALL_S, interval_of, life_of, run_of, step_of

SAMPLES = 8
"""Of one rank in a step, where `kept_sums` is told nothing else."""


NO_SUMS: Mapping[str, int] = {}


def vary(mean_ms: float, steps: int = 200, seed: int = 0) -> list[float]:
    """Step times in ms around a mean, with a standard deviation of a percent."""
    noise = np.random.default_rng(seed).normal(1.0, 0.01, steps)
    return [float(ms) for ms in mean_ms * noise / noise.mean()]


def kept_sums(step_ms: float, **shares: float) -> dict[str, int]:
    """The sums of an interval in which two ranks made ten steps each, in windows of that length with these shares."""
    window_ns = 20 * round(step_ms * MS)
    known = {"steps": 20, "step_ns": window_ns, "window_ns": window_ns}
    known |= {"samples": 20 * SAMPLES, "samples_step_ns": window_ns}
    known |= {f"{name}_ns": round(share * window_ns) for name, share in shares.items()}
    return {name: known.get(name, 0) for name in SUMS}


def keep_steps(
    path: Path,
    run: str,
    steps_ms: Sequence[float],
    *,
    first_step: int = 10,
    sums: Mapping[str, int] = NO_SUMS,
    intervals: int = 10,
    node: str = "node-a",
    world_size: int = 2,
    ended: str | None = "finished",
    findings: int = 0,
    attempt: int = 0,
) -> None:
    """Add a run to a store: its steps of so many ms, a tenth of each in its phase `data`."""
    batch = WriteBatch()
    end = None if ended is None else RunEnd(reason=ended)
    batch.put_run(msgspec.structs.replace(run_of(run, attempt=attempt), world_size=world_size, end=end))
    batch.stories[run] = SavedStory(findings=tuple(slow(number=number) for number in range(1, findings + 1)))
    for rank in range(2):
        batch.ranks[run, rank] = attempt, life_of(run, rank, node=node)
    for number, ms in enumerate(steps_ms, first_step):
        phases_ns = {"data": round(0.1 * ms * MS), "forward": round(0.9 * ms * MS)}
        batch.add_step(
            run,
            msgspec.structs.replace(step_of(number, attempt=attempt), median_ns=round(ms * MS), phases_ns=phases_ns),
        )
    for place in range(intervals if sums else 0):
        batch.add_interval(run, interval_of(WALL_S + 10.0 + 60.0 * place)._replace(sums=sums))
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch)


def side_of(steps_ms: Sequence[float], sums: Sequence[Mapping[str, int]] = (), **phases_ms: Sequence[float]) -> RunSide:
    """A side with these steps, phases and intervals."""
    step_ns = np.array(steps_ms) * MS
    return RunSide(
        selection=Selection("bert"),
        run_id="bert@20261125T103005Z",
        world_size=2,
        attempts=1,
        first_step=10,
        last_step=9 + len(step_ns),
        step_ns=step_ns,
        phases_ns={name: np.array(values) * MS for name, values in phases_ms.items()},
        sums=np.array([[one[name] for name in SUMS] for one in sums], dtype=np.float64).reshape(-1, len(SUMS)),
        goodput_ratio=0.9,
        incidents=(),
        nodes=frozenset({"node-a"}),
        versions={"torch": ("2.9",)},
    )
