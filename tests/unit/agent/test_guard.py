"""Tests of counting and logging errors, and of switching parts off."""

import functools
import io
import re
import signal
import threading
from types import FrameType
from typing import Any

import pytest

from rankscope.agent.collector_address import CollectorAddress
from rankscope.agent.guard import (
    TRACEBACKS_MAX,
    Guard,
    describe,
    find_last_error,
    find_place,
    is_of_script,
    log_line,
)


class UnprintableError(Exception):
    """An error whose __str__ raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class BrokenStream(io.StringIO):
    """A stderr replaced by the script that cannot be written to."""

    def write(self, _text: str) -> int:
        raise AttributeError("not a file at all")


def test_errors_are_counted_by_part() -> None:
    guard = Guard(error_budget=10)
    for part in ("hooks", "windows", "hooks"):
        guard.record(part, ValueError("x"))
    assert guard.errors == {"hooks": 2, "windows": 1}


def test_part_is_off_once_its_error_budget_is_used_up() -> None:
    guard = Guard(error_budget=3)
    for _ in range(3):
        assert not guard.is_off("hooks")
        guard.record("hooks", ValueError("x"))
    guard.record("windows", ValueError("x"))
    assert (guard.is_off("hooks"), guard.is_off("windows")) == (True, False)


def test_errors_of_a_part_that_is_off_are_still_counted() -> None:
    guard = Guard(error_budget=1)
    guard.record("hooks", ValueError("x"))
    guard.record("hooks", ValueError("x"))
    assert guard.errors == {"hooks": 2}


def test_only_first_error_and_switch_off_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(error_budget=3)
    for number in range(1, 6):
        guard.record("hooks", ValueError(f"number {number}"))
    assert capsys.readouterr().err.splitlines() == [
        "rankscope: hooks failed (ValueError: number 1); training is not affected, the error is counted",
        "rankscope: hooks is switched off after 3 errors",
    ]


def test_on_off_is_called_once() -> None:
    told: list[str] = []
    guard = Guard(error_budget=2)
    guard.on_off = told.append
    for _ in range(4):
        guard.record("hooks", ValueError("x"))
    assert told == ["hooks"]


def test_counts_that_were_handed_out_do_not_change_afterwards() -> None:
    guard = Guard(error_budget=10)
    guard.record("hooks", ValueError("x"))
    before = guard.errors
    guard.record("hooks", ValueError("x"))
    assert before == {"hooks": 1}


def test_error_with_failing_str_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(error_budget=10)
    guard.record("hooks", UnprintableError())
    assert guard.errors == {"hooks": 1}
    assert "hooks failed (UnprintableError)" in capsys.readouterr().err
    assert describe(ValueError("no such rank")) == "ValueError: no such rank"


def test_a_line_goes_out_at_once_under_our_name() -> None:
    stream = io.StringIO()
    log_line("watching", stream)
    assert stream.getvalue() == "rankscope: watching\n"


def test_a_stream_that_is_closed_or_broken_does_no_harm() -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, BrokenStream()):
        log_line("nobody hears this", stream)


# -- where it happened ------------------------------------------------------------------------------------------------


def fail_in_our_code() -> Exception:
    """An error that json raises below a line of the agent's."""
    try:
        CollectorAddress.from_text("{")
    except ValueError as error:
        return error
    raise AssertionError("it was read")


def test_logged_error_has_the_innermost_agent_line(capsys: pytest.CaptureFixture[str]) -> None:
    Guard(error_budget=10).record("connect", fail_in_our_code())
    assert re.search(
        r"connect failed \(.*, at /.*/agent/collector_address\.py:\d+\); training", capsys.readouterr().err
    )


def test_an_error_of_others_is_placed_where_it_was_raised() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018 - it raises
    assert find_place(caught.value) == f"{__file__}:{caught.traceback[-1].lineno + 1}"


def preempt(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("preempted")


class Preempting:
    def __call__(self, *arguments: object) -> None:
        raise TimeoutError(f"preempted by {arguments[0]}")

    def preempt(self, number: int, frame: FrameType | None) -> None:
        preempt(number, frame)


class Rude(Preempting):
    """Whose attributes and type cannot be asked for."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError(name)


def forget(_number: int, frame: FrameType | None) -> None:
    frame = None
    raise TimeoutError(f"preempted at {frame}")


HANDLERS: list[Any] = [
    preempt, forget, Preempting(), Preempting().preempt, functools.partial(preempt), signal.default_int_handler,
]  # fmt: skip


def raise_within(handler: Any) -> BaseException:
    """Return what a handler of SIGUSR1 has raised in this function."""
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except BaseException as error:  # noqa: BLE001 - handed to the test
        return error
    finally:
        signal.signal(signal.SIGUSR1, before)
    raise AssertionError


@pytest.mark.parametrize("handler", HANDLERS)
def test_error_of_a_signal_handler_is_held_once_and_not_counted(handler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guard, error = Guard(error_budget=1), raise_within(handler)
    if handler is forget:  # it is known only as long as it is installed
        monkeypatch.setattr(signal, "getsignal", lambda _number: forget)
    guard.record("windows", error)
    assert (guard.errors, guard.is_off("windows")) == ({}, False)
    with pytest.raises(type(error)) as raised:
        guard.raise_held()
    assert raised.value is error
    guard.raise_held()


def test_own_error_is_not_taken_for_that_of_a_signal_handler() -> None:
    assert not is_of_script(fail_in_our_code())


def test_handler_that_cannot_be_asked_for_attributes_is_known() -> None:
    for handler in (Rude(), functools.partial(Rude())):
        assert is_of_script(raise_within(handler))


def test_no_object_of_the_script_is_asked_for_an_attribute() -> None:
    def fail(_given: object, *_more: object) -> None:
        raise ValueError("ours")

    before = signal.signal(signal.SIGUSR1, Rude())
    try:
        with pytest.raises(ValueError, match="ours") as raised:
            fail(Rude(), Rude())
        assert not is_of_script(raised.value)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_is_held_is_for_the_thread_that_it_was_raised_on() -> None:
    guard, found = Guard(error_budget=1), []
    guard.record("windows", KeyboardInterrupt())
    thread = threading.Thread(target=lambda: found.append(guard.pop_held()))
    thread.start()
    thread.join()
    assert found == [None]
    assert isinstance(guard.pop_held(), KeyboardInterrupt)


@pytest.fixture
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    """RANKSCOPE_DEBUG=1, in a process that has printed no traceback yet."""
    monkeypatch.setenv("RANKSCOPE_DEBUG", "1")
    monkeypatch.setattr("rankscope.agent.guard._printed", set())


@pytest.mark.usefixtures("debugging")
def test_with_debug_each_part_and_type_has_one_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(error_budget=10)
    for part in ("connect", "connect", "hooks"):
        guard.record(part, fail_in_our_code())
    guard.record("connect", KeyError("another type"))
    said = capsys.readouterr().err
    heads = [line for line in said.splitlines() if line.startswith("rankscope: traceback of")]
    assert heads == [
        f"rankscope: traceback of {part} (RANKSCOPE_DEBUG is set):" for part in ("connect", "hooks", "connect")
    ]
    assert "in from_text" in said


@pytest.mark.usefixtures("debugging")
def test_tracebacks_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    guard = Guard(error_budget=10)
    for number in range(TRACEBACKS_MAX + 5):
        guard.record(f"part {number}", ValueError("x"))
    assert capsys.readouterr().err.count("traceback of") == TRACEBACKS_MAX


@pytest.mark.usefixtures("debugging")
def test_error_with_failing_str_may_have_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    Guard(error_budget=10).record("hooks", UnprintableError())
    assert "hooks failed (UnprintableError)" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "0"])
def test_without_debug_there_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    monkeypatch.setenv("RANKSCOPE_DEBUG", value)
    Guard(error_budget=10).record("connect", fail_in_our_code())
    assert "raceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('  File "/a.py", line 3, in f\n  File "/b', 'File "/b, at /a.py:3'),
        ('  File "/a.py", line 3, in f\n    File "x\nOSError: no', "OSError: no, at /a.py:3"),
        ('  File "', 'File "'),
    ],
)
def test_error_is_found_in_a_text_that_was_cut(text: str, found: str) -> None:
    assert find_last_error(text) == found
