"""The checks of a pre-flight: what each measures, in which unit, and by how much a healthy one may differ from others.

All values are rates, so that more is better. A check of a rank is compared between ranks, one of a node between nodes.
"""

from typing import Final, NamedTuple

CPU: Final = "cpu"
CUDA: Final = "cuda"
DTYPES: Final = {CPU: ("float32", "bfloat16"), CUDA: ("float32", "float16", "bfloat16")}
"""Number formats of the matrix products, by torch's names. On a CPU float16 is computed without vector instructions."""


class NodeCheck(NamedTuple):
    """One check. `ratio_min` is the smallest ratio of the peers' rate to the own one that may be called slow."""

    name: str
    title: str
    unit: str
    of_node: bool
    ratio_min: float


CPU_RATIO_MIN: Final = 1.3
"""Ranks on CPUs share cores, caches and memory with each other and with other processes."""
GPU_RATIO_MIN: Final = 1.05
"""GPUs of one model differ by 1 to 3 % in clock; a throttled one loses more."""
NETWORK_RATIO_MIN: Final = 1.25
"""As `link_slowdown_ratio_min` of the collector: healthy groups on other switches differ by a tenth to a fifth."""
HOST_NETWORK_RATIO_MIN: Final = 2.0
"""Over gloo the rate is mostly that of the CPU."""
DISK_RATIO_MIN: Final = 2.0
"""The time of an fsync differs from one to the next by more than anything else here."""

GIGA: Final = 1000**3
NODE_ALL_REDUCE: Final = "node_all_reduce"
PAIRS: Final = "pairs"
DISK: Final = "disk"
MEMORY: Final = "memory"
TO_DEVICE: Final = "to_device"
TO_HOST: Final = "to_host"


def name_matmul(dtype: str) -> str:
    """Return the name of the check of matrix products in this format.

    >>> name_matmul("float32")
    'matmul_float32'
    """
    return f"matmul_{dtype}"


def list_checks(kind: str) -> tuple[NodeCheck, ...]:
    """Return the checks of ranks on a kind of device (CPU or CUDA), in the order in which they run.

    >>> [check.name for check in list_checks(CPU)]
    ['matmul_float32', 'matmul_bfloat16', 'memory', 'disk', 'node_all_reduce', 'pairs']
    """
    is_cuda = kind == CUDA
    own, network = (GPU_RATIO_MIN, NETWORK_RATIO_MIN) if is_cuda else (CPU_RATIO_MIN, HOST_NETWORK_RATIO_MIN)
    copies = (
        NodeCheck(TO_DEVICE, "copy host to device", "GB/s", of_node=False, ratio_min=1.25),
        NodeCheck(TO_HOST, "copy device to host", "GB/s", of_node=False, ratio_min=1.25),
    )
    return (
        *(
            NodeCheck(
                name_matmul(dtype), f"matmul {dtype}", "TFLOP/s" if is_cuda else "GFLOP/s", of_node=False, ratio_min=own
            )
            for dtype in DTYPES[kind]
        ),
        NodeCheck(MEMORY, "memory bandwidth", "GB/s", of_node=False, ratio_min=own),
        *(copies if is_cuda else ()),
        NodeCheck(DISK, "disk write and fsync", "GB/s", of_node=True, ratio_min=DISK_RATIO_MIN),
        NodeCheck(NODE_ALL_REDUCE, "all-reduce in the node", "GB/s", of_node=True, ratio_min=network),
        NodeCheck(PAIRS, "exchange with other nodes", "GB/s", of_node=True, ratio_min=network),
    )
