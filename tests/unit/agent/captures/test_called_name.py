"""find_called_name: what a frame is calling, as it is written. Each function calls `look`, which reads its frame."""

import sys
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.captures.called_name import HAS_POSITIONS, find_called_name

pytestmark = pytest.mark.skipif(not HAS_POSITIONS, reason="instructions have no positions before CPython 3.11")


def look(*_arguments: object, **_named: object) -> str:
    frame: FrameType | None = sys._getframe(1)
    assert frame is not None
    return find_called_name(frame.f_code, frame.f_lasti)


MODULE: Any = SimpleNamespace(look=look, part=SimpleNamespace(look=look), find=lambda: MODULE)


def call_plain() -> str:
    return look()


def call_of_module() -> str:
    return str(MODULE.part.look(1, MODULE.find()))


def call_with_named() -> str:
    return str(MODULE.look(timeout=1, other=[2]))


def call_of_result() -> str:
    return str(MODULE.find().look())


def call_of_local() -> str:
    local = look
    return local(1)


def call_of_several_lines() -> str:
    return str(
        MODULE.look(
            1,
            2,
        )
    )


def call_with_list() -> str:
    arguments = 1, 2
    return str(MODULE.look(*arguments))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (call_plain, "look"),
        (call_of_module, "MODULE.part.look"),
        (call_with_named, "MODULE.look"),
        (call_of_result, ".look"),
        (call_of_local, "local"),
        (call_of_several_lines, "MODULE.look"),
        (call_with_list, "MODULE.look"),
    ],
)
def test_name_is_that_of_the_call(call: Callable[[], str], name: str) -> None:
    assert call() == name


def test_what_is_no_call_has_no_name() -> None:
    code = (lambda: 1 + len([])).__code__
    assert find_called_name(code, 0) == ""
    assert find_called_name(code, -1) == ""
