"""Callback for PyTorch Lightning: `Trainer(callbacks=[RankscopeCallback()])`.

Works with `lightning` and `pytorch_lightning`, preferring the one already imported. Steps are detected without it too
(docs/loops.md); with it they are Lightning's own, writing a checkpoint is a phase, the launch line needs no agent, and
what the collector has found is logged with the trainer's loggers (docs/loggers.md).
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from rankscope.agent.deferred_start import describe_launch
from rankscope.agent.integrations.background_writes import BackgroundWrites
from rankscope.agent.integrations.explicit_steps import ExplicitSteps
from rankscope.agent.integrations.run_log import FINDINGS, LogEntry, RunLog
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
        self._logs: list[RunLog] = []
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
            self._logs = [open_log(logger) for logger in getattr(trainer, "loggers", None) or ()]
        self._watch_saving(trainer)
        self._steps.begin_training()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End the step if this batch completed one; with gradient accumulation most do not."""
        if trainer.global_step != self._global_step:
            self._global_step = trainer.global_step
            self._steps.end_step()
            for log in self._logs:
                log.update(find_log_step(trainer))

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
        self._logs = []
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


def open_log(logger: Any) -> RunLog:
    """Return the log of the run for one of Lightning's loggers: where one fails, the others go on."""
    is_mlflow = _is_one(logger, "MLFlowLogger")
    log_entry = _log_with_mlflow(logger) if is_mlflow else functools.partial(log_with, logger)
    return RunLog(log_entry, logger=type(logger).__name__)


def find_log_step(trainer: Any) -> int:
    """Return the step at which Lightning logs its own values: batches that stepped, however many optimizers did.

    Its name is private to Lightning; where it is missing, `trainer.global_step`, which counts each optimizer.
    """
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    step: int = getattr(loop, "_batches_that_stepped", trainer.global_step)
    return step


def log_with(logger: Any, entry: LogEntry, step: int | None) -> None:
    """Log an entry with one of Lightning's loggers."""
    if entry.findings is not None:
        _log_findings(logger, entry.findings, step)
    logger.log_metrics(entry.scalars, step=step)


def _log_findings(logger: Any, findings: str, step: int | None) -> None:
    """Log the findings with a logger whose own object has a call for texts; others have numbers only."""
    own: Any = getattr(logger, "experiment", None)
    if hasattr(own, "add_text"):
        write_to_summary(own, LogEntry({}, findings), step)
    elif _is_one(logger, "WandbLogger"):
        own.log({FINDINGS: findings}, commit=False)  # the numbers make the row


def _log_with_mlflow(logger: Any) -> Callable[[LogEntry, int | None], None]:
    """Return how to log with an MLFlowLogger: on a thread, since its own calls wait for the tracking server."""
    writes = BackgroundWrites()

    def log_entry(entry: LogEntry, step: int | None) -> None:
        from rankscope.agent.integrations.mlflow import build_batch  # noqa: PLC0415 - MLflow is there: this is its logger

        client, run_id, batch = logger.experiment, logger.run_id, build_batch(entry, step)  # made when `fit` began
        writes.start(lambda: client.log_batch(run_id, **batch))

    return log_entry


def _is_one(logger: Any, name: str) -> bool:
    """Return whether a logger is of the class of this name, or of one derived from it."""
    return name in [one.__name__ for one in type(logger).__mro__]
