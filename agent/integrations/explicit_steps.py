"""Passes steps, evaluations and checkpoints from a framework's callback to the agent."""

from collections.abc import Mapping
from typing import ClassVar

import rankscope.agent as rankscope
from rankscope.agent import launch
from rankscope.measure.records import CHECKPOINT


class ExplicitSteps:
    """The steps of one training as a framework reports them. Calls may be missing or repeated; none raises.

    During training only `end_step` ends a step, so that none is counted twice. A framework may raise without a call:
    the next training in the process ends what the one before has left open.
    """

    _latest: ClassVar["ExplicitSteps | None"] = None

    def __init__(self) -> None:
        self._training = False
        self._evaluation: rankscope.evaluation | None = None
        self._saving: rankscope.phase | None = None

    def start_agent(self, launcher: Mapping[str, str]) -> None:
        """Start the agent unless it runs. `launcher` has variables that the environment may lack, such as RANK."""
        launch.start_session(launcher)

    def begin_training(self) -> None:
        """Switch to explicit steps, before the first one."""
        before, ExplicitSteps._latest = ExplicitSteps._latest, self
        if before is not None:
            before.end_evaluation()
            before.end_saving()
        if not self._training and launch.session is not None:
            self._training = True
            launch.session.calls.use_explicit_steps()

    def end_step(self) -> None:
        """End a step, after its optimizer step."""
        self.end_evaluation()
        self.end_saving()
        if self._training:
            rankscope.step()

    def begin_evaluation(self) -> None:
        """Begin an evaluation: time from here on belongs to no step."""
        if self._evaluation is None:
            self._evaluation = rankscope.evaluation().__enter__()

    def end_evaluation(self) -> None:
        """End the evaluation."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    def begin_saving(self) -> None:
        """Begin a checkpoint, whose time is the phase `checkpoint` of the following step."""
        if self._saving is None:
            self._saving = rankscope.phase(CHECKPOINT).__enter__()

    def end_saving(self) -> None:
        """End the checkpoint."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.__exit__(None, None, None)

    def end_training(self) -> None:
        """End the training; an unfinished step is dropped."""
        self.end_evaluation()
        self.end_saving()
        if self._training and launch.session is not None:
            launch.session.calls.resume_auto_steps()
        self._training = False
