"""A run of Weights & Biases that nodes and ranks are written to, in the group of the training's runs."""

from collections.abc import Mapping

import wandb

STEP = "rankscope/step"


class WandbRun:
    """A new run in a project, or the one with the id `into`, which only this process may write to."""

    def __init__(self, name: str, project: str, into: str = "") -> None:
        self._run = wandb.init(
            project=project, name=name, group=name, job_type="rankscope", id=into or None,
            resume="allow" if into else None,
        )  # fmt: skip
        self._run.define_metric(STEP)
        self._run.define_metric("rankscope/*", step_metric=STEP)
        self.id: str = self._run.id

    def write(self, row: Mapping[str, float], step: int, _wall_s: float) -> None:
        """Write a row at a step of the training, which is a number of the row: W&B's own steps count the rows."""
        self._run.log({**row, STEP: step})

    def close(self) -> None:
        """Upload what is not uploaded yet, and end the run."""
        self._run.finish()
