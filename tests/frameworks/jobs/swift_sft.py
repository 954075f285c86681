"""ms-swift: its supervised finetuning of a tiny Llama, accumulation of two, evaluations, checkpoints.

The model, its tokenizer and the texts are made here, in a folder of each rank.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from swift.pipelines.train.sft import SwiftSft
from transformers import LlamaConfig, LlamaForCausalLM

from tests.frameworks.jobs.tiny_words import END, ENDING, PAD, WORDS, make_texts, make_tokenizer
from tests.frameworks.jobs.told import STEPS, Work, tell_history


class Slowed(SwiftSft):  # type: ignore[misc]  # mypy does not look into swift
    """Does the work of a forward before that of the model, and says what its trainer counts."""

    def train(self, trainer: Any) -> Any:
        """Train as it does."""
        trainer.model.register_forward_pre_hook(Work().pause)
        result = super().train(trainer)
        tell_history(trainer.state)
        return result


def make_files(folder: Path) -> None:
    """Write model, tokenizer and texts."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    make_tokenizer(bos_token=ENDING).save_pretrained(folder / "model")
    texts = make_texts(8)
    rows = [{"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": one}]} for one in texts]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    make_files(folder)
    Slowed(
        [
            *("--model", str(folder / "model"), "--model_type", "llama", "--template", "dummy"),
            *("--dataset", str(folder / "texts.jsonl"), "--split_dataset_ratio", "0.1", "--tuner_type", "full"),
            *("--torch_dtype", "float32", "--output_dir", "saved", "--add_version", "false", "--report_to", "none"),
            *("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2", "--logging_steps", "1"),
            *("--max_steps", str(STEPS), "--eval_steps", str(STEPS // 3), "--save_steps", str(STEPS // 2)),
            *("--use_cpu", "true", "--ddp_backend", "gloo", "--check_model", "false", "--disable_tqdm", "true"),
            *("--gradient_checkpointing", "false", "--dataloader_num_workers", "0", "--seed", "7"),
        ]
    ).main()
    dist.barrier()
