"""The begin of a session that fails."""

import sys

import pytest
import torch

from rankscope.agent.config import AgentConfig
from rankscope.agent.session import Session
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
