"""The one file that patches torch. Everything is found at run time and put back by `remove()`.

A moment costs the training thread far more inside a training than in a bare loop: torch's own code has pushed ours out
of the caches by then (`tests/benchmarks/results/moments.md`). So a hook touches as little as it can: it looks which
thread it is on, reads the clock and writes into a list, without a call of our own. The state machine goes through the
list later (`event_buffer.py`). Module hooks are not used: a global one costs 2 to 5 us per module call and makes
torch.compile warn.
"""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import monotonic_ns
from typing import Any

from rankscope.agent.guard import Guard
from rankscope.agent.steps.batch_size import BatchReader
from rankscope.agent.steps.device_timers import DeviceTimers
from rankscope.agent.steps.event_buffer import FIELDS, MOMENTS_MAX, PART, HookEventBuffer
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.agent.steps.open_ranges import OpenRanges
from rankscope.agent.steps.patches import Patch, hide_from_compiler
from rankscope.agent.steps.step_timer import StepTimer

NO_ARGUMENTS = ()
GRADIENTS_ON, GRADIENTS_OFF = (True,), (False,)
"""What a moment is written down with; made once, since making one amid training costs."""
IN_BACKWARD = (0,)
"""The optimizer that all those are taken for that hooks step inside a backward, one for each parameter; no id is 0."""

Hook = Callable[..., Any]
OptimizerHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]


class TorchHooks:
    """Feeds a StepTimer from torch, and tells `on_user_profiler` when the user's own profiler begins and ends.

    Only moments of one thread count: the main one, or the one that is first seen to step an optimizer. With
    `device_timers` these read the time of each moment, and are shown the captures of CUDA graphs.
    """

    def __init__(
        self,
        timer: StepTimer,
        guard: Guard,
        on_user_profiler: Callable[[bool], None],
        ranges: OpenRanges | None = None,
        *,
        device_timers: DeviceTimers | None = None,
        captures: GraphCaptures | None = None,
        log: HookEventBuffer | None = None,
    ) -> None:
        self._timer = timer
        self._read_moment_ns = monotonic_ns if device_timers is None else device_timers.read_moment_ns
        self._guard = guard
        self._ranges = ranges or OpenRanges()
        self._captures = captures or GraphCaptures()
        self._on_user_profiler = on_user_profiler
        self._undo: list[Callable[[], None]] = []
        self._optimizer_hooks: tuple[OptimizerHook, OptimizerHook]
        self._thread_paused: tuple[int | None, bool] = (None, True)
        self.log = log or HookEventBuffer(timer, guard)

    @property
    def moments(self) -> int:
        """How many moments were seen."""
        return self.log.moments

    @property
    def backwards_without_end(self) -> int:
        """How many backwards were seen in a loop in which nothing has ended a step; 0 once something has."""
        return self._timer.backwards_without_end

    def install(self) -> None:
        """Patch torch. Raises what torch's absence or another shape of it raises; what was patched is put back."""
        import torch  # noqa: PLC0415 - the user's torch, imported by now
        import torch.utils.data.dataloader as loader  # noqa: PLC0415

        try:
            for entrance in (
                HookEventBuffer.catch_up_live, HookEventBuffer.end_when_due, HookEventBuffer.fetch_when_due,
                HookEventBuffer.note_end_of_data, BatchReader.read,
            ):  # fmt: skip
                hide_from_compiler(entrance, callees_too=True)
            self._hook_optimizers()
            self._replace(torch.autograd, "backward", self._wrap_backward)
            self._replace(loader._BaseDataLoaderIter, "__next__", self._wrap_next)
            scaler = getattr(torch.amp, "GradScaler", None)
            if scaler is not None:
                self._replace(scaler, "step", self._wrap_scaler_step)
            self._watch_user_profiler(torch)
            self._watch_ranges(torch)
            self._watch_captures(torch)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put torch back as it was. A hook that somebody has wrapped since stays in place and is silent."""
        self._see_no_thread()
        while self._undo:
            self._undo.pop()()

    @staticmethod
    def gradients_are_on() -> bool:
        """Whether this thread would record a backward now."""
        import torch  # noqa: PLC0415

        return bool(torch.is_grad_enabled())

    def pause(self) -> None:
        """See nothing until `resume`: an evaluation runs."""
        self.catch_up()
        self._thread_paused = (self.log.thread, self.log.thread_is_sure)
        self._see_no_thread()

    def resume(self) -> None:
        """See again."""
        self.log.thread, self.log.thread_is_sure = self._thread_paused

    def catch_up(self) -> None:
        """Let the StepTimer have the moments that were only written down. To be called by the training thread."""
        with self.log.caught_up():
            pass

    def _see_no_thread(self) -> None:
        self.log.thread, self.log.thread_is_sure = None, True

    def _claim_thread(self) -> None:
        self.log.thread, self.log.thread_is_sure = get_ident(), True

    # -- what is patched ----------------------------------------------------------------------------------------------

    def _hook_optimizers(self) -> None:
        from torch.optim import optimizer as optimizers  # noqa: PLC0415

        is_in_autograd = find_autograd_question()
        log, read_moment_ns = self.log, self._read_moment_ns
        write = log.entries.extend
        optimizer_begin, optimizer_end = log.events.optimizer_begin, log.events.optimizer_end

        def before(optimizer: object, _args: object, _kwargs: object) -> None:
            if log.in_backward:
                # On a GPU autograd has threads of its own, while the one that called backward waits.
                if is_in_autograd():
                    log.stepped_in_backward = True
                return
            if not log.thread_is_sure and not is_in_autograd():
                self._claim_thread()
            if get_ident() == log.thread:
                write((optimizer_begin, read_moment_ns(), (id(optimizer),)))

        def after(_optimizer: object, _args: object, _kwargs: object) -> None:
            if get_ident() == log.thread and not log.in_backward:
                write((optimizer_end, read_moment_ns(), NO_ARGUMENTS))
                log.ends_left -= 1
                if log.ends_left <= 0:
                    log.end_when_due(monotonic_ns())

        for hook in (before, after):
            hide_from_compiler(hook)
        self._undo.append(optimizers.register_optimizer_step_pre_hook(before).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(after).remove)
        self._optimizer_hooks = before, after

    def _wrap_backward(self, original: Hook) -> Hook:
        log, read_moment_ns = self.log, self._read_moment_ns
        entries, write = log.entries, log.entries.extend
        backward_begin, backward_end = log.events.backward_begin, log.events.backward_end

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if get_ident() != log.thread:
                return original(*args, **kwargs)
            write((backward_begin, read_moment_ns(), NO_ARGUMENTS))
            if len(entries) > FIELDS * MOMENTS_MAX:
                log.catch_up_live()
            is_inside, log.in_backward = log.in_backward, True
            try:
                return original(*args, **kwargs)
            finally:
                log.in_backward = is_inside
                now_ns = read_moment_ns()
                write((backward_end, now_ns, NO_ARGUMENTS))
                if log.stepped_in_backward and not is_inside:
                    self._end_step_of_backward(now_ns)

        return backward

    def _end_step_of_backward(self, now_ns: int) -> None:
        """Hooks have stepped optimizers inside the backward that ended at that moment."""
        log, events = self.log, self.log.events
        log.stepped_in_backward, log.thread_is_sure = False, True
        log.entries.extend((events.optimizer_begin, now_ns, IN_BACKWARD, events.optimizer_end, now_ns, NO_ARGUMENTS))
        log.ends_left -= 1
        if log.ends_left <= 0:
            log.end_when_due(monotonic_ns())

    def _wrap_next(self, original: Hook) -> Hook:
        import torch  # noqa: PLC0415

        log, read_moment_ns = self.log, self._read_moment_ns
        entries, write = log.entries, log.entries.extend
        data_begin, data_end = log.events.data_begin, log.events.data_end
        read_size, is_grad_enabled = BatchReader(torch).read, torch.is_grad_enabled

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it stands in for the loader's own
            if get_ident() != log.thread:
                return original(iterator)
            if not is_grad_enabled():
                write((data_begin, read_moment_ns(), GRADIENTS_OFF))
                log.catch_up_live()
            elif log.ends_left <= 0:
                log.fetch_when_due(read_moment_ns(), GRADIENTS_ON)
            else:
                write((data_begin, read_moment_ns(), GRADIENTS_ON))
                if len(entries) > FIELDS * MOMENTS_MAX:
                    log.catch_up_live()
            try:
                batch = original(iterator)
            except BaseException:
                write((data_end, read_moment_ns(), (False, id(iterator))))
                log.note_end_of_data()
                raise
            write((data_end, read_moment_ns(), (True, id(iterator), read_size(batch, iterator))))
            return batch

        return __next__

    def _wrap_scaler_step(self, original: Hook) -> Hook:
        """GradScaler.step does not call the optimizer when it found inf: the boundary must not be lost with it."""
        log = self.log
        before, after = self._optimizer_hooks

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            ends_left = log.ends_left
            before(optimizer, (), {})
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                log.ends_left = ends_left  # the optimizer's own step inside is the same one
                after(optimizer, (), {})

        return step

    def _watch_user_profiler(self, torch: Any) -> None:
        """Two profilers at once lose data or crash (SIGSEGV): ours must be off before the user's is prepared."""
        profile = torch.autograd.profiler.profile

        def wrap_prepare(original: Hook) -> Hook:
            @functools.wraps(original)
            def _prepare_trace(profiler: Any) -> Any:
                self._tell_user_profiler(begins=True)
                return original(profiler)

            return _prepare_trace

        def wrap_exit(original: Hook) -> Hook:
            @functools.wraps(original)
            def __exit__(profiler: Any, *args: Any) -> Any:  # noqa: N807
                try:
                    return original(profiler, *args)
                finally:
                    if profiler.enabled:  # one that is not was never prepared
                        self._tell_user_profiler(begins=False)

            return __exit__

        self._replace(profile, "_prepare_trace", wrap_prepare)
        self._replace(profile, "__exit__", wrap_exit)

    def _tell_user_profiler(self, *, begins: bool) -> None:
        try:
            self._on_user_profiler(begins)
            (self._ranges.session_begins if begins else self._ranges.session_has_ended)()
        except Exception as error:  # noqa: BLE001
            self._guard.record(PART, error)

    def _watch_ranges(self, torch: Any) -> None:
        record_function = torch.autograd.profiler.record_function
        enter = Patch(record_function, "__enter__", self._ranges.wrap_enter)
        leave = Patch(record_function, "__exit__", self._ranges.wrap_exit)

        def begin() -> None:
            enter.put_on()
            leave.put_on()

        def end() -> None:
            enter.take_off()
            leave.take_off()

        self._ranges.watch_sessions(begin, end)
        self._undo.append(end)

    def _watch_captures(self, torch: Any) -> None:
        by_any_device = getattr(getattr(torch, "accelerator", None), "Graph", None)  # torch 2.13 and newer
        for graph in (getattr(torch.cuda, "CUDAGraph", None), by_any_device):
            if graph is not None:
                self._replace(graph, "capture_begin", self._captures.wrap_begin)
                self._replace(graph, "capture_end", self._captures.wrap_end)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Hook], Hook]) -> None:
        patch = Patch(owner, name, wrap)
        patch.put_on()
        self._undo.append(patch.take_off)


def find_autograd_question() -> Callable[[], bool]:
    """Return a function that says whether the thread that calls it is at work for a backward, as its hooks are."""
    import torch  # noqa: PLC0415

    find_task = getattr(torch._C, "_current_graph_task_id", None)  # torch keeps it private; absent before 2.1
    return (lambda: False) if find_task is None else (lambda: bool(find_task() != -1))


def torch_version() -> str:
    """The version of the torch that is imported, empty when none is."""
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", ""))
