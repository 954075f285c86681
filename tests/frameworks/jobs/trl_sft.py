"""TRL's SFTTrainer with a tiny model."""

import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.frameworks.jobs.tiny_words import make_model, make_texts, make_tokenizer
from tests.frameworks.jobs.told import STEPS, Work, tell_history

torch.manual_seed(7)
with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4, logging_steps=1, report_to=[],
        save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, max_length=16,
    )  # fmt: skip
    model = make_model()
    model.register_forward_pre_hook(Work().pause)
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": make_texts(8)}),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    tell_history(trainer.state)
    dist.barrier()
