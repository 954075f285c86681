"""Pipelines with 1F1B, interleaved 1F1B and ZB-H1: their order and time by hand, and what is found in them."""

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from tests.simulation.cost_truth import TOLERANCE, stated_step_share, step_share_without
from tests.simulation.faults import Fault
from tests.simulation.noise import Noise
from tests.simulation.scenarios import slow_rank
from tests.simulation.schedule_matrix import SCHEDULED, ZERO_BUBBLE
from tests.simulation.schedules import Unit, order_stage, order_stage_zero_bubble, order_units
from tests.simulation.topology import Topology
from tests.simulation.world import Scenario, World, run

WORK_NS = 100_000_000
SCHEDULES = ("1f1b", "interleaved", "zero_bubble")
LAYOUTS = {**SCHEDULED, **ZERO_BUBBLE}


def spell(units: Sequence[Unit]) -> str:
    """Return `f0a` for the forward of micro batch 0 in the first chunk."""
    return " ".join(f"{unit.phase[0]}{unit.micro_batch}{'ab'[unit.chunk]}" for unit in units)


def test_first_of_two_stages_is_one_forward_ahead() -> None:
    assert spell(order_stage(0, 2, 1, 3)) == "f0a f1a b0a f2a b1a b2a"
    assert spell(order_stage(1, 2, 1, 3)) == "f0a b0a f1a b1a f2a b2a"


def test_interleaved_stages_alternate_between_their_chunks() -> None:
    # Warm-ups of 2 * 1 + 2 = 4 and 2 * 0 + 2 = 2 forwards; the second chunk's backwards come first.
    assert spell(order_stage(0, 2, 2, 2)) == "f0a f1a f0b f1b b0b b1b b0a b1a"
    assert spell(order_stage(1, 2, 2, 2)) == "f0a f1a f0b b0b f1b b1b b0a b1a"


def test_later_stages_of_zero_bubble_compute_weights_later() -> None:
    # With one unit of time each, the second stage is idle at 0 only and ends at 10, the first (idle at 2) as well:
    #   first   f0 f1 -  b0 w0 f2 b1 w1 b2 w2
    #   second  -  f0 b0 f1 b1 w0 f2 b2 w1 w2
    assert spell(order_stage_zero_bubble(0, 2, 3)) == "f0a f1a b0a w0a f2a b1a w1a b2a w2a"
    assert spell(order_stage_zero_bubble(1, 2, 3)) == "f0a b0a f1a b1a w0a f2a b2a w1a w2a"
    # The third of four: one forward of warm-up, the weights two micro batches late.
    assert spell(order_stage_zero_bubble(2, 4, 4)) == "f0a f1a b0a f2a b1a f3a b2a w0a b3a w1a w2a w3a"


@pytest.mark.parametrize("stage", range(4))
def test_zero_bubble_stage_holds_as_many_micro_batches_as_stages(stage: int) -> None:
    # The promise of ZB-H1: activations are held until the weights' gradient, and no stage holds more than 1F1B's first.
    change = {"forward": 1, "backward": 0, "weights": -1}
    held = np.cumsum([change[unit.phase] for unit in order_stage_zero_bubble(stage, 4, 8)])
    assert (held.max(), held[-1]) == (4, 0)


def test_fewer_micro_batches_than_stages_all_get_their_weights() -> None:
    assert spell(order_stage_zero_bubble(3, 4, 2)) == "f0a b0a f1a b1a w0a w1a"


def test_chunks_need_stages_that_divide_the_micro_batches() -> None:
    with pytest.raises(ValueError, match="4 stages do not divide 6 micro batches"):
        order_stage(0, 4, 2, 6)


@pytest.mark.parametrize("chunks", [1, 2])
def test_every_unit_comes_once_and_after_what_it_needs(chunks: int) -> None:
    units = list(order_units([order_stage(stage, 4, chunks, 8) for stage in range(4)], chunks))
    assert len(set(units)) == len(units) == 2 * 4 * chunks * 8
    # A micro batch goes up through the stages of all chunks, and back.
    mine = [(unit.chunk, unit.stage) for unit in units if unit.micro_batch == 5]
    upwards = [(chunk, stage) for chunk in range(chunks) for stage in range(4)]
    assert mine == upwards + upwards[::-1]


@pytest.mark.parametrize(
    ("kind", "micro_batches"),
    # 84 % of the work are forwards and backwards. They wait for stages - 1 = 3 micro batches of their own: of 4 in a
    # step, of 8, and of 16 half ones. ZB-H1 waits for 3 x (forward + input - weights), which is one of three equal
    # parts of a micro batch, of 8.
    [("pp", 4), ("1f1b", 8), ("interleaved", 16), ("zero_bubble", 24)],
)
def test_bubble_is_stages_less_one_over_the_micro_batches(kind: str, micro_batches: int) -> None:
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=2), kind=kind, steps=2, noise=Noise(jitter=0.0, warmup_steps=0))
    steps_ns = World(scenario, CollectorConfig()).run_unreported().max(axis=1)
    moved_ns = steps_ns - WORK_NS * (0.16 + 0.84 * (1 + 3 / micro_batches))
    # 5 ms for the gradients; a message needs 0.1 ms, and a stage waits for at most a few dozen of them.
    assert (moved_ns >= 5_000_000).all()
    assert (moved_ns <= 9_000_000).all()


@pytest.mark.parametrize("name", LAYOUTS)
def test_nobody_is_accused_in_a_healthy_schedule(name: str) -> None:
    found = [one.finding for one in run(LAYOUTS[name].scenario(steps=120, seed=2)).opened]
    # The first of the unequal stages has 1.15 times the mean work, which is just where an imbalance begins.
    heavy = {("imbalance", (0, 1, 2, 3))} if name.startswith("unequal") else set()
    assert {(one.kind, one.ranks) for one in found} <= heavy


@pytest.mark.parametrize(("kind", "dp"), [*((kind, 2) for kind in SCHEDULES), ("1f1b", 4)])
def test_slow_rank_of_a_schedule_is_named_with_its_cost(kind: str, dp: int) -> None:
    fault = slow_rank("gpu_compute", 1.3)
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=dp), kind=kind, faults=(fault,), steps=150, seed=2)
    outcome = run(scenario)
    (found,) = (one.finding for one in outcome.opened)
    assert (found.kind, found.ranks, found.cause, found.since_step) == ("straggler", (5,), "gpu_compute", 100)
    assert stated_step_share(found) == pytest.approx(step_share_without(outcome, (fault,)), abs=TOLERANCE / 2)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_slow_stage_of_a_schedule_is_one_finding_with_its_cost(kind: str) -> None:
    fault = slow_rank("gpu_compute", 1.3, ranks=(4, 5, 6, 7))
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=4), kind=kind, faults=(fault,), steps=150, seed=2)
    outcome = run(scenario)
    (found,) = (one.finding for one in outcome.opened)
    assert (found.kind, found.ranks, found.since_step) == ("stage_slowdown", (4, 5, 6, 7), 100)
    assert stated_step_share(found) == pytest.approx(step_share_without(outcome, (fault,)), abs=TOLERANCE)


def test_zero_bubble_stage_is_named_from_the_smallest_fault_on() -> None:
    fault = slow_rank("gpu_compute", 1.1, ranks=(4, 5, 6, 7))
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=4), kind="zero_bubble", faults=(fault,), steps=150, seed=2)
    (found,) = (one.finding for one in run(scenario).opened)
    assert (found.kind, found.ranks, found.since_step) == ("stage_slowdown", (4, 5, 6, 7), 100)


@pytest.mark.parametrize("kind", ["1f1b", "zero_bubble"])
def test_work_of_every_rank_is_known_while_its_sends_last(kind: str) -> None:
    fault = Fault(cause="gpu_compute", ranks=(5,), ratio=1.5, begin=8)
    scenario = Scenario(topology=Topology.mesh(pp=4, dp=2), kind=kind, faults=(fault,), steps=40, seed=2)
    world = World(scenario, CollectorConfig())
    outcome = world.run()
    view = world.end.run.view(world.now_ns)
    assert view is not None
    worked_ns = sum(outcome.worked_ns.values(), np.zeros(1))[view.series.steps]
    assert view.series.own_ns == pytest.approx(worked_ns, abs=1_000)
