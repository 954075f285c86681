"""Record tests/traces/h200 on a GPU: `python record_examples.py products FILE.json` or `... snapshot FILE.pickle`.

`products` is one step, forward and backward, of an attention, a grouped convolution, an LSTM and a linear layer;
`snapshot` the history of four steps of a model, of 40 allocations of which every other is freed, and of one that fails.
The latter prints what torch itself says: bytes allocated, reserved, and allocated at the most.
"""

import contextlib
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


def make_products() -> Callable[[], None]:
    torch.manual_seed(0)
    query = torch.randn(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    convolution = nn.Conv2d(16, 32, 3, groups=4, padding=1).cuda().bfloat16()
    lstm = nn.LSTM(128, 256, batch_first=True).cuda()
    linear = nn.Linear(1024, 1024).cuda().bfloat16()
    images = torch.randn(8, 16, 32, 32, device="cuda", dtype=torch.bfloat16)
    words = torch.randn(8, 20, 128, device="cuda")
    rows = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        attended = functional.scaled_dot_product_attention(query, query, query)
        results = attended, convolution(images), lstm(words)[0], linear(rows)
        sum((one.float().sum() for one in results), torch.zeros(1, device="cuda")).backward()

    return step


def record_products(path: str) -> None:
    step = make_products()
    step()
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profile:
        step()
        torch.cuda.synchronize()
    profile.export_chrome_trace(path)


def record_snapshot(path: str) -> None:
    torch.cuda.memory._record_memory_history(max_entries=50_000, stacks="python")
    model = nn.Sequential(*(nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(256, 1024, device="cuda")
    for _ in range(4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    kept = [torch.empty(n * 1_000_003 % 7_000_000 + 1, dtype=torch.uint8, device="cuda") for n in range(40)]
    del kept[::2]
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(2**40, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._dump_snapshot(path)
    print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    {"products": record_products, "snapshot": record_snapshot}[sys.argv[1]](sys.argv[2])
