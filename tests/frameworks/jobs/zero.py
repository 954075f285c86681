"""DeepSpeed's engine in the ZeRO stage that is asked for, with accumulated micro batches and its own configuration."""

import sys
from typing import Any

import deepspeed
import torch

from tests.frameworks.jobs.told import STEPS, build_model, draw_batch, tell

ACCUMULATED = 2
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": ACCUMULATED,
    "gradient_clipping": 1.0,
    "steps_per_print": 1_000_000,
    "zero_optimization": {"stage": 0},
    "torch_autocast": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_allow_untested_optimizer": True,
}

stage = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("stage="))
CONFIG["zero_optimization"]["stage"] = stage
deepspeed.init_distributed("gloo")
model = build_model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
losses = []
for micro in range(ACCUMULATED * STEPS):
    loss: torch.Tensor = engine(draw_batch(micro)).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
tell(engine.global_steps, losses)
deepspeed.comm.destroy_process_group()
