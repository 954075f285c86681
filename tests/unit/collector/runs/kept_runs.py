"""Runs as the store has them, for tests of the store and of the reports."""

from contextlib import closing
from pathlib import Path

import numpy as np

from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.collector.runs.rank import SavedRank
from rankscope.collector.runs.saved_runs import SavedRun
from rankscope.collector.runs.snapshot import LostSeconds
from rankscope.collector.runs.step_accounting import StepCounts
from rankscope.collector.steps.step_aggregates import StepAggregate
from rankscope.collector.storage.database import Database
from rankscope.collector.storage.rank_intervals import COLUMNS, RankInterval
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello
from rankscope.measure.records import Totals

MS = 1_000_000
S = 1_000 * MS
WALL_S = 1_800_000_000.0


def run_of(name: str, *, changed_wall_s: float = WALL_S + 100.0, attempt: int = 0, is_over: bool = True) -> SavedRun:
    """A run of two ranks; rank 1 has cost 3,600 rank-seconds."""
    return SavedRun(
        run=name,
        world_size=2,
        restart_count=attempt,
        attempt=attempt,
        begun_wall_s=WALL_S,
        changed_wall_s=changed_wall_s,
        settled_wall_s=changed_wall_s,
        is_over=is_over,
        step_ns=80 * S,
        recorded_step=7,
        goodput=GoodputSnapshot(wall_ns=100 * S, productive_ns=70 * S, slow_ns=10 * S, startup_ns=20 * S),
        lost=(LostSeconds(1, "host_cpu", 3_600.0), LostSeconds(None, "unattributed", 5.0)),
        findings_opened=1,
    )


def life_of(run: str, rank: int, *, node: str = "node-a", said: Goodbye | None = None) -> SavedRank:
    """A rank that has made 80 steps of a second."""
    identity = RankIdentity(
        run=run, rank=rank, local_rank=rank, world_size=2, node=node, restart_count=0, boot_id=f"boot-0-{rank:04d}",
        pid=100 + rank,
    )  # fmt: skip
    hello = Hello(identity=identity, first_sequence=1, host_ns=0, wall_ns=0, report_interval_ns=S)
    return SavedRank(
        hello=hello, first_sequence=1, last_sequence=10, admitted=9, duplicates=0, steps=StepCounts(late=2),
        totals=Totals(steps=80, step_ns=80 * S), said=said,
    )  # fmt: skip


def step_of(number: int, *, wall_s: float | None = None, attempt: int = 0, longest_ns: int = S) -> StepAggregate:
    """A step of a second."""
    return StepAggregate(
        attempt=attempt,
        step=number,
        wall_s=WALL_S + number if wall_s is None else wall_s,
        ranks=2,
        median_ns=S,
        longest_ns=longest_ns,
        slowest_rank=1,
        phases_ns={"data": 100 * MS, "forward": 900 * MS},
    )


def interval_of(begin_wall_s: float = WALL_S, *, steps: float = 40.0, slowdown: float = 1.5) -> RankInterval:
    """A minute of both ranks; of rank 0 no slowdown is known."""
    columns = {name: np.array([1.0, 2.0], dtype=np.float32) for name in COLUMNS}
    columns["rank"] = np.array([0, 1], dtype=np.float32)
    columns["steps"] = np.array([steps, steps], dtype=np.float32)
    columns["slowdown_ratio"] = np.array([np.nan, slowdown], dtype=np.float32)
    return RankInterval(0, begin_wall_s, begin_wall_s + 60.0, columns)


def keep_run(folder: Path, run: str, *, steps: int) -> Path:
    """A store with one run of two ranks, which made so many steps and two intervals; where it is."""
    path = folder / "store.db"
    batch = WriteBatch()
    batch.put_run(run_of(run))
    for rank in range(2):
        batch.ranks[run, rank] = 0, life_of(run, rank)
    for number in range(steps):
        batch.add_step(run, step_of(number))
    for minute in range(2):
        batch.add_interval(run, interval_of(WALL_S + 60.0 * minute))
    with closing(Database(path)) as database, closing(HistoryStore(database)) as store:
        store.write(batch)
    return path
