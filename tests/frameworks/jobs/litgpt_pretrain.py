"""LitGPT's pretraining: its own loop around Fabric, two micro batches a step, validations amid it, checkpoints.

Its `setup` shards over several devices by FSDP1, which Lightning refuses on CPUs, so its `main` is given a Fabric with
DDP. The words are made up.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric
from lightning.fabric.loggers import CSVLogger
from litgpt.args import EvalArgs, TrainArgs
from litgpt.config import Config
from litgpt.data import DataModule
from litgpt.pretrain import main
from torch.utils.data import DataLoader

from tests.frameworks.jobs.told import STEPS, Work, tell

LENGTH, WORDS, ROWS, MICRO_BATCHES, RANKS = 16, 64, 4, 2, 2


class MadeUp(DataModule):  # type: ignore[misc]  # mypy does not look into litgpt
    """Random words."""

    def connect(self, *_: object, **__: object) -> None:
        """Needs no tokenizer."""

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return the loader of a rank's batches, of which the launcher's sampler makes each rank others."""
        return self._load(ROWS * MICRO_BATCHES * RANKS * STEPS)

    def val_dataloader(self) -> DataLoader[torch.Tensor]:
        """Return a few."""
        return self._load(ROWS * RANKS * 2)

    def _load(self, count: int) -> DataLoader[torch.Tensor]:
        words = torch.randint(WORDS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(7))
        return DataLoader(words, batch_size=ROWS)  # type: ignore[arg-type]  # a tensor is a dataset of its rows


class Slowed(Fabric):  # type: ignore[misc]  # mypy does not look into lightning
    """Does the work of a forward before that of the model, which litgpt makes, and keeps what is logged."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.kept: list[Mapping[str, Any]] = []

    def setup(self, module: Any, *optimizers: Any, **options: Any) -> Any:
        """Prepare the model as Fabric does."""
        wrapped = super().setup(module, *optimizers, **options)
        wrapped.register_forward_pre_hook(Work().pause)
        return wrapped

    def log_dict(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log as Fabric does."""
        self.kept += [metrics] if "loss" in metrics else []
        super().log_dict(metrics, step)


with tempfile.TemporaryDirectory() as folder:
    fabric = Slowed(
        accelerator="cpu", devices=RANKS, strategy="ddp", loggers=[CSVLogger(folder, flush_logs_every_n_steps=50)]
    )
    fabric.launch()
    main(
        fabric=fabric,
        devices=RANKS,
        seed=7,
        initial_checkpoint_dir=None,
        resume=False,
        config=Config(
            name="tiny", block_size=LENGTH, n_layer=1, n_embd=16, n_head=2, padded_vocab_size=WORDS, vocab_size=WORDS
        ),
        data=MadeUp(),
        out_dir=Path(folder, "out"),
        tokenizer_dir=None,
        tokenizer=None,
        train=TrainArgs(
            save_interval=STEPS // 2, global_batch_size=ROWS * MICRO_BATCHES * RANKS, micro_batch_size=ROWS,
            lr_warmup_steps=10, max_tokens=ROWS * MICRO_BATCHES * RANKS * STEPS * LENGTH, max_norm=1.0,
        ),
        eval=EvalArgs(interval=STEPS // 3, max_iters=2),
        optimizer="AdamW",
    )  # fmt: skip
    tell(fabric.kept[-1]["step"], [one["loss"] for one in fabric.kept])
    fabric.barrier()
