"""The begin of a session, and the code that it keeps."""

import gc
import sys
import weakref

import pytest
import torch

from rankscope.agent.config import AgentConfig
from rankscope.agent.session import EXECUTED_KEPT, Session, keep_executed_code
from tests.no_threads import allow_no_threads


def test_without_a_thread_nothing_of_the_session_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, excepthook, stops = torch.autograd.backward, sys.excepthook, list[object]()
    allow_no_threads(monkeypatch)
    monkeypatch.setattr("atexit.register", stops.append)
    monkeypatch.setattr("atexit.unregister", stops.remove)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Session.start(AgentConfig(run="r"), {"RANK": "0", "WORLD_SIZE": "1"})
    assert (torch.autograd.backward, sys.excepthook, stops) == (backward, excepthook, [])


def test_the_latest_code_that_was_executed_is_kept() -> None:
    kept = keep_executed_code()
    assert keep_executed_code() is kept  # one hook, which cannot be removed
    first, last = compile("1", "first.py", "exec"), compile("1 + 1", "last.py", "eval")
    found = weakref.ref(first)
    exec(first)  # noqa: S102 - what is tested
    eval(last)  # noqa: S307 - what is tested
    del first
    assert found() is kept[-2]
    assert kept[-1] is last
    for _ in range(EXECUTED_KEPT):
        exec("")  # noqa: S102 - what is tested
    gc.collect()
    assert (found(), len(kept)) == (None, EXECUTED_KEPT)
