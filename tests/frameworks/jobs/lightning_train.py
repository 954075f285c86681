"""PyTorch Lightning's Trainer, automatic optimization, two ranks, a validation amid it.

The word is the strategy: ddp, fsdp, or tensor_parallel for its ModelParallelStrategy.
"""

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.jobs.told import STEPS, build_model, tell

strategy = sys.argv[1]


class Regression(lightning.LightningModule):  # type: ignore[misc]  # mypy does not look into lightning
    """Learns to say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = build_model()
        self.losses: list[float] = []

    def configure_model(self) -> None:
        """Cut the layers over both ranks, where that is asked for."""
        if strategy == "tensor_parallel":
            parts = {"1": ColwiseParallel(), "3": RowwiseParallel()}
            parallelize_module(self.layers, self.device_mesh["tensor_parallel"], parts)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        loss: torch.Tensor = self.layers(batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Look at a batch."""
        self.layers(batch[0])

    def configure_optimizers(self) -> Any:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train."""
    chosen = ModelParallelStrategy(tensor_parallel_size=2) if strategy == "tensor_parallel" else strategy
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=2, strategy=chosen, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=STEPS // 3,
    )  # fmt: skip
    rows = torch.randn(2 * 8 * STEPS, 32, generator=torch.Generator().manual_seed(7))
    model = Regression()
    held_out = DataLoader(TensorDataset(rows[:64]), batch_size=8)
    trainer.fit(model, DataLoader(TensorDataset(rows), batch_size=8), held_out)
    tell(trainer.global_step, model.losses)


if __name__ == "__main__":
    main()
