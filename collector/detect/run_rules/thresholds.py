"""What a job can be held up by, live or in a trace: from where on it is worth saying, and what to do about it.

The rules over a running job (`rules.py`) and those over its traces (`traces/advice_rules_*.py`) ask the same questions
of different evidence. What they have in common stands here once.
"""

from typing import Final

CRITICAL_RATIO: Final = 0.3
"""What takes this share of the time makes the step 1.4 times as long as it could be."""
IDLE_RATIO_MIN: Final = 0.3
"""Idle time of the device that its host causes: 9 % where the loader is the problem (ResNet-50, V100), 45 % and more
where the host is (DLRM 45 %, ResNet DDP on A100 76 %, BERT inference on H100 91 %). 30 % lies between."""
DATA_RATIO_MIN: Final = 0.1
"""Of the steps: ResNet-50 without workers 34 %, a loader slowed by 100 ms 34 % (gloo-2.13/ddp_2r_slow1_data); sound
loaders up to 2 % (the rest of gloo-2.13), and DLRM, which is host-bound, 5 to 10 %."""
EXPOSED_RATIO_MIN: Final = 0.15
"""Of the window, without the waiting where it is known: ranks of sound jobs in gloo-2.13 stay below 7 %, DLRM reaches
16 to 24 %. Exposed communication of a lone rank holds waiting for others as well."""
OVERLAP_RATIO_MAX: Final = 0.2
"""DDP overlaps 43 to 90 % of its communication in gloo-2.13; the A100 ResNet 16 %, DLRM 2 to 8 %."""
HIDEABLE_RATIO_MIN: Final = 0.1
"""Of the time the device worked, what could be saved at the most: the shorter of communicating alone and computing
alone. A100 ResNet 25 %, DLRM 8 to 18 %."""

FREE_THE_HOST: Final = (
    "Give the host less to do for each kernel: torch.compile, CUDA graphs, a larger batch, fused optimizers; move "
    "logging and other Python out of the step."
)
FREE_THE_ALLOCATOR: Final = (
    "Steps should not allocate from the driver: check that caching is not off (PYTORCH_NO_CUDA_MEMORY_CACHING, "
    "PYTORCH_NO_HIP_MEMORY_CACHING), that no code calls empty_cache in a step, and that memory is not so full that the "
    "cache is emptied (expandable_segments, a smaller batch)."
)
FEED_FASTER: Final = (
    "Give the loader more num_workers or a larger prefetch_factor, or make a sample cheaper: faster storage, decoding "
    "ahead of time."
)
COMMUNICATE_LESS: Final = (
    "Communicate less often or less: gradient accumulation under no_sync, a larger batch for each rank, gradients in "
    "bf16 (a DDP communication hook), fewer and larger collectives, sharding within a node."
)
OVERLAP: Final = (
    "Let communication start earlier: DDP with smaller buckets (bucket_cap_mb) and gradient_as_bucket_view, without "
    "find_unused_parameters where not needed; FSDP with prefetching; own collectives with async_op=True, waited for as "
    "late as possible."
)


def percent(ratio: float) -> str:
    """A share for people.

    >>> percent(0.156), percent(0.0042)
    ('16 %', '0.4 %')
    """
    return f"{100 * ratio:.0f} %" if ratio >= 0.01 else f"{100 * ratio:.1f} %"  # noqa: PLR2004 - below one in a hundred
