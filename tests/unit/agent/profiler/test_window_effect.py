"""WindowEffect: what it finds of step times, and what follows from it."""

import random

import pytest

from rankscope.agent.profiler.window_effect import (
    SETTLE_STEPS,
    SLOWDOWN_MIN,
    STRETCH_BLOCKS,
    STRETCH_NS_MIN,
    STRETCH_STEPS_MAX,
    STRETCH_STEPS_MIN,
    STRETCHES_MAX,
    EffectState,
    WindowEffect,
)
from rankscope.measure.units import NS_PER_MS
from tests.unit.agent.profiler.window_training import ratios_of

WARMUP_STEPS = 4
STEP_NS = 40 * NS_PER_MS


class Run:
    """Steps in a row of a given time, with `noise` as a share of it."""

    def __init__(self, noise: float = 0.0) -> None:
        self.effect = WindowEffect(warmup_steps=WARMUP_STEPS)
        self.step = 0
        self._noise = noise
        self._chance = random.Random(7)

    def train(self, steps: int, ratio: float = 0.0, *, in_window: bool = False) -> "Run":
        for _ in range(steps):
            duration_ns = round(STEP_NS * (1 + ratio) * (1 + self._noise * self._chance.gauss(0, 1)))
            self.effect.on_step(self.step, duration_ns, in_window=in_window)
            self.step += 1
        return self

    def attach(self, noise: float | None = None) -> "Run":
        self.train(WARMUP_STEPS + STRETCH_STEPS_MIN)
        self._noise = self._noise if noise is None else noise
        self.train(1, in_window=True).effect.on_attached()
        return self.train(SETTLE_STEPS, ratio=9.0)


def test_no_window_begins_before_the_reference_is_complete() -> None:
    run = Run().train(WARMUP_STEPS + STRETCH_STEPS_MIN - 1)
    assert (run.effect.state, run.effect.allows_windows) == (EffectState.REFERENCE, False)
    run.train(1)
    assert (run.effect.state, run.effect.allows_windows) == (EffectState.READY, True)


@pytest.mark.parametrize(
    ("step_ns", "steps"),
    [(STRETCH_NS_MIN, STRETCH_STEPS_MIN), (10 * NS_PER_MS, 128), (NS_PER_MS, 1024), (100, STRETCH_STEPS_MAX)],
)
def test_stretches_of_short_steps_have_more_of_them(step_ns: int, steps: int) -> None:
    effect = WindowEffect(warmup_steps=0)
    for step in range(steps):
        assert effect.state is EffectState.REFERENCE
        effect.on_step(step, step_ns, in_window=False)
    effect.on_attached()
    for step in range(steps):
        assert effect.attached_ratio is None
        effect.on_step(step, step_ns, in_window=False)
    assert effect.attached_ratio == 0


def test_profiler_in_the_reference_costs_the_block_it_interrupts() -> None:
    block = STRETCH_STEPS_MIN // STRETCH_BLOCKS
    run = Run().train(WARMUP_STEPS + STRETCH_STEPS_MIN - 1).train(1, in_window=True)
    run.train(SETTLE_STEPS, ratio=9.0).train(block - 1)
    assert run.effect.state is EffectState.REFERENCE
    assert run.train(1).effect.allows_windows


def test_warm_up_does_not_count() -> None:
    run = Run()
    run.train(WARMUP_STEPS, ratio=99.0).train(STRETCH_STEPS_MIN).train(1, in_window=True).effect.on_attached()
    run.train(SETTLE_STEPS + STRETCH_STEPS_MIN)
    assert run.effect.attached_ratio == pytest.approx(0)


def test_windows_that_do_not_slow_training_are_kept() -> None:
    run = Run().attach().train(STRETCHES_MAX * STRETCH_STEPS_MIN, ratio=SLOWDOWN_MIN / 2)
    assert (run.effect.state, run.effect.allows_windows, run.effect.is_open) == (EffectState.KEPT, True, False)
    assert ratios_of(run.effect) == {"attached": pytest.approx(SLOWDOWN_MIN / 2, rel=1e-3)}


def test_two_slower_stretches_in_a_row_end_the_windows() -> None:
    run = Run().attach().train(STRETCH_STEPS_MIN, ratio=0.3)
    assert run.effect.allows_windows
    run.train(STRETCH_STEPS_MIN, ratio=0.3)
    assert (run.effect.state, run.effect.allows_windows) == (EffectState.SLOWER, False)
    assert ratios_of(run.effect) == {"attached": pytest.approx(0.3)}


def test_one_slower_stretch_between_others_does_not() -> None:
    run = Run().attach()
    for ratio in (0.3, 0.0, 0.3, 0.0):
        run.train(STRETCH_STEPS_MIN, ratio=ratio)
    assert run.effect.state is EffectState.KEPT


def test_if_detaching_helps_there_are_no_more_windows() -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_detached()
    run.train(SETTLE_STEPS, ratio=9.0).train(STRETCH_STEPS_MIN, ratio=0.01)
    assert (run.effect.state, run.effect.allows_windows) == (EffectState.ENDED, False)
    assert ratios_of(run.effect) == {"attached": pytest.approx(0.3), "detached": pytest.approx(0.01)}


def test_if_detaching_does_not_help_something_else_was_slow() -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_detached()
    run.train(SETTLE_STEPS + (STRETCHES_MAX - 1) * STRETCH_STEPS_MIN, ratio=0.25)
    assert run.effect.state is EffectState.DETACHED
    run.train(STRETCH_STEPS_MIN, ratio=0.25)
    assert (run.effect.state, run.effect.allows_windows) == (EffectState.KEPT, True)


def test_detaching_may_help_only_when_the_last_rank_has_done_it() -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_detached()
    run.train(SETTLE_STEPS + 2 * STRETCH_STEPS_MIN, ratio=0.3).train(STRETCH_STEPS_MIN)
    assert (run.effect.state, run.effect.detached_ratio) == (EffectState.ENDED, 0)


def test_with_cupti_attached_two_more_stretches_must_be_slower() -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_stays_attached()
    assert run.effect.allows_windows
    run.train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_stays_attached()
    assert (run.effect.state, run.effect.detached_ratio) == (EffectState.ENDED, None)


def test_where_they_are_not_slower_again_windows_are_kept() -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    run.effect.on_stays_attached()
    run.train(STRETCHES_MAX * STRETCH_STEPS_MIN)
    assert run.effect.state is EffectState.KEPT


def test_windows_leave_room_for_a_block_of_very_long_steps() -> None:
    run = Run().attach()
    assert not run.effect.may_interrupt
    run.train(STRETCH_STEPS_MIN // STRETCH_BLOCKS)
    assert run.effect.may_interrupt
    run.train(3, in_window=True).train(SETTLE_STEPS, ratio=9.0)
    assert not run.effect.may_interrupt
    run.train(STRETCH_STEPS_MIN // STRETCH_BLOCKS)
    assert run.effect.may_interrupt


@pytest.mark.parametrize("seed", range(20))
def test_nothing_changes_before_the_steps_that_are_left(seed: int) -> None:
    chance = random.Random(seed)
    run = Run()
    run._chance = chance
    calls = (run.effect.on_attached, run.effect.on_detached, run.effect.on_stays_attached)
    for _ in range(300):
        state, ratios, left = run.effect.state, ratios_of(run.effect), run.effect.steps_left
        assert left >= 1
        run.train(left - 1, ratio=chance.choice([0.0, 0.3]))
        assert (run.effect.state, ratios_of(run.effect)) == (state, ratios)
        run.train(1, in_window=chance.random() < 0.1)
        if not run.effect.is_open:
            return
        if chance.random() < 0.5:
            chance.choice(calls)()


@pytest.mark.parametrize("detached", [False, True])
def test_after_the_users_profiler_detaching_cannot_be_judged(detached: bool) -> None:
    run = Run().attach().train(2 * STRETCH_STEPS_MIN, ratio=0.3)
    if detached:
        run.effect.on_detached()
    run.effect.on_other_profiler()
    run.train(STRETCH_STEPS_MIN, ratio=0.0)
    assert (run.effect.state, run.effect.detached_ratio) == (EffectState.ENDED, None)


def test_the_users_profiler_changes_nothing_before_a_verdict() -> None:
    run = Run().attach()
    run.effect.on_other_profiler()
    assert run.effect.state is EffectState.ATTACHED


def test_steps_of_windows_and_those_right_after_are_left_out() -> None:
    run = Run().attach()
    for _ in range(STRETCHES_MAX * STRETCH_STEPS_MIN // 8):
        run.train(8).train(3, ratio=9.0, in_window=True).train(SETTLE_STEPS, ratio=9.0)
    assert run.effect.state is EffectState.KEPT
    assert run.effect.attached_ratio == 0


def test_a_checkpoint_in_a_stretch_does_not_count() -> None:
    run = Run().attach()
    for _ in range(STRETCHES_MAX):
        run.train(STRETCH_STEPS_MIN - 1).train(1, ratio=99.0)
    assert (run.effect.state, run.effect.attached_ratio) == (EffectState.KEPT, 0)


def test_loop_waiting_every_fourth_step_is_compared_by_means() -> None:
    """The host launches three steps in 20 ms each and waits for 100: CUPTI makes the launches dearer, not the steps."""
    run = Run()

    def train(steps: int, launch_ratio: float) -> None:
        for _ in range(steps // 4):
            run.train(3, ratio=launch_ratio).train(1, ratio=4 - 3 * (1 + launch_ratio) - 1)

    train(WARMUP_STEPS + STRETCH_STEPS_MIN, -0.5)
    run.train(1, in_window=True).effect.on_attached()
    run.train(SETTLE_STEPS)
    train(STRETCHES_MAX * STRETCH_STEPS_MIN, -0.3)
    assert run.effect.state is EffectState.KEPT
    assert run.effect.attached_ratio == pytest.approx(0, abs=1e-6)


def test_noise_of_a_tenth_ends_no_windows_and_hides_no_third() -> None:
    ended = {0.0: 0, 0.35: 0}
    for ratio in ended:
        for seed in range(200):
            run = Run(noise=0.1)
            run._chance = random.Random(seed)
            run.attach().train(STRETCHES_MAX * STRETCH_STEPS_MIN, ratio=ratio)
            ended[ratio] += run.effect.state is EffectState.SLOWER
    assert ended[0.0] <= 4
    assert ended[0.35] >= 190


@pytest.mark.parametrize(("ratio", "ended_min", "ended_max"), [(0.0, 0, 6), (0.45, 190, 200)])
def test_stretches_that_differ_among_themselves_decide_together(ratio: float, ended_min: int, ended_max: int) -> None:
    """As seen on an H200: blocks of steps 10 % apart, and 45 % between windows, in no two stretches beyond doubt."""
    ended = sum(find_end_of_noisy_blocks(seed, ratio) is EffectState.SLOWER for seed in range(200))
    assert ended_min <= ended <= ended_max


def find_end_of_noisy_blocks(seed: int, ratio: float) -> EffectState:
    run, chance = Run(), random.Random(seed)
    block = STRETCH_STEPS_MIN // STRETCH_BLOCKS

    def train(blocks: int, ratio: float) -> None:
        for _ in range(blocks):
            run.train(block, ratio=(1 + ratio) * (1 + 0.1 * chance.gauss(0, 1)) - 1)

    run.train(WARMUP_STEPS)
    train(STRETCH_BLOCKS, 0.0)
    run.train(1, in_window=True).effect.on_attached()
    run.train(SETTLE_STEPS)
    train(STRETCHES_MAX * STRETCH_BLOCKS, ratio)
    return run.effect.state


def test_without_a_step_time_nothing_is_slower() -> None:
    run = Run().attach()
    run.effect._reference._means_ns = [0.0] * STRETCH_BLOCKS
    run.train(2 * STRETCH_STEPS_MIN)
    assert run.effect.attached_ratio == 0
