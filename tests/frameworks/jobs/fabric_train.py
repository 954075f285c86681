"""Lightning's Fabric: a loop of one's own around its launcher, its DDP strategy and its backward."""

import lightning
import torch

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
bare = build_model()
model, optimizer = fabric.setup(bare, torch.optim.AdamW(bare.parameters(), lr=1e-3))
losses = []
for step in range(STEPS):
    loss = model(draw_batch(step)).square().mean()
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
tell(STEPS, losses)
