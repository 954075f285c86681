"""Transformers' Trainer with the callback. Two epochs of six batches of four rows of eight tokens, two to a step.

It evaluates before the first step, and evaluates and saves after every second.
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rankscope.agent.integrations.transformers import RankscopeCallback

config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        eval_on_start=True,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows[:8],
        callbacks=[RankscopeCallback()],
    )
    trainer.train()
print("global step", trainer.state.global_step)
