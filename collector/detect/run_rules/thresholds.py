"""Define the thresholds and suggestions that the rules over a live run and over its traces share.

The rules over a live run (`rules.py`) and over its traces (`traces/advice_rules_*.py`) apply them to different
evidence.
"""

from typing import Final

CRITICAL_RATIO: Final = 0.3
"""A share of the time that makes the step 1.4 times as long as it could be."""
IDLE_RATIO_MIN: Final = 0.3
"""Idle time of the device caused by its host: 9 % in data-bound traces, 45 % and more in host-bound ones."""
DATA_RATIO_MIN: Final = 0.1
"""Data phase over the step: 34 % in data-bound traces, up to 2 % with sound loaders, 5 to 10 % in host-bound ones."""
QUEUE_RATIO_MIN: Final = 0.1
"""Wait of the training thread for a CPU core over the step: below a thousandth where every rank has a core."""
EXPOSED_RATIO_MIN: Final = 0.15
"""Exposed communication over the window, without waits where they are known: healthy runs stay below 7 %. That of a
single rank's trace includes waits for others."""
OVERLAP_RATIO_MAX: Final = 0.2
"""Healthy DDP overlaps 43 to 90 % of its communication; serialised traces 2 to 16 %."""
HIDEABLE_RATIO_MIN: Final = 0.1
"""Largest possible saving over the time the device worked: the shorter of communication alone and compute alone."""

FREE_THE_HOST: Final = (
    "Give the host less to do for each kernel: torch.compile, CUDA graphs, a larger batch, fused optimizers; move "
    "logging and other Python out of the step."
)
FREE_THE_ALLOCATOR: Final = (
    "Steps should not allocate from the driver: check that caching is not off (PYTORCH_NO_CUDA_MEMORY_CACHING, "
    "PYTORCH_NO_HIP_MEMORY_CACHING), that no code calls empty_cache in a step, and that memory is not so full that the "
    "cache is emptied (expandable_segments, a smaller batch)."
)
LAUNCH_AHEAD: Final = (
    "Read numbers less often: keep losses and metrics on the GPU and read them every n-th step instead of .item(), "
    ".cpu() or print; avoid nonzero, unique and boolean masks (torch.where, fixed sizes); copy with non_blocking=True "
    "from pinned memory."
)
FEED_FASTER: Final = (
    "Give the loader more num_workers or a larger prefetch_factor, or make a sample cheaper: faster storage, decoding "
    "ahead of time."
)
FREE_THE_CORES: Final = (
    "Find what else runs on the machine (`top`), and check whether the container has as many CPUs as its ranks have "
    "threads. If not, use fewer ranks or data loader workers or a lower OMP_NUM_THREADS, or pin each rank to cores of "
    "its own."
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
    """Return a share as text.

    >>> percent(0.156), percent(0.0042)
    ('16 %', '0.4 %')
    """
    return f"{100 * ratio:.0f} %" if ratio >= 0.01 else f"{100 * ratio:.1f} %"  # noqa: PLR2004 - below one in a hundred
