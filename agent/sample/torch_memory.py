"""Samples torch's caching allocator: allocated and reserved memory, retries, and allocations from the driver.

`memory_stats_as_nested_dict` holds the allocator's lock briefly and makes no CUDA calls, so any thread can call it,
also while a CUDA graph is captured. `memory_stats` would convert it to 122 flat keys, which takes ten times as long.
Nothing is reset, since the user may use peaks and counts.

Only the allocator named `native` counts all this. Others leave meaningless zeros or call CUDA, so their fields are all
absent, with the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.measure.clock import Clock
from rankscope.measure.records import AllocatorSample

NATIVE = "native"
NOT_TOLD = "not_told_by_this_torch"

PATHS: Final[Mapping[str, tuple[str, ...]]] = {
    "allocated_bytes": ("allocated_bytes", "all", "current"),
    "reserved_bytes": ("reserved_bytes", "all", "current"),
    "active_bytes": ("active_bytes", "all", "current"),
    "inactive_split_bytes": ("inactive_split_bytes", "all", "current"),
    "allocated_peak_bytes": ("allocated_bytes", "all", "peak"),
    "reserved_peak_bytes": ("reserved_bytes", "all", "peak"),
    "active_peak_bytes": ("active_bytes", "all", "peak"),
    "retries": ("num_alloc_retries",),
    "ooms": ("num_ooms",),
    "device_allocs": ("num_device_alloc",),
    "device_frees": ("num_device_free",),
}
"""Path of each field of AllocatorSample in torch's statistics."""


class TorchMemorySampler:
    """The sampler of the allocator of the GPU that `read_device` returns, on any thread.

    `cuda` is torch.cuda or a replacement. Errors of torch are passed on.
    """

    def __init__(self, clock: Clock, read_device: Callable[[], TorchDevice | None], cuda: Any) -> None:
        self._clock = clock
        self._read_device = read_device
        self._cuda = cuda

    def sample(self) -> AllocatorSample | None:
        """Return a sample of the allocator; None while the training has no GPU."""
        device = self._read_device()
        if device is None:
            return None
        now_ns = self._clock.monotonic_ns()
        backend = self._cuda.get_allocator_backend()
        if backend != NATIVE:
            return AllocatorSample(host_ns=now_ns, absent=dict.fromkeys(PATHS, f"allocator_{backend}"))
        return parse_stats(self._cuda.memory_stats_as_nested_dict(device.index), now_ns)


def parse_stats(stats: Mapping[str, Any], host_ns: int) -> AllocatorSample:
    """Return the sample from torch's nested statistics of one device.

    >>> sample = parse_stats({"num_ooms": 0, "reserved_bytes": {"all": {"current": 2048, "peak": 4096}}}, host_ns=0)
    >>> sample.ooms, sample.reserved_bytes, sample.retries, sample.absent["retries"]
    (0, 2048, None, 'not_told_by_this_torch')
    """
    found = {field: _find(stats, path) for field, path in PATHS.items()}
    values = {field: value for field, value in found.items() if value is not None}
    absent = {field: NOT_TOLD for field, value in found.items() if value is None}
    return AllocatorSample(host_ns=host_ns, absent=absent, **values)


def _find(stats: Mapping[str, Any], path: tuple[str, ...]) -> int | None:
    value: Any = stats
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None else int(value)
