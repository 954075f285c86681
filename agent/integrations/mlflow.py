"""The log of a run for MLflow: `MlflowLog()` once, `log.update(step)` after each step.

Everything is logged asynchronously, by MLflow's own threads: a tracking server that is slow or away holds up nothing.
"""

import time
from typing import Any

from rankscope.agent.integrations.run_log import FINDINGS_TAG, TAG_LENGTH_MAX, LogEntry, RunLog

try:
    import mlflow
    from mlflow.entities import Metric, RunTag
except ImportError as error:
    raise ImportError(
        "rankscope.agent.integrations.mlflow needs MLflow, which cannot be imported "
        f"({error}); `pip install mlflow-skinny` installs it."
    ) from error

__all__ = ["MlflowLog"]


class MlflowLog(RunLog):
    """The log of the run with this id; None: the run that is active when something is logged. Numbers are metrics; the
    findings that hold now are the tag `rankscope.findings`.
    """

    def __init__(self, run_id: str | None = None) -> None:
        super().__init__(self._write_entry)
        self._run_id = run_id
        self._client: Any = None

    def _write_entry(self, entry: LogEntry, step: int | None) -> None:
        run_id = self._find_run()
        now_ms = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now_ms, step or 0) for name, value in entry.scalars.items()]
        tags = [] if entry.findings is None else [RunTag(FINDINGS_TAG, entry.findings[:TAG_LENGTH_MAX])]
        if self._client is None:
            self._client = mlflow.MlflowClient()
        self._client.log_batch(run_id, metrics=metrics, tags=tags, synchronous=False)

    def _find_run(self) -> str:
        if self._run_id is not None:
            return self._run_id
        run = mlflow.active_run()
        if run is None:  # start_run would begin one that nobody ends
            raise RuntimeError("no MLflow run is active on rank 0: call mlflow.start_run() before, or pass its run id")
        run_id: str = run.info.run_id
        return run_id
