"""Callback for Transformers: `Trainer(..., callbacks=[RankscopeCallback()])`, also for trainers built on it (TRL).

Steps are detected without it too (docs/loops.md); with it they are the Trainer's own, evaluations are recognized even
if they compute gradients, writing a checkpoint is a phase, and the launch line needs no agent. After
`callback.log_to(trainer)` what the collector has found is part of the Trainer's own logs (docs/loggers.md).
"""

from typing import Any

from rankscope.agent.deferred_start import describe_launch
from rankscope.agent.integrations.explicit_steps import ExplicitSteps
from rankscope.agent.integrations.run_log import FINDINGS, LogEntry, RunLog

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "rankscope.agent.integrations.transformers needs Transformers, which cannot be imported "
        f"({error}); `pip install transformers` installs it."
    ) from error

__all__ = ["RankscopeCallback"]


class RankscopeCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not look into transformers
    """Starts the agent when `train` begins, and reports the Trainer's steps, evaluations and checkpoints.

    The Trainer has no event before an evaluation or a checkpoint. It decides on both at the end of a step or epoch,
    evaluates first, and has an event after each.
    """

    def __init__(self) -> None:
        self._steps = ExplicitSteps()

    def log_to(self, trainer: Any) -> None:
        """Let rank 0 add what the collector has found to the Trainer's logs, whatever `report_to` names.

        The Trainer passes one dict of logs to its callbacks, one after the other, those of `report_to` first: so what
        adds to it has to come before them.
        """
        trainer.callback_handler.callbacks.insert(0, _AddToLogs())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its signature
        """Start the agent and begin the training, before the first batch or an evaluation at the start."""
        self._steps.start_agent(
            describe_launch(rank=args.process_index, local_rank=args.local_process_index, world_size=args.world_size)
        )
        self._steps.begin_training()
        if getattr(args, "eval_on_start", False):
            self._steps.begin_evaluation()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End a step: `state.global_step` has increased by one."""
        self._steps.end_step()
        self._begin_next(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin an evaluation or a checkpoint at the end of an epoch."""
        self._begin_next(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin an evaluation that was not begun yet, for example one requested by a later callback."""
        self._steps.begin_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the evaluation."""
        self._steps.end_evaluation()
        if control.should_save:
            self._steps.begin_saving()

    def on_predict(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the evaluation that a prediction is."""
        self._steps.end_evaluation()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the checkpoint."""
        self._steps.end_saving()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """End the training."""
        self._steps.end_training()

    def _begin_next(self, control: Any) -> None:
        if control.should_evaluate:
            self._steps.begin_evaluation()
        elif control.should_save:
            self._steps.begin_saving()


class _AddToLogs(TrainerCallback):  # type: ignore[misc]  # as above
    """Adds numbers of the run, and its findings where they have changed, to the logs that the next callbacks get."""

    def __init__(self) -> None:
        self._log = RunLog(self._add)
        self._logs: dict[str, Any] = {}
        self._takes_text = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Add what is new, if anything is."""
        if isinstance(logs, dict):
            self._logs, self._takes_text = logs, "mlflow" not in (args.report_to or ())
            self._log.update(state.global_step)
            self._logs = {}

    def _add(self, entry: LogEntry, _step: int | None) -> None:
        self._logs.update(entry.scalars)
        if entry.findings is not None and self._takes_text:  # MLflow's callback warns of each text
            self._logs[FINDINGS] = entry.findings
