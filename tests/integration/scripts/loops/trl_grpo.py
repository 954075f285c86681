"""TRL's GRPO with a tiny model: each step samples completions, scores them and updates. Its rollouts and rewards are
named as phases.
"""

import tempfile
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

import rankscope

PAD, END, WORDS = 30, 31, 32
PADDING, ENDING = "<pad>", "<end>"


class PhasedTrainer(GRPOTrainer):  # type: ignore[misc]  # mypy does not look into trl
    """GRPO whose steps say what they do."""

    def _generate(self, *arguments: Any, **named: Any) -> Any:
        with rankscope.phase("rollout"):
            return super()._generate(*arguments, **named)

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        with rankscope.phase("reward"):
            return super()._calculate_rewards(*arguments, **named)


def reward(completions: list[str], **_: Any) -> list[float]:
    """The longer the better, up to a point."""
    return [float(len(completion) % 3) for completion in completions]


words = {f"w{number}": number for number in range(PAD)} | {PADDING: PAD, ENDING: END}
splitter = Tokenizer(WordLevel(words, unk_token=PADDING))
splitter.pre_tokenizer = Whitespace()
config = GPT2Config(
    vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=1, n_head=2,
    bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
)  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    arguments = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        max_steps=6,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = PhasedTrainer(
        model=GPT2LMHeadModel(config),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w1 w2 w3"] * 32}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=splitter, pad_token=PADDING, eos_token=ENDING),
    )
    trainer.train()
print("global step", trainer.state.global_step)
