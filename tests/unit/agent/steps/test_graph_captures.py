"""GraphCaptures: while a CUDA graph is being captured nothing of ours may touch CUDA."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.steps.graph_captures import GraphCaptures

DEADLINE_S = 300.0


def graph(captures: GraphCaptures, fails: tuple[str, ...] = ()) -> Any:
    """torch's begin and end of a capture, counted; those named in `fails` raise."""

    def make(name: str) -> Any:
        def method(*args: object, **kwargs: object) -> tuple[object, ...]:
            if name in fails:
                raise RuntimeError(name)
            return (name, *args, *kwargs)

        return method

    return SimpleNamespace(begin=captures.wrap_begin(make("capture_begin")), end=captures.wrap_end(make("capture_end")))


def test_a_capture_is_open_from_its_begin_to_its_end() -> None:
    captures = GraphCaptures()
    capturing = graph(captures)
    seen = [captures.is_open()]
    capturing.begin()
    seen.append(captures.is_open())
    capturing.end()
    assert [*seen, captures.is_open()] == [False, True, False]


def test_arguments_and_results_pass_through() -> None:
    capturing = graph(GraphCaptures())
    assert capturing.begin("pool", capture_error_mode="global") == ("capture_begin", "pool", "capture_error_mode")
    assert capturing.end() == ("capture_end",)


def test_a_capture_that_did_not_begin_is_not_open() -> None:
    captures = GraphCaptures()
    with pytest.raises(RuntimeError, match="capture_begin"):
        graph(captures, fails=("capture_begin",)).begin()
    assert not captures.is_open()


def test_a_capture_that_failed_to_end_is_over() -> None:
    captures = GraphCaptures()
    capturing = graph(captures, fails=("capture_end",))
    capturing.begin()
    with pytest.raises(RuntimeError, match="capture_end"):
        capturing.end()
    assert not captures.is_open()


def test_the_last_of_several_captures_counts() -> None:
    captures = GraphCaptures()
    capturing = graph(captures)
    capturing.begin()
    capturing.begin()
    capturing.end()
    assert captures.is_open()


def test_capture_from_before_the_hooks_may_end() -> None:
    captures = GraphCaptures()
    capturing = graph(captures)
    capturing.end()
    capturing.begin()
    assert captures.is_open()


def test_capture_known_to_the_stream_only_counts() -> None:
    assert GraphCaptures(lambda: True).is_open()


def test_action_runs_between_captures_only() -> None:
    captures = GraphCaptures()
    assert captures.run_between(lambda: 7) == 7
    graph(captures).begin()
    assert captures.run_between(lambda: 7) is None


def test_capture_waits_for_an_action_in_progress() -> None:
    captures = GraphCaptures()
    order: list[str] = []
    began = threading.Event()

    def capture() -> None:
        began.set()
        graph(captures).begin()
        order.append("capture")

    thread = threading.Thread(target=capture)

    def action() -> None:
        thread.start()
        assert began.wait(DEADLINE_S)
        order.append("action")

    captures.run_between(action)
    thread.join(DEADLINE_S)
    assert order == ["action", "capture"]
