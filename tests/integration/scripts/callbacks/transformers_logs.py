"""Transformers' Trainer with the callback and TensorBoard under a folder: `transformers_logs.py FOLDER`.

It trains until a log beside the callback's has had two entries, by when the callback's has had one.
"""

import os
import sys
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rankscope.agent.integrations.transformers import RankscopeCallback
from tests.integration.scripts.run_logs import EntryCount

os.environ["TENSORBOARD_LOGGING_DIR"] = f"{sys.argv[1]}/tensorboard"
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (24, 8))]


class UntilLogged(TrainerCallback):  # type: ignore[misc]  # mypy does not look into transformers
    """Ends the training."""

    def __init__(self) -> None:
        self.count = EntryCount()

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - its signature
        self.count.update()
        control.should_training_stop = self.count.entries >= 2


arguments = TrainingArguments(
    output_dir=sys.argv[1],
    max_steps=1_000_000,
    logging_steps=1,
    save_strategy="no",
    report_to=["tensorboard"],
    use_cpu=True,
    disable_tqdm=True,
)
callback = RankscopeCallback()
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[callback, UntilLogged()])
callback.log_to(trainer)
trainer.train()
