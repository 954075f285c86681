"""A rank that leaves out one collective: its group cannot be judged until it is known which calls meet, and the verdict
says so.
"""

from dataclasses import replace

import pytest

from rankscope.collector.detect.finding import STRAGGLER
from tests.simulation.faults import Fault
from tests.simulation.ranks import Windows
from tests.simulation.scenarios import LAYOUTS
from tests.simulation.world import Skip, run


def test_no_verdict_since_a_rank_left_out_a_collective_names_it() -> None:
    scenario = LAYOUTS["dp 8"].scenario(seed=2, steps=96)
    rare = Windows(length=4, distance=32)  # four steps do not show which calls meet
    outcome = run(replace(scenario, skip=Skip(rank=3, step=60), windows=rare))
    ((kind, ranks, group),) = [(one.finding.kind, one.finding.ranks, one.finding.group) for one in outcome.opened]
    assert (kind, ranks, group) == ("unmatched_collectives", (3,), "mesh_dp")
    assert outcome.abstained is not None
    assert "rank 3 is 1 collective behind in group mesh_dp since about step 64 (36-64): it has" in outcome.abstained
    assert outcome.opened[0].finding.since_range == (36, 64)


@pytest.mark.parametrize("rank", [3, 5])
def test_rank_slow_after_a_skipped_collective_is_found(rank: int) -> None:
    scenario = LAYOUTS["dp 8"].scenario(Fault(cause="gpu_compute", ranks=(rank,), ratio=1.3, begin=100), steps=128)
    outcome = run(replace(scenario, skip=Skip(rank=3, step=60)))
    found = {one.finding.kind: one.finding for one in outcome.opened}
    slow = found.pop(STRAGGLER)
    assert (slow.ranks, slow.since_step, slow.cause) == ((rank,), 100, "gpu_compute")
    assert list(found) == ["unmatched_collectives"]
    assert "the calls of a step still match" in found["unmatched_collectives"].why
    assert outcome.abstained is None


def test_other_groups_are_judged_all_the_same() -> None:
    # Rank 3 leaves out one in the group of ranks 0 to 3; rank 9 is slow in that of 8 to 11.
    fault = Fault(cause="gpu_compute", ranks=(9,), ratio=1.5, begin=70)
    scenario = replace(LAYOUTS["unequal pp 4 x dp 4"].scenario(fault, seed=2, steps=112), skip=Skip(rank=3, step=60))
    found = {one.finding.kind: one.finding for one in run(scenario).opened}
    assert (found[STRAGGLER].ranks, found[STRAGGLER].cause) == ((9,), "gpu_compute")
    skipped = found["unmatched_collectives"]
    assert (skipped.ranks, skipped.group, skipped.severity) == ((3,), "mesh_dp/0-3", "info")
    assert skipped.since_step is not None
    assert 60 <= skipped.since_step <= 65
    assert len(found) == 2
