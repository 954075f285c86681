"""The one file that patches torch. Everything is found at run time and put back by `remove()`.

A moment costs the training thread far more inside a training than in a bare loop, where it takes 2 us: torch's own code
has pushed ours out of the caches by then (`tests/benchmarks/results/moments.md`). So most moments are only written
down, and the state machine goes through them in one go when a step may end. Module hooks are not used: a global one
costs 2 to 5 us per module call and makes torch.compile warn.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from threading import get_ident, main_thread
from time import monotonic_ns
from typing import Any

from rankscope.agent.guard import Guard
from rankscope.agent.probe.batches import UNKNOWN, BatchReader
from rankscope.agent.probe.device_timers import DeviceTimers
from rankscope.agent.probe.graph_captures import GraphCaptures
from rankscope.agent.probe.moment_meter import TIMED_EVERY, MomentMeter
from rankscope.agent.probe.open_ranges import OpenRanges
from rankscope.agent.probe.steps import StepTimer

PART = "step_hooks"
PENDING_MAX = 64
"""Moments written down before the state machine goes through them although no step has ended."""

Hook = Callable[..., Any]


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
    ) -> None:
        self._timer = timer
        self._device_timers = device_timers
        self._read_moment_ns = monotonic_ns if device_timers is None else device_timers.read_moment_ns
        self._guard = guard
        self._ranges = ranges or OpenRanges()
        self._captures = captures or GraphCaptures()
        self._on_user_profiler = on_user_profiler
        self._thread: int | None = main_thread().ident
        self._thread_is_sure = False
        self._undo: list[Callable[[], None]] = []
        self._pending: list[tuple[Callable[..., None], int, tuple[object, ...]]] = []
        self._meter = MomentMeter()
        self._thread_paused: tuple[int | None, bool] = (None, True)
        self.moments = 0

    @property
    def spent_ns(self) -> int:
        """What the hooks have cost the training thread so far. For one other thread to ask."""
        return self._meter.spent_ns(self.moments)

    def install(self) -> None:
        """Patch torch. Raises what torch's absence or another shape of it raises; what was patched is put back."""
        import torch  # noqa: PLC0415 - the user's torch, imported by now
        import torch.utils.data.dataloader as loader  # noqa: PLC0415

        try:
            for entrance in (TorchHooks._moment, TorchHooks._note, BatchReader.read):
                _hide_from_compiler(entrance, callees_too=True)
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
        self._thread, self._thread_is_sure = None, True
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
        self._thread_paused = (self._thread, self._thread_is_sure)
        self._thread, self._thread_is_sure = None, True

    def resume(self) -> None:
        """See again."""
        self._thread, self._thread_is_sure = self._thread_paused

    def catch_up(self) -> None:
        """Let the StepTimer have the moments that were only written down. To be called before it is called directly."""
        pending, self._pending = self._pending, []
        if self._guard.is_off(PART):
            return
        for event, now_ns, arguments in pending:
            try:
                event(now_ns, *arguments)
            except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training script
                self._guard.record(PART, error)
                if self._guard.is_off(PART):
                    return

    # -- one moment ---------------------------------------------------------------------------------------------------

    def _note(self, event: Callable[..., None], *arguments: object) -> None:
        """A moment that ends no step: written down."""
        if get_ident() == self._thread:
            self.moments += 1
            now_ns = self._read_moment_ns()
            self._pending.append((event, now_ns, arguments))
            if len(self._pending) >= PENDING_MAX:
                self.catch_up()
            if self.moments % TIMED_EVERY == 0:
                self._meter.note(monotonic_ns() - now_ns)

    def _moment(self, event: Callable[..., None], *arguments: object) -> None:
        """A moment that may end a step: handled now, after those before it."""
        if get_ident() == self._thread:
            self.moments += 1
            now_ns = self._read_moment_ns()
            self._pending.append((event, now_ns, arguments))
            self.catch_up()
            if self.moments % TIMED_EVERY == 0:
                self._meter.note(monotonic_ns() - now_ns)

    def _claim_thread(self) -> None:
        if not self._thread_is_sure:
            self._thread = get_ident()
            self._thread_is_sure = True

    # -- what is patched ----------------------------------------------------------------------------------------------

    def _hook_optimizers(self) -> None:
        from torch.optim import optimizer as optimizers  # noqa: PLC0415

        def before(optimizer: object, _args: object, _kwargs: object) -> None:
            self._claim_thread()
            self._note(self._timer.optimizer_begin, id(optimizer))

        def after(_optimizer: object, _args: object, _kwargs: object) -> None:
            self._moment(self._timer.optimizer_end)

        for hook in (before, after):
            _hide_from_compiler(hook)
        self._undo.append(optimizers.register_optimizer_step_pre_hook(before).remove)
        self._undo.append(optimizers.register_optimizer_step_post_hook(after).remove)

    def _wrap_backward(self, original: Hook) -> Hook:
        timer = self._timer

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._note(timer.backward_begin)
            try:
                return original(*args, **kwargs)
            finally:
                self._note(timer.backward_end)

        return backward

    def _wrap_next(self, original: Hook) -> Hook:
        import torch  # noqa: PLC0415

        timer, batches, is_grad_enabled = self._timer, BatchReader(torch), torch.is_grad_enabled

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807 - it stands in for the loader's own
            self._moment(timer.data_begin, is_grad_enabled())
            got_batch, size = False, UNKNOWN
            try:
                batch = original(iterator)
                got_batch = True
                # Of one that is not noted, on another thread or in an evaluation, the size is not asked for.
                if get_ident() == self._thread:
                    size = batches.read(batch, iterator)
                return batch
            finally:
                self._note(timer.data_end, got_batch, id(iterator), size)

        return __next__

    def _wrap_scaler_step(self, original: Hook) -> Hook:
        """GradScaler.step does not call the optimizer when it found inf: the boundary must not be lost with it."""
        timer = self._timer

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._claim_thread()
            self._note(timer.optimizer_begin, id(optimizer))
            try:
                return original(scaler, optimizer, *args, **kwargs)
            finally:
                self._moment(timer.optimizer_end)

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
        self._replace(record_function, "__enter__", self._ranges.wrap_enter)
        self._replace(record_function, "__exit__", self._ranges.wrap_exit)

    def _watch_captures(self, torch: Any) -> None:
        by_any_device = getattr(getattr(torch, "accelerator", None), "Graph", None)  # torch 2.13 and newer
        for graph in (getattr(torch.cuda, "CUDAGraph", None), by_any_device):
            if graph is not None:
                self._replace(graph, "capture_begin", self._captures.wrap_begin)
                self._replace(graph, "capture_end", self._captures.wrap_end)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Hook], Hook]) -> None:
        original = getattr(owner, name)
        replacement = wrap(original)
        _hide_from_compiler(replacement)
        setattr(owner, name, replacement)

        def put_back() -> None:
            # Somebody may have wrapped ours since: taking theirs away would be worse than leaving ours in place.
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)

        self._undo.append(put_back)


def _hide_from_compiler(function: Any, *, callees_too: bool = False) -> None:
    """Keep torch.compile from tracing a function of ours when a compiled training step calls it: it would warn the user
    about the thread and the clock that are asked for, and compile a dozen frames of ours.

    These are what torch.compiler.disable uses, without the seconds that importing torch._dynamo takes. A torch that has
    them not warns once, and works.
    """
    with contextlib.suppress(ImportError, AttributeError, TypeError):
        function._torchdynamo_disable = True
        from torch._C._dynamo import eval_frame  # noqa: PLC0415

        action = eval_frame._FrameAction
        then = action.SKIP if callees_too else action.DEFAULT
        eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, then))


def torch_version() -> str:
    """The version of the torch that is imported, empty when none is."""
    torch = sys.modules.get("torch")
    return str(getattr(torch, "__version__", ""))
