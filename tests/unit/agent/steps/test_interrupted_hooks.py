"""Exceptions that leave a call of torch's amid a hook: a signal handler raises anywhere, a closure inside a step."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.steps.early_events import EarlyEvents
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks, find_step_codes
from rankscope.measure.records import StepRecord
from tests.unit.agent.interruptions import interrupt_each_line

STEPS_AFTER = 4


class Training:
    """A small training with hooks of its own."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.timer = StepTimer(self.records.append)
        self.hooks = TorchHooks(self.timer, Guard(error_budget=3), lambda _begins: None)
        self.hooks.install()
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.model, self.optimizer = model, optimizer
        self.batches = iter(DataLoader(TensorDataset(torch.ones(64, 2)), batch_size=1))

    def compute_loss(self) -> torch.Tensor:
        loss: torch.Tensor = self.model(torch.ones(1, 2)).sum()
        return loss

    def run_loop_with_loader(self) -> None:
        next(self.batches)
        self.run_loop()

    def run_loop(self) -> None:
        self.compute_loss().backward()
        self.optimizer.step()

    def run_closure(self) -> None:
        def closure() -> float:
            loss = self.compute_loss()
            loss.backward()
            return float(loss.detach())

        self.optimizer.step(closure)

    def run_gradients(self) -> None:
        found = torch.autograd.grad(self.compute_loss(), list(self.model.parameters()))
        for parameter, gradient in zip(self.model.parameters(), found, strict=True):
            parameter.grad = gradient
        self.optimizer.step()

    def run_scaler(self) -> None:
        self.compute_loss().backward()
        torch.amp.GradScaler("cpu", enabled=False).step(self.optimizer)

    def finish(self) -> list[int]:
        """Remove the hooks; return how many backwards each step had."""
        self.hooks.catch_up()
        self.timer.finish()
        self.hooks.remove()
        return [record.backwards for record in self.records]


LOOPS: dict[str, Callable[[Training], None]] = {
    name: getattr(Training, name)
    for name in ("run_loop", "run_loop_with_loader", "run_closure", "run_gradients", "run_scaler")
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave no hooks behind, whatever fails."""
    made: list[TorchHooks] = []
    install = TorchHooks.install

    def note(hooks: TorchHooks) -> None:
        made.append(hooks)
        install(hooks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchHooks, "install", note)
        yield
    for hooks in made:
        hooks.remove()


@pytest.mark.parametrize("name", LOOPS)
def test_steps_after_an_interruption_anywhere_in_a_hook_count(name: str) -> None:
    run = LOOPS[name]

    def make() -> Training:
        training = Training()
        for _ in range(2):
            run(training)
        return training

    def check(training: Training, _came_out: object) -> None:
        for _ in range(STEPS_AFTER):
            run(training)
        made, noted = training.finish(), training.hooks.interrupted
        assert 2 + STEPS_AFTER <= len(made) + noted <= 4 + STEPS_AFTER, made
        assert noted <= 1
        assert len(made) <= 3 + STEPS_AFTER
        assert made[-2:] == [1, 1]

    assert interrupt_each_line(make, run, check) > 10


class InterruptedLock:
    """A lock amid whose release a signal handler raises once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._has_raised = False
        self.acquire = self._lock.acquire
        self._is_owned = self._lock._is_owned  # type: ignore[attr-defined]

    def release(self) -> None:
        if not self._has_raised:
            self._has_raised = True
            raise KeyboardInterrupt
        self._lock.release()


def test_lock_is_free_after_an_interruption_of_its_release() -> None:
    training = Training()
    buffer = training.hooks.buffer
    buffer._lock = InterruptedLock()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        buffer.flush_inline()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(buffer._lock.acquire, blocking=False).result()


def test_steps_after_a_closure_that_raised_are_counted() -> None:
    training = Training()

    def fail() -> float:
        raise RuntimeError("no memory")

    for _ in range(3):
        with pytest.raises(RuntimeError, match="no memory"):
            training.optimizer.step(fail)
        training.run_loop()
    assert training.finish() == [1, 1, 1]


def test_steps_of_an_optimizer_inside_another_s_are_one() -> None:
    training = Training()
    inner = torch.optim.SGD(training.model.parameters(), lr=0.1)

    class Outer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            inner.step()
            return super().step(closure)

    training.optimizer = Outer(training.model.parameters(), lr=0.1)
    for _ in range(3):
        training.run_loop()
    assert training.finish() == [1, 1, 1]


def test_kept_events_without_an_end_leave_nothing_open() -> None:
    training = Training()
    early = training.hooks._early
    training.hooks.buffer.thread = -1  # another thread is taken for the one that trains
    early._keep(training.timer.backward_begin)
    for _ in range(3):
        training.run_loop()
    assert training.finish()[-2:] == [1, 1]
    assert isinstance(early, EarlyEvents)


def test_torch_has_its_wrapper_of_steps_where_it_is_looked_for() -> None:
    assert [code.co_name for code in find_step_codes(torch.optim.Optimizer)] == ["wrapper"]
    assert find_step_codes(object()) == []


def test_an_exception_of_the_loader_ends_the_fetch() -> None:
    class Failing(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for number in itertools.count():
                if number == 1:
                    raise RuntimeError("no file")
                yield torch.ones(2)

    training = Training()
    for _ in range(3):
        training.batches = iter(DataLoader(Failing(), batch_size=1))
        training.run_loop_with_loader()
        with pytest.raises(RuntimeError, match="no file"):
            next(training.batches)
    assert training.finish() == [1, 1, 1]
