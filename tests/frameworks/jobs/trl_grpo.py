"""TRL's GRPOTrainer, which generates answers and trains on them in one process: a tiny model, and a reward that
counts a word.
"""

import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.frameworks.jobs.tiny_words import make_model, make_texts, make_tokenizer
from tests.frameworks.jobs.told import STEPS, Work, tell_history

torch.manual_seed(7)


def count_a_word(completions: list[str], **_: object) -> list[float]:
    """Return how often each answer has one word."""
    return [float(answer.split().count("w3")) for answer in completions]


with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True,
    )  # fmt: skip
    model = make_model()
    work = Work()
    model.register_forward_pre_hook(lambda module, _: work.pause() if module.training else None)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=count_a_word,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": make_texts(4)}),
        processing_class=make_tokenizer(padding_side="left"),
    )
    trainer.train()
    tell_history(trainer.state)
    dist.barrier()
