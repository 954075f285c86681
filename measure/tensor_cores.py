"""Recognize kernels that compute on tensor cores by their names, and those that do not."""

import re
from functools import lru_cache

from rankscope.measure import kernel_classes
from rankscope.measure.communication import is_communication_kernel

_TENSOR_CORE = re.compile(
    r"[ihsbf]\d{0,2}_?s?(?:884|1688|16816|161616|161632|8816)|hmma|imma|wmma|qmma|tensorop|tensor16x8x8|nvjet"
    r"|sm(?:75|80|86|89|90|100|120)_xmma|xmma_(?:\w{0,200}_)?(?:implicit_gemm|gemm)\w{0,200}(?:f16|bf16|tf32|e4m3|i8)"
    r"|MmaTensorOp|mfma|_xdl_?|igemm_\w*gtcx|_MI(?:16x16|32x32|4x4)x"
    r"|wgmma|tcgen05|GmmaWarpSpecialized|UmmaWarpSpecialized|MainloopSm(?:90|100|120)|SM(?:80|90|100)_\d+x\d+x\d+_"
    r"|flash_(?:fwd|bwd)_(?:\w+_)?kernel|Flash_(?:fwd|bwd)_kernel_traits|FlashAttn(?:Fwd|Bwd)\w*Sm\d+|fmha_cutlass[FB]_b?f16"
    r"|deep_gemm::|sm(?:90|100)_(?:fp8|bf16)_gemm|[Mm]arlin|machete|ck_tile::Fmha|\bfmha_(?:fwd|bwd)_\w*b?f16"
    r"|_sdpa_sm\d+_flash_\w*b?f16"
)
"""CUTLASS, cuBLAS and cuDNN put the shape of the matrix instruction or its type into a kernel's name, CUTLASS 3 its
main loop (Gmma, Umma); AMD's Tensile, which hipBLASLt uses too, and MIOpen the shape of theirs (MI, gtcx), Composable
Kernel "xdl" (MFMA on gfx908 and later). FlashAttention, DeepGEMM, Marlin and Machete have no others. Names of DeepGEMM,
Marlin, Machete, FlashAttention 3 and CK's fmha are from their sources: no recorded trace here has them."""
_NO_TENSOR_CORE = re.compile(r"sgemm|dgemm|simt|scudnn|gemv|gemmSN|gemmk1|dot_kernel|splitKreduce|winograd\w*<float")
"""Products and convolutions on the ordinary cores. Names that both patterns fit are on tensor cores: s1688gemm."""
_BESIDE = re.compile(
    r"flash_(?:fwd|bwd)_\w*(?:combine|convert|dot_do)|FlashAttn(?:FwdCombine|Bwd(?:Pre|Post)process)|repack|splitKreduce"
)
"""Kernels of such libraries around their products: they go before the names of these."""
_NEVER = frozenset({kernel_classes.NORM, kernel_classes.ELEMENTWISE, kernel_classes.COPY})


@lru_cache(maxsize=kernel_classes.NAMES_KEPT_MAX)
def uses_tensor_cores(name: str) -> bool | None:
    """Return whether a kernel computes on tensor cores (AMD: matrix cores), by its name; None where that does not tell.
    Triton's products are such: the name is the function's.

    >>> names = ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "sgemm_32x32_nn", "triton_tem_fused_mm_0")
    >>> [uses_tensor_cores(name) for name in names]
    [True, False, None]
    """
    if _BESIDE.search(name) is not None:
        return False
    if _TENSOR_CORE.search(name) is not None:
        return True
    is_without = (
        _NO_TENSOR_CORE.search(name) is not None
        or kernel_classes.find_class(name) in _NEVER
        or is_communication_kernel(name)
    )
    return False if is_without else None
