"""Train the demo's model: an ordinary DistributedDataParallel script without rankscope.

A small transformer learns, character by character, the language reference that ships with Python (pydoc_data.topics).
With --fault one rank becomes slow at step --slow-from, in one of three ways:

    data     its data set takes longer to give a batch
    host     its forward sleeps: the host does something else (a lock, a file system, a slow Python callback)
    compute  its forward multiplies matrices that the others do not
"""

import argparse
import itertools
import os
import pydoc_data.topics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 96, 4, 2, 64, 8
FAULT_S = 0.15
"""Delay of the slow rank in a step: about twice a step of four ranks on two cores."""


def read_text() -> str:
    """Return the text to learn, about 700,000 characters."""
    return "".join(pydoc_data.topics.topics.values())


class CharacterBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """An endless stream of (input, target) batches, shape (BATCH, CONTEXT) each, from random places of the text."""

    def __init__(self, codes: Tensor, seed: int, slow_from: int | None) -> None:
        super().__init__()
        self._codes = codes
        self._seed = seed
        self._slow_from = slow_from

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        random = torch.Generator().manual_seed(self._seed)
        for step in itertools.count():
            if self._slow_from is not None and step >= self._slow_from:
                time.sleep(FAULT_S)
            starts = torch.randint(len(self._codes) - CONTEXT - 1, (BATCH,), generator=random)
            rows = torch.stack([self._codes[start : start + CONTEXT + 1] for start in starts.tolist()])
            yield rows[:, :-1], rows[:, 1:]


class CharacterModel(nn.Module):
    """A causal transformer over characters. Its forward adds `fault` from call `slow_from` on."""

    def __init__(self, characters: int, fault: str, slow_from: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, characters)
        self.mask: Tensor
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))
        self._fault = fault
        self._slow_from = slow_from
        self._calls = 0

    def forward(self, codes: Tensor) -> Tensor:
        """Return the logits of the next character, shape (batch, CONTEXT, characters)."""
        if self._calls >= self._slow_from:
            self._apply_fault()
        self._calls += 1
        hidden = self.blocks(self.embed(codes) + self.place, mask=self.mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits

    def _apply_fault(self) -> None:
        if self._fault == "host":
            time.sleep(FAULT_S)
        elif self._fault == "compute":
            # CPU time, not a count: the fault is as large on any machine.
            end_s = time.thread_time() + FAULT_S / 2
            matrix = torch.ones(128, 128)
            with torch.no_grad():
                while time.thread_time() < end_s:
                    matrix = torch.tanh(matrix @ matrix)


def main() -> None:
    """Train on every rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--fault", choices=("none", "compute", "data", "host"), required=True)
    parser.add_argument("--slow-rank", type=int, required=True)
    parser.add_argument("--slow-from", type=int, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fault = options.fault if rank == options.slow_rank else "none"
    text = read_text()
    characters = sorted(set(text))
    index = {character: code for code, character in enumerate(characters)}
    codes = torch.tensor([index[character] for character in text])
    batches = CharacterBatches(codes, seed=rank, slow_from=options.slow_from if fault == "data" else None)
    model = DistributedDataParallel(CharacterModel(len(characters), fault, options.slow_from))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for inputs, targets in itertools.islice(DataLoader(batches, batch_size=None), options.steps):
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"trained {options.steps} steps, last loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
