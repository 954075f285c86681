"""Let the ranks of a script share one GPU, which NCCL refuses on one machine ("Duplicate GPU detected").

Each rank claims a host id of its own, and they communicate through sockets.
"""

import os

import torch
import torch.distributed as dist


def join_group(*, shares_gpu: bool = True) -> bool:
    """Make the default process group of NCCL on the first GPU, and return whether NCCL accepts its ranks; `refused` is
    printed where it does not.
    """
    if shares_gpu:
        os.environ |= {
            "NCCL_HOSTID": f"machine-of-rank-{os.environ['RANK']}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_NET": "Socket",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
        }
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    try:
        dist.all_reduce(torch.ones(1, device="cuda"))
        torch.cuda.synchronize()
    except dist.DistBackendError as error:
        print(f"refused {' '.join(str(error).split())}", flush=True)
        return False
    return True
