"""Which full windows are recorded with shapes, and the FLOPs that torch's own windows of a CPU then give."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from rankscope.agent.governor import Allowance
from rankscope.agent.profiler.flops_windows import CHANGED_STEPS, COST_TIMES, REFRESH_TIMES, FlopsWindows
from rankscope.agent.profiler.reduce_window import WindowAnswer
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_MS
from tests.flop_models import MODELS, B
from tests.unit.agent.profiler.older_torch import find_older_profiler
from tests.unit.agent.profiler.recorded_window import record_and_reduce
from tests.unit.agent.profiler.window_training import FULL, FULL_STEPS, SECOND_FULL, WARMUP_STEPS, Training

INTERVAL_NS = 300


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0


def make_flops() -> tuple[FlopsWindows, Clock]:
    clock = Clock()
    return FlopsWindows(INTERVAL_NS, lambda: clock.now_ns), clock


def step(number: int, samples: int | None, tokens: int | None = None) -> StepRecord:
    return StepRecord(
        step=number, start_host_ns=number, duration_ns=1, phases_ns={}, samples=samples, tokens=tokens
    )  # fmt: skip


def add(flops: FlopsWindows, count: int, samples: int | None, tokens: int | None = None) -> None:
    for number in range(count):
        flops.on_step(step(number, samples, tokens))


# -- when -------------------------------------------------------------------------------------------------------------


def test_first_window_is_due_and_then_none_while_the_batch_stays() -> None:
    flops, clock = make_flops()
    assert flops.is_due()
    flops.on_recorded([step(0, 8)])
    add(flops, 1_000, 8)
    clock.now_ns = REFRESH_TIMES * INTERVAL_NS - 1
    assert not flops.is_due()
    clock.now_ns += 1
    assert flops.is_due(), "what is not known of the batch may have changed"


@pytest.mark.parametrize(("samples", "tokens"), [(4, 512), (8, 256), (None, 512)])
def test_other_batch_is_counted_again_after_some_steps(samples: int | None, tokens: int) -> None:
    flops, clock = make_flops()
    flops.on_recorded([step(0, 8, 512)])
    clock.now_ns = INTERVAL_NS
    add(flops, CHANGED_STEPS - 1, samples, tokens)
    assert (flops.has_changed, flops.is_due()) == (False, False)
    add(flops, 1, samples, tokens)
    assert (flops.has_changed, flops.is_due()) == (True, True)
    flops.on_recorded([step(9, samples, tokens)])
    assert (flops.has_changed, flops.is_due()) == (False, False)


def test_last_batch_of_an_epoch_does_not_end_a_change() -> None:
    flops, _ = make_flops()
    flops.on_recorded([step(0, 8)])
    add(flops, CHANGED_STEPS, 16)
    add(flops, 1, 3)
    assert flops.has_changed
    add(flops, CHANGED_STEPS, 8)
    assert not flops.has_changed


def test_batches_that_vary_are_no_change() -> None:
    flops, clock = make_flops()
    flops.on_recorded([step(0, 8, 512)])
    clock.now_ns = INTERVAL_NS
    for tokens in range(500, 500 + 2 * CHANGED_STEPS):
        add(flops, 1, 8, tokens)
    assert not flops.is_due()


def test_changed_batch_waits_for_the_interval() -> None:
    flops, clock = make_flops()
    flops.on_recorded([step(0, 8)])
    add(flops, CHANGED_STEPS, 4)
    clock.now_ns = INTERVAL_NS - 1
    assert (flops.has_changed, flops.is_due()) == (True, False)


COST_NS = 100 * NS_PER_MS
MAY_SPEND = Allowance(windows_ratio=1.0, budget_left_ns=COST_TIMES * COST_NS, elapsed_ns=10**15)


def make_training() -> Training:
    training = Training(light=False)
    training.windows.flops = FlopsWindows(INTERVAL_NS, lambda: 0)
    training.plan.allow(MAY_SPEND)
    return training


def test_first_window_whose_cost_is_known_has_shapes() -> None:
    training = make_training()
    training.run(WARMUP_STEPS + FULL_STEPS)
    training.plan.learn_full(COST_NS)
    training.plan.allow(MAY_SPEND)
    training.run(SECOND_FULL + FULL)
    assert training.profiler.log == ["full", "stop", "shapes", "stop", "full", "stop"]
    assert [one.has_shapes for one in training.windows_taken] == [False, True, False]


@pytest.mark.parametrize("left_ns", [COST_TIMES * COST_NS - 1, COST_NS])
def test_window_has_no_shapes_while_the_budget_does_not_pay_for_them(left_ns: int) -> None:
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


def test_discarded_window_is_recorded_again() -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.run(WARMUP_STEPS + 1)
    training.windows.on_user_profiler(begins=True)
    training.windows.on_user_profiler(begins=False)
    training.plan.allow(MAY_SPEND)
    training.run(SECOND_FULL + FULL)
    assert training.profiler.log == ["shapes", "stop", "shapes", "stop", "full", "stop"]


def test_window_that_was_not_passed_on_for_want_of_room_is_not_recorded_again_at_once() -> None:
    training = make_training()
    training.plan.learn_full(COST_NS)
    training.room = 0
    training.run(SECOND_FULL + 1)
    assert training.profiler.log == ["shapes", "stop", "full"]


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
    model, sizes = nn.Linear(16, 32), iter([B, B, 2 * B])

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
