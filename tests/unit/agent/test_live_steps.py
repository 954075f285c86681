"""LiveSteps: short steps begin live now and then, long ones always, and ranks agree about which."""

import pytest

from rankscope.agent.probe.live_steps import DISTANCE_NS, DISTANCE_STEPS_MAX, LiveSteps
from rankscope.measure.units import NS_PER_MS


def lives_of(step_ns: int, steps: int = 256) -> list[int]:
    live = LiveSteps()
    live.learn_step(step_ns)
    found, step = [], 0
    while step < steps:
        step = live.find_next(step)
        found.append(step)
    return found


def test_every_step_begins_live_until_the_step_time_is_known() -> None:
    live = LiveSteps()
    assert [live.find_next(step) for step in range(3)] == [1, 2, 3]


def test_long_steps_all_begin_live() -> None:
    assert lives_of(DISTANCE_NS, 5) == [1, 2, 3, 4, 5]


def test_a_live_step_is_followed_by_another_so_that_its_end_is_seen_too() -> None:
    assert lives_of(50 * NS_PER_MS, 17) == [1, 8, 9, 16, 17]


@pytest.mark.parametrize("step_ns", [1, 1_000, 100_000])
def test_however_short_the_steps_one_in_so_many_begins_live(step_ns: int) -> None:
    assert lives_of(step_ns, 130) == [1, DISTANCE_STEPS_MAX, DISTANCE_STEPS_MAX + 1, 128, 129, 192]


def test_live_steps_of_a_slower_rank_contain_those_of_a_faster_one() -> None:
    assert set(lives_of(10 * NS_PER_MS)[:4]) <= set(lives_of(40 * NS_PER_MS))


def test_a_step_time_near_a_limit_does_not_make_the_distance_go_to_and_fro() -> None:
    live = LiveSteps()
    distances = []
    for step_ms in (49, 51, 49, 51, 45, 55):
        live.learn_step(step_ms * NS_PER_MS)
        distances.append(live.distance_steps)
    assert distances == [16] * 6  # 400 ms are 8.2 steps of 49 ms, and 7.8 of 51 ms
