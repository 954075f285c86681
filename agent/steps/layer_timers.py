"""Time the repeated blocks of a model one by one, in some steps: forward, backward, and the memory that they keep.

    forward    before the block's forward ............ after it                                hooks of this one module
    backward   first gradient of its output ........... gradient of its input is complete       pre-hooks of two nodes
    memory     what torch's allocator has more of after the forward than before: kept for the backward, output included

In a step that is not timed there is no hook at all: they are put on the blocks where the step begins, and taken off
before its optimizer steps. Where the script copies, pickles or scripts a module before that, they are taken off first,
and the step is dropped: nobody gets a model with our hooks. They return nothing, so torch passes on what it would
without them, and no node is added to the graph. Ours are the innermost: what FSDP waits for before and after a block is
not the block's.

    CPU     the host's clock; autograd runs on the thread that calls it
    GPU     CUDA events in the training thread's stream, read when the device has passed them: nothing waits for it,
            and nothing is recorded or asked while a CUDA graph is captured

A forward that autograd repeats (activation checkpointing) is in the backward's time. Where the block is inside of what
torch.compile compiles, torch calls no hook of it: after TRIES_MAX steps without a call it is left alone for good. Code
that is compiled during a timed step would have the hooks in it: they are removed before that, and the step is dropped.

The hooks are called on the training thread. On a GPU those of the backward run on a thread of autograd's, while the
training thread is inside backward() and waits: each writes to the call of its own block only.
"""

import contextlib
import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from threading import get_ident
from time import monotonic_ns
from typing import Any, Final

import msgspec

from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.steps.autograd_callbacks import find_node, may_be_compiled
from rankscope.agent.steps.event_buffer import HookEventBuffer
from rankscope.agent.steps.event_pool import EventPool
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.patches import Patch, hide_from_compiler
from rankscope.agent.steps.repeated_blocks import RepeatedBlocks, choose_blocks
from rankscope.agent.steps.step_intervals import UNKNOWN_STEPS
from rankscope.agent.steps.timing_plan import TimingPlan
from rankscope.measure.bounds import NAME_LENGTH_MAX
from rankscope.measure.records import LayerTimes
from rankscope.measure.text import to_unicode
from rankscope.measure.units import NS_PER_MS

PART: Final = "layer_times"
BUDGET_SHARE: Final = 0.1
"""Of `overhead_ratio_max`, and within it: 0.05 % of training by default."""
SAMPLES_KEPT: Final = 16
"""Timed steps that the medians are of."""
SAMPLES_SENT: Final = 4
"""New ones after which the medians are sent again: a quarter of those that they are of."""
CALLS_MAX: Final = 4
"""Calls of a block that are timed in a step: the first microbatches of a hundred say what all do."""
LAYERS_MAX: Final = 256
"""Blocks that a report may have."""
TRIES_MAX: Final = 3
EVENTS_MAX: Final = 8192
"""CUDA events: 4 for each of CALLS_MAX calls of 256 blocks, and of as many that wait for the device."""
WAITING_MAX: Final = 8
"""Timed steps that wait for the device."""
MEMORY_EVERY: Final = 4
"""Of so many timed steps one has its memory read, which takes 15 us a call."""
COST_FACTOR: Final = 2.5
"""What torch's caches lose, and what calling a hook takes, is not within its own time: with this the meter is as high
as steps with hooks differ from steps without (`bench/layers.py`).
"""

CAPTURE: Final = "capture"
COMPILED: Final = "compiled"
COPIED: Final = "copied"
OTHER_STREAM: Final = "stream_changed"
POOL_EMPTY: Final = "pool_empty"
NOT_READY: Final = "not_ready"
UNSEEN: Final = "no call of a block was seen (compiled with what is around it, or replayed as a CUDA graph)"
GONE: Final = "the model is gone"
TOO_MANY: Final = f"more than {LAYERS_MAX} blocks"
HOOKS_GUARDED: Final = "torch.compile would compile again when hooks come and go"


class _Call(msgspec.Struct):
    """One call of a block: marks of its forward and its backward, host ns or CUDA events."""

    begin: Any = None
    end: Any = None
    backward_begin: Any = None
    backward_end: Any = None
    held_bytes: int | None = None


class _Step(msgspec.Struct):
    """A step that is timed: the calls of each block by its place, and how often it was called."""

    step: int
    thread: int
    stream: Any = None
    calls: dict[int, list[_Call]] = msgspec.field(default_factory=dict)
    counts: dict[int, int] = msgspec.field(default_factory=dict)
    open: dict[int, _Call] = msgspec.field(default_factory=dict)
    handles: list[Any] = msgspec.field(default_factory=list)
    events: list[Any] = msgspec.field(default_factory=list)
    reads_memory: bool = False
    last: Any = None
    skip: str | None = None
    is_over: bool = False
    setup_ns: int = 0
    cost_ns: int = 0


class _Times(msgspec.Struct, frozen=True):
    """What one step says of a block, a call: None where it is not known."""

    forward_ns: int
    backward_ns: int | None
    held_bytes: int | None

    @property
    def both_ns(self) -> int:
        return self.forward_ns + (self.backward_ns or 0)


class _Sample(msgspec.Struct, frozen=True):
    step: int
    calls: int
    times: dict[int, _Times]


class _Hook:
    """A hook on one block. `place` is the block's among all that are looked at."""

    __slots__ = ("_call", "place")

    def __init__(self, call: Callable[..., None], place: int) -> None:
        self._call, self.place = call, place

    def __call__(self, module: Any, *arguments: Any) -> None:
        self._call(self.place, module, *arguments)

    def __reduce__(self) -> Any:
        """Of a module with a `__getstate__` of its own: Python's function that does nothing, since a file must be of
        use where this package is not.
        """
        return getattr, (contextlib.nullcontext(), "__exit__")


class LayerTimers:
    """The times of the blocks that were found. `cuda` is torch.cuda or a stand-in; None: the host's clock tells.

    The training thread calls `on_boundary` at the begin of each step that `find_next` names, and `before_optimizer`
    where an optimizer begins to step; the agent thread calls `take`. `is_in_backward` returns whether the training
    thread is inside of a backward. `skipped` counts the steps that were due and are not known, by reason. No error
    leaves this class: the first one ends it.
    """

    def __init__(
        self,
        found: RepeatedBlocks,
        plan: TimingPlan,
        guard: Guard,
        *,
        is_in_backward: Callable[[], bool],
        cuda: Any = None,
        captures: GraphCaptures | None = None,
        read_clock_ns: Callable[[], int] = monotonic_ns,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self.plan = plan
        self._kind = found.kind
        self._containers = found.containers
        self._blocks = [block for one in found.containers for block in one.blocks]
        self._first: int | None = None
        """Number of the first block, once it is known which of them train."""
        self._guard = guard
        self._is_in_backward = is_in_backward
        self._is_grad_enabled: Callable[[], bool] = sys.modules["torch"].is_grad_enabled
        self._cuda = cuda
        self._captures = captures or GraphCaptures()
        self._read_clock_ns = read_clock_ns
        self._pool = EventPool(cuda, events_max)
        self._open: _Step | None = None
        self._hooks: list[Any] = []
        self._watched_compiler: Any = None
        self._copies = [Patch(owner, name, self._wrap_copy) for owner, name in find_copies()]
        """On from the first timed step to `close`. Where a class has been changed a thousand times, Python 3.13 caches
        no attributes of it and of all that is derived from it: those of modules would take twice as long to find.
        """
        self._waiting: deque[_Step] = deque()
        self._samples: deque[_Sample] = deque(maxlen=SAMPLES_KEPT)
        self._timed = self._sent = self._unseen = 0
        self._is_off = self._is_absence_told = False
        self.absent = ""
        """Why there are no times, where it is known that there will be none."""
        self.skipped: dict[str, int] = {}
        self.spent_ns = 0
        """The cost to the training thread so far."""
        for method in (self._before, self._after, self._on_compile, self.before_optimizer, _Hook.__call__):
            hide_from_compiler(getattr(method, "__func__", method), callees_too=True)

    @property
    def is_gone(self) -> bool:
        """Whether blocks are gone, so that the model is to be looked for anew."""
        return any(block() is None for block in self._blocks)

    def find_next(self, step: int) -> int:
        """Return the first step after this one whose begin must be processed inline, or this one's end."""
        if self._open is not None or self._waiting:
            return step + 1
        return UNKNOWN_STEPS if self._is_off else self.plan.find_next(step)

    # -- the training thread ------------------------------------------------------------------------------------------

    def on_boundary(self, step: int) -> None:
        """End the step that was timed, read those that the device has done, and begin to time this one if it is due."""
        begin_ns = self._read_clock_ns()
        try:
            self._end_step()
            self._resolve()
            self._is_off |= self._guard.is_off(PART)
            if not self._is_off and self.plan.is_due(step):
                self._begin_step(step)
                if self._is_off:  # closed by the agent thread meanwhile
                    self._drop()
                    self._leave_copies()
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._fail(error)
        spent_ns = self._read_clock_ns() - begin_ns
        self.spent_ns += spent_ns
        if self._open is not None:
            self._open.setup_ns = spent_ns

    def before_optimizer(self) -> None:
        """Take the hooks off the blocks: an optimizer begins to step."""
        if self._hooks:
            begin_ns = self._read_clock_ns()
            try:
                self._remove_hooks()
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(error)
            if self._open is not None:
                self._open.cost_ns += self._read_clock_ns() - begin_ns

    def on_pause(self) -> None:
        """Drop the step that is timed, since an evaluation begins."""
        self._drop()

    def close(self) -> None:
        """Time no more."""
        self._is_off = True
        self._drop()
        self._waiting.clear()
        self._leave_copies()

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def take(self, *, is_last: bool = False) -> LayerTimes | None:
        """Return the medians of the last timed steps, if they are new; None else."""
        timed = self._timed
        if self.is_gone:
            self.close()
        is_new = timed - self._sent >= (1 if is_last else SAMPLES_SENT)
        if self.absent and not timed and not self._is_absence_told:
            self._is_absence_told = True
            return LayerTimes(kind=self._name, absent=self.absent)
        if not is_new or self._first is None:
            return None
        self._sent = timed
        return summarize(self._name, self._first, len(self._blocks), list(self._samples))

    @property
    def _name(self) -> str:
        return to_unicode(self._kind[:NAME_LENGTH_MAX])

    # -- a step that is timed -----------------------------------------------------------------------------------------

    def _begin_step(self, step: int) -> None:
        blocks = [block() for block in self._blocks]
        self.absent = GONE if None in blocks else find_hooks_obstacle()
        if self.absent:
            self._is_off = True
            return
        opened = _Step(step, get_ident(), reads_memory=self._timed % MEMORY_EVERY == 0)
        if self._cuda is not None:
            if not self._cuda.is_initialized():
                return
            if self._captures.is_open():
                self._count(CAPTURE)
                return
            opened.stream = self._cuda.current_stream()
        self._open = opened
        self._watch_compiler()
        for patch in self._copies:
            patch.apply()
        for place, block in enumerate(blocks):
            self._hook(block, place)

    def _hook(self, block: Any, place: int) -> None:
        """Put the hooks on a block, inside of those that others have put on it; around its compiled code, if it is
        compiled by itself in place (`Module.compile`).
        """
        before, after = _Hook(self._before, place), _Hook(self._after, place)
        compiled = vars(block).get("_compiled_call_impl")
        if compiled is not None:
            self._hooks.append(_CompiledCall(block, compiled, before, after))
            return
        self._hooks.append(block.register_forward_pre_hook(before, with_kwargs=True))
        self._hooks.append(block.register_forward_hook(after, prepend=True, with_kwargs=True))

    def _watch_compiler(self) -> None:
        handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if handler is not None:
            handler.register_start_callback(self._on_compile)
            self._watched_compiler = handler

    def _on_compile(self, *_arguments: Any) -> None:
        """Take the hooks off before torch.compile traces: they would become part of what it makes."""
        self._drop_hooks(COMPILED)

    def _wrap_copy(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of torch's that reads what a module has, which then has no hooks."""

        @functools.wraps(original)
        def copy_module(*arguments: Any, **keywords: Any) -> Any:
            if self._hooks:
                self._drop_hooks(COPIED)
            return original(*arguments, **keywords)

        return copy_module

    def _drop_hooks(self, reason: str) -> None:
        try:
            if self._open is not None:
                self._open.skip = reason
            hooks, self._hooks = self._hooks, []  # torch goes through the compiler's list of callbacks
            _remove_all(hooks)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the script
            self._guard.record(PART, error)

    def _remove_hooks(self) -> None:
        hooks, self._hooks = self._hooks, []
        handler, self._watched_compiler = self._watched_compiler, None
        if handler is not None and self._on_compile in handler.start_callbacks:
            handler.remove_start_callback(self._on_compile)
        _remove_all(hooks)

    def _leave_copies(self) -> None:
        for patch in self._copies:
            patch.revert()

    def _before(self, place: int, block: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
        """Mark the begin of a block's forward."""
        begin_ns = self._read_clock_ns()
        step = self._open
        if step is None or step.skip is not None or get_ident() != step.thread or self._is_in_backward():
            return
        try:
            if not (block.training or self._is_grad_enabled()):
                return  # a copy of the model, or an evaluation
            step.counts[place] = step.counts.get(place, 0) + 1
            if step.counts[place] <= CALLS_MAX:
                step.open[place] = call = _Call()
                if (obstacle := self._find_obstacle(step)) is not None:
                    step.skip = obstacle
                    return
                self._watch_node(step, find_node((*arguments, *keywords.values())), call, is_end=True)
                if step.reads_memory and self._cuda is not None:
                    call.held_bytes = self._read_memory(step)
                call.begin = self._mark(step)
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._give_up(step, error)
        step.cost_ns += self._read_clock_ns() - begin_ns
        self._guard.raise_held()

    def _after(self, place: int, _block: Any, _arguments: object, _keywords: object, output: Any) -> None:
        """Mark the end of a block's forward, and have the begin of its backward marked."""
        begin_ns = self._read_clock_ns()
        step = self._open
        if step is None or step.skip is not None or get_ident() != step.thread or self._is_in_backward():
            return
        try:
            call = step.open.pop(place, None)
            if call is not None:
                call.end = self._mark(step)
                if call.held_bytes is not None:
                    call.held_bytes = max(0, self._read_memory(step) - call.held_bytes)
                self._watch_node(step, find_node((output,)), call, is_end=False)
                step.calls.setdefault(place, []).append(call)
        except BaseException as error:  # noqa: BLE001 - as above
            self._give_up(step, error)
        step.cost_ns += self._read_clock_ns() - begin_ns
        self._guard.raise_held()

    def _watch_node(self, step: _Step, node: Any, call: _Call, *, is_end: bool) -> None:
        """Have a node of the graph mark the begin of the call's backward, or its end."""
        if node is None or may_be_compiled():
            return
        event = self._take_event(step)  # beforehand: a thread of autograd's takes none

        def on_gradient(_gradients: object) -> None:
            begin_ns = self._read_clock_ns()
            if step.is_over or step.skip is not None:
                return
            try:
                if (obstacle := self._find_obstacle(step)) is not None:
                    step.skip = obstacle
                elif is_end:
                    call.backward_end = self._mark(step, event)
                elif call.backward_begin is None:
                    call.backward_begin = self._mark(step, event)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach autograd
                self._give_up(step, error)
            step.cost_ns += self._read_clock_ns() - begin_ns

        step.handles.append(node.register_prehook(on_gradient))

    def _give_up(self, step: _Step, error: BaseException) -> None:
        """Drop this step, and time no more unless the error is one of the script's."""
        step.skip = PART
        self._guard.record(PART, error)
        self._is_off |= bool(self._guard.errors.get(PART))

    def _find_obstacle(self, step: _Step) -> str | None:
        if self._cuda is None:
            return None
        if self._captures.is_open():
            return CAPTURE
        return None if self._cuda.current_stream() == step.stream else OTHER_STREAM

    def _take_event(self, step: _Step) -> Any:
        if self._cuda is None:
            return None
        event = self._pool.get(step.stream)
        if event is None:
            step.skip = POOL_EMPTY
        else:
            step.events.append(event)
        return event

    def _mark(self, step: _Step, event: Any = None) -> Any:
        """Return a mark of now: the host's time, or an event that is recorded in the stream."""
        if self._cuda is None:
            return self._read_clock_ns()
        event = event or self._take_event(step)
        if event is not None:
            event.record(step.stream)
            step.last = event
        return event

    def _read_memory(self, step: _Step) -> int:
        stats = self._cuda.memory_stats_as_nested_dict(step.stream.device_index)
        return int(stats["allocated_bytes"]["all"]["current"])

    # -- after it -----------------------------------------------------------------------------------------------------

    def _end_step(self) -> None:
        step, self._open = self._open, None
        self._remove_hooks()
        if step is None:
            return
        step.is_over = True
        _remove_all(step.handles)
        cost_ns = round(COST_FACTOR * step.cost_ns)
        self.plan.learn_cost(step.setup_ns + cost_ns)
        self.spent_ns += cost_ns
        if step.skip is not None:
            self._count(step.skip)
        elif not step.calls:
            self._unseen += 1
            if self._unseen >= TRIES_MAX and not self._timed:
                self._is_off, self.absent = True, UNSEEN
        elif self._cuda is None:
            self._keep(step)
        else:
            self._waiting.append(step)
            if len(self._waiting) <= WAITING_MAX:
                return
            self._count(NOT_READY)
            step = self._waiting.popleft()
        self._pool.release(step.stream, step.events)

    def _resolve(self) -> None:
        """Keep the timed steps that the device has passed."""
        while self._waiting and not self._captures.is_open():
            step = self._waiting[0]
            if get_ident() != step.thread or not step.last.query():
                return
            self._waiting.popleft()
            self._keep(step)
            self._pool.release(step.stream, step.events)

    def _keep(self, step: _Step) -> None:
        if self._first is None:
            self._choose_blocks(step)
            if self._is_off:
                return
        times = {place: _reduce(calls, self._elapsed_ns) for place, calls in step.calls.items()}
        sample = _Sample(step.step, max(step.counts.values()), times)
        self._samples.append(sample)
        self._timed += 1

    def _choose_blocks(self, step: _Step) -> None:
        """Keep the containers whose blocks were called, in the order of their calls: another one is a copy of the model
        that does not train. This step and those that wait for the device get the new places of the blocks.
        """
        called = list(step.calls)
        begin, order = 0, []
        for one in self._containers:
            places = range(begin, begin + len(one.blocks))
            begin = places.stop
            calls = [called.index(place) for place in places if place in step.calls]
            if calls:
                order.append((min(calls), one, places))
        order.sort(key=lambda found: found[0])
        kept = [place for _, _, of_one in order for place in of_one]
        if len(kept) > LAYERS_MAX:
            self._is_off, self.absent = True, TOO_MANY
            return
        self._blocks = [block for _, one, _ in order for block in one.blocks]
        self._first = order[0][1].first if len(order) == 1 else 0
        anew = {old: new for new, old in enumerate(kept)}
        for timed in (step, *self._waiting):
            timed.calls = {anew[place]: calls for place, calls in timed.calls.items() if place in anew}

    def _elapsed_ns(self, begin: Any, end: Any) -> int:
        elapsed_ns = end - begin if self._cuda is None else round(begin.elapsed_time(end) * NS_PER_MS)
        return max(0, int(elapsed_ns))

    def _count(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _drop(self) -> None:
        """Drop the step that is timed, also on another thread than its own."""
        step, self._open = self._open, None
        try:
            self._remove_hooks()
            if step is not None:
                step.is_over = True
                _remove_all(step.handles)
                self._pool.release(step.stream, step.events)
                self.spent_ns += round(COST_FACTOR * step.cost_ns)
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)

    def _fail(self, error: Exception) -> None:
        self._guard.record(PART, error)
        self._count(PART)
        self.close()


class _CompiledCall:
    """The compiled call of a block, with the hooks around it for a time. Torch leaves it out of copies and files."""

    def __init__(self, block: Any, compiled: Callable[..., Any], before: _Hook, after: _Hook) -> None:
        self._block, self._compiled = block, compiled

        def call(*arguments: Any, **keywords: Any) -> Any:
            before(block, arguments, keywords)
            output = compiled(*arguments, **keywords)
            after(block, arguments, keywords, output)
            return output

        hide_from_compiler(call)
        self._call = call
        vars(block)["_compiled_call_impl"] = call

    def remove(self) -> None:
        """Restore it, unless somebody else has replaced it since."""
        if vars(self._block).get("_compiled_call_impl") is self._call:
            vars(self._block)["_compiled_call_impl"] = self._compiled


def make_layer_timers(
    containers: Sequence[Any],
    config: AgentConfig,
    guard: Guard,
    buffer: HookEventBuffer,
    captures: GraphCaptures,
) -> LayerTimers | None:
    """Return the timers of the repeated blocks in these containers, and have them told of each optimizer step; None
    where there are no such blocks, or they are on a device whose work is not timed.
    """
    found, cuda = choose_blocks(containers), sys.modules["torch"].cuda
    cuda = cuda if cuda.is_initialized() else None
    if found is None or (cuda is None and found.device != "cpu") or (cuda is not None and not config.device_times):
        return None
    plan = TimingPlan(warmup_steps=config.warmup_steps, overhead_ratio_max=BUDGET_SHARE * config.overhead_ratio_max)
    timers = LayerTimers(found, plan, guard, is_in_backward=lambda: buffer.in_backward, cuda=cuda, captures=captures)
    buffer.before_optimizer = timers.before_optimizer
    os.register_at_fork(after_in_child=timers.close)
    return timers


def _remove_all(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def find_copies() -> list[tuple[Any, str]]:
    """Return the functions of torch that read what a module has to copy, pickle or script it, as owner and name."""
    known = (
        (sys.modules["torch"].nn.Module, "__getstate__"),
        (sys.modules.get("torch.jit._recursive"), "get_module_concrete_type"),
    )
    return [(owner, name) for owner, name in known if owner is not None and name in vars(owner)]


def find_hooks_obstacle() -> str:
    """Return why torch.compile would be disturbed by hooks that come and go; empty where it is not."""
    if "torch._dynamo" not in sys.modules:
        return ""
    leaves_out = getattr(sys.modules.get("torch._dynamo.config"), "skip_nnmodule_hook_guards", False)
    handler = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    return "" if leaves_out and hasattr(handler, "remove_start_callback") else HOOKS_GUARDED


def _reduce(calls: Sequence[_Call], elapsed_ns: Callable[[Any, Any], int]) -> _Times:
    """Return the times of a call of a block: the mean of those of a step."""
    forward_ns = [elapsed_ns(call.begin, call.end) for call in calls]
    backward_ns = [
        elapsed_ns(call.backward_begin, call.backward_end)
        for call in calls
        if call.backward_begin is not None and call.backward_end is not None
    ]
    return _Times(
        sum(forward_ns) // len(forward_ns),
        sum(backward_ns) // len(backward_ns) if len(backward_ns) == len(calls) else None,
        calls[0].held_bytes,
    )


def summarize(kind: str, first: int, count: int, samples: Sequence[_Sample]) -> LayerTimes:
    """Return the medians of these timed steps. A block that some of them did not call has those of the others."""
    by_place = [[one.times[place] for one in samples if place in one.times] for place in range(count)]
    return LayerTimes(
        kind=kind,
        first=first,
        samples=len(samples),
        last_step=samples[-1].step,
        calls=samples[-1].calls,
        columns=(
            tuple(_middle([one.forward_ns for one in found]) for found in by_place),
            tuple(_middle([one.backward_ns for one in found if one.backward_ns is not None]) for found in by_place),
            tuple(_middle([one.both_ns for one in found], 0.1) for found in by_place),
            tuple(_middle([one.both_ns for one in found], 0.9) for found in by_place),
            tuple(_middle([one.held_bytes for one in found if one.held_bytes is not None]) for found in by_place),
        ),
    )


def _middle(values: Sequence[int], share: float = 0.5) -> int | None:
    """Return the value below which this share of the others is; None of none."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else None
