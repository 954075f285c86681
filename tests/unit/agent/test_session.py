"""The begin of a session that fails."""

import pytest
import torch

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.session import Session, finish
from tests.no_threads import allow_no_threads


def test_without_a_thread_nothing_of_the_session_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, stops = torch.autograd.Variable._execution_engine, list[object]()
    allow_no_threads(monkeypatch)
    monkeypatch.setattr("atexit.register", stops.append)
    monkeypatch.setattr("atexit.unregister", stops.remove)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Session.start(AgentConfig(run="r"), {"RANK": "0", "WORLD_SIZE": "1"})
    assert (torch.autograd.Variable._execution_engine, stops) == (backward, [])


class Interrupted:
    """A part of the end in which a signal handler of the script raises the first time."""

    def __init__(self, calls: list[str], error: BaseException) -> None:
        self._calls = calls
        self._errors = [error]

    def run(self, name: str) -> None:
        self._calls.append(name)
        if self._errors:
            raise self._errors.pop()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_end_is_finished_despite_interrupts_and_waits_are_cut(error: BaseException) -> None:
    guard, calls = Guard(error_budget=3), list[str]()
    part, wait = Interrupted(calls, error), Interrupted(calls, error)
    finish(guard, lambda: part.run("part"))
    finish(guard, lambda: wait.run("wait"), is_wait=True)
    assert calls == ["part", "part", "wait"]
    assert guard.pop_held() is error
    assert guard.errors == {}


def test_own_error_at_the_end_is_counted_and_not_tried_again() -> None:
    guard, calls = Guard(error_budget=3), list[str]()
    part = Interrupted(calls, ValueError("ours"))
    finish(guard, lambda: part.run("part"))
    assert (calls, guard.errors) == (["part"], {"stop": 1})
