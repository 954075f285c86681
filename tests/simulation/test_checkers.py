"""Check what holds for any behavior of the network, the clocks and the ranks; all runs are small."""

from dataclasses import replace

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.invariants import InvariantError
from rankscope.collector.steps import step_table
from tests.simulation.checkers import CounterWatch, check_loss_identity, count_steps, measure_state
from tests.simulation.clocks import CLOCKS
from tests.simulation.faults import Fault
from tests.simulation.network import NETWORKS, NetworkNoise, Partition
from tests.simulation.noise import NOISES
from tests.simulation.scoring import judge
from tests.simulation.topology import Topology
from tests.simulation.world import Death, Scenario, Stall, World, run
from tests.validated_run import RunValidatedByPass, ValidatedRun

SLOW = 3
HEALTHY = Scenario(topology=Topology.mesh(dp=8), kind="fsdp", steps=120, seed=11)
FAULTY = replace(HEALTHY, faults=(Fault(cause="host_cpu", ranks=(SLOW,), ratio=1.5, begin=48),))
LONG_CUT = NetworkNoise(partitions=(Partition(ranks=(2, 5), begin_s=2, end_s=10),), frames_max=2)
"""Eight seconds of reports do not fit into two frames: most of them are dropped."""


def made(scenario: Scenario, config: CollectorConfig | None = None) -> World:
    """Return the world of a run that is over and whose network has healed."""
    world = World(scenario, config or CollectorConfig())
    while world.advance():
        check_loss_identity(world)
    world.heal()
    return world


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_step_is_accounted_for_on_every_network(name: str) -> None:
    world = made(replace(HEALTHY, network=NETWORKS[name]))
    check_loss_identity(world)
    assert all(count_steps(world, rank).buffered == 0 for rank in range(8))
    assert world.outcome().opened == []


def test_steps_dropped_by_a_cut_off_rank_are_counted() -> None:
    world = made(replace(HEALTHY, network=LONG_CUT))
    check_loss_identity(world)
    lost = count_steps(world, 5)
    assert lost.dropped > 0
    assert lost.published == 120 - lost.dropped
    assert count_steps(world, 0) == (120, 120, 0, 0, 0, 0)


def test_steps_older_than_the_window_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "RING_STEPS_MAX", 0)
    cut = replace(LONG_CUT, frames_max=1024)
    world = made(replace(HEALTHY, network=cut), CollectorConfig(steps_kept=32))
    check_loss_identity(world)
    assert count_steps(world, 5).late > 0


def test_steps_that_an_agent_without_time_overwrites_are_counted() -> None:
    world = made(replace(HEALTHY, stalls=(Stall(ranks=(SLOW,), begin=40, end=88),), ring_steps=16))
    check_loss_identity(world)
    # Six reports are missing: 48 steps, and the 8 of the next one, of which the ring holds the last 16.
    assert count_steps(world, SLOW).overwritten == 40
    assert world.outcome().opened == []


@pytest.mark.parametrize("name", ["slow", "reordered", "lossy", "duplicating", "mute"])
def test_slow_rank_is_found_through_a_bad_network(name: str) -> None:
    world = made(replace(FAULTY, steps=160, network=NETWORKS[name]))
    judged = judge(world.outcome())
    assert (judged.faults[0].right_rank, judged.faults[0].right_cause, judged.false_findings) == (True, True, 0)


@pytest.mark.parametrize("name", sorted(CLOCKS))
def test_clocks_that_are_wrong_change_no_verdict(name: str) -> None:
    assert run(replace(HEALTHY, clocks=CLOCKS[name])).opened == []
    judged = judge(run(replace(FAULTY, clocks=CLOCKS[name])))
    assert (judged.faults[0].right_rank, judged.faults[0].right_cause, judged.false_findings) == (True, True, 0)


def test_clock_is_known_to_within_half_the_round_trip() -> None:
    world = made(replace(HEALTHY, network=NetworkNoise(delay_s=0.1)))
    errors = [rank.clock_error_ns or 0 for rank in world.snapshot().ranks]
    # Half of twice 0.1 s, and 1e-4 of the seconds since the ping.
    assert all(100e6 <= error <= 102e6 for error in errors)


def test_dead_rank_is_silent_and_no_rank_is_called_slow() -> None:
    world = made(replace(HEALTHY, death=Death(rank=SLOW, step=70)))
    ended = {rank.identity.rank: rank.ended for rank in world.snapshot().ranks}
    assert ended == {rank: "silent" if rank == SLOW else None for rank in range(8)}
    assert world.step == 70
    assert judge(world.outcome()).false_findings == 0


@pytest.mark.parametrize("network", [None, LONG_CUT, NETWORKS["duplicating"]])
def test_no_counter_of_the_metrics_decreases(network: NetworkNoise | None) -> None:
    fault = replace(FAULTY.faults[0], end=80)
    world, watch = World(replace(FAULTY, faults=(fault,), network=network), CollectorConfig()), CounterWatch()
    while world.advance():
        watch.compare(world)
    world.heal()
    watch.compare(world)
    assert watch.series > 100


def test_watch_sees_a_counter_that_decreases() -> None:
    older, younger, watch = World(HEALTHY, CollectorConfig()), World(HEALTHY, CollectorConfig()), CounterWatch()
    older.advance()
    older.advance()
    watch.compare(older)
    younger.advance()
    with pytest.raises(AssertionError, match="fell from"):
        watch.compare(younger)


def test_identity_sees_a_step_that_is_not_counted() -> None:
    world = World(HEALTHY, CollectorConfig())
    world.advance()
    world.end.steps_admitted[world.ranks[SLOW].identity.boot_id] -= 1
    with pytest.raises(AssertionError, match="rank 3"):
        check_loss_identity(world)


def test_state_of_a_run_does_not_grow_with_its_length() -> None:
    config = CollectorConfig(steps_kept=32, findings_max=4)
    fault = Fault(cause="gpu_compute", ranks=(1,), ratio=2.0, begin=40, every=60, bout=30)
    scenario = replace(HEALTHY, topology=Topology.mesh(dp=2), faults=(fault,), steps=2400, noise=NOISES["rough"])
    world, sizes = World(scenario, config), []
    while world.advance():
        if world.step % 160 == 0:
            sizes.append(measure_state(world))
    # The state with the longest history is 256 samples of the garbage collector, one a report: full at step 2048.
    assert max(sizes[13:]) < 1.05 * max(sizes[:13])


@pytest.mark.parametrize("run_type", [ValidatedRun, RunValidatedByPass])
def test_broken_invariant_is_seen_at_the_next_pass(run_type: type[ValidatedRun]) -> None:
    world = World(HEALTHY, CollectorConfig(), run_type)
    world.advance()
    world.end.run.attempts = -1
    with pytest.raises(InvariantError, match="negative number of attempts"):
        world.advance()


def test_findings_are_the_same_however_often_a_run_is_validated() -> None:
    by_event, by_pass = (World(FAULTY, CollectorConfig(), kind).run() for kind in (ValidatedRun, RunValidatedByPass))
    assert by_event.opened == by_pass.opened != []
