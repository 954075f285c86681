"""Torch's caching allocator without a GPU: its statistics in the nesting that torch/cuda/memory.py describes."""

from typing import Any

CORE = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
POOLS = ("all", "large_pool", "small_pool")
EVENTS = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
    "num_oom_rejections", "max_split_size",
)  # fmt: skip


class StandInAllocator:
    """The memory functions of torch.cuda, for one device. Those that would reset or start something fail."""

    def __init__(self, device_index: int = 0, backend: str = "native") -> None:
        self._device_index = device_index
        self._backend = backend
        counts = ("current", "peak", "allocated", "freed")
        self.stats: dict[str, Any] = {
            **{name: {pool: dict.fromkeys(counts, 0) for pool in POOLS} for name in CORE},
            **{name: dict.fromkeys(counts, 0) for name in ("oversize_allocations", "oversize_segments")},
            **dict.fromkeys(EVENTS, 0),
            "reserved_bytes_by_private_pools": {(0, 1): {pool: dict.fromkeys(counts, 0) for pool in POOLS}},
        }

    def get_allocator_backend(self) -> str:
        return self._backend

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert self._backend == "native", "another allocator would call CUDA, or refuse"
        assert device == self._device_index, "the current device of this thread is not the training's"
        return self.stats

    def reset_peak_memory_stats(self, _device: int) -> None:
        raise AssertionError("the peaks belong to the training script")

    reset_accumulated_memory_stats = reset_peak_memory_stats
