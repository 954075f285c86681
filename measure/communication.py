"""Recognize communication by its names: which operation it is, and how many bytes it moves.

A kernel is communication if its backend marks it (a `Collective name` argument, or an open `nccl:` range at its
launch), otherwise by its name. Kernel names are often ambiguous: kernels named SendRecv also serve all-to-all,
all-gather and reduce-scatter, and RCCL has one kernel for everything.
"""

import re
from functools import cache
from math import prod
from typing import Any, NamedTuple

BACKENDS = ("nccl", "rccl", "gloo", "mpi", "ucc", "xccl", "hccl")
HOST_BACKENDS = ("gloo", "mpi", "ucc")
HOST_PREFIXES = tuple(f"{backend}:" for backend in HOST_BACKENDS)
"""Ranges of backends that communicate on the CPU: the range is the communication itself."""
RANGE_PREFIXES = tuple(f"{backend}:" for backend in BACKENDS)
"""On a device the range only marks what was launched inside it."""
MESSAGE_CALLS = frozenset({"c10d::send", "c10d::recv_"})
ENQUEUE_PREFIX = "c10d::"
"""Operators that hand work to a backend: neither compute nor communication."""
POINT_TO_POINT_OPS = frozenset({"send", "recv", "send_recv", "recvAnySource"})
"""In our spelling and in gloo's. Not in the flight recorder's count of collectives."""

ALL_TO_ALL = "all_to_all"


def is_on_host(backend: str) -> bool:
    """Return whether all backends of a group are host ones. `backend` is one name, or several by device.

    >>> is_on_host("gloo"), is_on_host("cpu:gloo,cuda:nccl")
    (True, False)
    """
    return all(part.rpartition(":")[2] in HOST_BACKENDS for part in backend.split(","))


class KernelFamily(NamedTuple):
    """Kernels of one library: a pattern on their name, and a name that it must match."""

    library: str
    pattern: str
    example: str


COMMUNICATION_KERNELS = (
    KernelFamily("NCCL", r"nccl", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    KernelFamily("NCCL 2.17", r"ncclKernel_", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)"),
    KernelFamily("NCCL symmetric", r"ncclSymk", "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs)"),
    KernelFamily("RCCL", r"rccl", "rcclDirectKernel(void*)"),
    KernelFamily("RCCL generic", r"ncclDevKernel_Generic", "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"),
    KernelFamily("MSCCL", r"msccl(?:pp)?", "mscclKernel_Sum_half_Simple_true(mscclDevKernelArgs)"),
    KernelFamily(
        "symmetric memory",
        r"\b(?:one_shot|two_shot|multimem_one_shot|multimem)_?(?:all_reduce|all_gather|reduce_scatter)",
        "void c10d::symmetric_memory::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    ),
    KernelFamily(
        "signals of symmetric memory",
        r"symmetric_memory::(?:barrier|put_signal|wait_signal)_kernel",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    ),
    KernelFamily("NVSHMEM", r"nvshmem", "nvshmemi_transfer_amo_nonfetch<float>(float*)"),
    KernelFamily("rocSHMEM", r"rocshmem", "rocshmem::rocshmem_putmem_kernel(void*)"),
    KernelFamily(
        "DeepEP",
        r"deep_ep::|\bep::(?:internode|intranode)",
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
    ),
    KernelFamily(
        "HybridEP",
        r"hybrid_ep::(?:dispatch|combine|device_sync)_kernel",
        "void hybrid_ep::combine_kernel<8, 4>(hybrid_ep::combine_kernel_param_t)",
    ),
    KernelFamily(
        "custom all-reduce", r"cross_device_reduce_", "void vllm::cross_device_reduce_2stage<__half, 8>(RankData*)"
    ),
    KernelFamily(
        "custom all-reduce of aiter", r"cross_device_store", "void aiter::reduce_scatter_cross_device_store<8>()"
    ),
    KernelFamily(
        "fused all-reduce of TensorRT-LLM and FlashInfer",
        r"all_?reduce_fusion|trtllm_\w*(?:all_?reduce|all_?to_?all)|moe(?:reduction|finalize)_allreduce",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16>(Params)",
    ),
    KernelFamily(
        "multi-node NVLink all-reduce",
        r"mnnvl|(?:one|two)shot_?all_?reduce",
        "twoshotAllreduceKernel<8, __nv_bfloat16>",
    ),
    KernelFamily(
        "userbuffers of TransformerEngine",
        r"userbuffers_(?:fp16|push|pull)",
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs<2>(int, int, int, int, int, int, int, void**, int, unsigned long)",
    ),
    KernelFamily(
        "QuickReduce",
        r"quickreduce::",
        "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 8>, true>, __half>",
    ),
    KernelFamily(
        "MORI", r"mori::(?:moe|shmem|ccl)|\bEp(?:Dispatch|Combine)(?:Intra|Inter)Node", "EpDispatchIntraNodeKernel_bf16"
    ),
    KernelFamily("pplx", r"pplx::", "void pplx::dispatchKernel<8, true>(int*, unsigned char*)"),
    KernelFamily("oneCCL", r"oneccl", "oneccl_allreduce_small_kernel"),
    KernelFamily("HCCL", r"^hcom_", "hcom_allReduce__123_0_1"),
)

_OPERATIONS = (
    ("barrier", "barrier"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"), ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("reduce", "reduce"),
    ("gather", "gather"), ("scatter", "scatter"), ("sendrecv", "send_recv"), ("send", "send"), ("recv", "recv"),
)  # fmt: skip
_EXPERT_KERNEL = re.compile(
    r"(?:deep_ep|\bep)::(?:\w+::)*(?!\w+::)(?:hybrid_|pp_)?(\w+?)(?:_impl)?\b"
    r"|\b(?:Ep|(?:pplx|hybrid_ep)::\w*)(dispatch|combine)",
    re.IGNORECASE,
)
"""The exchange of tokens with experts: kernels of DeepEP (of its first version in `intranode`, `internode` and
`internode_ll`, of its second in `elastic`, names that end in `_impl`), HybridEP, MORI and pplx."""
_IN_KERNEL_NAME = r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce|barrier"

_ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "int": 4, "longint": 8, "long": 8, "short": 2, "char": 1,
    "byte": 1, "signedchar": 1, "unsignedchar": 1, "bool": 1, "complex<float>": 8, "complex<double>": 16,
    "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
GEMMS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm"})


def is_communication_kernel(name: str) -> bool:
    """Return whether a kernel's name is that of a communication kernel.

    >>> is_communication_kernel("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)"), is_communication_kernel("gemm")
    (True, False)
    """
    return _communication_kernels().search(name) is not None


@cache
def _communication_kernels() -> re.Pattern[str]:
    """Compiled when a trace is read: at the import it would be time of each training process's start."""
    return re.compile("|".join(family.pattern for family in COMMUNICATION_KERNELS), re.IGNORECASE)


def is_backend_range(name: str) -> bool:
    """Return whether a range on the host is a backend's own: `nccl:all_reduce`, `gloo:barrier`."""
    return name.startswith(RANGE_PREFIXES)


def find_operation(name: str) -> str:
    """Return the operation of a backend's range in this project's spelling; an unknown one keeps its name.

    >>> [find_operation(name) for name in ("nccl:_all_gather_base", "all_to_allv", "nccl:send 0->1")]
    ['all_gather', 'all_to_all', 'send']
    """
    plain = name.rpartition(":")[2] if is_backend_range(name) else name
    key = re.sub(r"[^a-z]", "", plain.partition(" ")[0].lower())
    if "barrier" in key:
        return "barrier"
    return next((operation for start, operation in _OPERATIONS if key.startswith(start)), plain)


def find_operation_of_kernel(name: str) -> str | None:
    """Return the operation in a communication kernel's name; None if the name has none.

    >>> find_operation_of_kernel("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"), find_operation_of_kernel("rcclKernel")
    ('reduce_scatter', None)
    >>> find_operation_of_kernel("void deep_ep::internode::notify_dispatch<false, 8>(int const*)")
    'notify_dispatch'
    >>> find_operation_of_kernel("void deep_ep::elastic::hybrid_combine_impl<true, 8>(void*)")
    'combine'
    """
    of_experts = _EXPERT_KERNEL.search(name)
    if of_experts is not None:
        return next(text for text in of_experts.groups() if text).lower()
    found = re.search(_IN_KERNEL_NAME, name, re.IGNORECASE)
    return None if found is None else find_operation(found.group())


def item_bytes(dtype: str) -> int | None:
    """Return the size of one element, in torch's spelling or C++'s; None for a type that is not known.

    >>> item_bytes("BFloat16"), item_bytes("c10::Half"), item_bytes("long int"), item_bytes("GenericList")
    (2, 2, 8, None)
    """
    return _ITEM_BYTES.get(dtype.lower().replace("c10::", "").replace(" ", ""))


def input_bytes(types: Any, dims: Any) -> int | None:
    """Return the size in bytes of an operator's inputs, from Kineto's `Input type` and `Input Dims`; None if
    incomplete.

    >>> input_bytes(["float"], [[2, 3]]), input_bytes(["float"], [])
    (24, None)
    """
    try:
        sizes = [item_bytes(kind) for kind in types]
        if len(sizes) != len(dims) or None in sizes:
            return None
        if not all(type(length) is int for shape in dims for length in shape):  # a list of tensors
            return None
        return sum((size or 0) * int(prod(shape)) for size, shape in zip(sizes, dims, strict=True))
    except (TypeError, AttributeError):
        return None


def needs_input_shapes(name: str) -> bool:
    """Return whether an operator's input shapes are used: for the bytes of a collective or the work of a GEMM."""
    return name in GEMMS or is_backend_range(name)


def is_message_call(name: str) -> bool:
    """Return whether an operator sends to one rank or receives from one: its recorded inputs name the rank and the tag.

    >>> is_message_call("c10d::recv_"), is_message_call("c10d::allreduce_")
    (True, False)
    """
    return name in MESSAGE_CALLS


def bus_factor(op: str, ranks: int) -> float | None:
    """Return the factor from algorithm bandwidth (bytes over transfer time) to bus bandwidth, as nccl-tests defines it
    (doc/PERFORMANCE.md of NVIDIA/nccl-tests); None for an operation without one.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4), bus_factor("send", 2)
    (1.5, 0.75, 1.0, None)
    """
    if ranks < 1:
        return None
    if op == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if op in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    return 1.0 if op in {"broadcast", "reduce"} else None
