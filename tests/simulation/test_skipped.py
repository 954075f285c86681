"""A rank that leaves out one collective: its group cannot be judged since then, and the verdict says so."""

from dataclasses import replace

from rankscope.collector.detect.finding import STRAGGLER
from tests.simulation.faults import Fault
from tests.simulation.scenarios import LAYOUTS
from tests.simulation.world import Skip, run


def test_no_verdict_since_a_rank_left_out_a_collective_names_it() -> None:
    scenario = LAYOUTS["dp 8"].scenario(seed=2, steps=96)
    outcome = run(replace(scenario, skip=Skip(rank=3, step=60)))
    assert outcome.opened == []
    assert outcome.abstained is not None
    assert outcome.abstained.startswith("rank 3 is 1 collective behind in group mesh_dp since step 6")


def test_other_groups_are_judged_all_the_same() -> None:
    # Rank 3 leaves out one in the group of ranks 0 to 3; rank 9 is slow in that of 8 to 11.
    fault = Fault(cause="gpu_compute", ranks=(9,), ratio=1.5, begin=70)
    scenario = replace(LAYOUTS["unequal pp 4 x dp 4"].scenario(fault, seed=2, steps=112), skip=Skip(rank=3, step=60))
    found = [one.finding for one in run(scenario).opened if one.finding.kind == STRAGGLER]
    assert [(one.ranks, one.cause) for one in found] == [((9,), "gpu_compute")]
