"""Lightning's manual optimization with two optimizers, the second in every other batch. Eight batches of four."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.integrations.lightning import RankscopeCallback


class Adversaries(lightning.LightningModule):  # type: ignore[misc]  # mypy does not look into lightning
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.ModuleList([nn.Linear(16, 1), nn.Linear(16, 1)])

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        optimizers = self.optimizers()
        for layer, optimizer in list(zip(self.layers, optimizers, strict=True))[: 1 + batch_idx % 2]:
            optimizer.zero_grad()
            self.manual_backward(layer(batch[0]).square().mean())
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(layer.parameters(), lr=1e-3) for layer in self.layers]


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    callbacks=[RankscopeCallback()],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Adversaries(), DataLoader(TensorDataset(torch.randn(32, 16)), batch_size=4))
print("global step", trainer.global_step)
