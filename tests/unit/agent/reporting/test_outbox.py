"""Tests of the outbox of a rank without a collector."""

import random
from pathlib import Path
from typing import Any

import pytest

from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.config import AgentConfig
from rankscope.agent.reporting import outbox as module
from rankscope.agent.reporting.builder import Interval, ReportBuilder, build_hello
from rankscope.agent.reporting.outbox import SPILL, Outbox
from rankscope.agent.reporting.sender import Sender
from rankscope.agent.run_report import NOT_FOUND, NOT_REACHED
from rankscope.measure.clock import SystemClock
from rankscope.measure.messages import Hello
from rankscope.uplink.delivery import Delivery
from rankscope.uplink.resend_buffer import ResendBuffer
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

CLOCK = SystemClock()


def hello_of(first_sequence: int) -> Hello:
    return build_hello(identity_of(0, 1), first_sequence, CLOCK, report_interval_ns=1, torch_version="2.9")


def outbox_of(config: AgentConfig) -> Outbox:
    return Outbox(config, identity_of(0, 1), CLOCK, make_hello=hello_of, introduce=hello_of)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines logged."""
    lines: list[str] = []
    monkeypatch.setattr(module, "log_line", lines.append)
    monkeypatch.setattr(module, "log_once_per_node", lambda text, _environment, **_named: lines.append(text))
    return lines


def test_reports_are_held_until_there_is_a_collector(logged: list[str]) -> None:
    outbox, builder = outbox_of(AgentConfig()), ReportBuilder()
    for _ in range(2):
        outbox.push(builder.build(Interval(), 0), step_count=3)
    outbox.exchange(0)
    outbox.log_changes()
    assert (len(outbox.buffer), outbox.buffer.last_sequence) == (2, 2)
    assert not outbox.drain(CLOCK.monotonic_ns())
    outbox.log_summary()
    outbox.close()
    assert logged == [], "only a configured collector is logged about"
    assert (outbox.spill_folder, outbox.errors) == ("", {})


def test_connection_waits_until_there_is_room_for_its_files(logged: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # With so few files ZeroMQ ends the process.
    obstacles = ["it takes 16 files where 64 more may be open, and not 3"] * 2
    monkeypatch.setattr(module, "find_obstacle", lambda **_needed: obstacles.pop() if obstacles else "")
    monkeypatch.setattr(module, "ROOM_RETRY_NS", 0)
    opened: list[str] = []
    monkeypatch.setattr(Sender, "open", lambda _sender, endpoint, _keys: opened.append(endpoint))
    outbox = outbox_of(AgentConfig())
    outbox.connect(CollectorAddress("tcp://127.0.0.1:9"), is_configured=False)
    for count in (0, 0, 1, 1):
        outbox.drain(CLOCK.monotonic_ns())
        assert len(opened) == count
    outbox.close()
    (line,) = logged
    assert line.startswith("rank 0 does not connect to the collector yet: it takes 16 files where 64 more may be open")


def test_unreached_configured_collector_is_in_the_summary(logged: list[str]) -> None:
    outbox = outbox_of(AgentConfig())
    outbox.connect(CollectorAddress("tcp://127.0.0.1:9"), is_configured=True)
    outbox.push(ReportBuilder().build(Interval(), 0), step_count=0)
    outbox.log_summary()
    outbox.close()
    assert len(logged) == 1
    assert "tcp://127.0.0.1:9 never accepted rank 0; none of its 1 reports was delivered" in logged[0]


def test_failing_spill_is_logged_once_and_counted(tmp_path: Path, logged: list[str]) -> None:
    occupied = tmp_path / "file"
    occupied.touch()
    outbox, builder = outbox_of(AgentConfig(spill_dir=str(occupied / "spill"))), ReportBuilder()
    for _ in range(2):
        outbox.push(builder.build(Interval(), 0), step_count=0)
        outbox.log_changes()
    assert outbox.errors[SPILL] >= 1
    assert len(outbox.buffer) == 2
    assert [line.startswith("reports cannot be written to spill_dir") for line in logged] == [True]
    outbox.close()


def test_spilled_reports_have_a_folder(tmp_path: Path) -> None:
    outbox = outbox_of(AgentConfig(spill_dir=str(tmp_path)))
    outbox.push(ReportBuilder().build(Interval(), 0), step_count=0)
    assert outbox.spill_folder.startswith(str(tmp_path))
    outbox.close()


def test_without_a_summary_it_says_whether_a_collector_is_known() -> None:
    outbox = outbox_of(AgentConfig())
    assert outbox.read_report()["absent"]["mfu"] == NOT_FOUND
    outbox.connect(CollectorAddress("tcp://127.0.0.1:9"), is_configured=True)
    assert outbox.read_report()["absent"]["mfu"] == NOT_REACHED
    outbox.close()


class ClosedMeanwhile(Sender):
    """A sender that another thread closes as soon as its connection has been read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "_connection":
            self._connection = None
        return value


def test_refusal_can_be_read_while_another_thread_closes() -> None:
    sender = ClosedMeanwhile(Delivery(ResendBuffer(1, 1000), random.Random(1)), CLOCK, "boot", hello_of)
    sender.open("tcp://127.0.0.1:9")
    assert sender.refused is None
    sender.close()
