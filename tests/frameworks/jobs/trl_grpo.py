"""TRL's GRPOTrainer, which generates answers and trains on them in one process. A tiny model and tokenizer of words are
made here, and a reward that counts a word.
"""

import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tests.frameworks.jobs.told import STEPS, Work, tell

PAD, END, WORDS = 30, 31, 32
PADDING, ENDING = "<pad>", "<end>"

torch.manual_seed(7)
words = {f"w{number}": number for number in range(PAD)} | {PADDING: PAD, ENDING: END}
splitter = Tokenizer(WordLevel(words, unk_token=PADDING))
splitter.pre_tokenizer = Whitespace()
config = GPT2Config(
    vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=1, n_head=2,
    bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
)  # fmt: skip
prompts = [" ".join(f"w{(first + place) % PAD}" for place in range(4)) for first in range(64)]


def count_a_word(completions: list[str], **_: object) -> list[float]:
    """Return how often each answer has one word."""
    return [float(answer.split().count("w3")) for answer in completions]


with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
        logging_steps=1, report_to=[], save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    work = Work()
    model.register_forward_pre_hook(lambda module, _: work.pause() if module.training else None)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=count_a_word,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=splitter, pad_token=PADDING, eos_token=ENDING, padding_side="left"
        ),
    )
    trainer.train()
    tell(trainer.state.global_step, [one["loss"] for one in trainer.state.log_history if "loss" in one])
    dist.barrier()
