"""A run of MLflow that nodes and ranks are written to: one of its own, or the training's."""

from collections.abc import Mapping
from typing import Final

import mlflow
from mlflow.entities import Metric, RunStatus

METRICS_MAX: Final = 1_000
"""Most metrics that a tracking server takes at a time."""


class MlflowRun:
    """The run `into`, which is left as it is otherwise; empty: a new one of this name in an experiment."""

    def __init__(self, name: str, project: str, into: str = "") -> None:
        self._client = mlflow.MlflowClient()
        self._is_own = not into
        self.id = into or self._begin(name, project)

    def write(self, row: Mapping[str, float], step: int, wall_s: float) -> None:
        """Write a row at a step."""
        metrics = [Metric(name, value, int(wall_s * 1_000), step) for name, value in row.items()]
        for begin in range(0, len(metrics), METRICS_MAX):
            self._client.log_batch(self.id, metrics=metrics[begin : begin + METRICS_MAX], synchronous=True)

    def close(self) -> None:
        """End a run of its own."""
        if self._is_own:
            self._client.set_terminated(self.id, RunStatus.to_string(RunStatus.FINISHED))

    def _begin(self, name: str, project: str) -> str:
        found = self._client.get_experiment_by_name(project)
        experiment = self._client.create_experiment(project) if found is None else found.experiment_id
        run_id: str = self._client.create_run(experiment, run_name=name, tags={"rankscope.run": name}).info.run_id
        return run_id
