"""The physics by hand: tiny worlds whose step times can be worked out on paper, and what must hold in all."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost, When
from tests.second_table.layout import TP, make_layout
from tests.second_table.physics import DATA, FORWARD, LAYERS, MS, OTHER, Machine, Model, Step

STILL = {"data_ms": 0.0, "jitter": 0.0, "spread": 0.0, "stall_chance": 0.0, "transfer_jitter": 0.0}
"""Nothing varies: 100 ms of computing are 2 (host) + 30 (forward) + 60 (backward) + 10 (optimizer) and 2 on top."""


def still(kind: str = "ddp", **more: object) -> Model:
    return Model(kind=kind, step_ms=100.0, **{**STILL, **more})  # type: ignore[arg-type]


def steps_of(model: Model, *costs: Cost, ranks: int = 2, count: int = 8, tp: int = 1, pp: int = 1) -> list[Step]:
    layout = make_layout(dp=ranks // tp // pp, tp=tp, pp=pp)
    machine = Machine(layout, model, costs, seed=3)
    return [machine.play() for _ in range(count)]


def duration_ms(step: Step, rank: int = 0) -> float:
    return round(float(step.end[rank] - step.start[rank]) / MS, 6)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_step_is_its_work_and_the_last_bucket(on_gpu: bool) -> None:
    # Each of 4 buckets moves its data for 12 / 4 = 3 ms, behind the next one's 15 ms of backward; the last is exposed.
    steps = steps_of(still(on_gpu=on_gpu))
    assert duration_ms(steps[-1]) == 2 + 30 + 60 + 3 + 10


@pytest.mark.parametrize("on_gpu", [True, False])
def test_slow_rank_makes_every_step_longer_by_its_excess(on_gpu: bool) -> None:
    steps = steps_of(still(on_gpu=on_gpu), Cost(part=of.ASLEEP, ranks=(1,), ms=20))
    assert [duration_ms(steps[-1], rank) for rank in (0, 1)] == [125, 125]
    assert [round(float(ns) / MS, 6) for ns in steps[-1].own] == [102, 122]


def test_stall_after_the_optimizer_is_in_the_next_step_of_others() -> None:
    stall = Cost(part=of.SAVE, ranks=(1,), ms=50, when=When(begin=5, end=6))
    steps = steps_of(still(on_gpu=False), stall)
    assert [duration_ms(step, 1) for step in steps[4:8]] == [105, 155, 105, 105]
    assert [duration_ms(step, 0) for step in steps[4:8]] == [105, 105, 155, 105]
    assert round(float(steps[5].phases[OTHER, 1]) / MS, 6) == 50


def test_two_stalls_at_once_cost_one_and_in_turn_two() -> None:
    def end_ms(*places: int) -> float:
        costs = [
            Cost(part=of.ASLEEP, ranks=(rank,), ms=40, when=When(begin=place, end=place + 1))
            for rank, place in enumerate(places)
        ]
        return float(steps_of(still(), *costs)[-1].end.max()) / MS

    nothing = end_ms()
    assert round(end_ms(4, 4) - nothing, 6) == 40
    assert round(end_ms(4, 5) - nothing, 6) == 80


def test_pipeline_lasts_for_its_batches_and_its_bubble() -> None:
    # 8 batches of 90 / 8 = 11.25 ms and the bubble of one of them; then 0.1 ms for the norm, host 2, optimizer 10.
    # Before the first backward the host has launched for at most as long as the device works.
    steps = steps_of(still("pp", transfer_share=0.0), ranks=2, pp=2)
    assert duration_ms(steps[-1]) == pytest.approx(2 + 9 * 11.25 + 0.1 + 10, abs=0.01)


def test_slow_link_costs_its_transfers() -> None:
    # Tensor parallel collectives are exposed, of 6 / (4 * LAYERS) ms each: 2 * LAYERS in forward, 2 less in backward.
    slow = Cost(part=of.LINK, ranks=(0, 1), share=1.0, dimension=TP)
    model = still("tp")
    with_link, without = steps_of(model, slow, ranks=4, tp=2), steps_of(model, ranks=4, tp=2)
    calls = 2 * LAYERS + 2 * (LAYERS - 1)
    assert duration_ms(with_link[-1]) - duration_ms(without[-1]) == pytest.approx(calls * 6 / (4 * LAYERS), abs=1e-6)


def test_third_collective_of_gloo_waits_for_a_thread() -> None:
    late = Cost(part=of.ASLEEP, ranks=(1,), ms=90)
    step = steps_of(still(on_gpu=False), late)[-1]
    starts = [float(call.start[0]) for call in step.calls]
    assert starts[2] == float(step.calls[0].end[0])  # and not when it was enqueued
    assert float(step.calls[2].enqueued[0]) < starts[2]


def test_loader_is_in_data_and_device_work_in_the_last_wait() -> None:
    step = steps_of(still(), Cost(part=of.LOADER, ranks=(0, 1), ms=7))[-1]
    assert round(float(step.phases[DATA, 0]) / MS, 6) == 7
    # Launches take 0.4 of the work: forward 12, and 2 of the host; the rest of the step the host waits for its device.
    assert round(float(step.phases[FORWARD, 0]) / MS, 6) == 14


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp", "ep", "pp"])
def test_phases_and_steps_leave_no_time_out(kind: str) -> None:
    layout = make_layout(dp=4, tp=2 if kind == "tp" else 1, pp=2 if kind == "pp" else 1, ep=2 if kind == "ep" else 1)
    machine = Machine(layout, Model(kind=kind, step_ms=50), (), seed=1)
    steps = [machine.play() for _ in range(30)]
    for one, following in itertools.pairwise(steps):
        assert np.array_equal(one.end, following.start)
        assert np.allclose(one.phases.sum(axis=0), one.end - one.start)
        assert (one.device_phases >= -1e-6).all()


@pytest.mark.parametrize("on_gpu", [True, False])
def test_members_leave_a_collective_together_after_the_last_came(on_gpu: bool) -> None:
    machine = Machine(make_layout(dp=4), Model(kind="ddp", step_ms=50, on_gpu=on_gpu), (), seed=1)
    for call in [call for _ in range(20) for call in machine.play().calls]:
        assert len(set(call.end)) == 1
        assert call.end[0] > call.start.max()


def test_without_its_costs_a_run_is_the_same_run() -> None:
    layout, model = make_layout(dp=4), Model(kind="ddp", step_ms=50, stall_chance=0.05)
    nothing = Cost(part=of.KERNEL, ranks=(1,), ms=0.0)
    later = Cost(part=of.BUSY, ranks=(1,), ms=20, when=When(begin=10))
    plain, same, other = (Machine(layout, model, costs, seed=5) for costs in ((), (nothing,), (later,)))
    for number in range(20):
        ends = [machine.play().end for machine in (plain, same, other)]
        assert np.array_equal(ends[0], ends[1])
        assert np.array_equal(ends[0], ends[2]) == (number < 10)


def test_steps_do_not_depend_on_whether_events_are_kept() -> None:
    machines = [Machine(make_layout(dp=2, pp=2), Model(kind="pp", step_ms=50), (), seed=5) for _ in range(2)]
    for _ in range(5):
        assert np.array_equal(machines[0].play().end, machines[1].play(keeps_events=False).end)


def test_patterns_have_their_steps() -> None:
    def steps_with(when: When, rank: int = 0, ranks: int = 2) -> list[int]:
        return [step for step in range(40) if when.strength(step, ranks, 1)[rank]]

    assert steps_with(When(begin=3, every=10)) == [3, 13, 23, 33]
    assert steps_with(When(begin=2, bouts=((2, 4), (9, 10)))) == [2, 3, 9]
    assert steps_with(When(begin=30, turns=3), rank=1) == [33, 34, 35, 39]
    assert sorted(steps_with(When(dice=True)) + steps_with(When(dice=True), rank=1)) == list(range(40))
    assert When(begin=10, ramp=4).strength(11, 1, 0)[0] == 0.5
    apart = [steps_with(When(every=10, apart=True), rank, ranks=3) for rank in range(3)]
    assert [len(steps) for steps in apart] == [4, 4, 4]
    assert len({steps[0] for steps in apart}) > 1


def test_more_work_is_more_tokens() -> None:
    step = steps_of(replace(still(), transfer_share=0.0), Cost(part=of.WORK, ranks=(1,), share=1.0))[-1]
    assert list(step.tokens) == [1, 2]
    assert duration_ms(step) == 2 + 2 * 90 + 10
