"""Lightning with the callback and four loggers, offline under a folder: `lightning_logs.py FOLDER`.

It trains until a log beside the callback's has had two entries, by when the callback's has had one.
"""

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.integrations.lightning import RankscopeCallback
from tests.integration.scripts.run_logs import EntryCount

FOLDER = Path(sys.argv[1])
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"


class Regression(lightning.LightningModule):  # type: ignore[misc]  # mypy does not look into lightning
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch: list[torch.Tensor], _batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class UntilLogged(lightning.Callback):  # type: ignore[misc]
    """Ends the training."""

    def __init__(self) -> None:
        self.count = EntryCount()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        self.count.update()
        trainer.should_stop = self.count.entries >= 2


trainer = lightning.Trainer(
    max_steps=-1,
    accelerator="cpu",
    devices=1,
    callbacks=[RankscopeCallback(), UntilLogged()],
    logger=[
        TensorBoardLogger(FOLDER, name="", version="tensorboard"),
        CSVLogger(FOLDER, name="", version="csv"),
        MLFlowLogger(tracking_uri=(FOLDER / "mlflow").as_uri()),
        WandbLogger(save_dir=FOLDER, offline=True, project="test"),
    ],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(64, 16)), batch_size=4))
