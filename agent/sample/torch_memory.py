"""Samples torch's caching allocator: allocated and reserved memory, retries, and allocations from the driver.

`memory_stats_as_nested_dict` holds the allocator's lock briefly and makes no CUDA calls, so any thread can call it,
also while a CUDA graph is captured. `memory_stats` would convert it to 122 flat keys, which takes ten times as long.
Nothing is reset, since the user may use peaks and counts.

Only the allocator named `native` counts all this. Others leave meaningless zeros or call CUDA, so their fields are all
absent, with the reason.

Between which steps the peak was reached is known without a reset: where a sample has another peak than the one before,
the peak was reached after that one was read. Steps go on while the allocator is read, and their records come late, so
steps are assigned by the host's clock: a step that had ended before a reading began is before it, one that ended after
a reading had ended is after it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from rankscope.agent.sample.torch_device import TorchDevice
from rankscope.measure.clock import Clock
from rankscope.measure.records import AllocatorSample, StepRecord

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


class PeakSteps:
    """The steps between whose ends the present peak of allocated memory was reached.

    `after_step` is the last step that had ended before the peak was reached: None where it is not known, since no step
    had ended before an earlier reading. `by_step` is the first step that ended after it: None while none has. Where
    records of steps are lost, the steps lie further apart.

    >>> found = PeakSteps()
    >>> found.add_reading(10, 11, peak_bytes=5)
    >>> found.add_ends([(0, 9), (1, 19)])
    >>> found.after_step, found.by_step
    (None, 1)
    >>> found.add_reading(20, 21, peak_bytes=7)
    >>> found.add_ends([(2, 29)])
    >>> found.after_step, found.by_step
    (0, 2)
    """

    def __init__(self) -> None:
        self.after_step: int | None = None
        self.by_step: int | None = None
        self._peak_bytes: int | None = None
        self._reached_after_ns: int | None = None
        self._reached_by_ns = 0
        self._read_begin_ns: int | None = None
        self._last_step: int | None = None
        self._ended_before_reading: int | None = None

    def add_reading(self, begin_ns: int, end_ns: int, peak_bytes: int | None) -> None:
        """Add a peak that was read between two host times; None: it is not known, nor then when the next is reached.
        A peak below the one before was reset by the script in between, and anew reached after that.
        """
        if peak_bytes is None:
            self._read_begin_ns = self._ended_before_reading = None
        if peak_bytes != self._peak_bytes:
            self._peak_bytes = peak_bytes
            self._reached_after_ns, self._reached_by_ns = self._read_begin_ns, end_ns
            self.after_step, self.by_step = self._ended_before_reading, None
        if peak_bytes is not None:
            self._read_begin_ns, self._ended_before_reading = begin_ns, self._last_step

    def add_ends(self, ends: Iterable[tuple[int, int]]) -> None:
        """Add steps that have ended since the last call, not while the allocator is read, with their ends in host ns.
        Some may have ended before the last reading already, or the one before.
        """
        for step, end_ns in ends:
            self._last_step = _find_last(self._last_step, step)
            if self._read_begin_ns is not None and end_ns <= self._read_begin_ns:
                self._ended_before_reading = _find_last(self._ended_before_reading, step)
            if self._reached_after_ns is not None and end_ns <= self._reached_after_ns:
                self.after_step = _find_last(self.after_step, step)
            if end_ns >= self._reached_by_ns and self._peak_bytes is not None:
                self.by_step = step if self.by_step is None else min(self.by_step, step)


def _find_last(last: int | None, step: int) -> int:
    return step if last is None else max(last, step)


class TorchMemorySampler:
    """The sampler of the allocator of the GPU that `read_device` returns, on any thread but always the same one.

    `cuda` is torch.cuda or a replacement. Errors of torch are passed on.
    """

    def __init__(self, clock: Clock, read_device: Callable[[], TorchDevice | None], cuda: Any) -> None:
        self._clock = clock
        self._read_device = read_device
        self._cuda = cuda
        self._peak_steps = PeakSteps()

    def sample(self) -> AllocatorSample | None:
        """Return a sample of the allocator; None while the training has no GPU."""
        device = self._read_device()
        if device is None:
            return None
        now_ns = self._clock.monotonic_ns()
        backend = self._cuda.get_allocator_backend()
        if backend != NATIVE:
            return AllocatorSample(host_ns=now_ns, absent=dict.fromkeys(PATHS, f"allocator_{backend}"))
        found = parse_stats(self._cuda.memory_stats_as_nested_dict(device.index), now_ns)
        self._peak_steps.add_reading(now_ns, self._clock.monotonic_ns(), found.allocated_peak_bytes)
        return found

    def add_steps(self, steps: Iterable[StepRecord]) -> None:
        """Add the records of steps that have ended, on the thread that samples."""
        self._peak_steps.add_ends((one.step, one.end_host_ns) for one in steps)

    def with_peak_steps(self, last: AllocatorSample) -> AllocatorSample:
        """Return the last sample with what is known by now of when its peak was reached."""
        found = self._peak_steps
        return msgspec.structs.replace(
            last, allocated_peak_after_step=found.after_step, allocated_peak_by_step=found.by_step
        )


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
