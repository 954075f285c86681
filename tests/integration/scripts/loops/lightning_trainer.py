"""PyTorch Lightning's Trainer: it runs forward and backward inside the optimizer's step, and validates every epoch."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):  # type: ignore[misc]  # mypy does not look into lightning
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch: list[torch.Tensor], _batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: list[torch.Tensor], _batch_idx: int) -> None:
        self.layer(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=int(sys.argv[1]) if len(sys.argv) > 1 else 1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
training = DataLoader(TensorDataset(torch.randn(24, 16)), batch_size=4)
held_out = DataLoader(TensorDataset(torch.randn(12, 16)), batch_size=4)
trainer.fit(Regression(), training, held_out)
print("global step", trainer.global_step)
