"""WindowScheduler once a device is in use: its first window, one step more, CUDA graphs, and light windows left out."""

from rankscope.agent.profiler.window_scheduler import PART
from tests.unit.agent.profiler.window_training import FULL_STEPS, LIGHT, WARMUP_STEPS, FakeProfiler, Training


def test_first_window_of_a_device_is_discarded_after_a_step() -> None:
    training = Training()
    training.profiler.sees_device = True
    training.run(2)
    assert (training.profiler.log, training.windows_taken) == (["full", "stop", "full"], [])
    assert training.windows.skipped == {"first_of_device": 1}


def test_window_of_a_device_has_one_more_step_than_reported() -> None:
    training = Training(light=False)
    training.profiler.sees_device = True
    training.run(WARMUP_STEPS + FULL_STEPS + 1)
    assert training.spans() == [("full", 2, 2 + FULL_STEPS)]
    assert training.windows_taken[0].on_device


def test_device_used_later_has_its_first_window_then() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS + 5)
    training.profiler.sees_device = True
    training.run(2)
    assert training.profiler.log == ["full", "stop"] * 2
    assert [window.on_device for window in training.windows_taken] == [False]
    assert training.windows.skipped == {"first_of_device": 1}


def test_first_window_of_a_device_ends_a_light_one() -> None:
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


def test_full_window_is_skipped_if_it_misses_the_device() -> None:
    training = Training(light=False)
    training.profiler.misses_device = True
    training.run(WARMUP_STEPS + FULL_STEPS)
    assert (training.profiler.log, training.windows.skipped) == ([], {"device_not_recorded": 1})


def test_light_windows_are_left_out_while_not_useful() -> None:
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


def test_window_due_to_end_during_a_capture_ends_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + FULL_STEPS - 1)
    training.is_capturing = True
    training.run(2)
    assert training.profiler.log == ["full"]
    training.is_capturing = False
    training.run(1)
    assert (training.profiler.log, training.spans()) == (["full", "stop"], [("full", 2, 6)])


def test_part_off_during_a_capture_ends_its_window_after_it() -> None:
    training = Training(light=False).run(WARMUP_STEPS + 1)
    for _ in range(3):
        training.guard.record(PART, ValueError("x"))
    training.is_capturing = True
    training.run(1)
    assert training.profiler.log == ["full"]
    training.is_capturing = False
    training.run(1)
    assert training.profiler.log == ["full", "stop"]


def test_error_in_finding_the_device_is_counted() -> None:
    class Broken(FakeProfiler):
        @property
        def is_first_of_device(self) -> bool:
            raise RuntimeError("no driver")

    training = Training(light=False)
    training.windows._profiler = Broken()
    training.run(2)
    assert training.guard.errors == {PART: 2}
