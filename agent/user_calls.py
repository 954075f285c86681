"""Carries out the calls of `rankscope.agent` in this process. None of them raises, but for what a signal handler of the
script has raised meanwhile.
"""

from collections.abc import Callable

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
            self._carry_out(self._steps.begin_evaluation)
            self._training.hooks.pause()
            self._raise_held(undo=self.end_evaluation)

    def end_evaluation(self) -> None:
        """End `with rankscope.agent.evaluation():`."""
        if not self._evaluations:  # it began before the agent was started
            return
        self._evaluations -= 1
        if not self._evaluations and self._training.is_measured:
            self._training.hooks.resume()
            self._call(self._steps.end_evaluation)

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
        self._carry_out(self._steps.begin_phase, name)
        self._raise_held(undo=self.end_phase)

    def end_phase(self) -> None:
        """End `with rankscope.agent.phase(name):`."""
        self._call(self._steps.end_phase)

    def _to_size(self, samples: object, tokens: object) -> BatchSize:
        try:
            return to_size(samples, tokens)
        except Exception as error:  # noqa: BLE001 - objects of the user may fail in any way
            self._guard.record(BATCH_SIZES, error)
            return UNKNOWN

    def _call(self, event: Callable[..., None], *arguments: object) -> None:
        self._carry_out(event, *arguments)
        self._guard.raise_held()

    def _raise_held(self, undo: Callable[[], object]) -> None:
        """Raise what a signal handler has raised, after `undo`: a `with` does not end what raises at its begin."""
        error = self._guard.pop_held()
        if error is not None:
            undo()
            raise error

    def _carry_out(self, event: Callable[..., None], *arguments: object) -> None:
        if self._guard.is_off(PART) or not self._training.is_measured:
            return
        try:
            with self._training.hooks.buffer.flushed():
                event(self._training.read_event_ns(), *arguments)
        except BaseException as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)
