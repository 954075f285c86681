"""TorchHooks on the real torch: the events of a tiny training, and that torch is restored when they are removed."""

import _thread
import contextlib
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, starmap
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.utils.data.dataloader as loader_module
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.guard import Guard
from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.steps.backward_clock import BackwardClock
from rankscope.agent.steps.early_events import RIVALS_MAX, SETTLED_STEPS
from rankscope.agent.steps.event_buffer import PART
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.step_timer import StepTimer
from rankscope.agent.steps.torch_hooks import TorchHooks, torch_version
from rankscope.measure.records import StepRecord

# Torch before 2.13 warns so at the first of its profilers in a process, with the default.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")

DEADLINE_S = 300.0
BATCHES = 5
EVENTS_PER_STEP = 6
"""Begin and end of the batch, of the backward and of the optimizer step."""


class Watched:
    """Hooks on torch, with their results."""

    def __init__(self, timer: StepTimer | None = None) -> None:
        self.records: list[StepRecord] = []
        self.user_profilers: list[bool] = []
        self.guard = Guard(error_budget=3)
        self.timer = timer or StepTimer(self.records.append)
        self.clock = BackwardClock()
        self.hooks = TorchHooks(self.timer, self.guard, self.user_profilers.append, backward_clock=self.clock)

    def finish(self) -> list[StepRecord]:
        self.timer.finish()
        assert self.guard.errors == {}
        return self.records


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    watched.hooks.install()
    yield watched
    watched.hooks.remove()


class Loop:
    """A model of one layer, its data and its optimizer."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = DataLoader(TensorDataset(torch.ones(2 * BATCHES, 4)), batch_size=2)

    def loss(self, batch: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.model(batch).square().mean()
        return loss

    def train(self) -> "Loop":
        for (batch,) in self.batches:
            self.loss(batch).backward()
            self.optimizer.step()
        return self

    def weights(self) -> list[float]:
        return self.model.weight.detach().flatten().tolist()


class BrokenTimer(StepTimer):
    """A timer whose events all fail."""

    def __init__(self) -> None:
        super().__init__(lambda _record: None)
        for event in ("data_begin", "backward_begin", "optimizer_begin", "optimizer_end"):
            setattr(self, event, self._fail)

    def _fail(self, *_: object, **__: object) -> None:
        raise KeyError("our own mistake")


def run_on_a_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


# -- what is seen -----------------------------------------------------------------------------------------------------


def test_every_batch_of_a_simple_loop_is_a_step(watched: Watched) -> None:
    Loop().train()
    assert watched.hooks.event_count == BATCHES * EVENTS_PER_STEP + 2  # and the fetch that ends the epoch
    records = watched.finish()
    assert [(record.batches, record.backwards) for record in records] == [(1, 1)] * BATCHES
    assert all(sum(record.phases_ns.values()) == record.duration_ns > 0 for record in records)


def test_cpu_time_in_backward_is_read_while_the_clock_says_so(watched: Watched) -> None:
    Loop().train()
    watched.clock.read_ns = iter(range(100, 1_000, 7)).__next__
    Loop().train()
    assert [record.backward_cpu_ns for record in watched.finish()] == [None] * BATCHES + [7] * BATCHES


def test_samples_of_every_step_are_read_from_its_batches(watched: Watched) -> None:
    Loop().train()
    assert [(record.samples, record.tokens) for record in watched.finish()] == [(2, None)] * BATCHES


def test_no_event_is_written_while_paused(watched: Watched) -> None:
    loop = Loop().train()
    seen = watched.hooks.event_count
    watched.hooks.pause()
    loop.train()
    assert watched.hooks.event_count == seen
    watched.hooks.resume()
    loop.train()
    assert len(watched.finish()) == 2 * BATCHES


def test_weights_are_the_same_with_and_without_hooks(watched: Watched) -> None:
    hooked = Loop().train().weights()
    watched.hooks.remove()
    assert Loop().train().weights() == hooked


def test_who_wants_to_know_is_told_before_each_optimizer_steps(watched: Watched) -> None:
    loop = Loop()
    seen: list[Tensor] = []
    watched.hooks.buffer.before_optimizer = lambda: seen.append(loop.model.weight.detach().clone())
    weights = []
    for (batch,) in loop.batches:
        weights.append(loop.model.weight.detach().clone())
        loop.loss(batch).backward()
        loop.optimizer.step()
    watched.finish()
    assert len(seen) == BATCHES
    assert all(torch.equal(one, other) for one, other in zip(seen, weights, strict=True))


def test_scaler_that_skips_the_optimizer_still_ends_a_step(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=2.0)
    before = loop.weights()
    for (batch,) in loop.batches:
        scaler.scale(loop.loss(batch) * float("inf")).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    assert loop.weights() == before, "inf must have kept the optimizer from stepping"
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_a_scaler_that_steps_is_counted_once(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=2.0)
    for (batch,) in loop.batches:
        scaler.scale(loop.loss(batch)).backward()
        scaler.step(loop.optimizer)
        scaler.update()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_a_closure_runs_its_backwards_inside_the_step(watched: Watched) -> None:
    loop = Loop()
    optimizer = torch.optim.LBFGS(loop.model.parameters(), max_iter=3)

    def closure(batch: Tensor) -> float:
        loss = loop.loss(batch)
        loss.backward()
        return loss.item()

    for (batch,) in loop.batches:
        optimizer.step(lambda batch=batch: closure(batch))
    records = watched.finish()
    assert [record.batches for record in records] == [1] * BATCHES
    assert all(record.backwards >= 1 and record.phases_ns["optimizer"] > 0 for record in records)


class SteppedInBackward(Loop):
    """Each parameter has its own optimizer, which a hook steps inside the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in self.model.parameters()}
        for parameter in self.optimizers:
            parameter.register_post_accumulate_grad_hook(lambda parameter: self.optimizers[parameter].step())


def test_optimizers_inside_a_backward_end_one_step(watched: Watched) -> None:
    loop = SteppedInBackward()
    for (batch,) in loop.batches:
        loop.loss(batch).backward()
    records = watched.finish()
    assert [(record.batches, record.backwards) for record in records] == [(1, 1)] * BATCHES
    assert [record.phases_ns["optimizer"] for record in records] == [0] * BATCHES
    assert all(record.phases_ns["backward"] > 0 for record in records)


def test_optimizers_inside_a_backward_need_no_loader(watched: Watched) -> None:
    loop = SteppedInBackward()
    for _ in range(50):
        loop.loss(torch.ones(2, 4)).backward()
    assert [record.backwards for record in watched.finish()] == [1] * 50


def test_hooks_on_a_thread_of_autograd_count_to_the_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread acts as autograd's, while the caller of backward waits, and is not the training thread."""
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)
    watched, loop = Watched(), Loop()
    watched.hooks.install()

    def step_elsewhere(_parameter: Tensor) -> None:
        run_on_a_thread(loop.optimizer.step)

    loop.model.bias.register_post_accumulate_grad_hook(step_elsewhere)
    for (batch,) in loop.batches:
        loop.loss(batch).backward()
    watched.hooks.remove()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_an_evaluation_is_no_step(watched: Watched) -> None:
    loop = Loop().train()
    with torch.no_grad():
        for (batch,) in loop.batches:
            loop.model(batch)
    assert len(watched.finish()) == BATCHES


def test_evaluation_with_no_grad_around_the_model_is_no_step(watched: Watched) -> None:
    loop = Loop().train()
    for (batch,) in loop.batches:
        with torch.no_grad():
            loop.model(batch)
    loop.train()
    assert [record.batches for record in watched.finish()] == [1] * (2 * BATCHES)


def compiled_optimizer(loop: Loop) -> Callable[[Tensor], None]:
    step = torch.compile(loop.optimizer.step, backend="eager")

    def train(batch: Tensor) -> None:
        loop.loss(batch).backward()
        step()

    return train


def compiled_step(loop: Loop) -> Callable[[Tensor], None]:
    def train(batch: Tensor) -> None:
        loop.loss(batch).backward()
        loop.optimizer.step()

    return torch.compile(train, backend="eager")


@pytest.mark.parametrize("compiled", [compiled_optimizer, compiled_step])
def test_compiled_step_is_counted_without_compiler_warnings(
    watched: Watched, compiled: Callable[[Loop], Callable[[Tensor], None]]
) -> None:
    loop = Loop()
    torch._dynamo.reset()  # it warns of each thing once
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train = compiled(loop)
        for (batch,) in loop.batches:
            train(batch)
    assert [str(warning.message) for warning in caught if "Dynamo" in str(warning.message)] == []
    assert [record.backwards for record in watched.finish()] == [1] * BATCHES


def test_first_compiled_step_of_a_thread_causes_no_warnings(watched: Watched) -> None:
    loop = Loop()
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train = compiled_step(loop)
        run_on_a_thread(lambda: [train(batch) for (batch,) in loop.batches])
    assert [str(warning.message) for warning in caught if "Dynamo" in str(warning.message)] == []
    assert [record.backwards for record in watched.finish()] == [1] * BATCHES


# -- which thread -----------------------------------------------------------------------------------------------------


def test_second_loop_at_the_same_time_is_noticed_not_measured(watched: Watched) -> None:
    loop, other = Loop(), Loop()
    for number, (batch,) in enumerate(loop.batches):
        loop.loss(batch).backward()
        if number == 1:
            run_on_a_thread(other.train)  # amid a step of this thread
        loop.optimizer.step()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES
    assert (watched.hooks.rival_steps, watched.hooks.thread_moves) == (RIVALS_MAX, 0)


def test_training_that_goes_on_on_another_thread_is_counted(watched: Watched) -> None:
    Loop().train()
    run_on_a_thread(Loop().train)
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * 2 * BATCHES


def test_steps_on_the_threads_of_a_pool_are_all_counted(watched: Watched) -> None:
    loop = Loop()

    def learn() -> None:
        loop.loss(torch.ones(2, 4)).backward()
        loop.optimizer.step()

    with contextlib.ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(3)]
        for _ in range(4):
            for thread in threads:
                thread.submit(learn).result(DEADLINE_S)
    # From the main thread to the first, which is no move, and from there to 11 others.
    assert (watched.hooks.thread_moves, watched.hooks.rival_steps) == (11, 0)
    assert [record.backwards for record in watched.finish()] == [1] * 12


def test_epochs_on_threads_of_their_own_are_no_moves_in_a_row(watched: Watched) -> None:
    loop = Loop()

    def learn() -> None:
        loop.loss(torch.ones(2, 4)).backward()
        loop.optimizer.step()

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for thread in (first, second, first, second):
            for _ in range(SETTLED_STEPS + 1):
                thread.submit(learn).result(DEADLINE_S)
    assert watched.hooks.thread_moves == 1
    assert [record.backwards for record in watched.finish()] == [1] * 4 * (SETTLED_STEPS + 1)


def test_steps_of_backward_hooks_on_changing_threads_are_counted(watched: Watched) -> None:
    loop = Loop()
    loop.model.bias.requires_grad_(False)  # one hook a backward
    loop.model.weight.register_post_accumulate_grad_hook(lambda _parameter: loop.optimizer.step())
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        for _ in range(4):
            for thread in (first, second):
                thread.submit(lambda: loop.loss(torch.ones(2, 4)).backward()).result(DEADLINE_S)
    assert [record.backwards for record in watched.finish()] == [1] * 8


def test_backwards_of_two_threads_before_a_step_may_overlap(watched: Watched) -> None:
    is_begun, may_end = threading.Event(), threading.Event()

    def wait_inside(_gradient: Tensor) -> None:
        is_begun.set()
        assert may_end.wait(DEADLINE_S)

    def begin_other(_gradient: Tensor) -> None:
        other.start()
        assert is_begun.wait(DEADLINE_S)

    other = threading.Thread(target=lambda: run_backward_with(wait_inside))
    run_backward_with(begin_other)
    may_end.set()
    other.join(DEADLINE_S)
    Loop().train()
    assert len(watched.finish()) == BATCHES


def run_backward_with(hook: Callable[[Tensor], None]) -> None:
    """Run a backward that calls a hook."""
    x = torch.ones(1, requires_grad=True)
    x.register_hook(hook)
    x.sum().backward()


def test_training_on_another_thread_counts_from_its_first_step(watched: Watched) -> None:
    run_on_a_thread(Loop().train)
    records = watched.finish()
    assert [(record.batches, record.backwards, record.samples) for record in records] == [(1, 1, 2)] * BATCHES
    assert all(sum(record.phases_ns.values()) == record.duration_ns > 0 for record in records)
    assert all(record.phases_ns["backward"] > 0 for record in records)


def test_first_step_on_another_thread_has_all_its_micro_batches(watched: Watched) -> None:
    loop = Loop()

    def accumulate() -> None:
        for (batch,) in loop.batches:
            loop.loss(batch).backward()
        loop.optimizer.step()

    run_on_a_thread(accumulate)
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(BATCHES, BATCHES)]


def test_batches_that_another_thread_prefetches_count_to_no_step(watched: Watched) -> None:
    loop = Loop()
    fetched: list[Any] = []
    run_on_a_thread(lambda: fetched.extend(loop.batches))
    for (batch,) in fetched:
        loop.loss(batch).backward()
        loop.optimizer.step()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(0, 1)] * BATCHES


def test_backward_elsewhere_before_training_counts_to_no_step(watched: Watched) -> None:
    loop = Loop()
    run_on_a_thread(lambda: loop.loss(torch.ones(2, 4)).backward())
    loop.train()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_optimizer_stepped_by_hooks_on_another_thread_ends_steps(watched: Watched) -> None:
    loop = Loop()
    loop.model.bias.requires_grad_(False)  # one hook a backward
    loop.model.weight.register_post_accumulate_grad_hook(lambda _parameter: loop.optimizer.step())

    def train() -> None:
        for (batch,) in loop.batches:
            loop.loss(batch).backward()

    run_on_a_thread(train)
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_error_in_a_backward_of_another_thread_passes_through(watched: Watched) -> None:
    errors: list[str] = []

    def fail() -> None:
        try:
            torch.zeros(1).backward()
        except RuntimeError as error:
            errors.append(str(error))

    run_on_a_thread(fail)
    assert "does not require grad" in errors[0]
    Loop().train()
    assert len(watched.finish()) == BATCHES


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_of_the_hooks_are_counted_and_not_raised() -> None:
    watched = Watched(BrokenTimer())
    watched.hooks.install()
    try:
        weights = Loop().train().weights()
    finally:
        watched.hooks.remove()
    assert watched.guard.errors == {PART: 3}, "the budget, after which the part is off"
    assert weights == Loop().train().weights()


def test_an_error_of_the_script_passes_through_unchanged(watched: Watched) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.zeros(1).backward()
    assert watched.hooks.event_count == 2
    Loop().train()
    assert len(watched.finish()) == BATCHES


# -- the user's profiler ----------------------------------------------------------------------------------------------

CPU = [torch.profiler.ProfilerActivity.CPU]


def test_users_profiler_begin_and_end_are_notified(watched: Watched) -> None:
    with torch.profiler.profile(activities=CPU):
        assert watched.user_profilers == [True]
    assert watched.user_profilers == [True, False]


def test_a_profiler_that_is_warming_up_has_begun(watched: Watched) -> None:
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1)
    notified = []
    with torch.profiler.profile(activities=CPU, schedule=schedule) as profile:
        for _ in range(3):
            notified.append(list(watched.user_profilers))
            profile.step()
    assert notified == [[], [True], [True]]
    assert watched.user_profilers == [True, False]


def test_a_profiler_that_is_not_enabled_is_none(watched: Watched) -> None:
    with torch.autograd.profiler.profile(enabled=False):
        torch.ones(1)
    assert watched.user_profilers == []


def test_the_users_trace_is_whole_when_ours_is_stopped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    ours = TorchProfiler.find()
    hooks = TorchHooks(StepTimer(lambda _: None), Guard(3), lambda begins: ours.stop() if begins else None)
    hooks.install()
    try:
        ours.start(full=True)
        with torch.profiler.profile(activities=CPU) as profile:
            torch.ones(3) + 1
    finally:
        hooks.remove()
    assert "aten::add" in {event.name for event in profile.events() or ()}


def test_user_annotations_begin_where_a_session_of_ours_was_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    ours = TorchProfiler.find()
    hooks = TorchHooks(StepTimer(lambda _: None), Guard(3), lambda begins: ours.stop() if begins else None)
    hooks.install()
    try:
        for host_only in (False, True):
            ours.start(full=True, host_only=host_only)
            with torch.autograd.profiler.emit_itt():  # as emit_nvtx, which needs a GPU
                assert ours.is_busy()
            assert not ours.is_busy()
    finally:
        hooks.remove()


def test_user_annotations_without_a_session_notify_nobody(watched: Watched) -> None:
    with torch.autograd.profiler.emit_itt():
        torch.ones(1)
    assert watched.user_profilers == []


def test_error_in_the_callback_does_not_reach_the_users_profiler() -> None:
    guard = Guard(error_budget=10)

    def fail(_begins: bool) -> None:
        raise KeyError("our own mistake")

    hooks = TorchHooks(StepTimer(lambda _: None), guard, fail)
    hooks.install()
    try:
        with torch.profiler.profile(activities=CPU):
            torch.ones(3)
    finally:
        hooks.remove()
    assert guard.errors == {PART: 2}


# -- gradients that the script takes itself ---------------------------------------------------------------------------


def take_gradients(loop: Loop, loss: Tensor) -> None:
    """Train by torch.autograd.grad."""
    weights = list(loop.model.parameters())
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    loop.optimizer.step()


def take_functional_gradients(loop: Loop, loss: Tensor) -> None:
    """Train by torch.func, which keeps the graph of each gradient."""
    weights: dict[str, Tensor] = dict(loop.model.named_parameters())

    def find_loss(weights: dict[str, Tensor]) -> Tensor:
        output: Tensor = torch.func.functional_call(loop.model, weights, (torch.ones(2, 4),))
        return output.square().mean() + 0 * loss.detach()

    for name, gradient in torch.func.grad(find_loss)(weights).items():
        weights[name].grad = gradient.detach()
    loop.optimizer.step()


def call_engine(loop: Loop, loss: Tensor) -> None:
    """Train by autograd's engine, as Megatron's pipelines do."""
    variable: Any = torch.autograd.Variable
    variable._execution_engine.run_backward(
        tensors=(loss,), grad_tensors=(torch.ones_like(loss),), keep_graph=False, create_graph=False, inputs=(),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip
    loop.optimizer.step()


@pytest.mark.parametrize("train", [take_gradients, take_functional_gradients, call_engine])
def test_steps_without_loss_backward_are_counted(watched: Watched, train: Callable[[Loop, Tensor], None]) -> None:
    loop = Loop()
    for _ in range(BATCHES):  # no loader: only the gradients show that a step was trained
        train(loop, loop.loss(torch.ones(2, 4)))
    records = watched.finish()
    assert len(records) == BATCHES
    assert [(one.backwards, one.phases_ns["backward"] > 0) for one in records[1:]] == [(1, True)] * (BATCHES - 1)


def test_gradient_penalty_is_part_of_the_forward(watched: Watched) -> None:
    loop = Loop()
    for (batch,) in loop.batches:
        batch.requires_grad_()
        (gradient,) = torch.autograd.grad(loop.model(batch).sum(), batch, create_graph=True)
        (loop.loss(batch) + gradient.square().mean()).backward()
        loop.optimizer.step()
    assert [(record.batches, record.backwards) for record in watched.finish()] == [(1, 1)] * BATCHES


def test_gradients_inside_a_backward_write_nothing(watched: Watched) -> None:
    loop = Loop()
    weight = torch.ones(3, requires_grad=True)

    class Own(torch.autograd.Function):
        """Takes gradients in its backward, with gradients on."""

        @staticmethod
        def forward(_: Any, features: Tensor) -> Tensor:
            return features.clone()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            with torch.enable_grad():
                torch.autograd.grad(weight.square().sum(), weight)
            return gradient

    for (batch,) in loop.batches:
        applied: Tensor = Own.apply(loop.loss(batch))  # type: ignore[no-untyped-call]  # of torch
        applied.backward()
        loop.optimizer.step()
    assert watched.hooks.event_count == BATCHES * EVENTS_PER_STEP + 2
    assert [record.backwards for record in watched.finish()] == [1] * BATCHES


def test_gradients_are_the_same_and_errors_are_torchs(watched: Watched) -> None:
    weight = torch.full((3,), 2.0, requires_grad=True)
    assert torch.equal(torch.autograd.grad(weight.square().sum(), weight)[0], torch.full((3,), 4.0))
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(torch.ones(1), weight)
    assert watched.guard.errors == {}


@pytest.mark.usefixtures("watched")
def test_warning_of_a_backward_is_torchs() -> None:
    """A script's filters go by the module; one with `error` and an exception for torch would end by ours."""
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error")
            warnings.filterwarnings("ignore", module=r"torch\.autograd")
            torch.ones(3, requires_grad=True).sum().backward(create_graph=True)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            torch.ones(3, requires_grad=True).sum().backward(create_graph=True)
    finally:
        torch.set_warn_always(False)
    assert [one.filename for one in heard] == [torch.autograd.graph.__file__]


def test_engine_of_another_tool_is_called_and_its_backward_counted_once(watched: Watched) -> None:
    variable: Any = torch.autograd.Variable
    ours, calls = variable._execution_engine, list[object]()

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return run_ours(*args, **kwargs)

    run_ours = ours.run_backward
    variable._execution_engine = SimpleNamespace(run_backward=run_backward, queue_callback=ours.queue_callback)
    try:
        Loop().train()
    finally:
        variable._execution_engine = ours
    records = watched.finish()
    assert len(calls) == len(records) == BATCHES
    assert [record.backwards for record in records] == [1] * BATCHES


def test_engine_of_torch_stays_one_for_the_compiler(watched: Watched) -> None:
    variable: Any = torch.autograd.Variable
    assert isinstance(variable._execution_engine, torch._C._ImperativeEngine)
    assert variable._execution_engine.is_checkpoint_valid()
    assert watched.hooks.event_count == 0


# -- gone without a trace ---------------------------------------------------------------------------------------------


def state_of_torch() -> list[Any]:
    """Return everything that the hooks patch, as it is now."""
    profile = torch.autograd.profiler.profile
    autograd: Any = torch.autograd
    return [
        autograd.Variable._execution_engine,
        autograd._engine_run_backward,
        autograd.graph._engine_run_backward,
        autograd.graph.Variable,
        loader_module._BaseDataLoaderIter.__dict__["__next__"],
        torch.amp.GradScaler.__dict__["step"],
        profile.__dict__["_prepare_trace"],
        profile.__dict__["__exit__"],
        torch.autograd.profiler.emit_nvtx.__dict__["__enter__"],
        torch.autograd.profiler.emit_itt.__dict__["__enter__"],
        torch.cuda.CUDAGraph.__dict__["capture_begin"],
        torch.cuda.CUDAGraph.__dict__["capture_end"],
        dict(optimizers._global_optimizer_pre_hooks),
        dict(optimizers._global_optimizer_post_hooks),
    ]


def test_removed_hooks_leave_torch_exactly_as_it_was() -> None:
    before = state_of_torch()
    watched = Watched()
    watched.hooks.install()
    hooked = state_of_torch()
    watched.hooks.remove()
    watched.hooks.remove()
    assert all(one is not other and one != other for one, other in zip(before, hooked, strict=True))
    assert state_of_torch() == before


def state_of_ranges() -> list[Any]:
    """Return the enter and exit functions of ranges."""
    record_function = torch.autograd.profiler.record_function
    return [record_function.__dict__["__enter__"], record_function.__dict__["__exit__"]]


def test_ranges_are_wrapped_only_while_a_profiler_is_on() -> None:
    before, ranges = state_of_ranges(), OpenRanges()
    hooks = TorchHooks(StepTimer(lambda _: None), Guard(1), lambda _begins: None, ranges)
    hooks.install()
    try:
        assert state_of_ranges() == before
        ranges.on_session_begin()
        assert all(one is not other for one, other in zip(before, state_of_ranges(), strict=True))
        ranges.on_session_end()
        assert state_of_ranges() == before
        ranges.on_session_begin()
    finally:
        hooks.remove()
    assert state_of_ranges() == before


def test_incomplete_torch_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_of_torch()[:6]
    with monkeypatch.context() as patch:
        patch.delattr(torch.autograd.profiler.profile, "_prepare_trace")
        with pytest.raises(AttributeError, match="_prepare_trace"):
            Watched().hooks.install()
    assert state_of_torch()[:6] == before
    assert state_of_torch()[-2:] == [{}, {}]


def test_hook_wrapped_by_another_tool_stays_and_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    variable: Any = torch.autograd.Variable
    original = variable._execution_engine
    watched = Watched()
    watched.hooks.install()
    theirs = SimpleNamespace(run_backward=variable._execution_engine.run_backward)
    variable._execution_engine = theirs
    try:
        watched.hooks.remove()
        assert variable._execution_engine is theirs
        Loop().train()
    finally:
        monkeypatch.undo()
        variable._execution_engine = original
    assert (watched.hooks.event_count, watched.finish()) == (0, [])


def test_the_version_is_that_of_the_torch_in_use() -> None:
    assert torch_version() == torch.__version__


@pytest.mark.usefixtures("watched")
def test_steps_without_a_caller_in_python_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # As of a program in C++ that embeds Python, or a thread that begins with the step itself.
    loop, ended = Loop(), list[object]()
    monkeypatch.setattr(sys, "unraisablehook", ended.append)
    loop.optimizer.register_step_post_hook(lambda *_arguments: ended.append("stepped"))
    loop.loss(torch.ones(2, 4)).backward()
    over = threading.Event()
    calls = chain(starmap(loop.optimizer.step, [()] * 4), starmap(over.set, [()]))
    _thread.start_new_thread(deque, (calls, 0))
    over.wait(2.0)  # an error ends the thread before
    assert ended == ["stepped"] * 4
