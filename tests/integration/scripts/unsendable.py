"""Trains while two of the agent's reports cannot be sent: one amid training, and the last one."""

import threading

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from rankscope.agent.reporting import outbox
from rankscope.measure.codec import encode
from rankscope.measure.messages import Message, Report

failed, ending = threading.Event(), threading.Event()


def encode_or_fail(message: Message) -> bytes:
    """Fail for the next report, and for every one after the end of training."""
    if isinstance(message, Report) and (ending.is_set() or not failed.is_set()):
        failed.set()
        raise ValueError("no report can be made of it")
    return encode(message)


vars(outbox)["encode"] = encode_or_fail
dist.init_process_group("gloo")
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
while not failed.is_set() or steps < 40:
    for (batch,) in DataLoader(TensorDataset(torch.randn(400, 16)), batch_size=20):
        model(batch).sum().backward()
        optimizer.step()
        steps += 1
ending.set()
print("trained to the end")
