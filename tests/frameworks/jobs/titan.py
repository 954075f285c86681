"""torchtitan: its debug model by its own Trainer, in the parallelism that is asked for, by default sharded by FSDP2.

The batches and the tokenizer are made here, and of its six layers two are kept.
Words are sizes by torchtitan's names in its section `parallelism`, as `tensor_parallel_degree=2`, or `compile=1`,
`full_ac=1` (activation checkpointing), `accumulated=2`.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.distributed import distributed_c10d

from tests.frameworks.jobs.over_gloo import reduce_by_sums
from tests.frameworks.jobs.told import STEPS, Work, tell

# It takes a machine without an accelerator for one with CUDA, and asks its device for its memory.
torch._utils._get_available_device_type = lambda: "cpu"
for name, stands_in in {
    "current_device": lambda: 0,
    "get_device_name": lambda _: "CPU",
    "get_device_properties": lambda _: SimpleNamespace(total_memory=1 << 30),
    "reset_peak_memory_stats": lambda: None,
    "empty_cache": lambda: None,
    "memory_stats": lambda _: {},
}.items():
    setattr(torch.cpu, name, stands_in)
# It is written for a later torch, which has this by another name.
torch.distributed.set_timeout = distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]  # of that later torch

from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402 - it looks for its device when it is imported
from torchtitan.distributed.activation_checkpoint import FullAC  # noqa: E402 - as above
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402 - as above
from torchtitan.models.llama3 import model_registry  # noqa: E402 - as above
from torchtitan.models.llama3.config_registry import llama3_debugmodel  # noqa: E402 - as above

LENGTH, ROWS, WORDS, LAYERS = 16, 2, 2048, 2
asked = {name: int(size) for name, _, size in (word.partition("=") for word in sys.argv[1:])}


class MadeUp(BaseDataLoader):  # type: ignore[misc]  # mypy does not look into torchtitan
    """Batches of random words."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]  # as above
        """Nothing to be said."""

    def __init__(self, *, dp_rank: int, **_: Any) -> None:
        self._seeded = torch.Generator().manual_seed(dp_rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        places = torch.arange(LENGTH).expand(ROWS, LENGTH)
        while True:
            words = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=self._seeded)
            yield {"input": words[:, :-1], "positions": places}, words[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing is kept."""


with tempfile.TemporaryDirectory() as folder:
    vocabulary = {f"w{number}": number for number in range(WORDS)}
    Tokenizer(WordLevel(vocabulary)).save(str(Path(folder, "tokenizer.json")))
    config = llama3_debugmodel()
    config.debug.seed = 7
    config.model_spec = model_registry("debugmodel", attn_backend="flex")
    del config.model_spec.model.layers[LAYERS:]
    for layer in config.model_spec.model.layers:
        # FlexAttention has no backward on a CPU.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.hf_assets_path = config.dump_folder = folder
    config.dataloader = MadeUp.Config()
    config.training.local_batch_size, config.training.seq_len, config.training.steps = ROWS, LENGTH, STEPS
    config.training.disable_cuda_graphs = True
    config.training.mixed_precision_param = "float32"
    config.parallelism.spmd_backend = "partial_dtensor"  # the default wants a later torch than that here
    config.parallelism.pipeline_parallel_schedule = "1F1B"
    config.compile.enable = bool(asked.pop("compile", 0))
    config.activation_checkpoint = FullAC.Config() if asked.pop("full_ac", 0) else None
    accumulated = asked.pop("accumulated", 1)
    for name, size in asked.items():
        setattr(config.parallelism, name, size)
    model_ranks = config.parallelism.tensor_parallel_degree * config.parallelism.pipeline_parallel_degree
    config.training.global_batch_size = accumulated * ROWS * int(os.environ["WORLD_SIZE"]) // model_ranks
    trainer = config.build()
    reduce_by_sums(trainer.model_parts[0])
    trainer.model_parts[0].register_forward_pre_hook(Work().pause)
    losses: list[float] = []
    log = trainer.metrics_processor.log

    def keep(step: int, loss: float, *arguments: Any, **named: Any) -> None:
        """Log as torchtitan does, and keep the loss."""
        losses.append(loss)
        log(step, loss, *arguments, **named)

    trainer.metrics_processor.log = keep
    trainer.train()
    tell(trainer.step, losses)
    trainer.close()
    torch.distributed.destroy_process_group()
