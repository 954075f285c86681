"""WindowScheduler once a device is in use: its first window, one step more, CUDA graphs, and light windows left out."""

from rankscope.agent.profiler.window_scheduler import PART
from tests.unit.agent.profiler.window_training import FULL_STEPS, LIGHT, WARMUP_STEPS, FakeProfiler, Training


def test_the_first_window_of_a_device_lasts_a_step_of_the_warm_up_and_is_thrown_away() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(2)
    assert (training.profiler.log, training.windows_taken) == (["full", "stop", "full"], [])
    assert training.windows.skipped == {"first_of_device": 1}


def test_a_window_of_a_device_has_one_step_more_than_is_told_of() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.spans() == [("full", 2, 2 + FULL_STEPS)]
    assert training.windows_taken[0].on_device


def test_a_device_that_comes_into_use_late_has_its_first_window_then() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS + 5)
    training.profiler.sees_device = True
    training.run(2)
    assert training.profiler.log == ["full", "stop"] * 2
    assert [window.on_device for window in training.windows_taken] == [False]
    assert training.windows.skipped == {"first_of_device": 1}


def test_a_light_window_gives_way_to_the_first_window_of_a_device() -> None:
    training = Training(full=True).run(WARMUP_STEPS + FULL_STEPS + 2)
    training.profiler.sees_device = True
    training.run(2)
    assert training.profiler.log[2:] == ["light", "stop", "full", "stop", "light"]
    assert training.spans()[-1] == ("light", 5, 7)


def test_closing_throws_the_first_window_of_a_device_away() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(1).windows.close()
    assert (training.windows_taken, training.profiler.log) == ([], ["full", "stop"])


def test_without_full_windows_a_device_is_never_attached_to() -> None:
    training = Training(full=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + LIGHT)
    assert "full" not in training.profiler.log


def test_a_full_window_that_could_not_record_the_device_in_use_is_left_out_and_counted() -> None:
    training = Training(light=False)
    training.profiler.misses_device = True
    training.run(WARMUP_STEPS + FULL_STEPS)
    assert (training.profiler.log, training.windows.skipped) == ([], {"device_not_recorded": 1})


def test_light_windows_are_left_out_while_they_would_tell_nothing() -> None:
    training = Training(full=False)
    training.light_is_useful = False
    training.run(WARMUP_STEPS + 2 * LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {})


def test_no_window_begins_while_a_graph_is_being_captured() -> None:
    training = Training(full=False).run(WARMUP_STEPS - 1)
    training.is_capturing = True
    training.run(LIGHT)
    assert (training.profiler.log, training.windows.skipped) == ([], {"graph_capture": 1})
    training.is_capturing = False
    assert training.run(LIGHT).profiler.log == ["light"]


def test_a_window_that_should_end_while_a_graph_is_being_captured_ends_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS - 1)
    training.is_capturing = True
    training.run(2)
    assert training.profiler.log == ["full"]
    training.is_capturing = False
    training.run(1)
    assert (training.profiler.log, training.spans()) == (["full", "stop"], [("full", 2, 6)])


def test_a_part_that_is_switched_off_while_a_graph_is_being_captured_ends_its_window_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + 1)
    for _ in range(3):
        training.guard.record(PART, ValueError("x"))
    training.is_capturing = True
    training.run(1)
    assert training.profiler.log == ["full"]
    training.is_capturing = False
    training.run(1)
    assert training.profiler.log == ["full", "stop"]


def test_an_error_in_asking_for_the_device_is_counted_and_nothing_is_begun() -> None:
    class Broken(FakeProfiler):
        @property
        def is_first_of_device(self) -> bool:
            raise RuntimeError("no driver")

    training = Training(light=False)
    training.windows._profiler = Broken()
    training.run(2)
    assert training.guard.errors == {PART: 2}
