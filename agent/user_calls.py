"""Carries out the calls of `rankscope.agent` in this process. None of them raises, but for what a signal handler of the
script has raised meanwhile.
"""

from collections.abc import Callable
from typing import Final

from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.run_report import FAILED, RunReport, build_report
from rankscope.agent.steps.batch_size import UNKNOWN, BatchSize, to_size
from rankscope.agent.steps.model_flops import ModelFlops
from rankscope.agent.steps.throughput import Throughput
from rankscope.agent.training_thread import TrainingThread

PART = "user_calls"
BATCH_SIZES = "batch_sizes"
MODEL_FLOPS = "model_flops"
REPORT = "report"
TRIES: Final = 3
"""Of what signal handlers of the script interrupt: one is usual."""


class UserCalls:
    """The calls of one process, on its training thread. They do nothing while it is not measured."""

    def __init__(
        self, training: TrainingThread, guard: Guard, flops: ModelFlops, read_report: Callable[[], RunReport]
    ) -> None:
        self._training = training
        self._flops = flops
        self._read_report = read_report
        self._steps = training.timer.user
        self._guard = guard
        self._evaluations = 0
        self._phases: list[int] = []
        """How many phases were open at the begin of each that is."""

    def end_step(self, samples: int | None, tokens: int | None) -> None:
        """Implement `rankscope.agent.step()`."""
        self._call(self._steps.end_step, self._to_size(samples, tokens))

    def set_batch_size(self, samples: int | None, tokens: int | None) -> None:
        """Implement `rankscope.agent.batch()`. Ignored in an evaluation, and while gradients are off."""
        if self._training.hooks.gradients_are_on() and not self._evaluations:
            self._call(self._steps.set_batch_size, self._to_size(samples, tokens))

    def declare_flops(self, per_step: object, per_token: object, dtype: object) -> None:
        """Implement `rankscope.agent.model_flops()`. It holds from the step on that is open."""
        try:
            with self._training.hooks.buffer.flushed():
                self._flops.set_declared(per_step=per_step, per_token=per_token, dtype=dtype)
        except BaseException as error:  # noqa: BLE001 - objects of the user may fail in any way
            self._guard.record(MODEL_FLOPS, error)
        self._guard.raise_held()

    def begin_evaluation(self) -> None:
        """Begin `with rankscope.agent.evaluation():`. A nested one changes nothing."""
        self._evaluations += 1
        if self._evaluations == 1 and self._training.is_measured:
            self._begin(self._pause, undo=self.end_evaluation)

    def _pause(self) -> None:
        if not self._training.hooks.is_paused:
            self._carry_out(self._steps.begin_evaluation)
            self._training.hooks.pause()

    def end_evaluation(self) -> None:
        """End `with rankscope.agent.evaluation():`."""
        if self._evaluations:  # otherwise it began before the agent was started
            left = self._evaluations - 1
            self._finish(lambda: self._resume(left))
            self._guard.raise_held()

    def _resume(self, left: int) -> None:
        if not left and self._training.is_measured:
            self._training.hooks.resume()
            self._carry_out(self._steps.end_evaluation)
        self._evaluations = left

    def use_explicit_steps(self) -> None:
        """End steps only at `end_step`, as a framework's callback calls it, until `resume_auto_steps`."""
        self._call(self._steps.begin_explicit_steps)

    def resume_auto_steps(self) -> None:
        """Detect steps again, after the framework's training has ended."""
        self._call(self._steps.end_explicit_steps)

    def capture(self, steps: int) -> bool:
        """Implement `rankscope.agent.capture()`."""
        traces = self._training.traces
        if traces is None or not traces.keeps_files or not self._training.is_measured or not isinstance(steps, int):
            return False
        asked: list[bool] = []
        self._call(lambda _now_ns: asked.append(traces.recording.ask(steps)))
        return asked == [True]

    def find_throughput(self, last_steps: int | None) -> Throughput | None:
        """Implement `rankscope.agent.throughput()`."""
        try:
            self._training.hooks.catch_up()
            return self._training.throughput.find(last_steps)
        except BaseException as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(PART, error)
        self._guard.raise_held()
        return None

    def read_report(self) -> RunReport:
        """Implement `rankscope.agent.status()`, on any thread."""
        try:
            return self._read_report()
        except Exception as error:
            if is_of_script(error):
                raise
            if not self._guard.is_off(REPORT):
                self._guard.record(REPORT, error)
            return build_report("", None, FAILED, 0)

    def begin_phase(self, name: str) -> None:
        """Begin `with rankscope.agent.phase(name):`."""
        self._phases.append(self._steps.phases_open)
        self._begin(lambda: self._carry_out(self._steps.begin_phase, name), undo=self.end_phase)

    def end_phase(self) -> None:
        """End `with rankscope.agent.phase(name):`."""
        if self._phases:
            left = self._phases.pop()
            self._finish(lambda: self._carry_out(self._steps.end_phase, left))
            self._guard.raise_held()

    def _to_size(self, samples: object, tokens: object) -> BatchSize:
        try:
            return to_size(samples, tokens)
        except Exception as error:  # noqa: BLE001 - objects of the user may fail in any way
            self._guard.record(BATCH_SIZES, error)
            return UNKNOWN

    def _call(self, event: Callable[..., None], *arguments: object) -> None:
        self._carry_out(event, *arguments)
        self._guard.raise_held()

    def _begin(self, part: Callable[[], object], undo: Callable[[], object]) -> None:
        """Carry out a begin; undo it where a signal handler raises: a `with` does not end what raises at its begin."""
        try:
            part()
            self._guard.raise_held()
        except BaseException:
            undo()
            raise

    def _finish(self, part: Callable[[], object]) -> None:
        """Carry out what must not be left half done, and is the same when it is done twice."""
        for _ in range(TRIES):
            held = self._guard.held
            try:
                part()
            except BaseException as error:  # noqa: BLE001 - a signal handler of the script
                self._guard.record(PART, error)
            if self._guard.held == held:
                return

    def _carry_out(self, event: Callable[..., None], *arguments: object) -> None:
        if self._guard.is_off(PART) or not self._training.is_measured:
            return
        try:
            with self._training.hooks.buffer.flushed():
                event(self._training.read_event_ns(), *arguments)
        except BaseException as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)
