"""torchtune: its recipe of a full finetuning on several devices, sharded by FSDP2, two micro batches a step, a
checkpoint after each of two epochs.

The recipe takes the parts of which a configuration names the path; those are below.
"""

import runpy
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torchtune
from omegaconf import OmegaConf
from torchtune import training
from torchtune.models.llama2 import llama2
from torchtune.modules import TransformerDecoder
from tqdm import tqdm

from tests.frameworks.jobs.over_gloo import reduce_by_sums
from tests.frameworks.jobs.told import STEPS, Work, tell

LENGTH, WORDS, ROWS, MICRO_BATCHES, RANKS, EPOCHS = 16, 64, 4, 2, 2, 2
losses: list[float] = []


def make_model() -> TransformerDecoder:
    """Return a tiny Llama."""
    model = llama2(vocab_size=WORDS, num_layers=1, num_heads=2, num_kv_heads=2, embed_dim=16, max_seq_len=LENGTH)
    model.register_forward_pre_hook(Work().pause)
    return model


def make_tokenizer() -> SimpleNamespace:
    """Return what the recipe asks a tokenizer: the number for padding."""
    return SimpleNamespace(pad_id=0)


def make_rows(_tokenizer: object) -> list[dict[str, list[int]]]:
    """Return rows of random words."""
    count = ROWS * MICRO_BATCHES * RANKS * STEPS // EPOCHS
    words = torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(7)).tolist()
    return [{"tokens": row, "labels": row} for row in words]


class Keeper:
    """Stands for the files of a model: starts from drawn weights, and writes what it is given."""

    def __init__(self, folder: str, **_: Any) -> None:
        self._folder = Path(folder)

    def load_checkpoint(self) -> dict[str, Any]:
        """Return the weights to begin with."""
        torch.manual_seed(7)
        return {training.MODEL_KEY: make_model().state_dict()}

    def save_checkpoint(self, state: dict[str, Any], epoch: int, **_: Any) -> None:
        """Write a checkpoint."""
        torch.save(state, self._folder / f"{epoch}.pt")


class Logged:
    """Keeps the losses, which rank 0 logs."""

    def log_config(self, config: object) -> None:
        """Nothing is kept of it."""

    def log_dict(self, payload: dict[str, Any], **_: int) -> None:
        """Take those of a step."""
        losses.append(float(payload["loss"]))

    def close(self) -> None:
        """Nothing is open."""


# It says that it does not train on CPUs; of its parts only those that report a device's memory do not.
training.get_memory_stats = lambda **_: {}
training.log_memory_stats = lambda _: None
for name in ("empty_cache", "reset_peak_memory_stats"):
    setattr(torch.cpu, name, lambda: None)

with tempfile.TemporaryDirectory() as folder:
    config = OmegaConf.create(
        {
            "model": {"_component_": "__main__.make_model"},
            "tokenizer": {"_component_": "__main__.make_tokenizer"},
            "dataset": {"_component_": "__main__.make_rows"},
            "checkpointer": {"_component_": "__main__.Keeper", "folder": folder},
            "metric_logger": {"_component_": "__main__.Logged"},
            "optimizer": {"_component_": "torch.optim.AdamW", "lr": 1e-3},
            "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
            "resume_from_checkpoint": False,
            "output_dir": folder,
            "device": "cpu",
            "dtype": "fp32",
            "seed": 7,
            "epochs": EPOCHS,
            "max_steps_per_epoch": None,
            "batch_size": ROWS,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "clip_grad_norm": 1.0,
            "shuffle": True,
        }
    )
    # The folder of recipes is no package: `tune run` starts their files.
    source = Path(torchtune.__file__).parent.parent / "recipes" / "full_finetune_distributed.py"
    recipe = runpy.run_path(str(source))["FullFinetuneRecipeDistributed"](config)
    recipe.setup(config)
    reduce_by_sums(recipe._model)
    recipe.train.__globals__["tqdm"] = lambda **_: tqdm(disable=True)  # what a bar says depends on the speed
    recipe.train()
    tell(recipe.global_step, losses)
    recipe.cleanup()
