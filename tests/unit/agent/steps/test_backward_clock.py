"""When the CPU clock is read around backward, and what that has cost."""

import pytest

from rankscope.agent.steps.backward_clock import (
    COST_SHARE_MAX,
    READS,
    STEPS_AVERAGED,
    TIMED,
    WITHIN_TRAINING,
    BackwardClock,
)

READ_NS = 1_000
CHEAP_STEP_NS = round(READS * WITHIN_TRAINING * READ_NS / COST_SHARE_MAX)


class SlowClock:
    """Clocks of which a read of the CPU clock takes so long, one after the other; then READ_NS."""

    def __init__(self, *reads_ns: int) -> None:
        self._reads_ns = list(reads_ns)
        self._now_ns = 0

    def read_cpu_ns(self) -> int:
        self._now_ns += self._reads_ns.pop(0) if self._reads_ns else READ_NS
        return 0

    def read_ns(self) -> int:
        return self._now_ns


def clock_of(*reads_ns: int) -> BackwardClock:
    source = SlowClock(*reads_ns)
    return BackwardClock(source.read_cpu_ns, source.read_ns)


@pytest.mark.parametrize(("step_ns", "is_read"), [(CHEAP_STEP_NS - 1, False), (CHEAP_STEP_NS, True)])
def test_it_is_read_where_the_mean_step_is_long_enough(step_ns: int, is_read: bool) -> None:
    clock = clock_of()
    assert clock.read_ns is None
    clock.learn_step(step_ns, 1)
    assert (clock.read_ns is not None) is is_read


def test_each_backward_of_a_step_costs() -> None:
    clock = clock_of()
    clock.learn_step(CHEAP_STEP_NS, 2)
    assert clock.read_ns is None
    clock.learn_step(3 * CHEAP_STEP_NS, 2)
    assert clock.read_ns is not None
    clock.learn_step(2 * CHEAP_STEP_NS, 2)
    assert clock.spent_ns == 2 * READS * WITHIN_TRAINING * READ_NS


def test_read_that_lost_its_core_is_not_the_cost() -> None:
    clock = clock_of(*[50 * READ_NS] * (TIMED - 1))
    clock.learn_step(CHEAP_STEP_NS, 1)
    assert clock.read_ns is not None


def test_mean_follows_the_last_steps() -> None:
    clock = clock_of()
    clock.learn_step(4 * CHEAP_STEP_NS, 1)
    for _ in range(20 * STEPS_AVERAGED):
        clock.learn_step(CHEAP_STEP_NS // 2, 1)
    assert clock.read_ns is None
