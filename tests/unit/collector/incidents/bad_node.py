"""A store in which a node has held up most of its runs, for tests of what is done with such a node."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rankscope.collector.incidents.incident import Incident, begin
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from rankscope.measure.records import DeviceSample
from tests.unit.collector.detect.findings import slow
from tests.unit.collector.runs.kept_runs import WALL_S, life_of, run_of

OPENED_S: Final = 10.0
CHANCE_RATIO: Final = 0.03
"""Of its runs so many are held up by a healthy node: by its data, or by another tenant."""


def blame(run: str, rank: int, *, opened_s: float = OPENED_S, number: int = 1, **known: object) -> Incident:
    """An incident of a rank that is slow."""
    return begin(number, run, msgspec.structs.replace(slow(rank), **known), opened_s)


def keep_bad_node(folder: Path, *, good: str = "node-a", bad: str = "node-b") -> Path:
    """A store of four runs on two nodes; rank 1 on the bad node held up three of them. Where it is."""
    path = folder / "runs.db"
    sample = DeviceSample(host_ns=1, uuid="GPU-b")
    with closing(IncidentStore(path)) as incidents:
        with closing(HistoryStore(incidents.database)) as store:
            batch = WriteBatch()
            for number in range(4):
                run = f"run-{number}"
                batch.put_run(run_of(run, changed_wall_s=WALL_S + number))
                batch.ranks[run, 0] = (0, life_of(run, 0, node=good))
                batch.ranks[run, 1] = (0, msgspec.structs.replace(life_of(run, 1, node=bad), devices=(sample,)))
            store.write(batch)
        incidents.write([blame(f"run-{number}", 1, number=number + 1) for number in range(3)], [])
    return path


def keep_drawn_runs(path: Path, seed: int, *, runs: int, nodes: int, bad_ratios: Mapping[str, float]) -> None:
    """Write a store of so many runs of eight ranks, each on a node of its own that is drawn of all: a node of
    `bad_ratios` holds up that share of the runs that it is in, any other one CHANCE_RATIO of them.
    """
    random = np.random.default_rng(seed)
    names = [f"node-{number:02d}" for number in range(nodes)]
    incidents: list[Incident] = []
    with closing(IncidentStore(path)) as store:
        with closing(HistoryStore(store.database)) as history:
            batch = WriteBatch()
            for number in range(runs):
                run = f"run-{number:03d}"
                batch.put_run(run_of(run, changed_wall_s=WALL_S + number))
                for rank, place in enumerate(random.choice(nodes, 8, replace=False).tolist()):
                    batch.ranks[run, rank] = 0, life_of(run, rank, node=names[place])
                    if random.random() < bad_ratios.get(names[place], CHANCE_RATIO):
                        incidents.append(blame(run, rank, number=len(incidents) + 1))
            history.write(batch)
        store.write(incidents, [])
