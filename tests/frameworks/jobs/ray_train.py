"""Ray Train's TorchTrainer: two workers of a cluster of one machine, the model prepared by Ray."""

import tempfile
from typing import Any

import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

from tests.frameworks.jobs.told import STEPS, build_model, tell, train_plainly

OBJECT_STORE_BYTES = 100_000_000


def train(_: dict[str, Any]) -> None:
    """Train as one worker."""
    model = prepare_model(build_model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tell(STEPS, train_plainly(model, optimizer))


# Its sockets are in its folder, and their paths may not be long.
with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=True, _node_ip_address="127.0.0.1", _temp_dir=folder,
        object_store_memory=OBJECT_STORE_BYTES,
    )  # fmt: skip
    TorchTrainer(
        train,
        train_loop_config={},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(storage_path=folder),
    ).fit()
    ray.shutdown()
