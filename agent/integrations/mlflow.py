"""The log of a run for MLflow: `MlflowLog()` once, `log.update(step)` after each step.

A daemon thread of our own writes with MLflow's synchronous call: a tracking server that is slow or away does not hold
up training, and its end by 2 s at most. MLflow's own asynchronous logging would: at the end of the process it waits
until every batch is written or all retries have failed, which takes minutes.
"""

import time
from typing import Any

from rankscope.agent.integrations.background_writes import BackgroundWrites
from rankscope.agent.integrations.run_log import FINDINGS_TAG, TAG_LENGTH_MAX, LogEntry, RunLog

try:
    import mlflow
    from mlflow.entities import Metric, RunTag
except ImportError as error:
    raise ImportError(
        "rankscope.agent.integrations.mlflow needs MLflow, which cannot be imported "
        f"({error}); `pip install mlflow-skinny` installs it."
    ) from error

__all__ = ["MlflowLog", "build_batch"]


class MlflowLog(RunLog):
    """The log of the run with this id; None: the run that is active when something is logged. Numbers are metrics; the
    findings that hold now are the tag `rankscope.findings`.
    """

    def __init__(self, run_id: str | None = None) -> None:
        super().__init__(self._write_entry)
        self._run_id = run_id
        self._client: Any = None
        self._writes = BackgroundWrites()

    def _write_entry(self, entry: LogEntry, step: int | None) -> None:
        run_id, tracking_uri, batch = self._find_run(), mlflow.get_tracking_uri(), build_batch(entry, step)
        self._writes.start(lambda: self._make_client(tracking_uri).log_batch(run_id, **batch))

    def _make_client(self, tracking_uri: str) -> Any:
        """Return the client, which may be the first to connect. The thread of the writes calls this, one at a time."""
        self._client = self._client or mlflow.MlflowClient(tracking_uri)
        return self._client

    def _find_run(self) -> str:
        if self._run_id is not None:
            return self._run_id
        run = mlflow.active_run()
        if run is None:  # start_run would begin one that nobody ends
            raise RuntimeError("no MLflow run is active on rank 0: call mlflow.start_run() before, or pass its run id")
        run_id: str = run.info.run_id
        return run_id


def build_batch(entry: LogEntry, step: int | None) -> dict[str, Any]:
    """Return what `MlflowClient.log_batch` gets of an entry: metrics, and the findings as a tag."""
    now_ms = time.time_ns() // 1_000_000
    return {
        "metrics": [Metric(name, value, now_ms, step or 0) for name, value in entry.scalars.items()],
        "tags": [] if entry.findings is None else [RunTag(FINDINGS_TAG, entry.findings[:TAG_LENGTH_MAX])],
        "synchronous": True,
    }
