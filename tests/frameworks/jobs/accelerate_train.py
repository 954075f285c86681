"""Accelerate: its Accelerator prepares model, optimizer and loader, and accumulates two micro batches."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from tests.frameworks.jobs.told import STEPS, build_model, tell

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = build_model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
rows = torch.randn(2 * 2 * 8 * STEPS, 32, generator=torch.Generator().manual_seed(7))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(rows), batch_size=8))
losses, steps = [], 0
for (batch,) in loader:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
    steps += accelerator.sync_gradients
tell(steps, losses)
accelerator.end_training()
