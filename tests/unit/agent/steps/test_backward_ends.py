"""BackwardEnds: when a backward of a real autograd has done its own work, by a clock that the test moves."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rankscope.agent.guard import Guard
from rankscope.agent.steps.backward_ends import ENDS_MAX, PART, BackwardEnds
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks

OWN_NS, WAIT_NS = 700, 9_000
"""What a backward computes, and for how long its caller then waits, as in DDP."""


class Loop:
    """Backwards whose node takes OWN_NS, and behind which a callback like DDP's waits."""

    def __init__(self) -> None:
        self.now_ns = 1_000
        self.is_recording = True
        self.guard = Guard(error_budget=100)
        self.ends = BackwardEnds(self.guard, is_recording=lambda: self.is_recording, read_clock_ns=lambda: self.now_ns)
        timer = StepTimer(lambda _record: None, lambda _step: None, lambda: None)
        self.hooks = TorchHooks(timer, self.guard, lambda _begins: None, backward_ends=self.ends)
        self.weight = torch.ones(3, requires_grad=True)
        self.weight.register_hook(self._compute)

    def _compute(self, _gradient: Tensor) -> None:
        self.now_ns += OWN_NS
        engine: Any = torch.autograd.Variable
        engine._execution_engine.queue_callback(self._wait)

    def _wait(self) -> None:
        self.now_ns += WAIT_NS

    def backward(self) -> None:
        (2 * self.weight).sum().backward()

    def find(self) -> list[int]:
        return self.ends.find_between(0, 10**9)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    loop.hooks.install()
    yield loop
    loop.hooks.remove()


def test_own_work_of_a_backward_ends_before_what_waits_behind_it(loop: Loop) -> None:
    loop.backward()
    loop.backward()
    assert loop.find() == [1_000 + OWN_NS, 1_000 + 2 * OWN_NS + WAIT_NS]
    assert loop.now_ns == 1_000 + 2 * (OWN_NS + WAIT_NS), "the waits were there"


def test_only_ends_between_two_times_are_found(loop: Loop) -> None:
    loop.backward()
    end_ns = 1_000 + OWN_NS
    assert loop.ends.find_between(end_ns, end_ns + 1) == [end_ns]
    assert loop.ends.find_between(end_ns + 1, 10**9) == loop.ends.find_between(0, end_ns) == []


def test_no_backward_is_watched_without_a_window(loop: Loop) -> None:
    loop.is_recording = False
    loop.backward()
    assert loop.find() == []


def test_backward_that_raises_leaves_nothing_behind(loop: Loop) -> None:
    def fail(_gradient: Tensor) -> None:
        raise RuntimeError("of the script")

    handle = loop.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="of the script"):
        loop.backward()
    handle.remove()
    assert (loop.find(), loop.guard.errors) == ([], {})
    loop.backward()
    assert len(loop.find()) == 1


def test_gradients_are_the_same(loop: Loop) -> None:
    loop.backward()
    assert loop.weight.grad is not None
    assert torch.equal(loop.weight.grad, torch.full((3,), 2.0))


def test_torch_that_takes_no_callback_is_left_alone(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    variable: Any = torch.autograd.Variable
    engine = variable._execution_engine

    class Refusing:
        """An engine that takes no callbacks, from us or anyone."""

        run_backward = staticmethod(engine.run_backward)

        def queue_callback(self, _callback: object) -> None:
            raise RuntimeError("not during backward")

    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", Refusing())
    weight = torch.ones(3, requires_grad=True)
    for _ in range(2):
        (2 * weight).sum().backward()
    assert (loop.find(), loop.guard.errors) == ([], {PART: 1}), "it is tried once"
    assert weight.grad is not None


def test_backward_of_a_tensor_without_a_node_fails_as_torch_says(loop: Loop) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert (loop.find(), loop.guard.errors) == ([], {})


def test_old_ends_are_forgotten(loop: Loop) -> None:
    for _ in range(ENDS_MAX + 2):
        loop.now_ns += 1
        loop.ends.on_last_node(loop.ends.begin((), {}))
    assert len(loop.find()) == ENDS_MAX
