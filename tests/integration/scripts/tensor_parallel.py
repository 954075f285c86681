"""Two linear layers without biases, on two ranks: cut by columns and by rows (tensor parallel), then whole again with
their parameters divided (FSDP2). Each rank writes a trace of both to the folder of the first argument.
"""

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile


def make_model() -> nn.Sequential:
    """Return the whole model."""
    return nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))


def cut() -> nn.Module:
    """Return the model of which each rank multiplies a half."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def divide() -> nn.Module:
    """Return the model whose parameters each rank gathers, layer by layer, for a batch of its own."""
    model = make_model()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model


def record(make: Callable[[], nn.Module], folder: str) -> None:
    """Write a trace of one forward and backward."""
    model, x = make(), torch.randn(8, 64)
    model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        model(x).sum().backward()
    recorded.export_chrome_trace(f"{folder}/{make.__name__}/rank{dist.get_rank()}.json")


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for make in (cut, divide):
        record(make, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
