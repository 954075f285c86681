"""A training thread with windows, and a stand-in for torch's profiler."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.config import NO
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.device_gate import DeviceGate
from rankscope.agent.profiler.flops_windows import FlopsWindows
from rankscope.agent.profiler.line_sampler import LineSampler
from rankscope.agent.profiler.operator_gate import OperatorGate
from rankscope.agent.profiler.window_effect import WindowEffect
from rankscope.agent.profiler.window_kinds import WindowKind
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.profiler.window_scheduler import RawWindow, WindowScheduler
from rankscope.agent.steps.first_graph import FirstGraph
from rankscope.agent.steps.step_intervals import find_chosen
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

WARMUP_STEPS = 2
LIGHT = 8
FULL = 32
"""Steps of 1 s between two windows of a kind."""
FULL_STEPS = 3
SECOND_FULL = WARMUP_STEPS + find_chosen(1, FULL)
"""The step with which the second full window begins; the first one does after the warm-up."""


def ratios_of(effect: WindowEffect) -> dict[str, float]:
    """Return the ratios that are known, by state of CUPTI."""
    known = {"attached": effect.attached_ratio, "detached": effect.detached_ratio}
    return {name: ratio for name, ratio in known.items() if ratio is not None}


class FakeProfiler:
    """A profiler that raises where the real one would crash. `log` has the calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.somebody_elses_is_on = False
        self.sees_device = False
        self.misses_device = False
        self.can_detach = True
        self.records_operators = False
        self.is_device_done = True
        self.collectives_are_over = True
        self.waits_s: list[float] = []
        self._has_seen_device = False
        self.waits_ns: list[int] = []
        self.while_waiting: Callable[[], object] = lambda: None
        self._thread: int | None = None
        self._ranges: list[str] = []

    @property
    def is_on(self) -> bool:
        """Return whether our session is on, on any thread."""
        return self._thread is not None

    @property
    def is_first_of_device(self) -> bool:
        return self.sees_device and not self._has_seen_device

    @property
    def has_session(self) -> bool:
        return self._thread == threading.get_ident()

    def is_busy(self) -> bool:
        return self.somebody_elses_is_on or self._thread == threading.get_ident()

    def wait_for_device(self, limit_ns: int, gives_up: Callable[[], bool]) -> bool:
        assert limit_ns > 0
        self.waits_ns.append(limit_ns)
        self.log.append("wait")
        self.while_waiting()
        return self.is_device_done and not gives_up()

    def detach(self) -> bool:
        if self._thread is not None or self.somebody_elses_is_on:
            raise RuntimeError("a profiler is on already")
        self.log.append("detach")
        self._has_seen_device = False
        return True

    def start(self, *, full: bool, shapes: bool = False, host_only: bool = False) -> None:
        if self._thread is not None or self.somebody_elses_is_on:
            raise RuntimeError("a profiler is on already")
        self._thread, self._ranges = threading.get_ident(), []
        self._has_seen_device |= full and self.sees_device and not host_only
        self.log.append("host" if host_only else "shapes" if shapes else "full" if full else "light")

    def stop(self) -> Any:
        if self._thread != threading.get_ident():
            raise RuntimeError("no session was begun on this thread")
        self._thread = None
        self.log.append("stop")
        activities = [SimpleNamespace(name=lambda name=name: name) for name in self._ranges]
        return SimpleNamespace(trace_activities=lambda: activities)

    def settle(self, limit_s: float) -> bool:
        self.waits_s.append(limit_s)
        if not self.collectives_are_over:
            self.log.append("pause")
        return self.collectives_are_over

    def enter_range(self, name: str) -> None:
        if self._thread is not None:
            self._ranges.append(name)


class Training:
    """A training thread with windows. Every step enqueues two collectives of group 0."""

    def __init__(
        self,
        *,
        light: bool = True,
        full: bool = True,
        room: int = 100,
        wait_s: float = 0.0,
        effect: WindowEffect | None = None,
        flops_interval_ns: int | None = None,
        cuda_graphs: str = NO,
    ) -> None:
        self.graphs = SimpleNamespace(begun=0)
        """The captures of CUDA graphs."""
        self.first_graph = FirstGraph(cuda_graphs, self.graphs, read_clock_ns=lambda: self.step * NS_PER_S)
        self.profiler = FakeProfiler()
        self.guard = Guard(error_budget=3)
        self.windows_taken: list[RawWindow] = []
        self.room = room
        self.step = 0
        self.captures_graph = False
        self.light_is_useful = True
        self.step_ns = 1
        self.effect = effect or WindowEffect(warmup_steps=WARMUP_STEPS)
        self.detaches: bool | None = True
        self.operators_effect = WindowEffect(warmup_steps=WARMUP_STEPS)
        self.launches_graphs = False
        self.sampler = LineSampler(ThreadSampler(self.guard), ScriptFiles({}))
        """Its thread is not started: it has the window, and no samples."""
        self.plan = WindowPlan(
            warmup_steps=WARMUP_STEPS,
            collective_window_ns=LIGHT * NS_PER_S,
            full_window_interval_ns=FULL * NS_PER_S,
            full_window_steps=FULL_STEPS,
            overhead_ratio_max=1.0,
        )
        self.plan.learn_step(NS_PER_S, 0)
        flops = None if flops_interval_ns is None or not full else FlopsWindows(flops_interval_ns, self.plan)
        self.operators = OperatorGate(
            self.profiler, self.plan, flops, self, device_effect=effect, own_effect=self.operators_effect
        )
        self.windows = WindowScheduler(
            self.profiler,
            self.plan,
            self.guard,
            self,
            devices=DeviceGate(self.profiler, self.plan, effect, self, first_graph=self.first_graph),
            operators=self.operators,
            gates=[self],
            flops=flops,
            sampler=self.sampler,
            light=light,
            full=full,
            user_profiler_wait_s=wait_s,
        )

    def may_begin(self, _step: int, kind: WindowKind) -> str | None:
        return "" if kind is WindowKind.LIGHT and not self.light_is_useful else None

    def keep(self, window: RawWindow) -> bool:
        if len(self.windows_taken) >= self.room:
            return False
        self.windows_taken.append(window)
        return True

    def read_enqueued(self) -> dict[int, int]:
        return {0: 2 * self.step}

    def find_resident_bytes(self) -> int | None:
        return 100 * self.step

    def is_capturing(self) -> bool:
        return self.captures_graph

    def may_detach(self) -> bool | None:
        return self.detaches

    def has_graphs(self) -> bool:
        return self.launches_graphs

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            record = StepRecord(step=self.step, start_host_ns=self.step, duration_ns=self.step_ns, phases_ns={})
            self.step += 1
            self.windows.on_step(record)
            self.windows.on_boundary(self.step)
        return self

    def spans(self) -> list[tuple[str, int, int]]:
        """Return the kind, first and last step of each window passed on."""
        return [("full" if w.full else "light", w.steps[0].step, w.steps[-1].step) for w in self.windows_taken]
