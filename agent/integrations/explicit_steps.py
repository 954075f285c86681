"""What a framework's callback tells the agent: it knows where its steps, evaluations and checkpoints begin and end."""

from collections.abc import Mapping

import rankscope.agent as rankscope
from rankscope.agent import launch

CHECKPOINT = "checkpoint"


class ExplicitSteps:
    """The steps of one training, as a framework tells them. Calls may be missing or come twice; none ever raises.

    While it runs nothing but `end_step` ends a step, so that none is counted twice.
    """

    def __init__(self) -> None:
        self._training = False
        self._evaluation: rankscope.evaluation | None = None
        self._saving: rankscope.phase | None = None

    def start_agent(self, launcher: Mapping[str, str]) -> None:
        """Start the agent unless it runs. `launcher` has what the environment may lack: RANK, WORLD_SIZE and so on."""
        launch.start_session(launcher)

    def begin_training(self) -> None:
        """The first step is about to begin."""
        if not self._training and launch.session is not None:
            self._training = True
            launch.session.use_explicit_steps()

    def end_step(self) -> None:
        """An optimizer step and all that belongs to it are over."""
        self.end_evaluation()
        self.end_saving()
        if self._training:
            rankscope.step()

    def begin_evaluation(self) -> None:
        """From here on nothing belongs to a step."""
        if self._evaluation is None:
            self._evaluation = rankscope.evaluation().__enter__()

    def end_evaluation(self) -> None:
        """Training goes on."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    def begin_saving(self) -> None:
        """A checkpoint is about to be written; its time is the phase `checkpoint` of the step that follows."""
        if self._saving is None:
            self._saving = rankscope.phase(CHECKPOINT).__enter__()

    def end_saving(self) -> None:
        """The checkpoint is written."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.__exit__(None, None, None)

    def end_training(self) -> None:
        """There will be no further step: what was begun for one is dropped."""
        self.end_evaluation()
        self.end_saving()
        if self._training and launch.session is not None:
            launch.session.resume_auto_steps()
        self._training = False
