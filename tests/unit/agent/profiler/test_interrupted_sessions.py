"""Signal handlers of the script that raise amid the begin or the end of a session: it is on or off, and known to be, it
ends with the process, and the script gets the exception once.
"""

from collections.abc import Callable

import pytest

from rankscope.agent.profiler.torch_profiler import TorchProfiler
from tests.unit.agent.interruptions import interrupt_each_line
from tests.unit.agent.profiler.window_training import LIGHT, WARMUP_STEPS, Training

ACTIONS: dict[str, Callable[[Training], object]] = {
    "begin": lambda training: training.run(1),
    "end and begin": lambda training: training.run(LIGHT + 1),
    "close": lambda training: training.windows.close(must_end=True),
    "stop": lambda training: training.windows.stop(),
    "user's profiler": lambda training: training.windows.on_user_profiler(begins=True),
}


@pytest.mark.parametrize("name", ACTIONS)
def test_window_interrupted_anywhere_ends_and_raises_once(name: str) -> None:
    def make() -> Training:
        return Training(full=False).run(WARMUP_STEPS - 1 if name == "begin" else WARMUP_STEPS + 3)

    def check(training: Training, came_out: BaseException | None) -> None:
        held = training.guard.pop_held()
        assert [came_out is None, held is None].count(True) == 1
        assert training.guard.errors == {}
        assert training.profiler.has_session == (training.windows.thread is not None)
        training.windows.stop()
        assert not training.profiler.is_on
        assert training.guard.pop_held() is None
        assert training.guard.errors == {}

    assert interrupt_each_line(make, ACTIONS[name], check) > LIGHT


def use_session(profiler: TorchProfiler) -> None:
    """Begin a session and end it."""
    profiler.start(full=False)
    profiler.stop()


def test_torch_session_interrupted_anywhere_lets_the_next_begin() -> None:
    def check(profiler: TorchProfiler, came_out: BaseException | None) -> None:
        assert came_out is not None
        if profiler.has_session:
            profiler.stop()
        assert not profiler.is_busy()
        use_session(profiler)

    assert interrupt_each_line(TorchProfiler.find, use_session, check) > 0
