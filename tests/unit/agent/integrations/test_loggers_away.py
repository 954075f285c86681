"""Logs of MLflow and W&B whose server is away, or whose run has its own steps. Skipped where they are not installed."""

import subprocess
import sys
from typing import Any

import pytest

from rankscope.agent.integrations.run_log import LogEntry

ENTRY = LogEntry({"rankscope/mfu": 0.5}, "warning: Rank 2 is slow.")

MLFLOW_AWAY = """
import mlflow
from rankscope.agent.integrations.mlflow import MlflowLog
from rankscope.agent.integrations.run_log import LogEntry

mlflow.set_tracking_uri("http://127.0.0.1:9")  # refuses; MLflow tries again for minutes
log = MlflowLog("0" * 32)
log._write_entry(LogEntry({"rankscope/mfu": 0.5}, None), 1)
try:
    log._write_entry(LogEntry({"rankscope/mfu": 0.5}, None), 2)
except TimeoutError:
    print("one is on")
"""


def test_training_ends_while_mlflow_is_away() -> None:
    pytest.importorskip("mlflow")
    ended = subprocess.run(
        [sys.executable, "-c", MLFLOW_AWAY], capture_output=True, text=True, check=False, timeout=500
    )
    assert (ended.returncode, ended.stdout) == (0, "one is on\n"), ended.stderr


class Rows:
    """A run of W&B that keeps what it is given to log."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def log(self, row: dict[str, Any], **options: Any) -> None:
        self.calls.append((row, options))


def test_step_of_the_script_never_moves_the_axis_of_wandb() -> None:
    pytest.importorskip("wandb")
    from rankscope.agent.integrations.wandb import WandbLog  # noqa: PLC0415 - wandb may be absent

    run = Rows()
    WandbLog(run)._write_entry(ENTRY, 500)
    assert run.calls == [({"rankscope/mfu": 0.5, "rankscope/findings": "warning: Rank 2 is slow."}, {"commit": False})]
