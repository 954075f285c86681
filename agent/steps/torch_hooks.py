"""Install the hooks into torch that write hook events; `remove()` restores torch.

A hook event costs the training thread far more during training than in a bare loop, since torch has evicted our code
from the caches (`bench/results/moments.md`). So a hook only checks its thread, reads the clock and writes to
a list, without a call of ours. The state machine processes the list later (`event_buffer.py`). Module hooks are not
used: a global one costs 2 to 5 us per module call and makes torch.compile warn.
"""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.steps.autograd_callbacks import accumulates_gradients, find_tracing, keeps_graph
from rankscope.agent.steps.backward_clock import BackwardClock
from rankscope.agent.steps.batch_size import BatchReader
from rankscope.agent.steps.early_events import EarlyEvents
from rankscope.agent.steps.event_buffer import BUFFERED_EVENTS_MAX, FIELDS, PART, HookEventBuffer
from rankscope.agent.steps.executed_code import keep_executed_code
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.patches import EnginePatch, Patch, hide_from_compiler
from rankscope.agent.steps.step_timer import StepTimer

if TYPE_CHECKING:
    from rankscope.agent.steps.device_timers import DeviceTimers

NO_ARGUMENTS = ()
GRADIENTS_ON, GRADIENTS_OFF = (True,), (False,)
"""Arguments of events; made once, since making one during training costs time."""
IN_BACKWARD = (0,)
"""Stands for all optimizers that hooks step inside a backward, one for each parameter; no object has id 0."""

Hook = Callable[..., Any]
OptimizerHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class BackwardWatch(Protocol):
    """What is called around a backward: `backward_tails.py` on a device, `backward_ends.py` on the host."""

    def list_entrances(self) -> tuple[Callable[..., Any], ...]:
        """Return the methods that training calls."""

    @property
    def is_due(self) -> bool:
        """Whether the backward that begins now is watched."""

    def begin(self, arguments: tuple[Any, ...], keywords: dict[str, Any], /) -> Any:
        """Watch a backward with these arguments; return what `end` is given."""

    def end(self, watched: Any, now_ns: int, /) -> None:
        """Handle its end."""


class TorchHooks:
    """Write torch's events for a StepTimer, and call `on_user_profiler` when the user's profiler begins and ends.

    Only events of the training thread count: the main one, or the one that steps an optimizer (early_events.py). With
    `device_timers` these read the time of each event, and watch backwards in place of `backward_ends`; `captures`
    counts the captures of CUDA graphs, and `backward_clock` says whether the CPU clock is read around a backward.
    """

    def __init__(
        self,
        timer: StepTimer,
        guard: Guard,
        on_user_profiler: Callable[[bool], None],
        ranges: OpenRanges | None = None,
        *,
        device_timers: "DeviceTimers | None" = None,
        backward_ends: BackwardWatch | None = None,
        captures: GraphCaptures | None = None,
        buffer: HookEventBuffer | None = None,
        on_move: Callable[[], object] = lambda: None,
        backward_clock: BackwardClock | None = None,
    ) -> None:
        self._timer = timer
        self._read_event_ns = monotonic_ns if device_timers is None else device_timers.read_event_ns
        self._watch: BackwardWatch | None = backward_ends if device_timers is None else device_timers.tails
        self._backward_clock = backward_clock or BackwardClock()
        self._guard = guard
        self._ranges = ranges or OpenRanges()
        self._captures = captures or GraphCaptures()
        self._on_user_profiler = on_user_profiler
        self._undo: list[Callable[[], None]] = []
        self._optimizer_hooks: tuple[OptimizerHook, OptimizerHook]
        self._codes: set[int] = set()
        """Ids of the code that runs while a batch is fetched, a backward runs or an optimizer steps."""
        self._paused: tuple[int | None, bool] | None = None
        """Which thread was listened to before an evaluation, and `buffer.thread_is_confirmed`."""
        self.buffer = buffer or HookEventBuffer(timer, guard)
        self._early = EarlyEvents(self.buffer, timer, on_move=on_move)
        self.tensors = 0
        """Tensors that the first optimizer updates that has stepped; 0: not known."""

    @property
    def event_count(self) -> int:
        """The number of events so far."""
        return self.buffer.event_count

    @property
    def thread_moves(self) -> int:
        """How often in a row training has gone on on another thread before it had settled on one."""
        return self._early.moves

    @property
    def rival_steps(self) -> int:
        """Optimizer steps of another thread that are not counted, since two loops train at once; 0 where steps end by
        calls.
        """
        return 0 if self._timer.recorder.is_explicit else self._early.rivals

    @property
    def interrupted(self) -> int:
        """How often a signal handler of the script has raised while an event was handled."""
        return self.buffer.interrupted

    @property
    def backwards_without_end(self) -> int:
        """The number of backwards in a loop that has not ended a step; 0 once it has."""
        return self._timer.backwards_without_end

    def install(self) -> None:
        """Patch torch. Raises the error of a torch that is missing or lacks a function, after restoring what was
        patched.
        """
        import torch  # noqa: PLC0415 - the user's torch, imported by now
        import torch.utils.data.dataloader as loader  # noqa: PLC0415

        try:
            for entrance in (
                HookEventBuffer.flush_inline, HookEventBuffer.on_last_optimizer_end, HookEventBuffer.on_boundary_fetch,
                HookEventBuffer.on_loader_exhausted, BatchReader.read, TorchHooks._claim,
                TorchHooks._leave_lost,
                EarlyEvents.confirm, EarlyEvents._keep, accumulates_gradients, keeps_graph,
                StepTimer.counts_gradients, *(() if self._watch is None else self._watch.list_entrances()),
            ):  # fmt: skip
                hide_from_compiler(entrance, callees_too=True)
            for around in (
                TorchHooks._run_early,
                EarlyEvents.run_backward,
                EarlyEvents.fetch,
            ):  # what they call is torch's
                hide_from_compiler(around)
            self._hook_optimizers()
            self._apply(EnginePatch(self._wrap_backward))
            self._replace(loader._BaseDataLoaderIter, "__next__", self._wrap_next)
            scaler = getattr(torch.amp, "GradScaler", None)
            if scaler is not None:
                self._replace(scaler, "step", self._wrap_scaler_step)
            self._watch_user_profiler(torch)
            self._undo.append(self._ranges.watch(torch.autograd.profiler.record_function))
            self._watch_captures(torch)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Restore torch. A hook that another tool has wrapped since stays in place and does nothing."""
        self._ignore_all_threads()
        while self._undo:
            self._undo.pop()()

    @staticmethod
    def gradients_are_on() -> bool:
        """Return whether gradients are enabled on this thread."""
        import torch  # noqa: PLC0415

        return bool(torch.is_grad_enabled())

    @property
    def is_paused(self) -> bool:
        """Whether events are ignored until `resume`."""
        return self._paused is not None

    def pause(self) -> None:
        """Ignore all events until `resume`, during an evaluation."""
        self.catch_up()
        self._paused = (self.buffer.thread, self.buffer.thread_is_confirmed)
        self._ignore_all_threads()

    def resume(self) -> None:
        """Write events again."""
        if self._paused is not None:
            (self.buffer.thread, self.buffer.thread_is_confirmed), self._paused = self._paused, None

    def catch_up(self) -> None:
        """Pass all buffered events to the StepTimer. Only the training thread may call it."""
        with self.buffer.flushed():
            pass

    def _ignore_all_threads(self) -> None:
        self.buffer.thread, self.buffer.thread_is_confirmed = None, True

    def _note_code(self, wrapper: Any) -> None:
        self._codes.add(id(wrapper.__code__))

    def _leave_lost(self, frames: int) -> None:
        """Where no call of torch's that has begun is on the stack any more, an exception has left it: tell the timer.

        The call that begins now has so many frames; there is none behind them where C code has made it. Walking the
        stack takes microseconds, only where calls are nested.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frames:
            frame, frames = frame.f_back, frames - 1
        while frame is not None:
            if id(frame.f_code) in self._codes:
                return
            frame = frame.f_back
        buffer = self.buffer
        buffer.calls_open, buffer.in_backward, buffer.stepped_in_backward = 0, False, False
        buffer.entries.extend((self._timer.leave_open, self._read_event_ns(), NO_ARGUMENTS))

    def _claim(self, optimizer: Any = None) -> None:
        """Let the calling thread be the one that trains: it steps this optimizer. Raises what a signal handler did."""
        try:
            self._early.claim()
            self.tensors = count_tensors(optimizer) or self.tensors
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._guard.record(PART, error)
        self._guard.raise_held()

    # -- the hooks ----------------------------------------------------------------------------------------------------

    def _hook_optimizers(self) -> None:  # noqa: C901 - what is called for each step stands here in one piece
        from torch.optim import optimizer as optimizers  # noqa: PLC0415

        is_in_autograd = make_in_autograd_check()
        buffer, read_event_ns, early = self.buffer, self._read_event_ns, self._early
        write, early_inside, claim, leave_lost = (
            buffer.entries.extend, early.threads_inside, self._claim, self._leave_lost,
        )  # fmt: skip
        optimizer_begin, optimizer_end = self._timer.optimizer_begin, self._timer.optimizer_end

        def before(optimizer: object, _args: object, _kwargs: object) -> None:
            if (buffer.in_backward or early_inside) and is_in_autograd():
                # On a GPU autograd has threads of its own, while the one that called backward waits.
                buffer.stepped_in_backward = True
                return
            if buffer.calls_open and get_ident() == buffer.thread:
                leave_lost(2)  # torch's wrapper of the step is one of them
            if buffer.in_backward:
                return
            if (get_ident() != buffer.thread or early.first_thread is None) and not is_in_autograd():
                claim(optimizer)
            if get_ident() == buffer.thread:
                if buffer.before_optimizer is not None:
                    buffer.before_optimizer()
                buffer.calls_open += 1  # before the event: an exception may come in between
                write((optimizer_begin, read_event_ns(), (id(optimizer),)))

        def after(_optimizer: object, _args: object, _kwargs: object) -> None:
            if get_ident() == buffer.thread and not buffer.in_backward:
                write((optimizer_end, read_event_ns(), NO_ARGUMENTS))
                buffer.calls_open -= 1
                buffer.optimizer_steps_until_flush -= 1
                if buffer.optimizer_steps_until_flush <= 0:
                    buffer.on_last_optimizer_end(monotonic_ns())

        for hook in (before, after):
            hide_from_compiler(hook)
        self._codes.update(map(id, find_step_codes(optimizers.Optimizer)))
        self._undo.append(optimizers.register_optimizer_step_pre_hook(before).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(after).remove)
        self._optimizer_hooks = before, after

    def _wrap_backward(self, original: Hook) -> Hook:
        buffer, read_event_ns, clock, watch = self.buffer, self._read_event_ns, self._backward_clock, self._watch
        entries, write = buffer.entries, buffer.entries.extend
        backward_begin, backward_end = self._timer.backward_begin, self._timer.backward_end
        take_gradients, find_trace, leave_lost = self._wrap_gradients(original), find_tracing(), self._leave_lost

        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            accumulates = kwargs.get("accumulate_grad") or accumulates_gradients(args, kwargs)
            if not accumulates and find_trace() is not None:
                return original(*args, **kwargs)
            if get_ident() != buffer.thread:
                return (
                    original(*args, **kwargs) if buffer.thread_is_confirmed else self._run_early(original, args, kwargs)
                )
            if buffer.calls_open:
                leave_lost(1)
            if not accumulates:
                return take_gradients(args, kwargs)
            read_cpu_ns = clock.read_ns
            is_inside, watched = buffer.in_backward, None
            buffer.calls_open += 1
            try:
                write((backward_begin, read_event_ns(), NO_ARGUMENTS if read_cpu_ns is None else (read_cpu_ns(),)))
                if len(entries) > FIELDS * BUFFERED_EVENTS_MAX:
                    buffer.flush_inline()
                buffer.in_backward = True
                if watch is not None and watch.is_due and not is_inside:
                    watched = watch.begin(args, kwargs)
                return original(*args, **kwargs)
            finally:
                buffer.in_backward = is_inside
                now_ns = read_event_ns()
                if watched is not None and watch is not None:
                    watch.end(watched, now_ns)
                write((backward_end, now_ns, NO_ARGUMENTS if read_cpu_ns is None else (read_cpu_ns(),)))
                buffer.calls_open -= 1
                if buffer.stepped_in_backward and not is_inside:
                    self._end_step_of_backward(now_ns)

        self._note_code(run_backward)
        return run_backward

    def _wrap_gradients(self, original: Hook) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """Return the engine's call of torch.autograd.grad, which returns gradients in place of adding them."""
        buffer, read_event_ns, clock, watch = self.buffer, self._read_event_ns, self._backward_clock, self._watch
        timer, entries, write = self._timer, buffer.entries, buffer.entries.extend
        gradients_begin, gradients_end = timer.gradients_begin, timer.gradients_end

        def take_gradients(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if buffer.in_backward:
                return original(*args, **kwargs)
            is_backward = timer.counts_gradients(keeps_graph(args, kwargs))
            read_cpu_ns = clock.read_ns if is_backward else None
            read = NO_ARGUMENTS if read_cpu_ns is None else (read_cpu_ns(),)
            watched = None
            buffer.calls_open += 1
            try:
                write((gradients_begin, read_event_ns(), (is_backward, *read)))
                if len(entries) > FIELDS * BUFFERED_EVENTS_MAX:
                    buffer.flush_inline()
                if watch is not None and is_backward and watch.is_due:
                    watched = watch.begin(args, kwargs)
                return original(*args, **kwargs)
            finally:
                now_ns = read_event_ns()
                if watched is not None and watch is not None:
                    watch.end(watched, now_ns)
                write((gradients_end, now_ns, NO_ARGUMENTS if read_cpu_ns is None else (read_cpu_ns(),)))
                buffer.calls_open -= 1

        hide_from_compiler(take_gradients)
        return take_gradients

    def _run_early(self, original: Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a backward on a thread that may turn out to train: it does where hooks inside step an optimizer."""
        is_inside = self._early.is_inside
        try:
            return self._early.run_backward(original, args, kwargs)
        finally:
            if self.buffer.stepped_in_backward and not is_inside:
                self.buffer.stepped_in_backward = False
                self._claim()
                if get_ident() == self.buffer.thread:
                    self._end_step_of_backward(self._read_event_ns())

    def _end_step_of_backward(self, now_ns: int) -> None:
        """Write the optimizer step of the hooks inside the backward that ended at `now_ns`."""
        buffer, timer = self.buffer, self._timer
        buffer.stepped_in_backward = False
        self._early.confirm()
        buffer.entries.extend((timer.optimizer_begin, now_ns, IN_BACKWARD, timer.optimizer_end, now_ns, NO_ARGUMENTS))
        buffer.optimizer_steps_until_flush -= 1
        if buffer.optimizer_steps_until_flush <= 0:
            buffer.on_last_optimizer_end(monotonic_ns())

    def _wrap_next(self, original: Hook) -> Hook:
        import torch  # noqa: PLC0415

        buffer, read_event_ns = self.buffer, self._read_event_ns
        entries, write = buffer.entries, buffer.entries.extend
        data_begin, data_end = self._timer.data_begin, self._timer.data_end
        read_size, is_grad_enabled, early = BatchReader(torch).read, torch.is_grad_enabled, self._early
        leave_lost = self._leave_lost

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it replaces the loader's
            if get_ident() != buffer.thread:
                return original(iterator) if buffer.thread_is_confirmed else early.fetch(torch, original, iterator)
            if buffer.calls_open:
                leave_lost(1)
            buffer.calls_open += 1
            if not is_grad_enabled():
                write((data_begin, read_event_ns(), GRADIENTS_OFF))
                buffer.flush_inline()
            elif buffer.optimizer_steps_until_flush <= 0:
                buffer.on_boundary_fetch(read_event_ns())
            else:
                write((data_begin, read_event_ns(), GRADIENTS_ON))
                if len(entries) > FIELDS * BUFFERED_EVENTS_MAX:
                    buffer.flush_inline()
            try:
                batch = original(iterator)
            except BaseException:
                write((data_end, read_event_ns(), (False, id(iterator))))
                buffer.calls_open -= 1
                buffer.on_loader_exhausted()
                raise
            write((data_end, read_event_ns(), (True, id(iterator), read_size(batch, iterator))))
            buffer.calls_open -= 1
            return batch

        self._note_code(__next__)
        return __next__

    def _wrap_scaler_step(self, original: Hook) -> Hook:
        """Write the events of an optimizer step also where GradScaler.step leaves it out because of inf."""
        buffer = self.buffer
        before, after = self._optimizer_hooks

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            optimizer_steps_until_flush = buffer.optimizer_steps_until_flush
            before(optimizer, (), {})
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                buffer.optimizer_steps_until_flush = (
                    optimizer_steps_until_flush  # the optimizer's own step inside is the same one
                )
                after(optimizer, (), {})

        self._note_code(step)
        return step

    def _watch_user_profiler(self, torch: Any) -> None:
        """End our session before the user's profiler is prepared: two at once lose data or crash (SIGSEGV). From the
        first one with stacks on, a capture's too, keep the code whose names it reads.
        """
        profile = torch.autograd.profiler.profile

        def wrap_prepare(original: Hook) -> Hook:
            @functools.wraps(original)
            def _prepare_trace(profiler: Any) -> Any:
                self._notify_user_profiler(begins=True)
                try:
                    if profiler.with_stack:
                        keep_executed_code()
                except Exception as error:  # noqa: BLE001 - another audit hook may forbid it in any way
                    self._guard.record(PART, error)
                return original(profiler)

            return _prepare_trace

        def wrap_exit(original: Hook) -> Hook:
            @functools.wraps(original)
            def __exit__(profiler: Any, *args: Any) -> Any:  # noqa: N807
                try:
                    return original(profiler, *args)
                finally:
                    if profiler.enabled:  # otherwise it was never prepared
                        self._notify_user_profiler(begins=False)

            return __exit__

        self._replace(profile, "_prepare_trace", wrap_prepare)
        self._replace(profile, "__exit__", wrap_exit)
        for owner in find_annotations(torch):
            self._replace(owner, "__enter__", lambda original: wrap_annotations(original, self._notify_user_profiler))

    def _notify_user_profiler(self, *, begins: bool) -> None:
        try:
            self._on_user_profiler(begins)
            (self._ranges.on_session_begin if begins else self._ranges.on_session_end)()
        except BaseException as error:  # noqa: BLE001
            self._guard.record(PART, error)
        self._guard.raise_held()

    def _watch_captures(self, torch: Any) -> None:
        by_any_device = getattr(getattr(torch, "accelerator", None), "Graph", None)  # torch 2.13 and newer
        for graph in (getattr(torch.cuda, "CUDAGraph", None), by_any_device):
            if graph is not None:
                self._replace(graph, "capture_begin", self._captures.wrap_begin)
                self._replace(graph, "capture_end", self._captures.wrap_end)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Hook], Hook]) -> None:
        self._apply(Patch(owner, name, wrap))

    def _apply(self, patch: Patch | EnginePatch) -> None:
        patch.apply()
        self._undo.append(patch.revert)


def find_step_codes(optimizer: Any) -> list[CodeType]:
    """Return the code of torch's wrapper around every optimizer's step; empty where torch has it elsewhere."""
    constants = getattr(getattr(optimizer, "profile_hook_step", None), "__code__", None)
    return [] if constants is None else [one for one in constants.co_consts if isinstance(one, CodeType)]


def count_tensors(optimizer: Any) -> int:
    """Return how many tensors an optimizer updates; 0 where it does not say so as torch's do."""
    try:
        return sum(len(group["params"]) for group in optimizer.param_groups)
    except Exception as error:
        if is_of_script(error):
            raise
        return 0  # it may be of the script's own class


def find_annotations(torch: Any) -> list[Any]:
    """Return torch's contexts that mark operators for Nsight or VTune, as far as it has them."""
    known = (getattr(torch.autograd.profiler, name, None) for name in ("emit_nvtx", "emit_itt"))
    return [one for one in known if one is not None]


def wrap_annotations(original: Hook, notify: Callable[..., None]) -> Hook:
    """Return an `__enter__` before which a session of ours ends: torch's raises RuntimeError where one is on. No more
    than that: while these marks are on, none of ours begins on their thread.
    """

    @functools.wraps(original)
    def __enter__(annotations: Any) -> Any:  # noqa: N807 - it stands in for the context's own
        import torch  # noqa: PLC0415

        if annotations.enabled and torch._C._autograd._profiler_enabled():
            notify(begins=True)
            notify(begins=False)
        return original(annotations)

    return __enter__


def make_in_autograd_check() -> Callable[[], bool]:
    """Return a function that returns whether the calling thread runs a backward, as hooks of it do."""
    import torch  # noqa: PLC0415

    find_task = getattr(torch._C, "_current_graph_task_id", None)  # torch keeps it private; absent before 2.1
    return (lambda: False) if find_task is None else (lambda: bool(find_task() != -1))


def torch_version() -> str:
    """Return the version of the imported torch, empty when none is."""
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", ""))
