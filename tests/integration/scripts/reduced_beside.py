"""Train two ranks by DDP while another thread reduces a number in each step, as some trainers do with their metrics.

The argument says in which group: `own`, a second one that only this thread uses, or `shared`, that of the gradients;
then the training thread goes on once the reduction has been enqueued, so that both ranks have the same order. From
`--slow-from` on rank 1 sleeps `--slow-ms` longer in each forward.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORK_S = 0.01


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("group", choices=("own", "shared"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slow-from", type=int, default=1_000_000)
    parser.add_argument("--slow-ms", type=float, default=10.0)
    given = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    own = dist.new_group(group_desc="bookkeeping")
    group = own if given.group == "own" else dist.group.WORLD
    pool = ThreadPoolExecutor(1)
    for step in range(given.steps):
        is_slow = dist.get_rank() == 1 and step >= given.slow_from
        time.sleep(WORK_S + (given.slow_ms / 1e3 if is_slow else 0.0))
        loss = model(torch.ones(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        reduced = pool.submit(dist.all_reduce, loss.detach().clone(), group=group, async_op=given.group == "shared")
        if given.group == "shared":
            reduced.result()
    pool.shutdown()
    dist.barrier()
    sys.stdout.write(f"rank {dist.get_rank()} has done {given.steps} steps\n")
    del model, optimizer  # first: docs/torch.md
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
