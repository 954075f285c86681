"""Record captures: traces of whole steps by torch.profiler, begun and ended at step boundaries.

A capture is what a user would record by hand: operators, kernels and copies, `ProfilerStep#N` with the agent's step
numbers, on request shapes, stacks and memory. It goes through torch's public profiler, so for the agent's own windows
it is like a profiler of the script: they end when it begins, and none begins while it is on.

Everything here runs on the training thread, but for `is_captured`, `order`, `call_off` and `is_on`. The agent thread
writes the files (`trace_files.py`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Final, NamedTuple, Protocol

from rankscope.agent.capture_settings import ACTIVE_MAX, CaptureSchedule, CaptureSteps
from rankscope.agent.guard import CAPTURES, Guard
from rankscope.agent.steps.open_collectives import SETTLE_S, SETTLE_S_LAST, SETTLE_S_MAX
from rankscope.measure.clock import read_wall_minus_host_ns
from rankscope.measure.units import NS_PER_S

PART: Final = CAPTURES
CAPTURE_NS_MAX: Final = 120 * NS_PER_S
"""A capture that lasts longer ends at the next step boundary: what it records stays in memory until then."""
SCRIPT_PROFILER_WAIT_S: Final = 2.0
"""Time for which a profiler of the script, starting on another thread, waits for the boundary that ends ours."""
RANGES_KEPT: Final = 64
"""Captures of which the steps are remembered: step records are reported within seconds."""

SCRIPT_PROFILER = "a profiler of the script was on"
GRAPH_CAPTURE = "a CUDA graph was being captured"
TOO_LATE = "this rank had begun the first step of the capture, or was about to"
ANOTHER = "another capture is on, or planned for these steps"
CALLED_OFF = "the collector has called it off"
PAUSED = "an evaluation, a fork or the end of its thread or of the process came before its end"
ANOTHER_THREAD = "training went on on another thread"
TOO_LONG = f"it lasted longer than {CAPTURE_NS_MAX // NS_PER_S} s"


class ProfilerSession(Protocol):
    """A session of torch's profiler, as `torch.profiler.profile`. Begun, continued and ended on one thread."""

    def start(self) -> None:
        """Begin, with the first step or with those that prepare for it."""
        ...

    def step(self) -> None:
        """Mark the begin of the next step."""
        ...

    def stop(self) -> None:
        """End recording."""
        ...

    def export_chrome_trace(self, path: str) -> None:
        """Write the trace to this file. On any thread, once."""
        ...


class RawCapture(NamedTuple):
    """A capture that has ended, for the agent thread: its session, its steps, and for how long its begin and end have
    stopped the training thread, in ns. `cut`: why steps are missing at its end; empty if none is. `wall_minus_host_ns`
    converts the times in its trace to the host clock.
    """

    profile: ProfilerSession
    steps: CaptureSteps
    pause_ns: int
    cut: str = ""
    wall_minus_host_ns: int = 0


class TraceRecording:
    """The captures of one rank: those of a schedule, those that the script asks for, and those that the collector
    orders.

    Captures that have ended go to `on_finished`; those that are refused go to `on_refused`, with the reason.
    `find_obstacle` returns why no capture of these steps may begin now; None: nothing is in the way. `on_running` is
    told the steps of a capture that has begun, and None when it is about to end; then it must not raise. `settle`
    waits, at most so many seconds, until all collectives that have been recorded are over, and returns whether they
    are; if not it ends the recording, and the session ends at a later boundary (`steps/open_collectives.py`).
    `end_leftover` ends what is left on of a session whose begin or end was interrupted. `script_profilers` is how many
    profilers are on already.
    """

    def __init__(
        self,
        make_profile: Callable[[CaptureSteps], ProfilerSession],
        schedule: CaptureSchedule | None,
        guard: Guard,
        *,
        on_finished: Callable[[RawCapture], None],
        on_refused: Callable[[CaptureSteps, str], None],
        find_obstacle: Callable[[CaptureSteps], str | None],
        on_running: Callable[[CaptureSteps | None], None] = lambda _steps: None,
        is_capturing_graph: Callable[[], bool] = lambda: False,
        settle: Callable[[float], bool] = lambda _limit_s: True,
        end_leftover: Callable[[], object] = lambda: None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        script_profiler_wait_s: float = SCRIPT_PROFILER_WAIT_S,
        script_profilers: int = 0,
    ) -> None:
        self._make_profile = make_profile
        self._schedule = schedule
        self._guard = guard
        self._on_finished = on_finished
        self._on_refused = on_refused
        self._find_obstacle = find_obstacle
        self._on_running = on_running
        self._is_capturing_graph = is_capturing_graph
        self._settle = settle
        self._end_leftover = end_leftover
        self._over: str | None = None  # why a capture is over that waits for its collectives, as `cut`
        self._monotonic_ns = monotonic_ns
        self._script_profiler_wait_s = script_profiler_wait_s
        self._planned = None if schedule is None else schedule.find_next(0)
        self._asked_steps = 0
        self._ordered: CaptureSteps | None = None  # set by the agent thread, taken by the training thread
        self._called_off = ""
        self._running: tuple[ProfilerSession, CaptureSteps] | None = None
        self._is_ours = False  # whether torch's profiler begins or ends because of us
        self._script_profilers = script_profilers
        self._thread = get_ident()
        self._step = 0
        self._began_ns = self._pause_ns = 0
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._ranges: deque[tuple[int, int]] = deque(maxlen=RANGES_KEPT)
        self._open_from: int | None = None
        self.spent_ns = 0
        """CPU time of captures on the training thread so far."""

    def ask(self, steps: int) -> bool:
        """Capture so many steps, 1 to ACTIVE_MAX, from the next one on; return False if a capture is on or asked for.
        One that the schedule has meanwhile is left out.
        """
        if self._running is not None or self._asked_steps:
            return False
        self._asked_steps = min(max(1, steps), ACTIVE_MAX)
        return True

    def order(self, steps: CaptureSteps) -> bool:
        """Capture these steps, as the collector asks; return False if a capture is on that was not called off, or
        another is planned for one of them. For the agent thread. Whether it is taken is decided at `begin_step`: it may
        be too late by then.
        """
        planned, running = self._planned, self._running
        is_taken = planned is not None and planned.overlaps(steps)
        is_busy = running is not None and (not self._called_off or running[1].order_id != self._called_off)
        if is_busy or self._asked_steps or self._ordered is not None or is_taken:
            return False
        self._ordered = steps
        return True

    def call_off(self, order_id: str) -> None:
        """Forget the capture of this order, or end it at the next boundary if it is on. For the agent thread."""
        ordered = self._ordered
        if ordered is not None and ordered.order_id == order_id:
            self._ordered = None
        self._called_off = order_id

    def is_on(self, order_id: str) -> bool:
        """Return whether the capture of this order is being recorded. For any thread."""
        running = self._running
        return running is not None and running[1].order_id == order_id

    def find_next(self, step: int) -> int | None:
        """Return the first step after this one at whose begin there is something to do; None: there is none."""
        if self._guard.is_off(PART):
            return step + 1 if self._running is not None else None
        if self._running is not None or self._asked_steps:
            return step + 1
        begins = [steps.begin_step for steps in (self._planned, self._ordered) if steps is not None]
        return max(step + 1, min(begins)) if begins else None

    def on_boundary(self, step: int) -> None:
        """Begin, continue or end a capture at the begin of this step. Never raises."""
        if self._running is not None and get_ident() != self._thread:
            self.leave()
            return
        if self.find_next(step - 1) == step:
            self._run(self._advance, step)

    def leave(self) -> None:
        """Note that a capture of another thread, if there is one, is over. Only that thread can end it."""
        if self._running is not None and get_ident() != self._thread:
            self._over = self._over or ANOTHER_THREAD

    def refuse(self, step: int, reason: str) -> None:
        """Refuse what is due at the begin of this step, if anything is. Never raises."""
        if self._running is None and self.find_next(step - 1) == step:
            self._run(self._refuse, step, reason)

    def on_script_profiler(self, *, begins: bool) -> None:
        """Handle the begin or the end of a profiler, on any thread. Returns when ours is off."""
        if self._is_ours and get_ident() == self._thread:
            return
        self._script_profilers = max(0, self._script_profilers + (1 if begins else -1))
        if not begins or self._running is None:
            return
        if get_ident() == self._thread:
            must_end = True  # the script's could not begin beside ours
            self._run(self._end_settled, SCRIPT_PROFILER, SETTLE_S_MAX, must_end)
        else:
            self._is_idle.wait(self._script_profiler_wait_s)

    def close(self, *, must_end: bool = False) -> None:
        """End the running capture, if this is its thread: no session may span an evaluation, a fork (the child would
        record on) or the end of its thread or of the process, at which it `must_end`. Never raises.
        """
        if self._running is not None and get_ident() == self._thread and not self._is_capturing_graph():
            self._run(self._end_settled, PAUSED, SETTLE_S_LAST if must_end else SETTLE_S_MAX, must_end)

    @property
    def thread(self) -> int | None:
        """The thread of the session that is on, which alone can end it; None: there is none."""
        return None if self._running is None else self._thread

    def wait_until_off(self, limit_s: float) -> bool:
        """Wait until no session is on, at most so long; return whether that is so. For other threads than its own."""
        return self._is_idle.wait(limit_s)

    def is_captured(self, step: int) -> bool:
        """Return whether a capture has made this step longer: it was recorded, or the capture ended in it. For any
        thread.
        """
        open_from = self._open_from
        if open_from is not None and step >= open_from:
            return True
        return any(first <= step <= last for first, last in tuple(self._ranges))

    # -- a boundary ---------------------------------------------------------------------------------------------------

    def _run(self, action: Callable[..., None], *arguments: float | str) -> None:
        begin_ns, begin_cpu_ns = self._monotonic_ns(), time.thread_time_ns()
        self._is_ours = True
        try:
            action(begin_ns, *arguments)
        except BaseException as error:  # noqa: BLE001 - nothing of ours may reach the training script
            self._guard.record(PART, error)
            self._give_up()
        finally:
            self._is_ours = False
            if self._running is None:
                self._is_idle.set()
            self.spent_ns += time.thread_time_ns() - begin_cpu_ns

    def _advance(self, now_ns: int, step: int) -> None:
        if self._running is None:
            self._begin(now_ns, step)
            return
        profile, steps = self._running
        if self._over is None:
            self._step = step
            cut = self._find_cut(now_ns)
            goes_on = step <= steps.last_step and not cut
            if goes_on or self._is_capturing_graph():  # ending waits for the device, which would spoil the graph
                profile.step()
                self._pause_ns += self._monotonic_ns() - now_ns
                return
            self._end_settled(now_ns, cut if step <= steps.last_step else "", SETTLE_S, bool(self._script_profilers))
        elif not self._is_capturing_graph():
            self._end_settled(now_ns, self._over, SETTLE_S, bool(self._script_profilers))

    def _end_settled(self, now_ns: int, cut: str, limit_s: float, must_end: bool) -> None:  # noqa: FBT001 - for `_run`
        """End the capture once its collectives are over, which is waited for the first time alone, or if it must."""
        limit_s = limit_s if self._over is None or must_end else 0.0
        self._over = cut if self._over is None else self._over
        if self._settle(limit_s) or must_end:
            self._end(now_ns, self._over)

    def _find_cut(self, now_ns: int) -> str:
        """Return why the running capture ends before its last step; empty: it does not."""
        if self._script_profilers:
            return SCRIPT_PROFILER
        if self._guard.is_off(PART):
            return f"{PART} were switched off"
        if self._called_off and self.is_on(self._called_off):
            return CALLED_OFF
        return TOO_LONG if now_ns - self._began_ns > CAPTURE_NS_MAX else ""

    def _begin(self, now_ns: int, step: int) -> None:
        steps = self._choose(step)
        if steps is None:  # called off meanwhile
            return
        refusal = self._find_refusal(steps, step)
        if refusal:
            self._on_refused(steps, refusal)
            return
        profile = self._make_profile(steps)
        self._thread, self._step = get_ident(), step
        self._is_idle.clear()
        self._open_from = step
        self._running, self._began_ns = (profile, steps), now_ns
        profile.start()
        self._on_running(steps)
        self._pause_ns = self._monotonic_ns() - now_ns

    def _refuse(self, _now_ns: int, step: int, reason: str) -> None:
        steps = self._choose(step)
        if steps is not None:
            self._on_refused(steps, reason)

    def _choose(self, step: int) -> CaptureSteps | None:
        """Return the capture that is due at this step, if any, and plan the next one of the schedule."""
        planned, ordered = self._planned, self._ordered
        is_planned = planned is not None and step >= planned.begin_step
        if self._schedule is not None and planned is not None and is_planned:
            self._planned = self._schedule.find_next(planned.begin_step + 1)
        asked, self._asked_steps = self._asked_steps, 0
        if asked:
            return CaptureSteps(step, step, step + asked - 1)
        if ordered is not None and step >= ordered.begin_step:
            self._ordered = None
            return ordered
        return planned if is_planned else None

    def _find_refusal(self, steps: CaptureSteps, step: int) -> str | None:
        if step > steps.begin_step:
            return TOO_LATE
        if self._script_profilers:
            return SCRIPT_PROFILER
        if self._is_capturing_graph():
            return GRAPH_CAPTURE
        return self._find_obstacle(steps)

    def _end(self, now_ns: int, cut: str) -> None:
        if self._running is None:
            return
        profile, steps = self._running
        self._forget()
        profile.stop()
        pause_ns = self._pause_ns + self._monotonic_ns() - now_ns
        last_step = self._step - 1  # the one that has just begun is not in it, or not whole
        if last_step < steps.first_step:
            self._on_refused(steps, cut)
        else:
            steps = steps._replace(last_step=last_step)
            self._on_finished(RawCapture(profile, steps, pause_ns, cut, read_wall_minus_host_ns()))

    def _give_up(self) -> None:
        """End a session whose begin or step has failed, without a result."""
        if self._running is not None:
            profile, _ = self._running
            for action in (self._forget, profile.stop, self._end_leftover):
                try:
                    action()
                except BaseException as error:  # noqa: BLE001 - as above
                    self._guard.record(PART, error)

    def _forget(self) -> None:
        """Keep the steps that the running capture has made longer, that in which it ends included; none is on then."""
        if self._running is not None and self._open_from is not None:
            self._ranges.append((self._open_from, self._step))
            self._on_running(None)
        self._running = self._open_from = None
        self._over = None
