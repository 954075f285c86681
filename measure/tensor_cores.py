"""Recognise kernels that compute on tensor cores by their names."""

import re

_TENSOR_CORE = re.compile(
    r"[ihsbf]\d{0,2}_?s?(?:884|1688|16816|161616|161632|8816)|hmma|imma|wmma|tensorop|tensor16x8x8|nvjet"
    r"|sm(?:75|80|86|89|90|100|120)_xmma|xmma_(?:\w*_)?(?:implicit_gemm|gemm)\w*(?:f16|bf16|tf32|e4m3|i8)"
    r"|MmaTensorOp|mfma|_xdl_|igemm_\w*gtcx|_MI(?:16x16|32x32|4x4)x"
)
"""CUTLASS, cuBLAS and cuDNN put the shape of the matrix instruction or its type into a kernel's name; AMD's Tensile and
MIOpen the shape of theirs (MI, gtcx), Composable Kernel "xdl" (MFMA on gfx908 and later)."""


def uses_tensor_cores(name: str) -> bool:
    """Return whether a kernel computes on tensor cores (AMD: matrix cores), by its name.

    >>> [uses_tensor_cores(name) for name in ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn", "sgemm_32x32_nn")]
    [True, False]
    """
    return _TENSOR_CORE.search(name) is not None
