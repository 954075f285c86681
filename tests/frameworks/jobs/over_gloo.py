"""What a framework has to be told that shards by FSDP2 over gloo."""

from torch import nn
from torch.distributed.fsdp import FSDPModule


def reduce_by_sums(model: nn.Module) -> None:
    """Let all its sharded parts reduce by sums: gloo knows no other reduction that they ask for."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(enable=True)
