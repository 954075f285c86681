"""The physics of the simulation, by cases worked out by hand. Times in ns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.measure.codec import decode
from rankscope.measure.messages import Report
from rankscope.measure.records import WindowSynchronizations
from tests.simulation.engine import Conditions, Engine, Step
from tests.simulation.faults import Fault
from tests.simulation.noise import NOISES, Weather
from tests.simulation.program import KINDS, Collective, Handover, Join, Program, Scale, Send, Work
from tests.simulation.ranks import SimulatedRank
from tests.simulation.topology import DATA, PIPELINE, TENSOR, Topology

PAIR = Topology.mesh(dp=2)
BOTH = np.arange(2)


def calm(topology: Topology, **kernel: float) -> Conditions:
    """Conditions without noise; `rank1=2.0` makes rank 1 work twice as long."""
    ones = np.ones(topology.world_size)
    work = ones.copy()
    for name, factor in kernel.items():
        work[int(name.removeprefix("rank"))] = factor
    return Conditions({"read": ones, "host": ones, "kernel": work}, np.zeros(topology.world_size), ones)


def work(ns: int, phase: str = "forward") -> Work:
    return Work("kernel", phase, BOTH, np.array([ns, ns]))


def reduce(transfer_ns: int, *, is_async: bool = False) -> Collective:
    return Collective(DATA, "all_reduce", "backward", 64, transfer_ns, BOTH, is_async)


def step_of(program: Program, **kernel: float) -> Step:
    return Engine(PAIR, program).run_step(calm(PAIR, **kernel))


def test_collective_ends_when_last_has_entered_and_data_is_moved() -> None:
    step = step_of([work(100), reduce(10)], rank1=1.5)
    assert step.duration_ns.tolist() == [150 + 10, 150 + 10]
    (call,) = step.calls
    assert (call.end_ns - call.start_ns).tolist() == [50 + 10, 10]
    assert step.phases_ns["backward"].tolist() == [60, 10]


def test_lists_of_a_step_hold_its_values_by_rank() -> None:
    one_of_two = Collective(TENSOR, "all_reduce", "backward", 64, 10, np.array([0]))
    four = Topology.mesh(dp=2)
    lists = Engine(four, [work(100), one_of_two, reduce(10)]).run_step(calm(four, rank1=1.5)).lists
    # Rank 0 works until 100, is alone in its tensor parallel group until 110, then waits for rank 1 until 150.
    assert (lists.worked_ns, lists.duration_ns, lists.end_ns) == ([100, 150], [160, 160], [160, 160])
    assert (lists.phases_ns["forward"], lists.phases_ns["backward"]) == ([100, 150], [60, 10])
    assert [[place for place, _ in calls] for calls in lists.calls] == [[0, 1], [1]]


def test_collective_hidden_behind_work_costs_nothing() -> None:
    step = step_of([work(100), reduce(10, is_async=True), work(100), Join("backward")], rank1=1.5)
    # Rank 1 enters at 150 and works until 300; rank 0 works until 200, when the operation has been over since 160.
    assert step.duration_ns.tolist() == [200, 300]
    assert step.calls[0].exposed_ns.tolist() == [0, 0]


def test_end_of_a_collective_beyond_the_work_is_exposed() -> None:
    step = step_of([work(100), reduce(10, is_async=True), work(20), Join("backward")], rank1=1.5)
    # Rank 0 works until 120, the operation ends at 160; rank 1 works until 180.
    assert step.duration_ns.tolist() == [160, 180]
    assert step.calls[0].exposed_ns.tolist() == [40, 0]


def test_operations_of_one_stream_run_one_after_the_other() -> None:
    program: Program = [work(100), reduce(50, is_async=True), work(10), reduce(50, is_async=True), Join("backward")]
    step = step_of(program)
    assert [call.start_ns.tolist() for call in step.calls] == [[100, 100], [150, 150]]
    assert step.duration_ns.tolist() == [200, 200]


def test_receiver_waits_for_its_sender_and_not_the_other_way() -> None:
    program: Program = [
        Work("kernel", "forward", np.array([0]), np.array([100])),
        Handover("forward", 64, 5, np.array([0]), np.array([1])),
    ]
    step = Engine(Topology.mesh(pp=2), program).run_step(calm(PAIR))
    assert step.duration_ns.tolist() == [100, 105]
    assert {call.op: (call.end_ns - call.start_ns).tolist() for call in step.calls} == {
        "send": [5, 0],
        "recv": [0, 105],
    }


def test_mesh_makes_tensor_ranks_neighbors_and_stages_far() -> None:
    mesh = Topology.mesh(tp=2, dp=2, pp=2)
    assert mesh.groups[TENSOR].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups[DATA].tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups[PIPELINE].tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.stage.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [group.label for group in mesh.describe_groups()[5]] == [
        "default_pg", "mesh_dp/5,7", "mesh_tp/4-5", "mesh_pp/1,5",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(st.integers(0, 2**32), st.sampled_from(sorted(NOISES)))
def test_phases_sum_to_the_step_and_nobody_works_longer_than_it(kind: str, seed: int, noise: str) -> None:
    topology = Topology.mesh(tp=2, dp=2, pp=2)
    program = KINDS[kind](topology, Scale())
    weather = Weather(NOISES[noise], topology, Scale().work_ns, np.random.default_rng(seed))
    engine = Engine(topology, program)
    for number in range(3):
        step = engine.run_step(weather.draw(number))
        assert (np.sum(list(step.phases_ns.values()), axis=0) == step.duration_ns).all()
        assert (np.sum(list(step.worked_ns.values()), axis=0) <= step.duration_ns).all()
        for call in step.calls:
            assert ((call.exposed_ns >= 0) & (call.exposed_ns <= call.end_ns - call.start_ns)).all()


def waits_of(rank: int, host_ns: int, fault: Fault, fault_ns: int) -> WindowSynchronizations:
    """Return what a rank reports of its waits in two equal steps of 92 ns on the device and 2 of reading each."""
    parts = [("read", 2), ("host", host_ns), ("kernel", 92)]
    step = step_of([Work(kind, "forward", BOTH, np.array([ns, ns])) for kind, ns in parts])
    simulated = SimulatedRank(rank, PAIR, PAIR.describe_groups()[rank])
    report = decode(simulated.report(0, 2 * [step], 2 * [[(fault, float(fault_ns))]]))
    assert isinstance(report, Report)
    (window,) = report.synchronizations
    assert (window.first_step, window.step_count) == (0, 2)
    return window


def test_host_of_a_healthy_rank_waits_once_for_pending_kernels() -> None:
    fault = Fault(cause="host_device_sync", ranks=(1,), ratio=1.3, begin=0)
    window = waits_of(0, 6, fault, 30)
    assert window.call_ns == {"cudaStreamSynchronize": 2 * 92 // 2}
    (kind,) = window.kinds
    assert (kind.operator, kind.count, kind.longest_ns) == ("aten::item", 2, 46)
    assert (kind.waits_ns, kind.idle_ns) == (2 * 46, 2 * (2 + 6))


def test_host_waiting_amid_a_step_waits_longer_by_the_idle_time() -> None:
    fault = Fault(cause="host_device_sync", ranks=(1,), ratio=1.3, begin=0)
    window = waits_of(1, 6 + 30, fault, 30)
    assert (window.call_ns, window.idle_ns) == ({"cudaStreamSynchronize": 2 * (46 + 30)}, 2 * (8 + 30))
    assert [(kind.operator, kind.waits_ns, kind.idle_ns) for kind in window.kinds] == [
        ("aten::item", 2 * 46, 2 * 8), ("aten::nonzero", 2 * 30, 2 * 30),
    ]  # fmt: skip


def test_host_waits_no_longer_than_its_device_works() -> None:
    fault = Fault(cause="host_device_sync", ranks=(1,), ratio=2, begin=0)
    window = waits_of(1, 6 + 100, fault, 100)
    assert window.waits_ns == 2 * 92
    assert [kind.idle_ns for kind in window.kinds] == [2 * 46, 2 * 46]  # of 2 * 108, as much as each waited


def test_sender_of_a_message_computes_until_its_receiver_comes() -> None:
    first, second = np.array([0]), np.array([1])
    stages = Topology.mesh(pp=2)
    program: Program = [
        Work("kernel", "forward", first, np.array([10])),
        Send(0, first),
        Work("kernel", "forward", first, np.array([20])),
        Work("kernel", "forward", second, np.array([100])),
        Handover("forward", 64, 5, first, second, message=0),
        Join("backward"),
    ]
    step = Engine(stages, program).run_step(calm(stages))
    send, receive = step.calls
    # Sent at 10 and received from 100 to 105; the sender computes until 30, then waits for its end.
    assert [(start, duration, exposed) for start, duration, exposed in (send.times_of[0], receive.times_of[1])] == [
        (10, 95, 75),
        (100, 5, 5),
    ]
    assert step.duration_ns.tolist() == [105, 105]
