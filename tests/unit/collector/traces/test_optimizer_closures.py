"""Stages of real loops whose optimizer is given a closure: Lightning's, and one by hand under Accelerate."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from rankscope.collector.traces import analyze

pytestmark = [
    pytest.mark.rest("runs frameworks to see that their loops have stages"),
    pytest.mark.filterwarnings("ignore"),  # of the frameworks
]
STEPS = 3


def make_profiler(path: Path) -> Any:
    """Return a profiler that writes the steps 2 to 4."""
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=STEPS),
        on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
    )


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))


def train_with_lightning(path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = make_model()

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    class Steps(lightning.Callback):  # type: ignore[name-defined,misc]
        def on_train_batch_end(self, *_: Any) -> None:
            profiler.step()

    trainer = lightning.Trainer(
        max_steps=STEPS + 3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Steps()], default_root_dir=path.parent,
    )  # fmt: skip
    with make_profiler(path) as profiler:
        trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(48, 64), batch_size=8))  # type: ignore[arg-type]


def train_with_accelerate(path: Path) -> None:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    model = make_model()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    batch = torch.randn(8, 64)

    def close() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        accelerator.backward(loss)
        return loss

    with make_profiler(path) as profiler:
        for _ in range(STEPS + 3):
            optimizer.step(close)
            profiler.step()


@pytest.mark.parametrize("train", [train_with_lightning, train_with_accelerate])
def test_framework_closures_are_forward_backward_and_optimizer(tmp_path: Path, train: Callable[[Path], None]) -> None:
    path = tmp_path / "rank0.json"
    train(path)
    (rank,) = analyze(str(path)).ranks
    found = {row.stage: row.host_ns for row in rank.model}
    complete = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X"]
    engine = [one for one in complete if one["name"].startswith("autograd::engine")]
    closures = [one for one in complete if one["name"].startswith("Optimizer.step#")]
    optimizer_us = backward_us = 0.0
    for closure in closures:
        end_us = closure["ts"] + closure["dur"]
        mine = [one for one in engine if closure["ts"] <= one["ts"] < end_us]
        last_us = max(one["ts"] + one["dur"] for one in mine)
        optimizer_us += end_us - last_us
        backward_us += last_us - min(one["ts"] for one in mine)
    assert len(closures) == STEPS
    assert found["optimizer"] == pytest.approx(1_000 * optimizer_us, abs=10_000)
    # Pauses of the engine of more than 1 ms, of a busy machine, are no backward.
    assert 0 < found["backward"] <= 1_000 * backward_us + 10_000
    assert found["forward"] > 0
