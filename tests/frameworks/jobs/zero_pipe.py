"""DeepSpeed's pipeline engine: two stages, one a rank, four micro batches in each of its train_batch."""

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

from tests.frameworks.jobs.told import STEPS, Work, tell

MICRO_BATCHES, ROWS, WIDTH = 4, 8, 32
CONFIG = {
    "train_micro_batch_size_per_gpu": ROWS,
    "gradient_accumulation_steps": MICRO_BATCHES,
    "steps_per_print": 1_000_000,
    "torch_autocast": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}

deepspeed.init_distributed("gloo")
torch.manual_seed(7)
layers = [part for _ in range(2) for part in (Work(), nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
seeded = torch.Generator().manual_seed(7)
batches = iter([tuple(torch.randn(2, ROWS, WIDTH, generator=seeded)) for _ in range(MICRO_BATCHES * STEPS)])
losses = [float(engine.train_batch(batches)) for _ in range(STEPS)]
tell(engine.global_steps, losses)
deepspeed.comm.destroy_process_group()
