"""Scopes in functions that torch.compile compiles whole: no graph break, and a capture recompiles nothing."""

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from rankscope.agent import scope
from rankscope.agent.scopes import find_tracing_check, learn_torch, switch


def double(x: torch.Tensor) -> torch.Tensor:
    with scope("part"):
        return 2 * x


@scope("decorated")
def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def compute(x: torch.Tensor) -> torch.Tensor:
    return add_one(double(x))


def turn_on() -> list[str]:
    """Mark scopes as a capture does; return the names of those that are."""
    names: list[str] = []

    def make_range(name: str) -> torch.profiler.record_function:
        names.append(name)
        return torch.profiler.record_function(name)

    switch.turn_on(make_range, lambda _error: None)
    return names


@pytest.fixture(autouse=True)
def dynamo() -> Iterator[None]:
    learn_torch(torch)
    torch._dynamo.reset()
    yield
    switch.turn_off()
    torch._dynamo.reset()


def test_scopes_break_no_graph_and_captures_recompile_none() -> None:
    counter = CompileCounter()
    compiled = torch.compile(compute, backend=counter, fullgraph=True)
    results = [compiled(torch.ones(1))]
    marked = turn_on()
    results.append(compiled(torch.ones(1)))
    switch.turn_off()
    results.append(compiled(torch.ones(1)))
    assert [one.item() for one in results] == [3.0] * 3
    assert (counter.frame_count, marked) == (1, [])


def test_scope_around_a_call_of_compiled_code_is_marked() -> None:
    compiled = torch.compile(compute, backend="eager", fullgraph=True)
    marked = turn_on()
    with scope("around"):
        assert compiled(torch.ones(1)).item() == 3.0
    assert marked == ["around"]


def test_code_compiled_while_a_capture_is_on_has_no_scope() -> None:
    counter = CompileCounter()
    compiled = torch.compile(compute, backend=counter, fullgraph=True)
    marked = turn_on()
    compiled(torch.ones(1))
    switch.turn_off()
    compiled(torch.ones(1))
    assert (counter.frame_count, marked) == (1, [])


def test_torch_without_a_tracing_check_is_never_traced() -> None:
    assert find_tracing_check(None)() is False
