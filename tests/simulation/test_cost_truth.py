"""The stated cost of stragglers against the same run simulated without them."""

import pytest

from rankscope.collector.detect.finding import SLOW_LINK, STRAGGLER, Finding
from tests.simulation.cost_truth import stated_step_share, step_share_without
from tests.simulation.faults import Fault
from tests.simulation.scenarios import LAYOUTS, slow_rank
from tests.simulation.world import Outcome, run

CLOSE = 0.05
"""Of the step: half of what counts as wrong."""


def stragglers(outcome: Outcome) -> list[Finding]:
    """Slowest first."""
    found = [one.finding for one in outcome.opened if one.finding.kind == STRAGGLER]
    return sorted(found, key=lambda finding: -(finding.slowdown_ratio or 0.0))


@pytest.mark.parametrize("rank", [0, 9])
def test_stated_cost_in_a_pipeline_is_that_of_the_run_without_it(rank: int) -> None:
    # The stages have 1.15, 1, 1 and 0.85 of the mean work, so rank 9's hides more of the pipeline's bubbles.
    scenario = LAYOUTS["unequal pp 4 x dp 4"].scenario(slow_rank("gpu_compute", 1.5, ranks=(rank,)), seed=2, steps=150)
    outcome = run(scenario)
    (finding,) = stragglers(outcome)
    assert stated_step_share(finding) == pytest.approx(step_share_without(outcome, scenario.faults), abs=CLOSE)


def test_slowest_of_two_states_both_costs_and_the_other_its_own() -> None:
    faults = [Fault(cause="gpu_compute", ranks=(rank,), ratio=ratio, begin=60) for rank, ratio in ((3, 1.6), (9, 1.3))]
    scenario = LAYOUTS["fsdp 16"].scenario(*faults, seed=2, steps=130)
    outcome = run(scenario)
    first, second = stragglers(outcome)
    assert (first.ranks, second.ranks) == ((3,), (9,))
    assert stated_step_share(first) == pytest.approx(step_share_without(outcome, faults), abs=CLOSE)
    assert stated_step_share(second) == pytest.approx(step_share_without(outcome, faults[1:]), abs=CLOSE)
    assert first.cost_of == "rank 9"
    assert second.cost == ""  # while rank 3 is slower no step is shorter without it


@pytest.mark.parametrize(("rank", "where"), [(5, "unequal pp 4 x dp 4"), (2, "unequal pp 4 x dp 2")])
def test_stated_link_cost_in_a_pipeline_is_that_without_the_link(rank: int, where: str) -> None:
    # Stage 1 sends its gradients while stage 0 is still in backward: 30 ms more of it cost a few.
    scenario = LAYOUTS[where].scenario(slow_rank("slow_link", 1.3, ranks=(rank,)), seed=80_002, steps=150)
    outcome = run(scenario)
    (finding,) = (one.finding for one in outcome.opened if one.finding.kind == SLOW_LINK)
    assert stated_step_share(finding) == pytest.approx(step_share_without(outcome, scenario.faults), abs=CLOSE)


@pytest.mark.parametrize("ratio", [1.1, 1.3])
def test_stated_cost_covers_all_steps_where_half_have_a_stall(ratio: float) -> None:
    # Of 32 ranks another one stalls in every second step, and hides rank 5 there: the median step has a stall or none.
    layout = LAYOUTS["ep 4, dp 32"]
    scenario = layout.scenario(slow_rank("gpu_compute", ratio), noise="bursts", seed=80_004, steps=160)
    outcome = run(scenario)
    (finding,) = stragglers(outcome)
    assert stated_step_share(finding) == pytest.approx(step_share_without(outcome, scenario.faults), abs=0.02)
