"""The logs that a script of the tests may write, by name, all of them offline under a folder."""

import os
from pathlib import Path

import torch.distributed as dist

from rankscope.agent.integrations.run_log import OPEN_FINDINGS, LogEntry, RunLog


class EntryCount(RunLog):
    """A log that only counts its entries."""

    def __init__(self) -> None:
        super().__init__(self._count_entry)
        self.entries = 0

    def _count_entry(self, _entry: LogEntry, _step: int | None) -> None:
        self.entries += 1


class Witness(RunLog):
    """A log that only counts how many entries had a finding."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.findings_seen = 0

    def _count(self, entry: LogEntry, _step: int | None) -> None:
        self.findings_seen += entry.scalars[OPEN_FINDINGS] > 0


def open_tensorboard(folder: Path) -> RunLog:
    """Event files of TensorBoard."""
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - slow to import

    from rankscope.agent.integrations.tensorboard import TensorBoardLog  # noqa: PLC0415

    return TensorBoardLog(SummaryWriter(folder / "tensorboard", flush_secs=1))


def open_mlflow(folder: Path) -> RunLog:
    """A store of MLflow in files."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # a database would need SQLAlchemy
    import mlflow  # noqa: PLC0415

    from rankscope.agent.integrations.mlflow import MlflowLog  # noqa: PLC0415

    mlflow.set_tracking_uri((folder / "mlflow").as_uri())
    mlflow.start_run()
    return MlflowLog()


def open_wandb(folder: Path) -> RunLog:
    """The file of an offline run of Weights & Biases. The script logs nothing itself."""
    import wandb  # noqa: PLC0415

    from rankscope.agent.integrations.wandb import WandbLog  # noqa: PLC0415

    return WandbLog(wandb.init(mode="offline", dir=folder, project="test"))


OPENERS = {"tensorboard": open_tensorboard, "mlflow": open_mlflow, "wandb": open_wandb}


def open_logs(names: list[str], folder: Path) -> list[RunLog]:
    """Open these logs on rank 0; other ranks have none."""
    return [OPENERS[name](folder) for name in names] if dist.get_rank() == 0 else []
