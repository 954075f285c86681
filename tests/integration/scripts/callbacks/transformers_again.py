"""Trainings one after the other in one process: one fails in its evaluation, one predicts at its end, one goes on from
its checkpoint, and a loop without a framework is the last. Two, two, two and three steps.
"""

import tempfile
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from rankscope.agent.integrations.transformers import RankscopeCallback

config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows: Any = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]


def fail(_predictions: Any) -> Any:
    """Fail as a metric does that was never tried."""
    raise ValueError("no such metric")


def make_trainer(folder: str, steps: int, **options: Any) -> Trainer:
    """Make a trainer of its own, with a callback of its own."""
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [RankscopeCallback()]
    return Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=callbacks, **options
    )


with tempfile.TemporaryDirectory() as folder:
    try:
        make_trainer(folder, 2, compute_metrics=fail).train()
    except ValueError as error:
        print("failed:", error)
    trainer = make_trainer(folder, 2)
    trainer.train()
    trainer.predict(rows[:8])
    trainer = make_trainer(folder, 4)
    trainer.train(resume_from_checkpoint=True)
    trainer.predict(rows[:8])
    print("global step", trainer.state.global_step)
    model: Any = trainer.model
    loader: Any = DataLoader(rows, batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for batch in loader:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
