"""A job whose heap has holes after some windows, as windows leave them; prints what it held then, and at its end."""

import ctypes
import resource
import time
from pathlib import Path

import torch

BLOCK, BLOCKS = 32768, 4096
STEPS_BEFORE = STEPS_AFTER = 40
STEP_S = 0.02

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        time.sleep(STEP_S)


def read_resident_bytes() -> int:
    return resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[1])


train(STEPS_BEFORE)
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(BLOCK) for _ in range(BLOCKS)]
for block in blocks:
    ctypes.memset(block, 1, BLOCK)
for block in blocks[::2]:
    library.free(block)
before = read_resident_bytes()
train(STEPS_AFTER)
print(before, read_resident_bytes())
