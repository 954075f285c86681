"""The begin of a slow link, a slower stage and a slower run lies in the range that their findings state.

Seeds and noise are none of the score's. A rise of 1.1 times in this noise is dated to a range of 25 to 64 steps.
"""

from dataclasses import replace

import pytest

from tests.simulation.faults import Fault
from tests.simulation.noise import Noise
from tests.simulation.scenarios import LAYOUTS
from tests.simulation.world import run

BEGIN = 80
ROUGH = Noise(jitter=0.06, node_jitter=0.02, node_correlation=0.5)


@pytest.mark.parametrize(
    ("kind", "where", "ratio", "drift_steps"),
    [
        ("slow_link", "fsdp 16", 1.2, 0),
        ("stage_slowdown", "unequal pp 4 x dp 4", 1.2, 0),
        ("stage_slowdown", "pp 2 x dp 8", 1.3, 60),
        ("run_slowdown", "dp 8", 1.1, 0),
        ("run_slowdown", "dp 8", 1.3, 60),
    ],
)
@pytest.mark.parametrize("seed", [70_001, 70_002])
def test_range_of_a_begin_holds_it(kind: str, where: str, ratio: float, drift_steps: int, seed: int) -> None:
    layout = LAYOUTS[where]
    everybody, stage = tuple(range(layout.topology.world_size)), layout.topology.ranks_in_stage(1)
    ranks = {"slow_link": (5,), "stage_slowdown": stage, "run_slowdown": everybody}[kind]
    cause = "slow_link" if kind == "slow_link" else "data_loading"
    fault = Fault(cause=cause, ranks=ranks, ratio=ratio, begin=BEGIN, drift_steps=drift_steps)
    scenario = replace(layout.scenario(fault, seed=seed, steps=BEGIN + 80), noise=ROUGH)
    found = [one.finding for one in run(scenario).opened if one.finding.kind == kind]
    assert found
    for finding in found:
        earliest, latest = finding.since_range or (-1, -1)
        assert earliest <= BEGIN <= latest
