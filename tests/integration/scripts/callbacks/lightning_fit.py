"""Lightning with the callback, by either of its names: `lightning_fit.py MODULE PROCESSES`.

Two epochs of twelve batches of four, two to a step, so a step has eight samples. A validation every six batches, the
sanity check before; its loader cannot tell its length, so Lightning fetches ahead. A checkpoint every four steps.
"""

import importlib
import sys
import tempfile
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

pl = importlib.import_module(sys.argv[1])
from rankscope.agent.integrations.lightning import RankscopeCallback  # noqa: E402 - after Lightning, as users have it

PROCESSES = int(sys.argv[2])


class HeldOut(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.randn(12, 16))


class Regression(pl.LightningModule):  # type: ignore[name-defined,misc]  # which of the two is known at run time
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def training_step(self, batch: list[torch.Tensor], _batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch[0]).square().mean()
        return loss

    def validation_step(self, batch: torch.Tensor, _batch_idx: int) -> None:
        self.layer(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        save = pl.callbacks.ModelCheckpoint(folder, every_n_train_steps=4, save_top_k=-1)
        trainer = pl.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=PROCESSES,
            strategy="ddp" if PROCESSES > 1 else "auto",
            accumulate_grad_batches=2,
            val_check_interval=6,
            callbacks=[RankscopeCallback(), save],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        training = DataLoader(TensorDataset(torch.randn(48 * PROCESSES, 16)), batch_size=4)
        trainer.fit(Regression(), training, DataLoader(HeldOut(), batch_size=4))
    print("global step", trainer.global_step, "callback", type(trainer.callbacks[0]).__mro__[1].__module__)


if __name__ == "__main__":
    main()
