"""Torch's caching allocator without a GPU: its statistics in the nesting that torch/cuda/memory.py describes."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
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


Observer = Callable[[int, int, int, int], None]


class StandInBindings:
    """What torch.cuda.memory imports as `_C`, as far as errors of the allocator go."""

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.records_history = False
        """Also what a script has had it do."""

    def _cuda_attach_out_of_memory_observer(self, observer: Observer) -> None:
        self.observers.append(observer)

    def _cuda_isHistoryEnabled(self) -> bool:  # noqa: N802 - torch's name
        return self.records_history


class StandInMemory:
    """Like the module torch.cuda.memory. `read_segments` returns what the allocator has."""

    def __init__(self, read_segments: Callable[[], list[dict[str, Any]]] = list) -> None:
        self._C = StandInBindings()
        self._read_segments = read_segments
        self.recordings: list[dict[str, Any]] = []
        self.traces: list[list[dict[str, Any]]] = []

    def _record_memory_history(
        self, enabled: str | None = "all", *, context: str | None = "all", stacks: str = "all", max_entries: int
    ) -> None:
        assert max_entries < 10**6, "without a bound it would take all memory of the host"
        self.recordings.append({"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})
        self._C.records_history = enabled is not None

    def _snapshot(self) -> dict[str, Any]:
        """Torch makes everything anew each time."""
        return copy.deepcopy({"segments": self._read_segments(), "device_traces": self.traces})


class StandInAllocator:
    """The memory functions of torch.cuda, for one device. Those that would reset or start something fail."""

    def __init__(self, device_index: int = 0, backend: str = "native") -> None:
        self._device_index = device_index
        self._backend = backend
        self.segments: list[dict[str, Any]] = []
        self.memory = StandInMemory(lambda: self.segments)
        self.total_bytes = 80 * 2**30
        counts = ("current", "peak", "allocated", "freed")
        self.stats: dict[str, Any] = {
            **{name: {pool: dict.fromkeys(counts, 0) for pool in POOLS} for name in CORE},
            **{name: dict.fromkeys(counts, 0) for name in ("oversize_allocations", "oversize_segments")},
            **dict.fromkeys(EVENTS, 0),
            "reserved_bytes_by_private_pools": {(0, 1): {pool: dict.fromkeys(counts, 0) for pool in POOLS}},
        }

    def get_allocator_backend(self) -> str:
        return self._backend

    def get_device_properties(self, device: int) -> SimpleNamespace:
        assert device == self._device_index
        return SimpleNamespace(total_memory=self.total_bytes)

    def memory_snapshot(self, *, include_traces: bool) -> list[dict[str, Any]]:
        assert not include_traces, "reading the whole history takes seconds"
        return self.segments

    def run_out(self, asked_bytes: int, *, limit_bytes: int, free_bytes: int) -> None:
        """Do what torch does before it raises OutOfMemoryError: count it, and call the observers."""
        self.stats["num_ooms"] += 1
        for observer in self.memory._C.observers:
            observer(self._device_index, asked_bytes, limit_bytes, free_bytes)

    def memory_stats_as_nested_dict(self, device: int) -> dict[str, Any]:
        assert self._backend == "native", "another allocator would call CUDA, or refuse"
        assert device == self._device_index, "the current device of this thread is not the training's"
        return self.stats

    def reset_peak_memory_stats(self, _device: int) -> None:
        raise AssertionError("the peaks belong to the training script")

    reset_accumulated_memory_stats = reset_peak_memory_stats
