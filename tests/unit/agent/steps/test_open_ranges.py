"""OpenRanges: ranges that outlive a profiler session exit when that does no harm, and never twice."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankscope.agent.steps.open_ranges import OpenRanges


class Range:
    """A record_function that records when it is entered and exited."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def enter(self) -> "Range":
        self.log.append(f"enter {self.name}")
        return self

    def leave(self, *_error: object) -> None:
        self.log.append(f"leave {self.name}")


class Script:
    """A script with ranges, and sessions that begin and end around them."""

    def __init__(self) -> None:
        self.ranges = OpenRanges()
        self.log: list[str] = []

    def enter(self, name: str) -> Range:
        opened = Range(name, self.log)
        entered: Range = self.ranges.wrap_enter(Range.enter)(opened)
        assert entered is opened
        return entered

    def leave(self, opened: Range) -> list[str]:
        self.log.clear()
        self.ranges.wrap_exit(Range.leave)(opened, None, None, None)
        return list(self.log)

    def end_session(self) -> list[str]:
        self.log.clear()
        self.ranges.on_session_end()
        return list(self.log)


def test_range_exits_at_once_in_its_session_or_outside() -> None:
    script = Script()
    assert script.leave(script.enter("before")) == ["leave before"]
    script.ranges.on_session_begin()
    assert script.leave(script.enter("inside")) == ["leave inside"]
    survivor = script.enter("survivor")
    script.ranges.on_session_end()
    assert script.leave(survivor) == ["leave survivor"]


def test_exit_of_an_earlier_sessions_range_is_deferred() -> None:
    script = Script()
    script.ranges.on_session_begin()
    epoch, step = script.enter("epoch"), script.enter("step")
    script.ranges.on_session_end()
    script.ranges.on_session_begin()
    assert script.leave(step) == []
    assert script.leave(epoch) == []
    assert script.end_session() == ["leave step", "leave epoch"]
    assert script.end_session() == []


def test_exit_of_a_range_from_outside_sessions_is_deferred() -> None:
    # torch has given it no memory to write to, but late is as good as at once.
    script = Script()
    outside = script.enter("outside")
    script.ranges.on_session_begin()
    assert script.leave(outside) == []
    assert script.end_session() == ["leave outside"]


def test_range_from_before_the_hooks_counts_as_another_sessions() -> None:
    script = Script()
    unseen = Range("unseen", script.log)
    script.ranges.on_session_begin()
    assert script.leave(unseen) == []
    assert script.end_session() == ["leave unseen"]


# -- ranges of C++ ----------------------------------------------------------------------------------------------------


def run_compiled(inside: Callable[[], None]) -> None:
    @torch.compile(backend="eager")
    def step(numbers: torch.Tensor) -> torch.Tensor:
        doubled = numbers * 2
        torch._dynamo.disable(inside)()
        return doubled + 1

    step(torch.ones(2))


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, numbers: torch.Tensor, inside: Callable[[], None]) -> torch.Tensor:
        inside()
        return numbers * 2


def run_function(inside: Callable[[], None]) -> None:
    Forward.apply(torch.ones(2), inside)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("run", [run_compiled, run_function])
def test_no_session_begins_in_a_range_of_cpp_that_the_last_one_recorded(run: Callable[..., None]) -> None:
    ranges, seen = OpenRanges(), []

    def end() -> None:
        ranges.on_session_end()
        seen.append(ranges.may_begin)

    ranges.on_session_begin()
    run(end)
    seen.append(ranges.may_begin)
    run(lambda: seen.append(ranges.may_begin))
    assert seen == [False, True, True]


def test_session_of_a_users_scope_alone_has_recorded_no_range_of_cpp() -> None:
    ranges, seen = OpenRanges(), []

    def inside() -> None:
        ranges.on_session_end()
        seen.append(ranges.may_begin)
        ranges.on_session_begin()
        ranges.on_session_end()  # which of the range that was open before it has nothing either
        seen.append(ranges.may_begin)

    ranges.on_session_begin()
    ranges.records_functions = False
    run_function(inside)
    assert seen == [True, True]


@pytest.mark.parametrize("run", [run_compiled, run_function])
def test_sessions_follow_each_other_in_a_range_that_none_has_recorded(run: Callable[..., None]) -> None:
    ranges, seen = OpenRanges(), []

    def inside() -> None:
        for _ in range(2):
            seen.append(ranges.may_begin)
            ranges.on_session_begin()
            ranges.on_session_end()

    run(inside)
    assert seen == [True, True]


def test_debugger_of_a_range_keeps_its_trace_function() -> None:
    ranges, kept = OpenRanges(), []

    def end() -> None:
        frame = sys._getframe()
        while frame.f_code is not torch.autograd.Function.apply.__code__:
            frame = frame.f_back  # type: ignore[assignment] # it is on the stack
        frame.f_trace = print
        ranges.on_session_end()
        kept.append(frame.f_trace)

    ranges.on_session_begin()
    run_function(end)
    assert kept == [print]
