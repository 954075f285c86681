"""Tails of backwards of a real autograd, on the stand-in for CUDA: one tick of its clock is one nanosecond."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from rankscope.agent.steps.autograd_callbacks import may_be_compiled
from rankscope.agent.steps.backward_tails import PART, BackwardTails, Tail
from rankscope.measure.records import StepRecord
from tests.cuda_stand_in import Stream
from tests.cuda_stand_in.suite import FIRST_ANNOUNCED
from tests.cuda_stand_in.training import BACKWARD_NS, BATCHES, FORWARD_NS, Training

WAIT_NS = 2_000_000
"""What the stream waits for communication at the end of a backward."""
SLACK_NS = 1_000
TIMED = BATCHES - FIRST_ANNOUNCED


def queue(callback: Any) -> None:
    engine: Any = torch.autograd.Variable
    engine._execution_engine.queue_callback(callback)


class PeerTraining(Training):
    """A training with peers, whose stream waits for them at the end of backward, as DDP lets it."""

    def __init__(self, *, has_peers: bool = True) -> None:
        torch.manual_seed(0)
        super().__init__(has_peers=has_peers)
        self.stop_waiting = self.model.bias.register_hook(lambda _gradient: queue(self.wait_for_peers)).remove

    def wait_for_peers(self) -> None:
        self.cuda.work(WAIT_NS)

    @property
    def tails(self) -> BackwardTails:
        return self.timers.tails


@pytest.fixture
def training() -> Iterator[PeerTraining]:
    training = PeerTraining()
    training.hooks.install()
    yield training
    training.hooks.remove()


class EngineWithoutCallbacks:
    """An engine of another torch, which runs a backward and has no function for callbacks."""

    def __init__(self) -> None:
        engine: Any = torch.autograd.Variable
        self.run_backward = engine._execution_engine.run_backward


class RefusingEngine(EngineWithoutCallbacks):
    """An engine that takes no callbacks."""

    def queue_callback(self, _callback: object) -> None:
        raise RuntimeError("Final callbacks can only be installed during backward pass.")


def find_tails(records: list[StepRecord]) -> list[int | None]:
    return [record.device_tail_ns for record in records]


def has_no_tail(training: PeerTraining, records: list[StepRecord], reason: str) -> bool:
    """Return whether all steps are timed, none of them has a tail, and that is why."""
    assert [record.step for record in records if record.device_phases_ns is None] == list(range(FIRST_ANNOUNCED))
    return find_tails(records) == [None] * BATCHES and training.tails.skipped == {reason: TIMED}


# -- what a tail is ---------------------------------------------------------------------------------------------------


def test_tail_is_the_wait_after_the_backwards_own_work(training: PeerTraining) -> None:
    records = training.train()
    assert find_tails(records)[:FIRST_ANNOUNCED] == [None] * FIRST_ANNOUNCED
    for record in records[FIRST_ANNOUNCED:]:
        assert record.device_phases_ns is not None
        assert record.device_tail_ns is not None
        assert record.device_tail_ns == pytest.approx(WAIT_NS, abs=SLACK_NS)
        own_ns = sum(record.device_phases_ns.values()) - record.device_tail_ns
        assert own_ns == pytest.approx(FORWARD_NS + BACKWARD_NS, abs=SLACK_NS)
    assert (training.tails.skipped, training.guard.errors) == ({}, {})


def test_tail_of_a_step_is_the_sum_over_its_backwards(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        for part in batch.split(1):
            training.model(part).square().mean().backward()
        training.optimizer.step()

    tails = find_tails(training.train(step))
    assert tails[FIRST_ANNOUNCED:] == pytest.approx([2 * WAIT_NS] * TIMED, abs=SLACK_NS)


def test_named_losses_have_a_tail(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        losses = [training.model(batch).square().mean(), training.model(batch).mean()]
        torch.autograd.backward(tensors=losses)
        training.optimizer.step()

    tails = find_tails(training.train(step))
    assert None not in tails[FIRST_ANNOUNCED:]


def test_backward_inside_a_backward_is_part_of_it(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        hidden = checkpoint(nn.Identity(), training.model(batch), use_reentrant=True)
        hidden.square().mean().backward()
        training.optimizer.step()

    tails = find_tails(training.train(step))
    assert tails[FIRST_ANNOUNCED:] == pytest.approx([WAIT_NS] * TIMED, abs=SLACK_NS)


# -- where there is none ----------------------------------------------------------------------------------------------


def test_process_without_peers_gets_no_hook() -> None:
    training = PeerTraining(has_peers=False)
    training.hooks.install()
    try:
        records = training.train()
    finally:
        training.hooks.remove()
    assert (find_tails(records), training.tails.skipped) == ([None] * BATCHES, {})


def test_steps_that_are_not_timed_get_no_hook(training: PeerTraining) -> None:
    training.timers.plan.interval_steps = 64
    tails = find_tails(training.train())
    assert [step for step, tail_ns in enumerate(tails) if tail_ns is not None] == [FIRST_ANNOUNCED]
    assert training.tails.skipped == {}


def test_torch_without_the_private_functions_has_no_tails(
    training: PeerTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    training.stop_waiting()
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", EngineWithoutCallbacks())
    assert has_no_tail(training, training.train(), "unsupported")


def test_compiled_autograd_gets_no_hook(training: PeerTraining, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import compiled_autograd  # noqa: PLC0415 - it takes seconds

    assert not may_be_compiled()
    monkeypatch.setattr(compiled_autograd, "compiled_autograd_enabled", True)
    assert has_no_tail(training, training.train(), "compiled_autograd")


def test_autograd_is_not_compiled_before_the_compiler_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.compiled_autograd", raising=False)
    assert not may_be_compiled()


def test_traced_backward_gets_no_hook(training: PeerTraining) -> None:
    class Tracer(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    def step(batch: Tensor) -> None:
        with Tracer():  # type: ignore[no-untyped-call] # torch's __init__ has no types
            training.step(batch)

    assert has_no_tail(training, training.train(step), "traced")


def test_loss_without_a_node_has_no_tail(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        torch.ones((), requires_grad=True).backward()
        training.step(batch)

    assert has_no_tail(training, training.train(step), "no_node")


def test_backward_whose_callback_never_came_has_no_tail(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        loss = training.model(batch).square().mean()
        loss.register_hook(refuse)
        with pytest.raises(ValueError, match="the script's own"):
            loss.backward()
        training.optimizer.step()

    def refuse(_gradient: Tensor) -> None:
        raise ValueError("the script's own")

    records = training.train(step)
    assert has_no_tail(training, records, "not_called")
    assert training.guard.errors == {}


def test_own_work_that_ends_in_another_stream_has_no_tail(training: PeerTraining) -> None:
    usual, other = training.cuda.stream, Stream()

    def change(_gradient: Tensor) -> None:
        training.cuda.stream = other
        queue(change_back)

    def change_back() -> None:
        training.cuda.stream = usual

    training.model.weight.register_hook(change)
    assert has_no_tail(training, training.train(), "stream_changed")


def test_capture_that_begins_in_a_backward_leaves_no_tail(training: PeerTraining) -> None:
    captures = training.captures
    training.model.weight.register_hook(lambda _gradient: captures.wrap_begin(lambda: None)())
    training.model.bias.register_hook(lambda _gradient: queue(captures.wrap_end(lambda: None)))
    assert has_no_tail(training, training.train(), "capture")


def test_step_that_is_captured_gets_no_hook(training: PeerTraining) -> None:
    tails = training.tails
    tails.begin_step(training.cuda.stream)
    with_capture = training.captures.wrap_begin(lambda: None)
    with_capture()
    tail = tails.begin((torch.ones((), requires_grad=True).sin(),), {})
    assert (tail.obstacle, tail.handle) == ("capture", None)


def test_events_of_tails_are_used_again(training: PeerTraining) -> None:
    def step(batch: Tensor) -> None:
        training.cuda.now_ns = max(training.cuda.now_ns, training.cuda.stream.busy_until_ns)
        training.step(batch)

    tails = find_tails(training.train(step))
    assert None not in tails[FIRST_ANNOUNCED:]
    # A step has an event where it begins, one after its boundary, five within it, one where the next begins, and the
    # tail's; two steps are under way at a time.
    assert training.cuda.made <= 2 * (8 + 1)


# -- nothing reaches the training -------------------------------------------------------------------------------------


def test_engine_refusing_callbacks_ends_tails_and_nothing_else(
    training: PeerTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training.stop_waiting()
    monkeypatch.setattr(torch.autograd.Variable, "_execution_engine", RefusingEngine())
    records = training.train()
    assert find_tails(records) == [None] * BATCHES
    assert all(record.device_phases_ns is not None for record in records[FIRST_ANNOUNCED:])
    assert (training.tails.skipped, training.guard.errors) == ({"error": 1}, {PART: 1})
    assert "training is not affected" in capsys.readouterr().err


def test_unknown_groups_end_tails_and_nothing_else(training: PeerTraining) -> None:
    def fail() -> bool:
        raise RuntimeError("no such group")

    training.tails._has_peers = fail
    records = training.train()
    assert all(record.device_phases_ns is not None for record in records[FIRST_ANNOUNCED:])
    assert (find_tails(records), training.guard.errors) == ([None] * BATCHES, {PART: 1})


def test_cuda_error_in_the_callback_ends_all_calls_of_cuda(training: PeerTraining) -> None:
    def fail(_gradient: Tensor) -> None:
        training.cuda.failure = RuntimeError("CUDA error: unspecified launch failure")

    training.model.weight.register_hook(fail)
    records = training.train()
    assert [record.step for record in records] == list(range(BATCHES))
    assert [record.device_phases_ns for record in records] == [None] * BATCHES
    assert training.guard.errors == {"device_times": 1}


def test_callback_that_comes_late_does_nothing(training: PeerTraining) -> None:
    tails = training.tails
    tails.begin_step(training.cuda.stream)
    tail = tails.begin((torch.ones((), requires_grad=True).sin(),), {})
    tails.end(tail, 5)
    recorded = training.cuda.recorded
    tails.on_first_node(tail, ())
    tails.on_last_node(tail)
    assert (training.cuda.recorded, tail.is_marked, tail.obstacle) == (recorded, False, "not_called")


def test_tail_that_cannot_be_watched_leaves_the_backward_alone(training: PeerTraining) -> None:
    class Refusing(torch.Tensor):
        """A loss whose node cannot be asked for."""

        @property
        def grad_fn(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no graph")

    tails = training.tails
    tails.begin_step(training.cuda.stream)
    tail = tails.begin((Refusing(),), {})
    tails.end(tail, 5)
    assert (tail.obstacle, training.guard.errors) == ("error", {PART: 1})


def test_handle_that_cannot_be_removed_is_an_error_of_ours(training: PeerTraining) -> None:
    tails = training.tails
    tails.end(Tail(handle=object(), costs_ns=[0]), 5)
    assert training.guard.errors == {PART: 1}


def test_weights_are_the_same_with_tails(training: PeerTraining) -> None:
    training.train()
    assert training.tails.skipped == {}
    without = PeerTraining()
    without.train()
    pairs = zip(training.model.parameters(), without.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("whole", [False, True])
def test_compiled_step_has_a_tail_and_the_compiler_does_not_warn(training: PeerTraining, *, whole: bool) -> None:
    forward = torch.compile(lambda batch: training.model(batch).square().mean(), backend="eager")

    def step(batch: Tensor) -> None:
        forward(batch).backward()
        training.optimizer.step()

    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        records = training.train(torch.compile(training.step, backend="eager") if whole else step)
    assert [str(warning.message) for warning in caught if "Dynamo" in str(warning.message)] == []
    assert find_tails(records)[FIRST_ANNOUNCED:] == pytest.approx([WAIT_NS] * TIMED, abs=SLACK_NS)
