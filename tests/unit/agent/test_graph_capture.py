"""When a CUDA graph is being captured, by a class that stands for torch's."""

import pytest

from rankscope.agent.capture.graph_capture import GraphCaptures


class Graph:
    """As torch.cuda.CUDAGraph: its methods raise when the capture cannot begin or was invalidated."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> str:
        if self._fails:
            raise RuntimeError("capture_begin")
        return f"{pool} {capture_error_mode}"

    def capture_end(self) -> None:
        if self._fails:
            raise RuntimeError("capture_end")


@pytest.fixture
def graph_class() -> type[Graph]:
    """A class of its own for each test."""
    return type("Graph", (Graph,), {"capture_begin": Graph.capture_begin, "capture_end": Graph.capture_end})


def test_a_capture_goes_on_from_its_begin_to_its_end(graph_class: type[Graph]) -> None:
    captures = GraphCaptures()
    captures.install(graph_class)
    graph = graph_class()
    assert not captures.is_capturing
    assert graph.capture_begin(7, capture_error_mode="relaxed") == "7 relaxed"
    assert captures.is_capturing
    graph.capture_end()
    assert not captures.is_capturing


def test_a_capture_that_does_not_begin_or_is_invalidated_does_not_go_on(graph_class: type[Graph]) -> None:
    captures = GraphCaptures()
    captures.install(graph_class)
    with pytest.raises(RuntimeError, match="capture_begin"):
        graph_class(fails=True).capture_begin()
    assert not captures.is_capturing
    graph_class().capture_begin()
    with pytest.raises(RuntimeError, match="capture_end"):
        graph_class(fails=True).capture_end()
    assert not captures.is_capturing


def test_removing_puts_the_class_back(graph_class: type[Graph]) -> None:
    before = graph_class.capture_begin, graph_class.capture_end
    captures = GraphCaptures()
    captures.install(graph_class)
    captures.remove()
    assert (graph_class.capture_begin, graph_class.capture_end) == before


def test_where_torch_cannot_use_cuda_nothing_is_ever_captured() -> None:
    captures = GraphCaptures()
    captures.install()
    assert not captures.is_capturing
