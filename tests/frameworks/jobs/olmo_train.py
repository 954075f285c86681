"""OLMo-core: its Trainer and its transformer train module, sharded by FSDP2, two micro batches a step, checkpoints.

Its smallest model with one layer, and made-up batches. Checkpoints go where the job is started, to one folder of all
ranks, as its trainer requires. The word says where it reduces its metrics: `async`, as by default, on another thread.
"""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from olmo_core.config import DType
from olmo_core.data import DataLoaderBase
from olmo_core.distributed.parallel import DataParallelType
from olmo_core.nn.transformer import TransformerConfig
from olmo_core.optim import AdamWConfig
from olmo_core.train import Duration, TrainerConfig, prepare_training_environment, teardown_training_environment
from olmo_core.train.callbacks import Callback, CheckpointerCallback
from olmo_core.train.train_module import TransformerDataParallelConfig, TransformerTrainModuleConfig

from tests.frameworks.jobs.over_gloo import reduce_by_sums
from tests.frameworks.jobs.told import STEPS, Work, tell

LENGTH, ROWS, WORDS, MICRO_BATCHES = 16, 2, 64, 2


class MadeUp(DataLoaderBase):  # type: ignore[misc]  # mypy does not look into olmo_core
    """Batches of random words."""

    total_batches = STEPS

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing is kept."""

    def reshuffle(self, epoch: int | None = None, **_: Any) -> None:
        """Begin an epoch."""
        self._epoch = epoch

    def get_mock_batch(self) -> dict[str, Any]:
        """Return a batch for the dry run before the training."""
        return next(self._iter_batches())

    def global_num_tokens_in_batch(self, batch: dict[str, Any]) -> int:
        """Return the tokens of all ranks."""
        return int(batch["input_ids"].numel() * self.dp_world_size)

    def _iter_batches(self) -> Iterator[dict[str, Any]]:
        seeded = torch.Generator().manual_seed(self.dp_rank)
        for _ in range(STEPS):
            yield {"input_ids": torch.randint(WORDS, (MICRO_BATCHES * ROWS, LENGTH), generator=seeded)}


@dataclass
class Kept(Callback):  # type: ignore[misc]  # as above
    """Keeps the losses that this rank has."""

    losses: list[float] = field(default_factory=list)

    def log_metrics(self, _step: int, metrics: dict[str, float]) -> None:
        """Take those of a step."""
        self.losses += [metrics[name] for name in ("train/CE loss",) if name in metrics]


prepare_training_environment(seed=7, backend="gloo")
logging.getLogger("olmo_core").setLevel(logging.WARNING)  # some of what it says below that depends on the time
model = TransformerConfig.olmo2_1M(vocab_size=WORDS, n_layers=1).build(init_device="cpu")
module = TransformerTrainModuleConfig(
    rank_microbatch_size=ROWS * LENGTH,
    max_sequence_length=LENGTH,
    optim=AdamWConfig(lr=1e-3),
    dp_config=TransformerDataParallelConfig(
        name=DataParallelType.fsdp, param_dtype=DType.float32, reduce_dtype=DType.float32
    ),
    max_grad_norm=1.0,
).build(model)
reduce_by_sums(module.model)
module.model.register_forward_pre_hook(Work().pause)
kept = Kept()
ranks = dist.get_world_size()
loader = MadeUp(
    work_dir="work", global_batch_size=ROWS * MICRO_BATCHES * LENGTH * ranks,
    dp_world_size=ranks, dp_rank=dist.get_rank(),
)  # fmt: skip
trainer = TrainerConfig(
    save_folder="saved",
    work_dir="work",
    max_duration=Duration.steps(STEPS),
    metrics_collect_interval=1,
    async_bookkeeping=sys.argv[1] == "async",
    callbacks={"kept": kept, "checkpointer": CheckpointerCallback(save_interval=STEPS // 2, save_async=False)},
).build(module, loader)
trainer.fit()
tell(trainer.global_step, kept.losses)
dist.barrier()
teardown_training_environment()
