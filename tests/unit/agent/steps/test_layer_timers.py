"""LayerTimers: forward and backward of real modules and a real autograd, by a clock that their work moves."""

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.fx
import torch.jit._recursive
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rankscope.agent.guard import Guard
from rankscope.agent.steps.autograd_callbacks import find_node
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.layer_timers import HOOKS_GUARDED, UNSEEN, LayerTimers, _Hook
from rankscope.agent.steps.module_containers import find_containers
from rankscope.agent.steps.repeated_blocks import choose_blocks
from rankscope.measure.records import LayerTimes
from tests.cuda_stand_in import StandInCuda, Stream
from tests.cuda_stand_in.suite import FixedPlan

FORWARD_NS, BACKWARD_NS = 1_000_000, 3_000_000
BLOCKS, WIDTH = 6, 4
SLOW = 4
"""The block that takes twice as long."""


class Clock:
    """Time that only work moves: of the host, or of the pretended device."""

    def __init__(self, cuda: StandInCuda | None = None) -> None:
        self.now_ns = self.held_bytes = 0
        self.cuda = cuda

    def work(self, duration_ns: int) -> None:
        if self.cuda is None:
            self.now_ns += duration_ns
        else:
            self.cuda.work(duration_ns)
            self.held_bytes += duration_ns // 1000


class Work(torch.autograd.Function):
    """Takes time in both directions, and changes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, times: int) -> Tensor:
        ctx.clock, ctx.times = clock, times
        clock.work(times * FORWARD_NS)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.clock.work(ctx.times * BACKWARD_NS)
        return gradients[0], None, None


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class Block(nn.Module):
    def __init__(self, clock: Clock | None, times: int = 1) -> None:
        super().__init__()
        self.clock, self.times, self.inner = clock, times, Inner()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if self.clock is not None:
            x = Work.apply(x, self.clock, self.times)  # type: ignore[no-untyped-call]
        moved: Tensor = x + scale * self.inner.linear(x)
        return moved


class Model(nn.Module):
    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Block(clock, 2 if number == SLOW else 1) for number in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


made: list[LayerTimers] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """What is left of the watch for copies would keep the models of a test."""
    yield
    while made:
        made.pop().close()


class Training:
    """A training with the timers, as the agent has them."""

    def __init__(self, model: nn.Module, clock: Clock, cuda: StandInCuda | None = None, **options: Any) -> None:
        self.model, self.clock = model, clock
        self.guard = Guard(error_budget=3)
        self.in_backward = False
        mine = set(map(id, model.modules()))  # models of earlier tests may still be there
        found = choose_blocks([one for one in find_containers() if id(one) in mine])
        assert found is not None
        self.timers = LayerTimers(
            found,
            FixedPlan(1, warmup_steps=0),
            self.guard,
            is_in_backward=lambda: self.in_backward,
            cuda=cuda,
            read_clock_ns=(lambda: clock.now_ns) if cuda is None else cuda.read_clock_ns,
            **options,
        )
        made.append(self.timers)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.step_number = 0
        self.losses: list[float] = []

    def step(self, call: Callable[[Tensor], Tensor] | None = None, rows: int = 2, calls: int = 1) -> None:
        torch.manual_seed(self.step_number)
        self.timers.on_boundary(self.step_number)
        self.step_number += 1
        loss = torch.zeros(())
        for _ in range(calls):
            loss = (self.model if call is None else call)(torch.randn(rows, WIDTH)).square().mean()
            self.in_backward = True
            loss.backward()
            self.in_backward = False
        self.timers.before_optimizer()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())

    def train(self, steps: int = 5, **options: Any) -> LayerTimes | None:
        for _ in range(steps):
            self.step(**options)
        self.timers.on_boundary(self.step_number)
        self.timers.close()
        assert self.guard.errors == {}
        return self.timers.take(is_last=True)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def hooks_of(model: nn.Module) -> int:
    modules = list(model.modules())
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in modules)


def times_of(found: LayerTimes | None) -> tuple[list[int | None], list[int | None]]:
    assert found is not None
    return list(found.columns[0]), list(found.columns[1])


EXPECTED_FORWARD = [FORWARD_NS * (2 if number == SLOW else 1) for number in range(BLOCKS)]
EXPECTED_BACKWARD = [BACKWARD_NS * (2 if number == SLOW else 1) for number in range(BLOCKS)]


def test_each_block_has_the_times_of_its_own_work() -> None:
    clock = Clock()
    found = Training(Model(clock), clock).train(steps=5)
    assert times_of(found) == (EXPECTED_FORWARD, EXPECTED_BACKWARD)
    assert found is not None
    assert (found.kind, found.first, found.samples, found.calls) == ("Block", 0, 5, 1)
    assert found.last_step == 4
    _, _, low, high, held = found.columns
    assert low == high == tuple(map(sum, zip(EXPECTED_FORWARD, EXPECTED_BACKWARD, strict=True)))
    assert held == (None,) * BLOCKS


def test_losses_are_those_without_timers_to_the_bit() -> None:
    torch.manual_seed(1)
    clock = Clock()
    model = Model(clock)
    plain = copy.deepcopy(model)
    timed = Training(model, clock)
    timed.train(steps=6)
    optimizer, losses = torch.optim.SGD(plain.parameters(), lr=0.1), []
    for step in range(6):
        torch.manual_seed(step)
        loss = plain(torch.randn(2, WIDTH)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert timed.losses == losses


def test_hooks_are_gone_at_optimizer_steps_and_in_untimed_steps() -> None:
    clock = Clock()
    training = Training(Model(clock), clock)
    training.timers.on_boundary(0)
    assert hooks_of(training.model) == 2 * BLOCKS
    training.timers.before_optimizer()
    assert hooks_of(training.model) == 0
    training.timers.on_boundary(1)
    training.timers.on_pause()
    assert hooks_of(training.model) == 0


def script(model: nn.Module) -> nn.Module:
    torch.jit.script(model)
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()  # it keeps the model
    return model


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "copied": copy.deepcopy, "pickled": lambda model: pickle.loads(pickle.dumps(model)), "scripted": script,  # noqa: S301
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("how", COPIES)
def test_model_copied_amid_a_timed_step_has_no_hooks(how: str) -> None:
    clock = Clock()
    training = Training(
        nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS))), clock
    )
    own = nn.Module.__getstate__
    training.timers.on_boundary(0)
    assert hooks_of(training.model) == 2 * BLOCKS
    assert b"rankscope" not in pickle.dumps(training.model) if how == "pickled" else True
    assert hooks_of(COPIES[how](training.model)) == 0
    training.timers.before_optimizer()
    training.timers.on_boundary(1)
    assert hooks_of(training.model) == 2 * BLOCKS, "the next step is timed"
    training.timers.close()
    assert nn.Module.__getstate__ is own
    assert training.timers.skipped == {"copied": 1}
    assert training.guard.errors == {}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_model_scripted_amid_a_timed_step_has_the_type_it_has_else() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)))
    training = Training(model, Clock())
    before = torch.jit.script(model)
    training.timers.on_boundary(0)
    assert hooks_of(model) == 2 * BLOCKS
    assert str(torch.jit.script(model)._c._type()) == str(before._c._type())
    training.timers.close()
    torch.jit._recursive.concrete_type_store = torch.jit._recursive.ConcreteTypeStore()  # it keeps the model


def test_class_of_all_modules_is_not_changed_with_each_timed_step() -> None:
    training = Training(Model(None), Clock())
    own, seen = nn.Module.__getstate__, set()
    for step in range(3):
        training.timers.on_boundary(step)
        assert hooks_of(training.model) == 2 * BLOCKS
        seen.add(nn.Module.__getstate__)
        training.timers.before_optimizer()
        seen.add(nn.Module.__getstate__)
    training.timers.on_pause()
    assert seen == {nn.Module.__getstate__}
    training.timers.close()
    assert nn.Module.__getstate__ is own


def test_saved_hook_is_of_use_without_this_package() -> None:
    hook = _Hook(lambda *_arguments: None, 0)
    assert b"rankscope" not in pickle.dumps(hook)
    assert pickle.loads(pickle.dumps(hook))(nn.Identity(), (), {}, None) is None  # noqa: S301


class Answering:
    """What has any attribute, and counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return self


def test_only_tensors_are_asked_for_their_node() -> None:
    other, tensor = Answering(), torch.ones(2, requires_grad=True) * 2
    assert find_node((other, [other, tensor])) is tensor.grad_fn
    assert other.asked == []


def test_graph_of_a_model_traced_amid_a_timed_step_is_the_same() -> None:
    training = Training(Model(None), Clock())
    before = str(torch.fx.symbolic_trace(training.model).graph)
    training.timers.on_boundary(0)
    assert str(torch.fx.symbolic_trace(training.model).graph) == before
    training.timers.close()


def test_times_are_of_a_call_and_further_calls_are_counted() -> None:
    clock = Clock()
    found = Training(Model(clock), clock).train(steps=4, calls=6)
    assert times_of(found) == (EXPECTED_FORWARD, EXPECTED_BACKWARD)
    assert found is not None
    assert found.calls == 6


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_repeated_forward_of_a_checkpoint_is_in_the_backward(use_reentrant: bool) -> None:
    clock = Clock()
    model = Model(clock)

    def call(x: Tensor) -> Tensor:
        x = model.embed(x)
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=use_reentrant)
        return x

    found = Training(model, clock).train(steps=4, call=call)
    forward, backward = times_of(found)
    assert forward == EXPECTED_FORWARD
    # A reentrant one runs the block without a graph of its own: its output has no node to be watched.
    both = [one + two for one, two in zip(EXPECTED_FORWARD, EXPECTED_BACKWARD, strict=True)]
    assert backward == ([None] * BLOCKS if use_reentrant else both)


def test_copy_of_the_model_that_does_not_train_is_no_layer() -> None:
    clock = Clock()
    average = Model(clock)
    model = Model(clock)

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            average.eval()(x)
        return model(x)  # type: ignore[no-any-return]

    training = Training(model, clock)
    found = training.train(steps=4, call=call)
    assert times_of(found) == (EXPECTED_FORWARD, EXPECTED_BACKWARD)


def test_block_with_keyword_or_gradless_inputs_has_what_is_known() -> None:
    clock = Clock()
    model = Model(clock)
    model.embed.requires_grad_(False)

    def call(x: Tensor) -> Tensor:
        x = model.embed(x)
        for layer in model.layers:
            x = layer(x=x, scale=2.0)
        return x

    forward, backward = times_of(Training(model, clock).train(steps=4, call=call))
    assert forward == EXPECTED_FORWARD
    assert backward == [None, *EXPECTED_BACKWARD[1:]], "nothing says where the first one's ends"


# -- torch.compile ----------------------------------------------------------------------------------------------------


def count_graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def breaks() -> dict[str, int]:
    return dict(torch._dynamo.utils.counters["graph_break"])


class Marked(nn.Module):
    """A block that can be compiled: its time passes in a module beside it, which is not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.inner.linear(x))


class Stack(nn.Module):
    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleDict({str(8 + number): wrap(Marked()) for number in range(BLOCKS)})

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return x


def compile_block(block: nn.Module) -> nn.Module:
    compiled: Any = torch.compile(block, backend="aot_eager", fullgraph=True)
    return compiled  # type: ignore[no-any-return]


def compile_in_place(block: nn.Module) -> nn.Module:
    block.compile(backend="aot_eager", fullgraph=True)
    return block


def train_graphs(wrap: Callable[[nn.Module], nn.Module], timed: bool) -> tuple[int, LayerTimes | None, Training]:
    """Train with shapes that make torch compile anew twice; return the graphs that were made."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    clock = Clock()
    training = Training(Stack(wrap), clock)
    if not timed:
        training.timers.close()
    for rows in (2, 2, 2, 5, 5, 7, 7, 7):
        training.step(rows=rows)
    return count_graphs(), training.train(steps=1, rows=7), training


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it compiles
@pytest.mark.parametrize("wrap", [compile_block, compile_in_place])
def test_compiled_blocks_are_timed_without_compilation_or_break(wrap: Callable[[nn.Module], nn.Module]) -> None:
    plain, _, _ = train_graphs(wrap, timed=False)
    graphs, found, training = train_graphs(wrap, timed=True)
    assert (graphs, breaks()) == (plain, {})
    assert found is not None
    assert (found.kind, found.first) == ("Marked", 8)
    assert None not in found.columns[0] + found.columns[1]
    assert training.timers.skipped == {"compiled": 2}, "the steps in which torch compiled"
    assert hooks_of(training.model) == 0


def test_blocks_in_a_compiled_model_are_left_alone_with_notice() -> None:
    def run(*, timed: bool) -> tuple[int, Training]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        training = Training(Stack(lambda block: block), Clock())
        if not timed:
            training.timers.close()
        whole = torch.compile(training.model, backend="aot_eager", fullgraph=True)
        for rows in (2, 2, 2, 5, 5, 7, 7, 7):
            training.step(call=whole, rows=rows)
        return count_graphs(), training

    plain, _ = run(timed=False)
    graphs, training = run(timed=True)
    assert (graphs, breaks()) == (plain, {})
    found = training.timers.take()
    assert found is not None
    assert (found.samples, found.absent) == (0, UNSEEN)
    assert training.timers.find_next(8) > 1 << 60, "it is not tried again"
    assert hooks_of(training.model) == 0


def test_torch_that_would_compile_again_for_hooks_is_left_alone() -> None:
    clock = Clock()
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        found = Training(Model(clock), clock).train(steps=4)
    assert found is not None
    assert found.absent == HOOKS_GUARDED


# -- on a device ------------------------------------------------------------------------------------------------------


class Cuda(StandInCuda):
    """With the counter of torch's allocator, which a block's work moves."""

    clock: Clock

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert device == self.stream.device_index
        return {"allocated_bytes": {"all": {"current": self.clock.held_bytes}}}


def train_on_device(cuda: Cuda, steps: int = 5, **options: Any) -> Training:
    cuda.clock = clock = Clock(cuda)
    captures = GraphCaptures(cuda.is_current_stream_capturing)
    training = Training(Model(clock), clock, cuda, captures=captures, **options)
    for _ in range(steps):
        training.step()
    return training


def test_device_times_are_those_of_the_stream_and_nothing_waits() -> None:
    cuda = Cuda()
    training = train_on_device(cuda)
    assert training.timers.take(is_last=True) is None, "the device is far behind"
    cuda.now_ns = cuda.stream.busy_until_ns
    training.timers.on_boundary(training.step_number)
    found = training.timers.take(is_last=True)
    assert times_of(found) == (EXPECTED_FORWARD, EXPECTED_BACKWARD)
    assert training.guard.errors == {}


def test_events_are_used_again_and_a_small_pool_skips_the_step() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1, events_max=4 * BLOCKS)
    cuda.now_ns = cuda.stream.busy_until_ns
    training.step()
    training.step()
    training.timers.on_boundary(3)
    assert cuda.made == 4 * BLOCKS
    assert training.timers.skipped == {"pool_empty": 1}, "the third: the second has them still"


def test_events_of_a_forward_that_fails_are_used_again() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1, events_max=4 * BLOCKS)
    model = training.model

    def call(x: Tensor) -> Tensor:
        with contextlib.suppress(RuntimeError):
            model.layers[0](x[:, 1:])  # type: ignore[index, operator]
        return x.requires_grad_()

    cuda.now_ns = cuda.stream.busy_until_ns
    training.step(call)
    training.step()
    cuda.now_ns = cuda.stream.busy_until_ns
    training.timers.on_boundary(3)
    found = training.timers.take(is_last=True)
    assert found is not None
    assert (found.samples, training.timers.skipped) == (2, {})


def test_steps_that_wait_while_the_blocks_are_chosen_count_too() -> None:
    cuda = Cuda()
    cuda.clock = clock = Clock(cuda)
    average, model = Model(clock), Model(clock)

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            average.eval()(x)
        return model(x)  # type: ignore[no-any-return]

    training = Training(model, clock, cuda, captures=GraphCaptures(cuda.is_current_stream_capturing))
    training.step(call)
    for layer in model.layers:
        layer.times *= 3  # type: ignore[assignment, operator]
    training.step(call)
    training.step(call)
    cuda.now_ns = cuda.stream.busy_until_ns
    training.timers.on_boundary(training.step_number)
    forward, backward = times_of(training.timers.take(is_last=True))
    assert forward == [3 * one for one in EXPECTED_FORWARD]
    assert backward == [3 * one for one in EXPECTED_BACKWARD]


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1)
    recorded, queried = cuda.recorded, cuda.queried
    graph = cuda.CUDAGraph()
    graph.capture_begin()
    training.step()
    graph.capture_end()
    assert (cuda.recorded, cuda.queried) == (recorded, queried)
    assert training.timers.skipped == {"capture": 1}


def test_capture_within_a_timed_step_drops_it() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1)
    model = training.model

    def call(x: Tensor) -> Tensor:
        graph = cuda.CUDAGraph()
        graph.capture_begin()
        x = model(x)
        graph.capture_end()
        return x

    training.step(call)
    training.timers.on_boundary(training.step_number)
    assert training.timers.skipped == {"capture": 1}


def test_block_on_another_stream_drops_the_step() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1)
    before, cuda.stream = cuda.stream, Stream()
    try:
        training.step()
    finally:
        cuda.stream = before
    assert training.timers.skipped == {}, "all of it is in one stream"
    model = training.model

    def call(x: Tensor) -> Tensor:
        cuda.stream = Stream()
        x = model(x)
        cuda.stream = before
        return x

    training.step(call)
    training.timers.on_boundary(training.step_number)
    assert training.timers.skipped == {"stream_changed": 1}


def test_memory_is_what_the_forward_leaves() -> None:
    cuda = Cuda()
    training = train_on_device(cuda)
    cuda.now_ns = cuda.stream.busy_until_ns
    training.timers.on_boundary(training.step_number)
    found = training.timers.take(is_last=True)
    assert found is not None
    assert found.columns[4] == tuple(one // 1000 for one in EXPECTED_FORWARD)


def test_error_of_the_device_ends_it_and_not_the_training() -> None:
    cuda = Cuda()
    training = train_on_device(cuda, steps=1)
    cuda.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
    training.timers.on_boundary(training.step_number)
    cuda.failure = None
    assert training.guard.errors == {"layer_times": 1}
    assert hooks_of(training.model) == 0
    training.step()
    assert training.timers.find_next(3) > 1 << 60


def test_error_in_a_hook_ends_it_and_leaves_the_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    training = Training(Model(clock), clock)
    training.step()

    def fail(*_arguments: Any) -> None:
        raise ValueError("torch is another one")

    monkeypatch.setattr(training.timers, "_mark", fail)
    training.step()
    assert training.guard.errors == {"layer_times": 1}
    training.step()
    assert training.timers.find_next(training.step_number) > 1 << 60
    assert hooks_of(training.model) == 0
