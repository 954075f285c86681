"""Recognize by a kernel's name what it does: a matrix product, attention, a convolution, a norm, work on elements."""

import re
from functools import lru_cache

GEMM, ATTENTION, CONVOLUTION, NORM, ELEMENTWISE = "gemm", "attention", "convolution", "norm", "elementwise"
COMMUNICATION, COPY, OTHER = "communication", "copy", "other"
CLASSES = (GEMM, ATTENTION, CONVOLUTION, NORM, ELEMENTWISE, COMMUNICATION, COPY, OTHER)

_PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        ATTENTION,
        ("flash_?(?:attn|fwd|bwd|fprop|bprop|splitkv|attention)", "flash::", "fmha", "attention", "attn", "sdpa",
         r"\bmla_", "flashinfer::(?:Batch|Single)"),
    ),
    (
        CONVOLUTION,
        (r"conv(?:olve|olution|_|2d|3d|\d|Fwd|Bwd|Wrw)", "scudnn", "fprop", "dgrad", "wgrad", "winograd",
         "implicit_gemm", r"igemm_\w*gtcx", "im2col", "col2im", "vol2col"),
    ),
    (
        NORM,
        ("(?:layer|batch|group|rms|instance)_?norm", r"(?:^|_|\b)bn_", "RowwiseMoments", "GammaBeta",
         "norm_(?:fwd|bwd|kernel)", "norm(?:Fwd|Bwd)"),
    ),
    (
        GEMM,
        ("gemm", "matmul", "nvjet", "cutlass", "Cijk_", "marlin", "machete", r"\bbmm", "(?:^|_)mm(?:_|$)",
         "triton_tem_", "gemv", "dot_kernel", "splitK", "wgmma", "xmma"),
    ),
    (COPY, ("^Mem(?:cpy|set)", "^Copy(?:Host|Device)", "nchwToNhwc", "nhwcToNchw", "batched_transpose")),
    (
        ELEMENTWISE,
        ("elementwise", "triton_(?:poi|per|red|for)_", "multi_tensor_apply", "softmax", "dropout", "reduce",
         "reduction", "pointwise", "CatArray", "index", "gather", "scatter", "embedding", "cross_entropy", "nll_loss",
         "fill", "cumsum", "scan", "sort", "topk", "radix", "random", "distribution", "copy", "transpose", "cast",
         "gelu", "silu", "relu", "swiglu", "rotary", "rope", "pool", "upsample", "adam", "sgd", "foreach", "arange",
         "where", "mask", "add_kernel", "mul_kernel", "quant"),
    ),
)  # fmt: skip
_PATTERNS = tuple((kind, re.compile("|".join(parts), re.IGNORECASE)) for kind, parts in _PARTS)


NAMES_KEPT_MAX = 10_000
"""Names of which the answer is kept: several tables ask for the same ones."""


@lru_cache(maxsize=NAMES_KEPT_MAX)
def find_class(name: str) -> str:
    """Return the class of a kernel that does not communicate, by its name: the first that fits, `other` where
    none does. A kernel that fuses several things has the one that costs most.

    >>> [find_class(name) for name in ("ampere_sgemm_128x64_tn", "flash_fwd_kernel", "Memcpy DtoD", "my_kernel")]
    ['gemm', 'attention', 'copy', 'other']
    """
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)
