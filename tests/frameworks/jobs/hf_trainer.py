"""Transformers' Trainer with a model made from a configuration: DDP, evaluations and checkpoints amid it."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from tests.frameworks.jobs.told import STEPS, Work, tell_history

torch.manual_seed(7)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
words = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(7))
rows = [{"input_ids": row, "labels": row} for row in words]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=str(Path(folder, "saved")),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=STEPS // 4,
        save_strategy="steps",
        save_steps=STEPS // 2,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    model = GPT2LMHeadModel(config)
    model.register_forward_pre_hook(Work().pause)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:8])
    trainer.train()
    tell_history(trainer.state)
    dist.barrier()
