"""Short CPUs as the cause of slow hosts, by hand-made cases.

Ranks 0 and 1 are on machine a, 2 and 3 on b, 4 and 5 on c. Rank 0 has an own time of 150 ms, its peers 100 ms; the
machines are sampled at steps 0, 10 and 20. The excess is 50 ms, so 25 ms of it a step, 500 ms in 20 steps, must be
explained.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from rankscope.collector.detect.machine_growth import NodeCounts, find_machines
from rankscope.collector.detect.stragglers.root_cause import Cause, find_cause
from rankscope.collector.detect.view import Samples
from tests.unit.collector.detect.machines import growing, machine
from tests.unit.collector.steps.step_series import MS, UNKNOWN, series_of, slow_of, view_of

NODES = {rank: "abc"[rank // 2] for rank in range(6)}
GROUP, MACHINE, STEAL = "group_cpu_pressure_ns", "cpu_pressure_ns", "cpu_steal_ns"


def cause_of(
    machines: Mapping[int, Sequence[NodeCounts]],
    *,
    neighbor_ms: float = 150.0,
    cpu_ms: float = 90.0,
    level_from_step: int = 0,
    pattern: str = "steady",
) -> Cause:
    row = [150.0, neighbor_ms, 100.0, 100.0, 100.0, 100.0]
    series = series_of([row] * 25, cpu_ms=[[cpu_ms] + [90.0] * 5] * 25)
    slow = slow_of(0, (1, 2, 3, 4, 5), own_ms=150.0, peers_ms=100.0, level_from_step=level_from_step)
    if pattern == "intermittent":
        slow = slow._replace(pattern=pattern, persistence=0.5, slow_steps=np.arange(0, 25, 2))
    excess_ns = series.own_ns - 100 * MS
    return find_cause(slow, series, Samples({}, {}, {}), find_machines(NODES, machines), excess_ns)


def pressed(slow_ms: int, *peers_ms: int, field: str = MACHINE) -> dict[int, Sequence[NodeCounts]]:
    """Ranks 0, 2 and 4 read their machines."""
    return {2 * number: growing(ms * MS, field) for number, ms in enumerate((slow_ms, *peers_ms))}


@pytest.mark.parametrize(
    ("field", "because"),
    [
        (
            GROUP,
            (
                "tasks waiting for a CPU for 40.0 ms per step in the control group of local rank 0, 10.0 ms "
                "on its peers' nodes"
            ),
        ),
        (
            MACHINE,
            "tasks waiting for a CPU for 40.0 ms per step on its machine, 10.0 ms on its peers' machines",
        ),
        (
            STEAL,
            ("40.0 ms per step taken by the hypervisor from each CPU of its machine, 10.0 ms on its peers' machines"),
        ),
    ],
)
def test_machine_that_is_short_of_cpus_is_cpu_pressure(field: str, because: str) -> None:
    cause = cause_of(pressed(800, 200, 200, field=field))
    assert (cause.name, cause.because) == ("cpu_pressure", because)
    name = field.removesuffix("_ns")
    assert cause.evidence[f"{name}_ns_per_step"] == 40 * MS
    assert cause.evidence[f"peers_{name}_ns_per_step"] == 10 * MS


@pytest.mark.parametrize(("slow_ms", "name"), [(700, "cpu_pressure"), (699, "unseen_wait")])
def test_pressure_is_the_cause_from_half_of_the_excess_on(slow_ms: int, name: str) -> None:
    # 35 ms a step and 34.95, of which 10 are usual.
    assert cause_of(pressed(slow_ms, 200, 200)).name == name


def test_peers_under_the_same_pressure_make_it_no_cause() -> None:
    assert cause_of(pressed(800, 800, 800)).name == "unseen_wait"


def test_healthy_neighbors_on_the_machine_make_it_no_cause() -> None:
    assert cause_of(pressed(800, 200, 200), neighbor_ms=100.0).name == "unseen_wait"
    assert cause_of(pressed(800, 200, 200), neighbor_ms=124.0).name == "unseen_wait"
    assert cause_of(pressed(800, 200, 200), neighbor_ms=125.0).name == "cpu_pressure"


def test_neighbors_whose_own_time_is_not_known_make_it_no_cause() -> None:
    assert cause_of(pressed(800, 200, 200), neighbor_ms=UNKNOWN).name == "unseen_wait"


def test_rank_alone_on_its_machine_needs_no_neighbors() -> None:
    series = series_of([[150.0, 100.0, 100.0, 100.0]] * 25, cpu_ms=[[90.0] * 4] * 25)
    slow = slow_of(0, (1, 2, 3), own_ms=150.0, peers_ms=100.0)
    machines = {rank: growing(ms * MS, MACHINE) for rank, ms in enumerate((800, 200, 200, 200))}
    nodes = {rank: f"n{rank}" for rank in range(4)}
    found = find_cause(slow, series, Samples({}, {}, {}), find_machines(nodes, machines), series.own_ns - 100 * MS)
    assert found.name == "cpu_pressure"


@pytest.mark.parametrize(("neighbors_ms", "name"), [(150.0, "cpu_pressure"), (100.0, "unseen_wait")])
def test_neighbors_are_all_ranks_of_the_node_in_a_large_run(neighbors_ms: float, name: str) -> None:
    """2,048 ranks on 256 nodes of eight: the peers are sampled, one in sixteen, so none of rank 16's neighbors is."""
    ranks = 2048
    nodes = {rank: f"n{rank // 8:03}" for rank in range(ranks)}
    row = [100.0] * ranks
    row[16:24] = [150.0] + [neighbors_ms] * 7
    view = view_of(series_of([row] * 25, cpu_ms=[[90.0] * ranks] * 25), nodes=nodes)
    peers = view.peer_groups.of(16).peers_of(16)
    assert [peer for peer in peers.ranks if nodes[peer] == "n002"] == []
    slow = slow_of(16, peers.ranks, own_ms=150.0, peers_ms=100.0)
    read = {rank: growing((800 if rank == 16 else 200) * MS, MACHINE) for rank in range(0, ranks, 8)}
    found = find_cause(slow, view.series, Samples({}, {}, {}), find_machines(nodes, read), view.excess_ns)
    assert found.name == name


def test_neighbors_of_other_work_are_judged_by_their_own_peers() -> None:
    # Ranks 1, 3 and 5 always take 300 ms; rank 1, beside the slow one, is as usual.
    series = series_of([[150.0, 300.0, 100.0, 300.0, 100.0, 300.0]] * 25, cpu_ms=[[90.0] * 6] * 25)
    slow = slow_of(0, (2, 4), own_ms=150.0, peers_ms=100.0)
    excess_ns = series.own_ns - np.array([100.0, 300.0] * 3) * MS
    machines = find_machines(NODES, pressed(800, 200, 200))
    assert find_cause(slow, series, Samples({}, {}, {}), machines, excess_ns).name == "unseen_wait"


def test_neighbor_that_is_not_in_the_series_makes_it_no_cause() -> None:
    series = series_of([[150.0, 100.0]] * 25, cpu_ms=[[90.0] * 2] * 25)
    machines = find_machines({0: "a", 1: "b", 7: "a"}, {0: growing(800 * MS, MACHINE), 1: growing(0, MACHINE)})
    slow = slow_of(0, (1,), own_ms=150.0, peers_ms=100.0)
    found = find_cause(slow, series, Samples({}, {}, {}), machines, series.own_ns - 100 * MS)
    assert found.name == "unseen_wait"


def test_neighbors_of_an_intermittent_rank_count_in_slow_steps() -> None:
    # Every other step; in the others the neighbor is as fast as all.
    rows = [[150.0, 150.0 if step % 2 == 0 else 100.0, 100.0, 100.0, 100.0, 100.0] for step in range(25)]
    series = series_of(rows, cpu_ms=[[90.0] * 6] * 25)
    slow = slow_of(0, (1, 2, 3, 4, 5), own_ms=150.0, peers_ms=100.0)
    slow = slow._replace(pattern="intermittent", persistence=0.5, slow_steps=np.arange(0, 25, 2))
    machines = find_machines(NODES, pressed(500, 200, 200))
    found = find_cause(slow, series, Samples({}, {}, {}), machines, series.own_ns - 100 * MS)
    assert found.name == "cpu_pressure"


def test_who_computes_longer_does_not_wait_for_a_cpu() -> None:
    cause = cause_of(pressed(800, 200, 200), cpu_ms=140.0)
    assert (cause.name, cause.because) == ("host_cpu", "its training thread computing longer")


def test_pressure_on_an_intermittent_rank_is_that_of_slow_steps() -> None:
    # 15 ms a step above the peers' are 30 ms in each slow step, of which there is one in two.
    assert cause_of(pressed(500, 200, 200)).name == "unseen_wait"
    assert cause_of(pressed(500, 200, 200), pattern="intermittent").name == "cpu_pressure"


@pytest.mark.parametrize("counts_ms", [(900, 1300, 899), (900, 1300, 8), (0, 10_000, 21_001)])
def test_time_that_decreases_or_exceeds_the_clock_is_not_known(counts_ms: tuple[int, ...]) -> None:
    # 20 s pass, and a sample is read within 1 s.
    machines = pressed(0, 200, 200)
    machines[0] = machine(*({MACHINE: ms * MS} for ms in counts_ms))
    assert cause_of(machines).name == "unseen_wait"


@pytest.mark.parametrize(
    "machines",
    [
        {},
        {0: growing(800 * MS, MACHINE)},  # no peer's machine is known
        {rank: growing(0, MACHINE) for rank in (2, 4)},
        pressed(800, 200, 200, field="tcp_segments_sent"),
        {rank: growing(800 * MS, MACHINE)[:1] for rank in (0, 2, 4)},
    ],
)
def test_counts_that_cannot_be_compared_are_no_evidence(machines: Mapping[int, Sequence[NodeCounts]]) -> None:
    cause = cause_of(machines)
    assert cause.name == "unseen_wait"
    assert [name for name in cause.evidence if "cpu_" in name] == ["peers_cpu_ns", "cpu_excess_ns"]


def test_samples_before_the_present_level_do_not_count() -> None:
    # From step 10 on: 40 ms a step against 10.
    counts = pressed(0, 200, 200)
    counts[0] = machine({MACHINE: 0}, {MACHINE: 0}, {MACHINE: 400 * MS})
    assert cause_of(counts, level_from_step=10).evidence["cpu_pressure_ns_per_step"] == 40 * MS
    assert cause_of(counts, level_from_step=11).name == "unseen_wait"
