"""Composer: its Trainer with DDP, two micro batches a step, an evaluation amid it, checkpoints."""

import sys
import tempfile
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.jobs.told import STEPS, build_model, tell

ROWS, MICRO_BATCHES, RANKS = 8, 2, 2


class Absent(ModuleType):
    """Stands for a module of which Composer only takes names when it is imported: each is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__, self.__path__ = ModuleSpec(name, None), []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


# torchvision loads with a torch for CUDA only, and has what Composer does to images; mcli speaks to a cloud.
OF_IMAGES = ("", ".datasets", ".models", ".models.resnet", ".ops", ".transforms", ".transforms.functional", ".utils")
for absent in ("mcli", *(f"torchvision{part}" for part in OF_IMAGES)):
    sys.modules[absent] = Absent(absent)

from composer import Callback, ComposerModel, DataSpec, State, Trainer  # noqa: E402 - as above
from composer.utils import dist  # noqa: E402 - as above


class Regression(ComposerModel):  # type: ignore[misc]  # mypy does not look into composer
    """Learns to say nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = build_model()

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Return what it says."""
        said: torch.Tensor = self.layers(batch[0])
        return said

    def loss(self, outputs: torch.Tensor, *_: object) -> torch.Tensor:
        """Return how much that is."""
        return outputs.square().mean()

    def get_metrics(self, *_: bool, **__: bool) -> dict[str, Any]:
        """Return none."""
        return {}

    def eval_forward(self, batch: list[torch.Tensor], *_: object) -> torch.Tensor:
        """Look at a batch."""
        return self.forward(batch)


class Kept(Callback):  # type: ignore[misc]  # as above
    """Keeps the losses."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def batch_end(self, state: State, *_: object) -> None:
        """Take that of a step's last micro batch."""
        self.losses.append(state.loss.item())


def load(count: int) -> DataSpec:
    """Return a loader of the rows of this rank."""
    rows = TensorDataset(torch.randn(count, 32, generator=torch.Generator().manual_seed(7)))
    sampler = dist.get_sampler(rows, shuffle=True)
    loader = DataLoader(rows, batch_size=MICRO_BATCHES * ROWS, sampler=sampler)
    return DataSpec(loader, get_num_samples_in_batch=lambda batch: len(batch[0]))


dist.initialize_dist("cpu")
with tempfile.TemporaryDirectory() as folder:
    kept, model = Kept(), Regression()
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
        train_dataloader=load(RANKS * MICRO_BATCHES * ROWS * STEPS),
        eval_dataloader=load(RANKS * MICRO_BATCHES * ROWS * 2),
        eval_interval=f"{STEPS // 3}ba",
        max_duration=f"{STEPS}ba",
        device="cpu",
        device_train_microbatch_size=ROWS,
        callbacks=kept,
        save_folder=folder,
        save_interval=f"{STEPS // 2}ba",
        progress_bar=False,
        seed=7,
    )
    trainer.fit()
    tell(int(trainer.state.timestamp.batch), kept.losses)
    dist.barrier()
    trainer.close()
