"""What stands for torch.cuda, as far as the agent asks it. Given to the agent as a module; torch keeps its own."""

import time
from collections.abc import Callable
from typing import NamedTuple

from rankscope.measure.units import NS_PER_MS
from tests.cuda_stand_in.allocator import StandInAllocator


class FakeStream(NamedTuple):
    """The stream of the training."""

    device_index: int = 0


class FakeEvent:
    """A mark in the training's stream, reached when all launched before is done."""

    def __init__(self, read_idle_ns: Callable[[], int]) -> None:
        self._read_idle_ns = read_idle_ns
        self.reached_ns = 0

    def record(self, _stream: FakeStream | None = None) -> None:
        self.reached_ns = max(time.time_ns(), self._read_idle_ns())

    def query(self) -> bool:
        return time.time_ns() >= self.reached_ns

    def synchronize(self) -> None:
        assert self.query(), "the host waited for the device"

    def elapsed_time(self, end: "FakeEvent") -> float:
        """Milliseconds from this event to the other."""
        assert self.query()
        assert end.query()
        return (end.reached_ns - self.reached_ns) / NS_PER_MS


class FakeCuda(StandInAllocator):
    """What stands for torch.cuda. `read_idle_ns` returns when the training's stream will be idle, by the wall clock."""

    CUDAGraph = None

    def __init__(self, read_idle_ns: Callable[[], int]) -> None:
        super().__init__()
        self._read_idle_ns = read_idle_ns

    def Event(self, *, enable_timing: bool = False) -> FakeEvent:  # noqa: N802 - torch's name
        del enable_timing
        return FakeEvent(self._read_idle_ns)

    def mark(self) -> list[FakeEvent]:
        """An event recorded in the current stream, as `DeviceKind.mark`."""
        event = self.Event()
        event.record()
        return [event]

    def current_stream(self) -> FakeStream:
        return FakeStream()

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return False
