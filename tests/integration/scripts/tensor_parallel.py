"""Two linear layers, the first cut by columns and the second by rows over two ranks; each rank writes its trace to the
folder of the first argument.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.profiler import ProfilerActivity, profile


def main(folder: str) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    x = torch.randn(8, 64)
    model(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        model(x).sum().backward()
    recorded.export_chrome_trace(f"{folder}/rank{dist.get_rank()}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
