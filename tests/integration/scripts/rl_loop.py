"""A loop as post-training by reinforcement has it: rollout, reward, some updates, and the weights back to the copy that
rolls out. `rankscope.step()` ends an iteration, whatever its number of optimizer steps; phases have names of the loop.

One rank may roll out slowly. Rank 0 logs the run to whatever --log names, under --folder. The loop ends when the logs
have had a finding twice, or after --iterations; each rank prints what it has been told then.
"""

import argparse
import copy
import itertools
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import rankscope
from rankscope.agent.shutdown.torch_threads import drain_gloo_threads
from tests.integration.scripts.run_logs import Witness, open_logs

VOCABULARY, WIDTH, LENGTH = 32, 16, 6
ROLLOUT_S = 0.02
"""How long an engine needs for a rollout; the computation here is nothing."""
UPDATES = 2
"""Optimizer steps on one rollout."""
FINDINGS_SEEN = 2
"""How often a finding has been logged at the end: the second time every log has had it once."""


class Policy(nn.Module):
    """Logits of the next token from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of shape (batch, length, vocabulary)."""
        logits: torch.Tensor = self.head(self.tokens(tokens))
        return logits


def roll_out(policy: Policy, prompts: torch.Tensor, slow_s: float) -> torch.Tensor:
    """Sample LENGTH tokens after each prompt."""
    time.sleep(ROLLOUT_S + slow_s)
    tokens = prompts
    with torch.no_grad():
        for _ in range(LENGTH):
            chances = policy(tokens)[:, -1].softmax(-1)
            tokens = torch.cat((tokens, torch.multinomial(chances, 1)), 1)
    return tokens


def find_loss(model: nn.Module, tokens: torch.Tensor, reward: torch.Tensor) -> torch.Tensor:
    """REINFORCE with the mean as its baseline."""
    chances = model(tokens[:, :-1]).log_softmax(-1)
    chosen = chances.gather(-1, tokens[:, 1:, None]).squeeze(-1)
    loss: torch.Tensor = -((reward - reward.mean())[:, None] * chosen).mean()
    return loss


def send_weights(policy: Policy, engine: Policy) -> None:
    """Broadcast the weights of rank 0 to the copy that rolls out on each rank."""
    for new, old in zip(policy.parameters(), engine.parameters(), strict=True):
        old.data.copy_(new.data)
        dist.broadcast(old.data, 0)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-s", type=float, default=0.1)
    parser.add_argument("--log", nargs="*", default=[], help="names of run_logs.py")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logs, witness = open_logs(options.log, options.folder), Witness()
    slow_s = options.slow_s if rank == options.slow_rank else 0.0
    policy = Policy()
    engine, model = copy.deepcopy(policy), DistributedDataParallel(policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    prompts = DataLoader(TensorDataset(torch.zeros(4096, 1, dtype=torch.long)), batch_size=4)
    stop = torch.zeros(1)
    for iteration, (prompt,) in enumerate(itertools.chain.from_iterable(itertools.repeat(prompts)), start=1):
        with rankscope.phase("rollout"):
            tokens = roll_out(engine, prompt, slow_s)
        with rankscope.phase("reward"):
            reward = (tokens % 2 == 0).float().mean(1)
        for _ in range(UPDATES):
            find_loss(model, tokens, reward).backward()
            optimizer.step()
            optimizer.zero_grad()
        with rankscope.phase("weight_sync"):
            send_weights(policy, engine)
        rankscope.step()
        for log in (*logs, witness):
            log.update(iteration)
        stop[0] = float(witness.findings_seen >= FINDINGS_SEEN or iteration == options.iterations)
        dist.all_reduce(stop, dist.ReduceOp.MAX)
        if stop.item():
            break
    print(json.dumps({"rank": rank, "iterations": iteration, "report": rankscope.status()}) + "\n", end="")
    dist.destroy_process_group()
    drain_gloo_threads()


if __name__ == "__main__":
    main()
