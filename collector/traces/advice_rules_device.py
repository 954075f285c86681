"""Judge the device: redundant copies, growing memory, matrix products without tensor cores."""

import re

from rankscope.collector.detect.run_rules.thresholds import percent
from rankscope.collector.traces.advice_rules import no_device, of_rank, on_rank, ranks_of
from rankscope.collector.traces.report import Abstention, Advice, MemoryReport, RankReport

# -- redundant_copies -------------------------------------------------------------------------------------------------

COPY_RATIO_MIN = 0.1
"""Share of the compute time. Layout conversions take 13 % and more in ResNets without channels_last."""
_CONVERTS_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw|batched_transpose", re.IGNORECASE)
"""Kernels with which cuDNN and MIOpen convert the layout before and after a convolution."""


def judge_copies(report: RankReport) -> Advice | Abstention | None:
    """Judge whether copies to another layout or type are a notable part of the compute time."""
    key, signs = "redundant_copies", report.signs
    if not report.compute_ns:
        return Abstention(key=key, reason="no compute in the trace")
    device_ns = signs.copy_operator_device_ns
    operators_ns = signs.copy_operator_host_ns if device_ns is None else device_ns
    layouts_ns = sum(row.total_ns for row in report.kernels if _CONVERTS_LAYOUT.search(row.name))
    ratio = (operators_ns + layouts_ns) / report.compute_ns
    if ratio < COPY_RATIO_MIN:
        return None
    converts = layouts_ns > operators_ns
    what = (
        "layout conversion for convolutions"
        if converts
        else f"copies to another layout or type ({signs.copy_operator})"
    )
    return Advice(
        key=key,
        severity="warning" if ratio >= 2 * COPY_RATIO_MIN else "hint",
        ranks=ranks_of(report),
        sentence=f"{percent(ratio)} of the compute time{of_rank(report)} went into {what}.",
        action=_CONVERT_ONCE if converts else _COPY_LESS,
        evidence={
            "copy_ratio": ratio,
            "copy_ratio_min": COPY_RATIO_MIN,
            "copy_operators_ns": operators_ns,
            "layout_kernels_ns": layouts_ns,
            "operator": signs.copy_operator,
        },
    )


_CONVERT_ONCE = (
    "Put model and inputs into memory_format=torch.channels_last, so that no convolution converts its layout."
)
_COPY_LESS = (
    "Look for .contiguous(), .clone(), reshape of transposed tensors and .to(dtype) in the forward pass: keep one "
    "layout and type, convert weights once, use view or a kernel that takes strides."
)

# -- memory_growth ----------------------------------------------------------------------------------------------------

GROWTHS_MIN = 3
"""Least growths in a row: four numbers without a trend rise three times in 4 % of the cases."""
GROWTH_STEP_BYTES_MIN = 100 * 1024
"""Least growth in every step: 10 GB over 100,000 steps."""


def judge_memory_growth(report: RankReport) -> Advice | Abstention | None:
    """Judge whether more memory is held after every single step."""
    key = "memory_growth"
    if not report.memory:
        return Abstention(key=key, reason="no memory events in the trace (profile_memory=True)")
    steps = len(report.memory[0].growth_by_step_bytes)
    if steps < GROWTHS_MIN:
        return Abstention(key=key, reason=f"{GROWTHS_MIN + 1} steps are needed to distinguish growth from chance")
    grown = [one for one in report.memory if min(one.growth_by_step_bytes) >= GROWTH_STEP_BYTES_MIN]
    return _advise_on_memory(report, max(grown, key=lambda one: one.growth_bytes)) if grown else None


def _advise_on_memory(report: RankReport, memory: MemoryReport) -> Advice:
    keeper = max(memory.operators, key=lambda row: row.kept_bytes, default=None)
    count = len(memory.growth_by_step_bytes)
    where = "of the host" if memory.device is None else f"of GPU {memory.device}"
    kept = f"; what is kept comes mostly from {keeper.operator}" if keeper is not None and keeper.kept_bytes > 0 else ""
    return Advice(
        key="memory_growth",
        severity="warning",
        ranks=ranks_of(report),
        sentence=(
            f"{on_rank(report)}the memory {where} grew in each of {count} steps, "
            f"{memory.growth_bytes / count / 2**20:.1f} MiB in a step{kept}."
        ),
        action=(
            "Look for tensors that outlive their step: losses gathered with their graph (use .detach() or .item()), "
            "lists of outputs, hooks and caches that keep references. A memory snapshot (torch.cuda.memory) shows who "
            "holds them."
        ),
        evidence={
            "growth_step_bytes": min(memory.growth_by_step_bytes),
            "growth_step_bytes_min": GROWTH_STEP_BYTES_MIN,
            "growth_bytes": memory.growth_bytes,
            "step_count": count,
            "device": memory.device,
            "operator": keeper.operator if keeper is not None else None,
        },
    )


# -- memory_near_capacity ---------------------------------------------------------------------------------------------

CAPACITY_RATIO_MIN = 0.9
"""Share of a device's memory that tensors held at once: what torch's caches, CUDA and NCCL need of it is seldom less
than the rest."""


def judge_memory_capacity(report: RankReport) -> Advice | Abstention | None:
    """Judge whether tensors held nearly all memory of a device at their peak."""
    key = "memory_near_capacity"
    held = [(one.device, one.peak_bytes) for one in report.memory if one.device is not None]
    if not held:
        return Abstention(key=key, reason="no memory events of a device in the trace (profile_memory=True)")
    capacity = {one.device: one.memory_bytes for one in report.devices}
    known = [(peak / whole, device, peak, whole) for device, peak in held if (whole := capacity.get(device))]
    if not known:
        return Abstention(key=key, reason="the trace does not say how much memory the device has")
    ratio, device, peak, whole = max(known)
    if ratio < CAPACITY_RATIO_MIN:
        return None
    return Advice(
        key=key,
        severity="hint",
        ranks=ranks_of(report),
        sentence=(
            f"{on_rank(report)}tensors held {percent(ratio)} of the memory of GPU {device} at their peak, "
            f"{peak / 2**30:.1f} of {whole / 2**30:.1f} GiB."
        ),
        action=(
            "A longer batch or a fragmented allocator ends in an error, and calls that free its cache cost time: "
            "activation checkpointing, lower precision, a smaller batch, or a sharded model (FSDP) leave more."
        ),
        evidence={
            "peak_ratio": ratio,
            "peak_ratio_min": CAPACITY_RATIO_MIN,
            "peak_bytes": peak,
            "memory_bytes": whole,
            "device": device,
        },
    )


# -- no_tensor_cores --------------------------------------------------------------------------------------------------

FP32_RATIO_MIN = 0.2
"""Share of the compute time: twice the speed on tensor cores then saves a tenth of it."""
LARGE_KERNEL_NS_MIN = 20_000
"""At a V100's 14 TFLOP/s in fp32 a product of matrices of 520 x 520; smaller ones do not fill the tensor cores."""
TENSOR_CORES_SINCE_MAJOR = 7
TF32_SINCE_MAJOR = 8
_FP32_MATRIX = re.compile(
    r"sgemm(?!_fp16)|scudnn|simt_s\w*(?:gemm|fprop|dgrad|wgrad)|(?:dgrad|wgrad|fprop|conv\w*)\w*engine<float"
    r"|winograd\w*<float|gemmSN_\w+<float"
)
"""cuBLAS and cuDNN name kernels after their type: s is single precision."""


def judge_tensor_cores(report: RankReport) -> Advice | Abstention | None:
    """Judge whether large matrix products and convolutions run in fp32 on a device with tensor cores."""
    key, signs, major = "no_tensor_cores", report.signs, report.signs.compute_capability_major
    if not report.devices:
        return no_device(key)
    if major is None:
        return Abstention(key=key, reason="the trace has no CUDA compute capability")
    if major < TENSOR_CORES_SINCE_MAJOR or not report.compute_ns:
        return None
    found = [row for row in report.kernels if is_large_fp32(row.name, row.mean_ns) and not row.uses_tensor_cores]
    fp32_ns = sum(row.total_ns for row in found)
    if fp32_ns / report.compute_ns < FP32_RATIO_MIN:
        return None
    shape = f" The largest product is {signs.largest_fp32_gemm}." if signs.largest_fp32_gemm else ""
    return Advice(
        key=key,
        severity="warning",
        ranks=ranks_of(report),
        sentence=(
            f"{percent(fp32_ns / report.compute_ns)} of the compute time{of_rank(report)} are matrix products and "
            f"convolutions in fp32 without tensor cores, which this device has.{shape}"
        ),
        action=_USE_TF32 if major >= TF32_SINCE_MAJOR else _USE_FP16,
        evidence={
            "fp32_matrix_ratio": fp32_ns / report.compute_ns,
            "fp32_matrix_ratio_min": FP32_RATIO_MIN,
            "fp32_matrix_ns": fp32_ns,
            "kernel": found[0].name,
            "compute_capability": f"{major}.{signs.compute_capability_minor}",
            "largest_fp32_gemm": signs.largest_fp32_gemm,
        },
    )


_USE_TF32 = (
    "Train in torch.autocast with bfloat16, or let fp32 products take TF32: torch.set_float32_matmul_precision('high') "
    "and torch.backends.cudnn.allow_tf32 = True."
)
_USE_FP16 = (
    "Train in torch.autocast with float16 and a GradScaler; this generation has no TF32. Sizes that are multiples of 8 "
    "fit the tensor cores."
)


def is_large_fp32(name: str, mean_ns: int) -> bool:
    """Return whether a kernel multiplies matrices in fp32, by its name, and is long enough to be worth moving.

    >>> is_large_fp32("volta_sgemm_128x64_nn", 90_000), is_large_fp32("volta_sgemm_128x32_nt", 6_700)
    (True, False)
    """
    return mean_ns >= LARGE_KERNEL_NS_MIN and _FP32_MATRIX.search(name) is not None
