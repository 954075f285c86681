"""WindowScheduler: when the profiler is on, which windows are passed on, and precedence of the user's profiler.

The profiler is a strict stand-in. It and the real one pass the same few tests, at the head of this file.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.profiler.window_scheduler import PART, Profiler
from tests.unit.agent.profiler.older_torch import find_older_profiler
from tests.unit.agent.profiler.window_training import (
    FULL_STEPS,
    LIGHT,
    SECOND_FULL,
    WARMUP_STEPS,
    FakeProfiler,
    Training,
)

DEADLINE_S = 300.0

# Torch before 2.13 warns so at the first of its profilers in a process, with the default.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")


# -- what the stand-in and the real profiler have in common -----------------------------------------------------------


class Rig(NamedTuple):
    """A profiler, and the actions of a script meanwhile."""

    profiler: Profiler
    enter_range: Callable[[str], None]
    somebody_else: Callable[[], "torch.profiler.profile | FakeElse"]


class FakeElse:
    """Another profiler as a context manager, for the stand-in."""

    def __init__(self, profiler: FakeProfiler) -> None:
        self._profiler = profiler

    def __enter__(self) -> None:
        self._profiler.somebody_elses_is_on = True

    def __exit__(self, *_: object) -> None:
        self._profiler.somebody_elses_is_on = False


def enter_real_range(name: str) -> None:
    with torch.profiler.record_function(name):
        pass


@pytest.fixture(params=["stand-in", "torch", "older torch"])
def rig(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    if request.param == "stand-in":
        fake = FakeProfiler()
        yield Rig(fake, fake.enter_range, lambda: FakeElse(fake))
        return
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    activities = [torch.profiler.ProfilerActivity.CPU]
    real = TorchProfiler.find() if request.param == "torch" else find_older_profiler()
    yield Rig(real, enter_real_range, lambda: torch.profiler.profile(activities=activities))
    if real.is_busy():
        real.stop()


def test_a_profiler_is_busy_from_start_to_stop(rig: Rig) -> None:
    before = rig.profiler.is_busy()
    rig.profiler.start(full=False)
    during = rig.profiler.is_busy()
    rig.profiler.stop()
    assert (before, during, rig.profiler.is_busy()) == (False, True, False)


@pytest.mark.parametrize("full", [False, True])
def test_a_session_holds_the_ranges_entered_within_it(rig: Rig, full: bool) -> None:
    rig.enter_range("before")
    rig.profiler.start(full=full)
    rig.enter_range("gloo:all_reduce")
    result = rig.profiler.stop()
    rig.enter_range("after")
    assert [activity.name() for activity in result.trace_activities()] == ["gloo:all_reduce"]


def test_second_start_is_refused_and_the_first_session_stays_on(rig: Rig) -> None:
    rig.profiler.start(full=False)
    with pytest.raises(RuntimeError, match="on already"):
        rig.profiler.start(full=True)
    rig.enter_range("gloo:barrier")
    assert [activity.name() for activity in rig.profiler.stop().trace_activities()] == ["gloo:barrier"]


def test_stop_without_a_session_is_refused(rig: Rig) -> None:
    with pytest.raises(RuntimeError, match="begun on this thread"):
        rig.profiler.stop()


def test_start_during_another_profiler_is_refused(rig: Rig) -> None:
    with rig.somebody_else():
        assert rig.profiler.is_busy()
        with pytest.raises(RuntimeError, match="on already"):
            rig.profiler.start(full=False)
    assert not rig.profiler.is_busy()


def test_another_thread_cannot_stop_a_session(rig: Rig) -> None:
    rig.profiler.start(full=False)
    assert isinstance(error_on_another_thread(rig.profiler.stop), RuntimeError)
    assert rig.profiler.is_busy()
    rig.profiler.stop()


def error_on_another_thread(action: Callable[[], object]) -> BaseException | None:
    """Run a function on another thread; return what it raised."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(DEADLINE_S)
    return errors[0] if errors else None


@pytest.mark.parametrize("find", [TorchProfiler.find, find_older_profiler])
def test_only_a_full_session_of_torchs_profiler_holds_operators(
    find: Callable[[], TorchProfiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    profiler = find()
    seen = {}
    for full in (False, True):
        profiler.start(full=full)
        torch.ones(3) + 1
        seen[full] = {activity.name() for activity in profiler.stop().trace_activities()}
    assert seen[False] == set()
    assert "aten::add" in seen[True]


# -- windows ----------------------------------------------------------------------------------------------------------


def test_light_windows_fill_the_time_between_full_ones() -> None:
    training = Training().run(WARMUP_STEPS + 2 * LIGHT)
    assert training.spans() == [("full", 2, 4), ("light", 5, 9), ("light", 10, 17)]
    assert training.profiler.log[-1] == "light"


def test_the_next_full_window_cuts_a_light_one_short() -> None:
    training = Training().run(SECOND_FULL + FULL_STEPS)
    assert training.spans()[-2:] == [("light", 42, SECOND_FULL - 1), ("full", SECOND_FULL, SECOND_FULL + 2)]


def test_light_windows_alone_follow_each_other_without_a_gap() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3 * LIGHT)
    assert training.spans() == [("light", 2, 9), ("light", 10, 17), ("light", 18, 25)]


def test_full_windows_alone_leave_the_profiler_off_in_between() -> None:
    training = Training(light=False).run(SECOND_FULL + 8)
    assert training.profiler.log == ["full", "stop", "full", "stop"]
    assert training.spans() == [("full", 2, 4), ("full", SECOND_FULL, SECOND_FULL + 2)]


def test_window_has_the_resident_bytes_at_its_begin() -> None:
    """The resident bytes grow by 100 with each step; the first windows begin with the step after the warm-up."""
    training = Training(full=False).run(WARMUP_STEPS + 3 * LIGHT)
    assert [window.resident_before_bytes for window in training.windows_taken] == [
        100 * window.steps[0].step for window in training.windows_taken
    ]
    assert len(training.windows_taken) > 1


def test_window_has_the_sequences_before_and_after_it() -> None:
    window = Training(full=False).run(WARMUP_STEPS + LIGHT).windows_taken[0]
    assert (window.enqueued_before, window.enqueued_after) == ({0: 4}, {0: 20})  # two collectives in each of 8 steps


def test_window_has_the_thread_that_began_it() -> None:
    window = Training(full=False).run(WARMUP_STEPS + LIGHT).windows_taken[0]
    assert window.thread == threading.get_ident()


def test_cost_of_a_window_is_its_begin_and_end() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 2 * LIGHT)
    assert all(window.training_cost_ns > 0 for window in training.windows_taken)
    assert sum(window.training_cost_ns for window in training.windows_taken) <= training.windows.light_spent_ns
    assert training.windows.full_spent_ns == 0


def test_costs_of_full_and_light_windows_are_separate() -> None:
    training = Training().run(WARMUP_STEPS + LIGHT)
    assert training.spans() == [("full", 2, 4), ("light", 5, 9)]
    full_ns, light_ns = (window.training_cost_ns for window in training.windows_taken)
    assert training.windows.full_spent_ns == full_ns
    assert training.windows.light_spent_ns >= light_ns


def test_rejected_window_is_counted() -> None:
    training = Training(full=False, room=1).run(WARMUP_STEPS + 3 * LIGHT)
    assert (len(training.windows_taken), training.windows.skipped) == (1, {"backlog": 2})


def test_close_passes_the_steps_so_far_and_the_plan_continues() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    training.windows.close()
    training.windows.close()
    assert training.spans() == [("light", 2, 4)]
    assert not training.profiler.is_busy()
    assert training.run(LIGHT).profiler.log == ["light", "stop", "light"]


def test_closing_on_another_thread_leaves_the_window_to_its_own() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    assert error_on_another_thread(training.windows.close) is None
    assert training.guard.errors == {}
    assert training.run(LIGHT).spans() == [("light", 2, 9)]


def test_window_is_discarded_where_another_thread_trains_on() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 1)
    assert error_on_another_thread(lambda: training.run(3 * LIGHT)) is None
    assert (training.profiler.log, training.windows.skipped) == (["light"], {"another_thread": 1})
    training.windows.close(must_end=True)  # as its thread ends
    assert (training.profiler.log, training.windows_taken) == (["light", "stop"], [])
    assert error_on_another_thread(lambda: training.run(LIGHT)) is None
    assert training.profiler.log == ["light", "stop", "light"]
    assert training.guard.errors == {}


def test_no_window_begins_after_three_of_changing_threads() -> None:
    training = Training(full=False).run(WARMUP_STEPS)
    for _ in range(3):
        assert not training.windows.has_given_up
        error_on_another_thread(lambda: training.run(1))
        training.run(LIGHT)
    assert training.windows.has_given_up
    assert training.run(3 * LIGHT).profiler.log == ["light", "stop"] * 3


def test_stop_elsewhere_leaves_the_session_and_no_other_begins() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    assert error_on_another_thread(training.windows.stop) is None
    assert (training.profiler.is_on, training.windows.thread) == (True, threading.get_ident())
    training.windows.close(must_end=True)
    assert training.windows.wait_until_off(DEADLINE_S)
    assert training.run(3 * LIGHT).profiler.log == ["light", "stop"]


# -- collectives that are not over ------------------------------------------------------------------------------------


def test_window_with_open_collectives_ends_later_with_its_steps() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 1)
    training.profiler.collectives_are_over = False
    training.run(LIGHT + 1)
    assert training.profiler.log == ["light", "pause", "pause", "pause"]
    assert training.windows_taken == []
    training.profiler.collectives_are_over = True
    training.run(1)
    assert training.spans() == [("light", 2, 9)]
    (window,) = training.windows_taken
    assert window.enqueued_after == {0: 2 * (WARMUP_STEPS + LIGHT)}
    assert training.profiler.log[-1] == "stop"
    assert training.run(LIGHT).profiler.log[-1] == "light"
    assert training.guard.errors == {}


def test_no_window_begins_while_one_may_not_end() -> None:
    training = Training().run(WARMUP_STEPS + 1)
    training.profiler.collectives_are_over = False
    training.run(2 * LIGHT)
    assert set(training.profiler.log) == {"full", "pause"}
    assert training.profiler.log.count("full") == 1


def test_window_closed_amid_a_collective_comes_at_next_boundary() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    training.profiler.collectives_are_over = False
    training.windows.close()
    training.windows.close()
    assert (training.profiler.log, training.windows_taken) == (["light", "pause", "pause"], [])
    training.profiler.collectives_are_over = True
    assert training.run(1).spans() == [("light", 2, 4)]


def test_close_ends_a_window_that_waits_for_its_collectives() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    training.profiler.collectives_are_over = False
    training.windows.close()
    training.profiler.collectives_are_over = True
    training.windows.close()
    assert training.spans() == [("light", 2, 4)]


@pytest.mark.parametrize("is_over", [False, True])
def test_users_profiler_begins_whatever_collectives_do(is_over: bool) -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    training.profiler.collectives_are_over = False
    if is_over:  # the window has its steps already
        training.run(LIGHT)
    training.windows.on_user_profiler(begins=True)
    assert not training.profiler.is_on
    assert training.guard.errors == {}
    assert len(training.windows_taken) == is_over


def test_part_that_is_off_ends_its_window_after_the_collectives() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 1)
    training.profiler.collectives_are_over = False
    for _ in range(3):
        training.guard.record(PART, ValueError("x"))
    assert training.run(2).profiler.log == ["light", "pause", "pause"]
    training.profiler.collectives_are_over = True
    assert training.run(5).profiler.log == ["light", "pause", "pause", "stop"]


def test_session_given_to_the_users_profiler_is_not_ended_later() -> None:
    training = Training(full=False, wait_s=0.0).run(WARMUP_STEPS + 3)
    training.profiler.collectives_are_over = False
    training.run(LIGHT)
    assert error_on_another_thread(lambda: training.windows.on_user_profiler(begins=True)) is None
    training.profiler.collectives_are_over = True
    training.run(LIGHT)
    assert "stop" not in training.profiler.log
    assert training.guard.errors == {}


@pytest.mark.parametrize("broken", ["settle", "enqueued"])
def test_session_ends_whatever_fails_before(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise RuntimeError("not today")

    training = Training(full=False).run(WARMUP_STEPS + 1)
    if broken == "settle":
        monkeypatch.setattr(training.profiler, "settle", refuse)
    else:
        monkeypatch.setattr(training, "read_enqueued", refuse)
    training.windows.close()
    assert not training.profiler.is_on
    assert training.guard.errors == {PART: 1}


def test_only_the_first_boundary_waits_for_collectives() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 1)
    training.profiler.collectives_are_over = False
    training.run(LIGHT + 1)
    training.windows.close()
    first, *later = training.profiler.waits_s
    assert first > 0
    assert len(later) > 1
    assert not any(later)


def test_session_must_end_before_the_process_does() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 3)
    training.profiler.collectives_are_over = False
    training.windows.close()
    assert training.profiler.is_on
    training.windows.close(must_end=True)
    assert not training.profiler.is_on
    assert training.spans() == [("light", 2, 4)]
    assert training.profiler.waits_s[-1] >= 1.0


def test_users_profiler_elsewhere_ends_a_window_that_still_waits() -> None:
    training = Training(full=False, wait_s=DEADLINE_S).run(WARMUP_STEPS + 1)
    training.profiler.collectives_are_over = False
    training.run(LIGHT)
    thread = threading.Thread(target=lambda: training.windows.on_user_profiler(begins=True))
    thread.start()
    while thread.is_alive():
        training.run(1)
    assert not training.profiler.is_on
    assert training.spans()[0] == ("light", 2, 9)


# -- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_is_counted_and_the_next_window_is_tried() -> None:
    training = Training(full=False).run(WARMUP_STEPS)
    training.profiler.stop()  # the session was ended by other code
    training.run(3 * LIGHT)
    assert training.guard.errors == {PART: 1}
    assert training.spans() == [("light", 18, 25)]  # nothing of steps 2 to 9, and the boundary at 10 was lost with them


def test_part_that_is_off_ends_its_window_and_begins_none() -> None:
    training = Training(full=False).run(WARMUP_STEPS + 1)
    for _ in range(3):  # the errors of reading windows on the agent thread count for the same part
        training.guard.record(PART, ValueError("x"))
    training.run(5 * LIGHT)
    assert training.profiler.log == ["light", "stop"]


# -- the user's own profiler ------------------------------------------------------------------------------------------


def test_window_is_discarded_before_the_users_profiler_begins() -> None:
    training = Training().run(WARMUP_STEPS + 1)
    training.windows.on_user_profiler(begins=True)
    assert (training.profiler.log, training.windows_taken) == (["full", "stop"], [])
    assert training.windows.skipped == {"user_profiler": 1}


def test_no_window_begins_during_the_users_profiler() -> None:
    training = Training(full=False).run(WARMUP_STEPS - 1)
    training.windows.on_user_profiler(begins=True)
    training.run(1 + 2 * LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {"user_profiler": 3})


def test_windows_resume_after_the_last_user_profiler() -> None:
    training = Training(full=False).run(1)
    for begins in (True, True, False):
        training.windows.on_user_profiler(begins)
    training.run(WARMUP_STEPS + 1)
    assert training.profiler.log == []
    training.windows.on_user_profiler(begins=False)
    assert training.run(LIGHT).profiler.log == ["light"]


def test_no_window_begins_during_an_unannounced_profiler() -> None:
    training = Training(full=False)
    training.profiler.somebody_elses_is_on = True
    training.run(WARMUP_STEPS)
    assert training.windows.skipped == {"user_profiler": 1}
    assert training.guard.errors == {}


def test_an_end_without_a_begin_does_no_harm() -> None:
    training = Training(full=False)
    training.windows.on_user_profiler(begins=False)
    assert training.run(WARMUP_STEPS).profiler.log == ["light"]


def test_user_profiler_on_another_thread_waits_for_a_boundary() -> None:
    training = Training(full=False, wait_s=DEADLINE_S).run(WARMUP_STEPS + 1)
    ours_was_on: list[bool] = []

    def profile() -> None:
        training.windows.on_user_profiler(begins=True)
        ours_was_on.append(training.profiler.is_on)

    thread = threading.Thread(target=profile)
    thread.start()
    while thread.is_alive():
        training.run(1)
    assert ours_was_on == [False]
    assert training.windows.skipped["user_profiler"] >= 1
    assert training.guard.errors == {}


def test_session_stays_on_when_no_boundary_comes_in_time() -> None:
    # Stopping it after the user's has ended on the other thread is a SIGSEGV in torch 2.13.
    training = Training(full=False, wait_s=0.0).run(WARMUP_STEPS + 1)
    assert error_on_another_thread(lambda: training.windows.on_user_profiler(begins=True)) is None
    assert error_on_another_thread(lambda: training.windows.on_user_profiler(begins=False)) is None
    training.run(2 * LIGHT)
    training.windows.close()
    assert (training.profiler.log, training.windows_taken) == (["light"], [])
    assert training.windows.skipped == {"user_profiler": 1 + 2}  # the one lost, and the two that could not begin
    assert training.guard.errors == {}
