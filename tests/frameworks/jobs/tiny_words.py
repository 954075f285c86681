"""A tiny language model and its tokenizer of words `w0`, `w1`, ..., made without a file or a network."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

PAD, END, WORDS = 30, 31, 32
PADDING, ENDING = "<pad>", "<end>"


def make_model() -> GPT2LMHeadModel:
    """Return a model of one layer, its weights by torch's seed."""
    config = GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=1, n_head=2,
        bos_token_id=END, eos_token_id=END, pad_token_id=PAD,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def make_tokenizer(**options: str) -> PreTrainedTokenizerFast:
    """Return its tokenizer; the options are those of transformers."""
    words = {f"w{number}": number for number in range(PAD)} | {PADDING: PAD, ENDING: END}
    splitter = Tokenizer(WordLevel(words, unk_token=PADDING))
    splitter.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=splitter, pad_token=PADDING, eos_token=ENDING, **options)


def make_texts(length: int) -> list[str]:
    """Return 64 texts of so many words."""
    return [" ".join(f"w{(first + place) % PAD}" for place in range(length)) for first in range(64)]
