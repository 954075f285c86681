"""Answers the collector's orders of samples: accept or refuse them, and send what was sampled.

The collector repeats an order until it has the samples, so nothing is resent from here. Everything runs on the agent
thread but the sampling (`thread_sampler.py`). One order of samples at a time, and one of looks at what is held; nothing
runs without one.
"""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rankscope.agent.captures.kernel_waits import KernelWaits
from rankscope.agent.captures.sampling import SWITCHED_OFF
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stack_samples import StackSamples, find_native_id
from rankscope.agent.captures.thread_sampler import PART, ThreadSampler
from rankscope.agent.captures.worker_samples import WorkerSamples
from rankscope.agent.guard import Guard
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.measure.line_samples import HELD, SAMPLE_MODES
from rankscope.measure.messages import SampleOrder, SamplesTaken
from rankscope.measure.records import StepRecord
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.captures.held_objects import HeldObjects

KNOWN_MAX: Final = 8
"""Orders whose answer is remembered."""
LASTS_NS_MAX: Final = 900 * NS_PER_S
WORKERS_NS: Final = 4 * NS_PER_S
"""For how long the workers of data loaders are sampled: they work ahead of the steps."""
NO_MORE: Final = f"{PART} are switched off on this rank after too many errors"
ORDERED_OFF: Final = "line_samples is off by an order of the collector"
NO_WHOLE_STEP: Final = "no step that counts ended while it was sampled"


class OrderedSamples:
    """The samples that the collector orders of one rank. `find_thread` returns the ident of the training thread.
    `sampler` is None where sampling is switched off or impossible, for the reason `obstacle`.
    """

    def __init__(
        self,
        sampler: ThreadSampler | None,
        files: ScriptFiles,
        guard: Guard,
        *,
        find_thread: Callable[[], int | None],
        workers: WorkerSamples | None = None,
        obstacle: str = SWITCHED_OFF,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._sampler = sampler
        self._files = files
        self._guard = guard
        self._find_thread = find_thread
        self._workers = workers
        self._obstacle = obstacle
        self._monotonic_ns = monotonic_ns
        self._answers: dict[str, SamplesTaken] = {}
        self._on: StackSamples | None = None
        self._held: HeldObjects | None = None
        self._native_id = 0
        self._cpu_begin_ns: int | None = None
        self._spent_ns = 0

    @property
    def spent_ns(self) -> int:
        """CPU time of sampling so far."""
        return self._spent_ns + sum(one.cpu_ns for one in (self._on, self._held) if one is not None)

    def handle(self, order: SampleOrder) -> SamplesTaken | None:
        """Return the answer to an order. Never raises."""
        try:
            if order.id not in self._answers:
                answer = self._begin(order)
                if answer.state == "busy":  # asked again it may be free
                    return answer
                self._remember(answer)
            return self._answers[order.id]
        except Exception as error:  # noqa: BLE001 - no error of sampling may reach the reports
            self._guard.record(PART, error)
            return None

    def collect(self, steps: Sequence[StepRecord], *, last: bool = False) -> SamplesTaken | None:
        """Add up the samples of steps that have ended; return the answer to an order that is over, None while none is.
        To be called once a report.
        """
        held = None if self._held is None else self._collect_held(self._held, steps, last=last)
        on = self._on
        if on is None:
            return held
        try:
            on.take_steps(steps)
            if held is not None and not last:
                return held  # the other may be over, too: then its answer is the next
            if not (last or self._is_over(on)):
                return None
            self._on = None
            self._spent_ns += on.cpu_ns
            answer = self._finish(on)
        except Exception as error:  # noqa: BLE001 - as above
            on.close()
            self._on = None
            answer = self._give_up(on.order, error)
        self._remember(answer)
        return answer

    def _collect_held(self, held: "HeldObjects", steps: Sequence[StepRecord], *, last: bool) -> SamplesTaken | None:
        try:
            held.take_steps(steps)
            if not (last or held.is_over(self._monotonic_ns())):
                return None
            answer = SamplesTaken(id=held.order.id, state="taken", held=held.finish(), cost_ns=held.cpu_ns)
        except Exception as error:  # noqa: BLE001 - as above
            answer = self._give_up(held.order, error)
        self._held = None
        self._spent_ns += held.cpu_ns
        self._remember(answer)
        return answer

    def _give_up(self, order: SampleOrder, error: Exception) -> SamplesTaken:
        self._guard.record(PART, error)
        return SamplesTaken(id=order.id, state="refused", reason=f"an error of the agent: {type(error).__name__}")

    def _is_over(self, on: StackSamples) -> bool:
        now_ns = self._monotonic_ns()
        if self._sampler is None or not self._sampler.is_usable or self._sampler.is_paused:
            return True
        return on.is_over(now_ns) and not (self._workers is not None and self._workers.is_awaited(now_ns))

    def _begin(self, order: SampleOrder) -> SamplesTaken:
        if (self._held if order.mode == HELD else self._on) is not None:
            return SamplesTaken(id=order.id, state="busy", reason="it samples for another order")
        refusal = self._find_refusal(order)
        thread = self._find_thread()
        if refusal or self._sampler is None or thread is None:
            return SamplesTaken(id=order.id, state="refused", reason=refusal or "no thread of this rank trains yet")
        order = msgspec.structs.replace(order, lasts_ns=min(order.lasts_ns, LASTS_NS_MAX))
        if order.mode == HELD:
            with LATE_IMPORTS:
                from rankscope.agent.captures.held_objects import HeldObjects  # noqa: PLC0415 - hardly any rank leaks

            self._held = HeldObjects(order, thread, self._files, monotonic_ns=self._monotonic_ns)
            return SamplesTaken(id=order.id, state="accepted")
        self._native_id = find_native_id(thread) or 0
        self._cpu_begin_ns = read_thread_cpu_ns(self._native_id)
        waits = KernelWaits(self._native_id)
        look = None if self._workers is None else self._workers.look
        self._on = StackSamples(order, thread, self._files, monotonic_ns=self._monotonic_ns, waits=waits, look=look)
        if self._workers is not None:
            self._workers.order(order.interval_ns, self._on.begun_ns + min(order.lasts_ns, WORKERS_NS))
        self._sampler.start()
        self._sampler.begin(self._on)
        return SamplesTaken(id=order.id, state="accepted")

    def _find_refusal(self, order: SampleOrder) -> str:
        if self._sampler is None:
            return self._obstacle
        if not self._sampler.is_usable:
            return NO_MORE
        if self._sampler.is_paused:
            return ORDERED_OFF
        if order.mode not in SAMPLE_MODES:
            return f"this agent has no samples of the mode {order.mode[:32]!r}"
        return ""

    def _finish(self, on: StackSamples) -> SamplesTaken:
        stacks, steps = on.finish()
        end_ns = read_thread_cpu_ns(self._native_id)
        cpu_ns = None if end_ns is None or self._cpu_begin_ns is None else max(0, end_ns - self._cpu_begin_ns)
        return SamplesTaken(
            id=on.order.id,
            state="taken",
            reason="" if steps else NO_WHOLE_STEP,
            stacks=stacks,
            steps=steps,
            samples=on.samples,
            span_ns=max(0, self._monotonic_ns() - on.begun_ns),
            cpu_ns=cpu_ns,
            cost_ns=on.cpu_ns,
            workers=() if self._workers is None else self._workers.collect(),
            loader=None if self._workers is None else self._workers.read_loader(),
            threads=on.threads,
        )

    def _remember(self, answer: SamplesTaken) -> None:
        self._answers[answer.id] = answer
        while len(self._answers) > KNOWN_MAX:
            oldest = next(key for key, one in self._answers.items() if one.state != "accepted")
            del self._answers[oldest]


def read_thread_cpu_ns(native_id: int) -> int | None:
    """Return the CPU time of a thread of this process, in ns; None where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/schedstat", "rb") as file:
            ran_ns = int(file.read(256).split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return ran_ns or None
