"""Tests of finding a configured collector."""

import pytest

from rankscope.agent import connect_thread as module
from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.connect_thread import PART, ConnectThread
from rankscope.agent.guard import Guard
from tests.no_threads import allow_no_threads
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

HERE = AgentConfig(collector="tcp://127.0.0.1:5")


def test_configured_address_is_passed_on_by_stop_at_the_latest() -> None:
    found: list[tuple[CollectorAddress, bool]] = []
    connecting = ConnectThread(HERE, identity_of(0, 1), {}, Guard(3), lambda *address: found.append(address))
    connecting.start()
    connecting.stop()
    connecting.leave_torch()
    connecting.wait_for_embedded()
    assert found == [(CollectorAddress("tcp://127.0.0.1:5"), True)]


def test_wrong_keys_are_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(module, "log_line", logged.append)
    config = AgentConfig(collector="tcp://127.0.0.1:5", key_file="/nowhere")
    connecting = ConnectThread(config, identity_of(0, 1), {}, Guard(3), lambda *_address: None)
    connecting.start()
    connecting.stop()
    assert len(logged) == 1
    assert logged[0].endswith("training continues without it")


def test_other_errors_are_counted() -> None:
    def fail(*_address: object) -> None:
        raise RuntimeError("no")

    guard = Guard(3)
    connecting = ConnectThread(HERE, identity_of(0, 1), {}, guard, fail)
    connecting.start()
    connecting.stop()
    assert guard.errors == {PART: 1}


def test_without_a_thread_nothing_is_found_and_the_end_works(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(3)
    allow_no_threads(monkeypatch)
    connecting = ConnectThread(HERE, identity_of(0, 1), {}, guard, lambda *_address: None)
    connecting.start()
    connecting.stop()
    connecting.leave_torch()
    connecting.wait_for_embedded()
    assert guard.errors == {PART: 1}
