"""find_patched and OwnThread: a process whose threads are greenlets is recognized, and one of ours ends in silence."""

import sys
import threading
from types import SimpleNamespace

import pytest

from rankscope.agent import launch
from rankscope.agent.green_threads import find_patched
from rankscope.agent.own_thread import OwnThread

DEADLINE_S = 60.0


@pytest.mark.parametrize(
    ("module", "function", "replaced", "expected"),
    [
        ("gevent.monkey", "is_module_patched", "threading", "gevent"),
        ("gevent.monkey", "is_module_patched", "ssl", ""),  # which the agent does not use
        ("eventlet.patcher", "is_monkey_patched", "thread", "eventlet"),
        ("eventlet.patcher", "is_monkey_patched", "MySQLdb", ""),
    ],
)
def test_library_that_has_replaced_what_the_agent_uses_is_named(
    monkeypatch: pytest.MonkeyPatch, module: str, function: str, replaced: str, expected: str
) -> None:
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: lambda name: name == replaced}))
    assert find_patched() == expected


def test_patched_process_is_not_measured_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace(is_module_patched=lambda _name: True))
    monkeypatch.delenv(launch.PID_VARIABLE, raising=False)
    assert launch.start_session({"RANK": "0"}) is False
    assert launch.session is None
    assert capfd.readouterr().err == (
        "rankscope: not started: gevent has patched this process (monkey patching), where a thread of the agent would "
        "keep training from running. To have it measured, train in a process without that. Training continues without "
        "it.\n"
    )
    monkeypatch.delenv(launch.PID_VARIABLE)


def test_thread_that_is_unknown_under_its_name_ends_in_silence() -> None:
    def forget() -> None:
        del threading._active[threading.get_ident()]  # type: ignore[attr-defined]

    thread = OwnThread(target=forget)
    thread.start()
    thread.join(DEADLINE_S)  # an error at its end would fail this test as an unraisable exception
    assert not thread.is_alive()
