"""Which full windows are recorded with shapes, and the FLOPs that torch's own windows of a CPU then give."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from rankscope.agent.governor import Allowance
from rankscope.agent.profiler.flops_windows import CHANGED_STEPS, COST_TIMES, FlopsWindows
from rankscope.agent.profiler.reduce_window import WindowAnswer
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.step_intervals import find_chosen
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS, NS_PER_S
from tests.flop_models import MODELS, B
from tests.unit.agent.profiler.older_torch import find_older_profiler
from tests.unit.agent.profiler.recorded_window import record_and_reduce
from tests.unit.agent.profiler.window_training import FULL, FULL_STEPS, WARMUP_STEPS, Training

INTERVAL, REFRESH = 512, 4096
"""Powers of two of steps of 1 s: the first ones that are at least 300 and at least 12 x 300."""
EARLY = [48, 96, 193, 387, 774, 1549, 3098]
"""The steps chosen of 32 to 63 steps after the warm-up, of 64 to 127 ... and of 2048 to 4095."""
IF_CHANGED = WARMUP_STEPS + find_chosen(2, INTERVAL)
"""A step chosen of an interval alone: neither of those that double, nor of REFRESH."""


def make_flops(step_s: float | None = 1.0) -> FlopsWindows:
    plan = WindowPlan(
        warmup_steps=WARMUP_STEPS, collective_window_ns=1, full_window_interval_ns=1, full_window_steps=2,
        overhead_ratio_max=1.0,
    )  # fmt: skip
    if step_s is not None:
        plan.learn_step(int(step_s * NS_PER_S), 0)
    return FlopsWindows(300 * NS_PER_S, plan)


def due_steps(flops: FlopsWindows, last: int) -> list[int]:
    """Return the steps after the warm-up up to `last` at which a window with shapes is due."""
    return [since for since in range(last + 1) if flops.is_due(WARMUP_STEPS + since)]


def find_due_steps(flops: FlopsWindows, last: int) -> Iterator[int]:
    """The same, much sooner: no window is due before the step that is named as the next."""
    at = WARMUP_STEPS - 1
    while (at := flops.find_next(at)) <= WARMUP_STEPS + last:
        if flops.is_due(at):
            yield at - WARMUP_STEPS


def step(number: int, samples: int | None, tokens: int | None = None) -> StepRecord:
    return StepRecord(
        step=number, start_host_ns=number, duration_ns=1, phases_ns={}, samples=samples, tokens=tokens
    )  # fmt: skip


def add(flops: FlopsWindows, count: int, samples: int | None, tokens: int | None = None) -> None:
    for number in range(count):
        flops.on_step(step(number, samples, tokens))


# -- when -------------------------------------------------------------------------------------------------------------


def test_windows_are_due_once_a_doubling_then_once_an_interval() -> None:
    late = [find_chosen(block, REFRESH) for block in (1, 2, 3)]
    assert due_steps(make_flops(), 4 * REFRESH - 1) == [0, *EARLY, *late]


def test_windows_are_due_once_a_doubling_for_unknown_step_times() -> None:
    assert due_steps(make_flops(None), 16_383) == [0, *EARLY, find_chosen(1, 4096), find_chosen(1, 8192)]


def test_none_is_due_in_the_warm_up() -> None:
    assert not any(make_flops().is_due(step) for step in range(WARMUP_STEPS))


@pytest.mark.parametrize("recorded_at", [None, 0, EARLY[0], EARLY[-1]])
def test_recorded_window_does_not_move_the_next_windows_steps(recorded_at: int | None) -> None:
    flops = make_flops()
    add(flops, CHANGED_STEPS, 8)
    if recorded_at is not None:
        flops.on_recorded([step(recorded_at, 8)])
    assert due_steps(flops, 2 * REFRESH) == due_steps(make_flops(), 2 * REFRESH)


@pytest.mark.parametrize(("samples", "tokens"), [(4, 512), (8, 256), (None, 512)])
def test_other_batch_is_counted_again_after_some_steps(samples: int | None, tokens: int) -> None:
    flops, at = make_flops(), IF_CHANGED
    flops.on_recorded([step(0, 8, 512)])
    add(flops, CHANGED_STEPS - 1, samples, tokens)
    assert (flops.has_changed, flops.is_due(at)) == (False, False)
    add(flops, 1, samples, tokens)
    assert (flops.has_changed, flops.is_due(at)) == (True, True)
    flops.on_recorded([step(9, samples, tokens)])
    assert (flops.has_changed, flops.is_due(at)) == (False, False)


def test_last_batch_of_an_epoch_does_not_end_a_change() -> None:
    flops = make_flops()
    flops.on_recorded([step(0, 8)])
    add(flops, CHANGED_STEPS, 16)
    add(flops, 1, 3)
    assert flops.has_changed
    add(flops, CHANGED_STEPS, 8)
    assert not flops.has_changed


def test_batches_that_vary_are_no_change() -> None:
    flops = make_flops()
    flops.on_recorded([step(0, 8, 512)])
    for tokens in range(500, 500 + 2 * CHANGED_STEPS):
        add(flops, 1, 8, tokens)
    assert not flops.is_due(IF_CHANGED)


def test_changed_batch_is_counted_at_one_step_of_each_interval() -> None:
    flops = make_flops()
    flops.on_recorded([step(0, 8)])
    add(flops, CHANGED_STEPS, 4)
    beyond = [since for since in due_steps(flops, 2 * REFRESH - 1) if since >= REFRESH]
    assert beyond == [find_chosen(block, INTERVAL) for block in range(8, 16)]


def test_window_of_no_step_has_the_size_of_the_last_steps() -> None:
    flops = make_flops()
    add(flops, CHANGED_STEPS, 8)
    flops.on_recorded([])
    assert not flops.has_changed


@pytest.mark.parametrize("step_s", [None, 0.01, 1.0, 40.0, 1000.0])
def test_no_window_is_due_before_the_next_that_is_named(step_s: float | None) -> None:
    flops = make_flops(step_s)
    flops.on_recorded([step(0, 8)])
    add(flops, CHANGED_STEPS, 4)
    for since in (-WARMUP_STEPS, -1, 0, EARLY[0] - 1, EARLY[0], 63, 64, 700, REFRESH, find_chosen(1, REFRESH)):
        at = WARMUP_STEPS + since
        found = flops.find_next(at)
        assert found > at
        assert not any(flops.is_due(between) for between in range(at + 1, min(found, at + 5000)))


def test_slower_rank_has_windows_at_some_steps_of_a_faster_one() -> None:
    found = []
    for step_s in (0.1, 0.13, 0.21, 0.5, 1.0, 3.0):
        flops = make_flops(step_s)
        flops.on_recorded([step(0, 8)])
        add(flops, CHANGED_STEPS, 4)
        found.append(set(find_due_steps(flops, 3 * 65_536)))
    for faster, slower in itertools.combinations(found, 2):
        assert len(faster) > 20, "the first ones, and those of intervals"
        assert slower >= faster, "a longer step makes intervals of fewer steps"


COST_NS = 100 * NS_PER_MS
MAY_SPEND = Allowance(windows_ratio=1.0, budget_left_ns=COST_TIMES * COST_NS, elapsed_ns=10**15)


def make_training() -> Training:
    training = Training(light=False)
    training.windows.flops = FlopsWindows(300 * NS_PER_S, training.plan)
    training.plan.allow(MAY_SPEND)
    return training


def run_paid(training: Training, steps: int) -> None:
    """Run steps, with an allowance at each, as the agent's thread gives one each second."""
    for _ in range(steps):
        training.plan.allow(MAY_SPEND)
        training.run(1)


def taken(training: Training) -> list[tuple[int, bool]]:
    """Return after how many steps since the warm-up each window has begun, and whether it has shapes."""
    return [(window.steps[0].step - WARMUP_STEPS, window.has_shapes) for window in training.windows_taken]


def test_first_window_whose_cost_is_known_has_shapes() -> None:
    training = make_training()
    training.run(WARMUP_STEPS + FULL_STEPS)
    training.plan.learn_full(COST_NS)
    run_paid(training, 4 * FULL + 7)
    assert training.profiler.log == ["full", "stop", "shapes", "stop", "full", "stop", "shapes", "stop", "full", "stop"]
    assert taken(training) == [(0, False), (48, True), (67, False), (96, True), (134, False)], "due: 48 and 96"


def test_window_has_no_shapes_while_the_last_one_is_not_paid() -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.run(WARMUP_STEPS + EARLY[0] + FULL_STEPS)
    assert taken(training) == [(0, True), (EARLY[0], False)]


@pytest.mark.parametrize("left_ns", [COST_TIMES * COST_NS - 1, COST_NS])
def test_window_has_no_shapes_that_the_budget_cannot_pay(left_ns: int) -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.plan.allow(MAY_SPEND._replace(budget_left_ns=left_ns))
    training.run(WARMUP_STEPS + FULL_STEPS)
    assert training.profiler.log == ["full", "stop"]


def test_on_a_device_more_of_the_budget_must_be_left() -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.profiler.sees_device = training.profiler._has_seen_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.profiler.log == ["full", "wait", "stop"]


def test_window_after_a_discarded_one_comes_at_the_next_due_step() -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.run(WARMUP_STEPS + 1)
    training.windows.on_user_profiler(begins=True)
    training.windows.on_user_profiler(begins=False)
    run_paid(training, 2 * FULL)
    assert training.profiler.log == ["shapes", "stop", "shapes", "stop"]
    assert taken(training) == [(EARLY[0], True)]


# -- what they give ---------------------------------------------------------------------------------------------------


def reduce_steps(run: Callable[[], None], *, older: bool = False, shapes: bool = True) -> WindowAnswer:
    """Record steps as a window of the agent, and reduce it."""
    return record_and_reduce(run, find_older_profiler() if older else TorchProfiler.find(), shapes=shapes)


@pytest.mark.parametrize("older", [False, True], ids=["torch", "older torch"])
@pytest.mark.parametrize("name", MODELS)
def test_flops_of_a_step_are_those_counted_by_hand(name: str, older: bool) -> None:
    known = MODELS[name]()
    found = reduce_steps(known.run, older=older).flops
    assert found is not None
    assert (found.reason, found.first_step, found.step_count) == (None, 0, 2)
    assert found.model_flops == 3 * known.forward
    assert found.executed_flops == known.forward + known.recompute + known.backward
    assert found.is_upper_bound == bool(known.recompute)


def test_step_of_two_micro_batches_has_the_products_of_both() -> None:
    known = MODELS["MLP"]()

    def accumulate() -> None:
        known.run()
        known.run()

    found = reduce_steps(accumulate).flops
    assert found is not None
    assert (found.model_flops, found.executed_flops) == (6 * known.forward, 2 * (known.forward + known.backward))


def test_steps_with_other_batches_have_no_figure() -> None:
    model, sizes = nn.Linear(16, 32), itertools.cycle([B, B, 2 * B])

    def run() -> None:
        model(torch.randn(next(sizes), 16)).sum().backward()

    found = reduce_steps(run).flops
    once = 2 * 2 * B * 16 * 32  # forward, and the gradient of the weight
    assert found is not None
    assert found.reason == f"the steps of the window differ: {once:,} to {2 * once:,} FLOPs"


def test_other_figures_of_a_window_are_those_without_shapes() -> None:
    known = MODELS["transformer block, SDPA"]()
    with_shapes, without = (reduce_steps(known.run, shapes=shapes) for shapes in (True, False))
    assert (with_shapes.flops is None, without.flops) == (False, None)
    counts = [[one.operator_count for one in found.breakdowns] for found in (with_shapes, without)]
    assert counts[0] == counts[1]
    for found in (with_shapes, without):
        for one in found.breakdowns:
            assert one.compute_ns + one.idle_ns == one.window_ns
