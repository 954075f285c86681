"""Simulated runs of the shape of three recorded jobs with published results (bench/published), which are not committed:
one slowed worker of a pipeline, a long last stage, and sequences of different lengths.
"""

from dataclasses import replace

import pytest

from rankscope.collector.detect.finding import STRAGGLER, Finding
from tests.simulation.cost_truth import TOLERANCE, stated_step_share, step_share_without
from tests.simulation.faults import Fault
from tests.simulation.noise import Noise
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, run

SLOWED = Fault(cause="gpu_compute", ranks=(0,), ratio=2.36, begin=0)
"""AR: an artificial slowdown of one worker of 4 stages x 4."""
AR = Scenario(topology=Topology.mesh(pp=4, dp=4), kind="1f1b", steps=64, seed=2, faults=(SLOWED,))
ST = Scenario(topology=Topology.mesh(pp=4, dp=2), kind="1f1b", steps=64, seed=2, stage_shares=(0.86, 0.86, 0.86, 1.42))
"""The last of 4 stages x 2 computes 1.37 s of a step, the others 0.84: 1.6 times as long."""
SE = Scenario(
    topology=Topology.mesh(pp=4, dp=8), kind="1f1b", steps=150, seed=2,
    noise=Noise(batch_jitter=0.25), stage_shares=(0.93, 0.93, 0.93, 1.21),
)  # fmt: skip
"""Sequences of other lengths in every step, and a last stage with more work; half as many workers as recorded. Uneven
work without a cause takes 128 steps."""


def findings(scenario: Scenario) -> list[Finding]:
    return [opened.finding for opened in run(scenario).opened]


def test_only_the_worker_that_was_slowed_is_a_straggler() -> None:
    outcome = run(AR)
    (found,) = (opened.finding for opened in outcome.opened)
    assert (found.kind, found.ranks) == (STRAGGLER, (0,))
    assert found.slowdown_ratio == pytest.approx(2.36, abs=0.05)
    assert stated_step_share(found) == pytest.approx(step_share_without(outcome, (SLOWED,)), abs=TOLERANCE)


def test_long_last_stage_of_a_small_pipeline_is_an_imbalance() -> None:
    (found,) = findings(ST)
    assert (found.kind, found.ranks) == ("imbalance", (6, 7))


def test_uneven_sequences_blame_nobody() -> None:
    found = {(one.kind, one.ranks) for one in findings(SE)}
    assert ("uneven_work", ()) in found
    assert found <= {("uneven_work", ()), ("imbalance", tuple(range(24, 32)))}  # the last stage's work is no fault


def test_slowed_worker_among_uneven_sequences_is_named() -> None:
    slowed = replace(SE, steps=64, faults=(replace(SLOWED, ranks=(17,)),))
    assert [one.ranks for one in findings(slowed) if one.kind == STRAGGLER] == [(17,)]
