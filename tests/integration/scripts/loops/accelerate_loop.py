"""Hugging Face Accelerate with accumulation: its loader fetches one batch ahead."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(32, 16)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for _ in range(2):
    for (features,) in loader:
        with accelerator.accumulate(model):
            loss = model(features).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
