"""MomentMeter: the cost of all hooked moments from the few that timed themselves."""

from rankscope.agent.probe.moment_meter import ASSUMED_NS, LONGEST_NS, TIMED_EVERY, TIMED_KEPT, MomentMeter


def test_before_a_moment_was_timed_a_constant_is_assumed() -> None:
    assert MomentMeter().spent_ns(10) == 10 * ASSUMED_NS


def test_a_moment_costs_twice_what_it_sees_of_itself() -> None:
    meter = MomentMeter()
    meter.note(3_000)
    meter.note(5_000)
    assert meter.spent_ns(10) == 10 * 2 * 4_000


def test_what_was_counted_stays_counted_when_moments_become_cheaper() -> None:
    meter = MomentMeter()
    meter.note(4_000)
    before_ns = meter.spent_ns(10)
    for _ in range(TIMED_KEPT):
        meter.note(1_000)
    assert (before_ns, meter.spent_ns(15)) == (80_000, 80_000 + 5 * 2_000)


def test_a_moment_in_which_a_window_ended_is_left_to_the_windows() -> None:
    meter = MomentMeter()
    meter.note(4_000)
    meter.note(LONGEST_NS + 1)
    assert meter.moment_ns == 8_000


def test_the_moments_of_a_step_take_turns_at_being_timed() -> None:
    for moments_per_step in (2, 4, 6, 8, 10, 12, 16):
        timed = {(TIMED_EVERY * n) % moments_per_step for n in range(moments_per_step)}
        assert len(timed) == moments_per_step
