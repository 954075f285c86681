"""verl: its SFTTrainer and its FSDP engine, two micro batches a step, checkpoints.

verl takes further kinds of devices as plug-ins; that of this job is the CPU. The model, its tokenizer and the texts are
made here, in a folder of each rank.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
import transformers.models.qwen2_vl.modeling_qwen2_vl as of_images
from hydra import compose, initialize_config_module
from transformers import LlamaConfig, LlamaForCausalLM

from tests.frameworks.jobs.over_gloo import reduce_by_sums
from tests.frameworks.jobs.tiny_words import END, PAD, WORDS, make_texts, make_tokenizer
from tests.frameworks.jobs.told import STEPS, Work, tell

# It wants an earlier transformers, where this name is another one's; only what it does to images uses it.
of_images.Qwen2VLCausalLMOutputWithPast = object

from verl.plugin.platform import PlatformBase, set_platform  # noqa: E402 - as above

ROWS, MICRO_BATCHES, RANKS, LENGTH = 4, 2, 2, 32


class OfCpu(ModuleType):
    """Stands for `torch.cuda`: what is asked of a device's memory is 0."""

    get_rng_state, set_rng_state = staticmethod(torch.get_rng_state), staticmethod(torch.set_rng_state)

    def get_device_name(self) -> str:
        """Return the name of the device."""
        return "cpu"

    def mem_get_info(self) -> tuple[int, int]:
        """Return what is free, and what there is."""
        return 0, 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0


class OnCpu(PlatformBase):  # type: ignore[misc]  # mypy does not look into verl
    """The CPU, as a kind of device of verl's."""

    device_name = vendor_name = "cpu"
    device_module: ModuleType = OfCpu("cpu")

    def is_available(self) -> bool:
        """Return whether it is there."""
        return True

    def current_device(self) -> str:
        """Return what tensors are to be on."""
        return "cpu"

    def device_count(self) -> int:
        """Return how many there are."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is no other."""

    def synchronize(self, device_index: int | None = None) -> None:
        """All is done."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None:
        """There is no such allocator."""

    def empty_cache(self) -> None:
        """There is none."""

    def get_device_capability(self, *_: int) -> tuple[None, None]:
        """Return that it has none."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return what communicates."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return the variable that numbers devices."""
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, *_: str) -> Iterator[None]:
        """Mark nothing."""
        yield

    def profiler_start(self) -> None:
        """There is none."""

    profiler_stop = profiler_start

    def ray_resource_name(self) -> str:
        """Return Ray's name of it."""
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return none."""
        return []

    def is_ipc_supported(self) -> bool:
        """Return that it is not used."""
        return False

    def cudart(self) -> None:
        """Return that there is none."""


set_platform(OnCpu())

from verl.trainer import sft_trainer  # noqa: E402 - it asks for the kind of device
from verl.utils import tensordict_utils  # noqa: E402 - as above


class Kept(sft_trainer.SFTTrainer):  # type: ignore[misc]  # as above
    """Keeps the losses of this rank, and does the work of a forward before that of the model."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.losses: list[float] = []
        reduce_by_sums(self.engine.module)
        self.engine.module.register_forward_pre_hook(Work().pause)
        self._train_batch = self.training_client.train_batch
        self.training_client.train_batch = self.train_batch

    def train_batch(self, data: Any) -> Any:
        """Do a step as it does."""
        output = self._train_batch(data=data)
        self.losses.append(float(tensordict_utils.get(output, "metrics")["loss"]))
        return output


def make_files(folder: Path) -> None:
    """Write model, tokenizer and texts."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    template = "{% for message in messages %}{{ message['content'] + ' <end> ' }}{% endfor %}"
    make_tokenizer(chat_template=template).save_pretrained(folder / "model")
    rows = [[{"role": "user", "content": one}, {"role": "assistant", "content": one}] for one in make_texts(8)]
    rows *= STEPS * ROWS * MICRO_BATCHES * RANKS // len(rows)
    pd.DataFrame({"messages": rows}).to_parquet(folder / "texts.parquet")


with tempfile.TemporaryDirectory() as name, initialize_config_module("verl.trainer.config", version_base=None):
    folder = Path(name)
    make_files(folder)
    dist.init_process_group("gloo")
    config = compose(
        "sft_trainer_engine",
        [
            f"data.train_files={folder}/texts.parquet", f"data.train_batch_size={ROWS * MICRO_BATCHES * RANKS}",
            "data.num_workers=0", f"data.micro_batch_size_per_gpu={ROWS}", "data.use_dynamic_bsz=false",
            f"data.max_length={LENGTH}", "data.pad_mode=no_padding", "data.truncation=right",
            "data.ignore_input_ids_mismatch=true", f"model.path={folder}/model", "model.use_remove_padding=false",
            "model.enable_gradient_checkpointing=false", "+model.override_config.attn_implementation=eager",
            "engine.strategy=fsdp2", "engine.use_torch_compile=false", f"trainer.total_training_steps={STEPS}",
            "trainer.total_epochs=1", "trainer.logger=[console]", f"trainer.save_freq={STEPS // 2}",
            "trainer.default_local_dir=saved", "trainer.device=cpu", "trainer.resume_mode=disable",
        ],
    )  # fmt: skip
    sft_trainer.tqdm = lambda loader, **_: loader  # what a bar says depends on the speed
    trainer = Kept(config)
    trainer.fit()
tell(trainer.engine.lr_scheduler.last_epoch, trainer.losses)
dist.barrier()
dist.destroy_process_group()
