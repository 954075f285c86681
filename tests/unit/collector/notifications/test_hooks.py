"""Python hooks: found by their names, called with events, and contained when they fail or block."""

import importlib.metadata
import logging
import queue
import sys
import threading
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.notifications.channel import DELIVERED, FAILED, Delivery
from rankscope.collector.notifications.event import IncidentEvent
from rankscope.collector.notifications.hooks import GROUP, Hook, find_hooks
from rankscope.measure.errors import SettingError
from tests.unit.collector.notifications.worlds import NEVER_CANCELLED, an_event

MODULE = """
import threading
seen, gate, warned = [], threading.Event(), threading.Event()
def keep(event): seen.append(event)
def fail(event): raise KeyError("no team")
def leave(event): raise SystemExit(3)
def block(event): gate.wait()
no_function = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with hooks that can be imported."""
    name = "hooks_of_a_test"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def hook(value: str, blocked_s: float = 60.0) -> Hook:
    return Hook(importlib.metadata.EntryPoint("pager", value, GROUP), blocked_s)


def call(value: str) -> Delivery:
    return hook(value)(an_event(), NEVER_CANCELLED)


def test_hook_gets_the_typed_event(module: str) -> None:
    assert call(f"{module}:keep") == Delivery(DELIVERED)
    (event,) = sys.modules[module].seen
    assert isinstance(event, IncidentEvent)
    assert (event.kind, event.incident.ranks) == ("opened", (2,))


def test_hook_that_raises_is_a_failure_with_the_line(module: str) -> None:
    delivery = call(f"{module}:fail")
    assert delivery.outcome == FAILED
    assert delivery.problem.startswith("it raised KeyError: 'no team' (")
    assert delivery.problem.endswith(f"{module}.py:5)")


def test_hook_that_exits_ends_no_thread(module: str) -> None:
    assert call(f"{module}:leave").problem.startswith("it raised SystemExit: 3")


@pytest.mark.parametrize("value", ["hooks_of_nobody:page", "hooks_of_a_test:page"])
def test_hook_that_cannot_be_imported_is_a_failure_each_time(module: str, value: str) -> None:
    assert module == "hooks_of_a_test"
    broken = hook(value)
    first, second = (broken(an_event(), NEVER_CANCELLED) for _ in range(2))
    assert first == second
    assert first.problem.startswith(f"{value} cannot be imported: ")


def test_hook_that_cannot_be_imported_is_said_before_any_event(caplog: pytest.LogCaptureFixture) -> None:
    hook("hooks_of_nobody:page").prepare()
    assert "hook pager: hooks_of_nobody:page cannot be imported: ModuleNotFoundError" in caplog.text


def test_what_cannot_be_called_is_a_failure(module: str) -> None:
    assert call(f"{module}:no_function").problem.startswith("it raised TypeError: 'int' object is not callable")


class Said(logging.Handler):
    """Keeps the lines of the log, for whoever waits for one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put(record.getMessage())


def test_hook_that_blocks_is_said(module: str) -> None:
    log, said = logging.getLogger("rankscope.collector"), Said()
    log.addHandler(said)
    blocking = hook(f"{module}:block", blocked_s=0.01)
    blocking.prepare()
    thread = threading.Thread(target=blocking, args=(an_event(), NEVER_CANCELLED))
    thread.start()
    line = said.lines.get(timeout=500.0)
    log.removeHandler(said)
    sys.modules[module].gate.set()
    thread.join()
    assert line == "hook pager has not returned for 0.01 s from an event of incident 1; its other events wait"


def entry(name: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, "somewhere:page", GROUP)


def test_hooks_are_those_that_are_named() -> None:
    entries = [entry("pager"), entry("mailer"), entry("other")]
    found = find_hooks(CollectorConfig(notify_hooks=" mailer, pager,mailer,"), entries)
    assert [one.name for one in found] == ["mailer", "pager"]


def test_more_hooks_than_allowed_are_refused() -> None:
    names = ",".join(f"hook-{number}" for number in range(17))
    with pytest.raises(SettingError, match=r"has 17 names, and each hook has a thread; the most allowed is 16"):
        find_hooks(CollectorConfig(notify_hooks=names), [])


def test_name_that_nobody_has_is_said_with_those_that_there_are() -> None:
    text = r"no installed package has an entry point 'pagre' in the group rankscope.incident_hooks; there are: pager"
    with pytest.raises(SettingError, match=text):
        find_hooks(CollectorConfig(notify_hooks="pagre"), [entry("pager")])
    with pytest.raises(SettingError, match="there are: none"):
        find_hooks(CollectorConfig(notify_hooks="pager"))
