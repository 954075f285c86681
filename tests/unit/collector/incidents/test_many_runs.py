"""A made store of 200 runs on 40 nodes: those planted to hold up runs come first in the list of nodes."""

import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.incidents.incident import Incident
from rankscope.collector.incidents.kept_nodes import read_nodes
from rankscope.collector.incidents.nodes import NodeList
from rankscope.collector.incidents.store import IncidentStore
from rankscope.collector.storage.run_store import HistoryStore
from rankscope.collector.storage.write_batch import WriteBatch
from tests.unit.collector.incidents.bad_node import blame
from tests.unit.collector.runs.kept_runs import WALL_S, life_of, run_of

RUNS = 200
RANKS = 4
NODES = [f"node-{number:02d}" for number in range(40)]
PLANTED = {"node-07": 0.7, "node-23": 0.65, "node-31": 0.35}
"""How often each holds up a run that it is part of; every other node does so in 2 % of its runs, by chance."""
OTHERS = 0.02


def make_store(path: Path, seed: int) -> Counter[str]:
    """Make the store; return how many runs each node has held up."""
    chance, held_up = random.Random(seed), Counter[str]()
    incidents: list[Incident] = []
    batch = WriteBatch()
    for number in range(RUNS):
        run = f"run-{number}"
        batch.put_run(run_of(run, changed_wall_s=WALL_S + number))
        for rank, node in enumerate(chance.sample(NODES, RANKS)):
            batch.ranks[run, rank] = 0, life_of(run, rank, node=node)
            if chance.random() < PLANTED.get(node, OTHERS):
                incidents.append(blame(run, rank, number=len(incidents) + 1))
                held_up[node] += 1
    with closing(IncidentStore(path)) as store:
        with closing(HistoryStore(store.database)) as history:
            history.write(batch)
        store.write(incidents, [])
    return held_up


@pytest.mark.parametrize("seed", range(5))
def test_planted_nodes_come_first(seed: int, tmp_path: Path) -> None:
    held_up = make_store(tmp_path / "runs.db", seed)
    found = read_nodes(tmp_path / "runs.db")
    assert (found.runs, len(found.nodes)) == (RUNS, len(NODES))
    assert {one.node for one in found.nodes[: len(PLANTED)]} == set(PLANTED)
    assert {one.node: one.runs_held_up for one in found.nodes if one.incidents} == held_up
    assert sum(one.runs for one in found.nodes) == RUNS * RANKS


def test_only_planted_nodes_are_recommended_for_exclusion(tmp_path: Path) -> None:
    make_store(tmp_path / "runs.db", 0)
    found: NodeList = read_nodes(tmp_path / "runs.db")
    assert {"node-07", "node-23"} <= {one.node for one in found.nodes if one.exclude} <= set(PLANTED)
    names = tmp_path / "exclude.txt"
    assert main(["nodes", "--store", str(tmp_path / "runs.db"), "--exclude-file", str(names)]) == 0
    assert set(names.read_text().split()) == {one.node for one in found.nodes if one.exclude}
