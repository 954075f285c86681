"""Transformers: `Trainer(..., callbacks=[RankscopeCallback()])`, also for the trainers built on it (TRL, PEFT).

Without the callback steps are found too (docs/loops.md); with it they are the Trainer's own, evaluations are told from
training whatever they do with gradients, writing a checkpoint is a phase, and the agent need not be named on the launch
line.
"""

from typing import Any

from rankscope.agent.deferred_start import describe_launch
from rankscope.agent.integrations.explicit_steps import ExplicitSteps

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "rankscope.agent.integrations.transformers needs Transformers, which cannot be imported "
        f"({error}); `pip install transformers` installs it."
    ) from error

__all__ = ["RankscopeCallback"]


class RankscopeCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not look into transformers
    """Starts the agent where `train` begins, and tells it the Trainer's steps, evaluations and checkpoints.

    The Trainer announces neither an evaluation nor a checkpoint, but it decides on both at the end of a step or an
    epoch, evaluates first, and tells when each is over.
    """

    def __init__(self) -> None:
        self._steps = ExplicitSteps()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its signature
        """`train` is about to fetch the first batch, or to evaluate before it."""
        self._steps.start_agent(
            describe_launch(rank=args.process_index, local_rank=args.local_process_index, world_size=args.world_size)
        )
        self._steps.begin_training()
        if getattr(args, "eval_on_start", False):
            self._steps.begin_evaluation()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """`state.global_step` has grown by one."""
        self._steps.end_step()
        self._begin_what_comes(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The epoch's batches are used up."""
        self._begin_what_comes(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """An evaluation is running, perhaps one that another callback has asked for after this one."""
        self._steps.begin_evaluation()

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The evaluation is over."""
        self._steps.end_evaluation()
        if control.should_save:
            self._steps.begin_saving()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """The checkpoint is written."""
        self._steps.end_saving()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Training is over."""
        self._steps.end_training()

    def _begin_what_comes(self, control: Any) -> None:
        if control.should_evaluate:
            self._steps.begin_evaluation()
        elif control.should_save:
            self._steps.begin_saving()
