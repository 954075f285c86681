"""Check runs of short steps, few of which are profiled: windows are further apart than the kept steps."""

import functools

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.runs.snapshot import RunSnapshot
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES
from tests.simulation.ranks import Windows
from tests.simulation.topology import Topology
from tests.simulation.world import Outcome, Scenario, World

WINDOWS = Windows(length=8, distance=512)
ALL = Windows()
STEPS, HEALTHY_STEPS = 2100, 2600
"""Four intervals between windows and the window after them; five."""
BEGIN = 700
SLOW = 3
FAULT = Fault(cause="gpu_compute", ranks=(SLOW,), ratio=1.3, begin=BEGIN)


@functools.cache
def watch(
    kind: str, *faults: Fault, windows: Windows = WINDOWS, seed: int = 1, steps: int = STEPS
) -> tuple[Outcome, RunSnapshot]:
    scenario = Scenario(
        topology=Topology.mesh(dp=8),
        kind=kind,
        noise=NOISES["usual"],
        faults=faults,
        steps=steps,
        seed=seed,
        windows=windows,
    )
    world = World(scenario, CollectorConfig())
    outcome = world.run()
    return outcome, world.snapshot()


@pytest.mark.parametrize("kind", ["fsdp", "dp"])  # the first is also the last test's, in the same half
def test_slow_rank_is_found_in_the_windows_there_are(kind: str) -> None:
    outcome, snapshot = watch(kind, FAULT)
    whole_run, slow_rank = outcome.opened
    assert (slow_rank.finding.rank, slow_rank.finding.cause) == (SLOW, "gpu_compute")
    assert slow_rank.finding.since_step == BEGIN  # between two windows: when the run became slower
    assert slow_rank.opened_step <= 3 * WINDOWS.distance + 2 * WINDOWS.length  # the second, for twelve steps
    assert [finding.rank for finding in snapshot.open_findings] == [SLOW]
    assert snapshot.abstained is None
    # That something is slow is known long before its rank is.
    assert (whole_run.finding.kind, whole_run.finding.since_step) == ("run_slowdown", BEGIN)
    assert f", steps {BEGIN}-" in whole_run.finding.headline  # it is over, now that the rank is named
    assert whole_run.closed_step == slow_rank.opened_step


@pytest.mark.parametrize("seed", range(2))
def test_healthy_run_has_no_straggler(seed: int) -> None:
    outcome, snapshot = watch("fsdp", seed=seed, steps=HEALTHY_STEPS)
    assert (outcome.opened, snapshot.abstained) == ([], None)


def test_what_is_lost_counts_the_steps_between_the_windows() -> None:
    (sparse,), (whole,) = (one.open_findings for one in (watch("fsdp", FAULT)[1], watch("fsdp", FAULT, windows=ALL)[1]))
    assert sparse.lost_rank_seconds is not None
    assert whole.lost_rank_seconds is not None
    last = 4 * WINDOWS.distance + WINDOWS.length
    assert sparse.since_step == BEGIN
    a_step_s = whole.lost_rank_seconds / (STEPS - BEGIN)
    assert sparse.lost_rank_seconds == pytest.approx(a_step_s * (last - BEGIN), rel=0.1)
