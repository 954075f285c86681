"""Callback for PyTorch Lightning: `Trainer(callbacks=[RankscopeCallback()])`.

Works with `lightning` and `pytorch_lightning`, preferring the one already imported. Steps are detected without it too
(docs/loops.md); with it they are Lightning's own, writing a checkpoint is a phase, the launch line needs no agent, and
what the collector has found is logged with the trainer's loggers (docs/loggers.md).
"""

import importlib
import sys
from typing import Any

from rankscope.agent.deferred_start import describe_launch
from rankscope.agent.integrations.explicit_steps import ExplicitSteps
from rankscope.agent.integrations.run_log import FINDINGS, FINDINGS_TAG, TAG_LENGTH_MAX, LogEntry, RunLog
from rankscope.agent.integrations.tensorboard import write_to_summary

__all__ = ["RankscopeCallback"]

MODULES = ("lightning.pytorch", "pytorch_lightning")


def _find_callback_class() -> Any:
    imported = [name for name in MODULES if name in sys.modules]
    for name in (*imported, *MODULES):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError(
        "rankscope.agent.integrations.lightning needs PyTorch Lightning, and neither `lightning` nor "
        "`pytorch_lightning` can be imported; `pip install lightning` installs it."
    )


class RankscopeCallback(_find_callback_class()):  # type: ignore[misc]  # mypy does not look into lightning
    """Starts the agent in each process of `fit`, and reports Lightning's steps, validations and checkpoints.

    A step ends when `trainer.global_step` has increased at the end of a batch. With several optimizers, which Lightning
    counts separately, a batch is still one step.

    With `log_run` rank 0 logs the run with the trainer's loggers: numbers with all, findings as text with those for
    TensorBoard, W&B and MLflow.
    """

    def __init__(self, *, log_run: bool = True) -> None:
        super().__init__()
        self._steps = ExplicitSteps()
        self._log_run = log_run
        self._log: RunLog | None = None
        self._global_step = 0
        self._watches_saving = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 - Lightning's signature
        """Start the agent in a process of `fit`."""
        if stage == "fit":
            local_world_size = trainer.world_size // max(1, trainer.num_nodes)
            self._steps.start_agent(
                describe_launch(
                    rank=trainer.global_rank,
                    local_rank=trainer.local_rank,
                    world_size=trainer.world_size,
                    local_world_size=local_world_size,
                )
            )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the training, before the first batch is fetched."""
        self._global_step = trainer.global_step
        if self._log_run:
            self._log = RunLog(lambda entry, step: log_with(trainer.loggers, entry, step))
        self._watch_saving(trainer)
        self._steps.begin_training()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End the step if this batch completed one; with gradient accumulation most do not."""
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._steps.end_step()
            if self._log is not None:
                self._log.update(self._global_step)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin a validation, or the sanity check before training."""
        self._steps.begin_evaluation()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the validation. Lightning saves monitored checkpoints after this."""
        self._steps.end_evaluation()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """End the training."""
        self._end(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End a training that failed or was interrupted."""
        self._end(trainer)

    def _end(self, trainer: Any) -> None:
        self._steps.end_training()
        self._log = None
        if self._watches_saving:
            vars(trainer).pop("save_checkpoint", None)
            self._watches_saving = False

    def _watch_saving(self, trainer: Any) -> None:
        """Wrap `save_checkpoint` of this trainer, since no hook reports when a checkpoint has been written."""
        if "save_checkpoint" in vars(trainer):  # already replaced by other code: keep it
            return
        save, steps = trainer.save_checkpoint, self._steps

        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            steps.begin_saving()
            try:
                return save(*args, **kwargs)
            finally:
                steps.end_saving()

        trainer.save_checkpoint = save_checkpoint
        self._watches_saving = True


def log_with(loggers: Any, entry: LogEntry, step: int | None) -> None:
    """Log an entry with each of Lightning's loggers."""
    for logger in loggers:
        if entry.findings is not None:
            _log_findings(logger, entry.findings, step)
        logger.log_metrics(entry.scalars, step=step)


def _log_findings(logger: Any, findings: str, step: int | None) -> None:
    """Log the findings with a logger whose own object has a call for texts; others have numbers only."""
    own: Any = getattr(logger, "experiment", None)
    if hasattr(own, "add_text"):
        write_to_summary(own, LogEntry({}, findings), step)
    elif type(logger).__name__ == "WandbLogger":
        own.log({FINDINGS: findings}, commit=False)  # the numbers make the row
    elif hasattr(own, "set_tag"):
        own.set_tag(logger.run_id, FINDINGS_TAG, findings[:TAG_LENGTH_MAX])
