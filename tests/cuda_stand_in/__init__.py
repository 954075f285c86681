"""torch.cuda without a GPU, as far as the agent uses it: a device that works through streams on a virtual clock.

It is strict where the real one is: what CUDA forbids raises, and kills the capture that is going on; and whatever would
make the host wait for the device fails the test.
"""

import functools
from threading import get_ident
from typing import Any

from rankscope.measure.units import NS_PER_MS


class Stream:
    """Work that the device does one after the other."""

    def __init__(self, device_index: int = 0) -> None:
        self.device_index = device_index
        self.busy_until_ns = 0
        self.is_capturing = False

    def synchronize(self) -> None:
        raise AssertionError("the host waited for a stream")


class StandInEvent:
    """Like torch.cuda.Event; made by `StandInCuda.Event`."""

    def __init__(self, cuda: "StandInCuda", *, enable_timing: bool) -> None:
        assert enable_timing, "an event without timing tells no time"
        self._cuda = cuda
        self._device_index: int | None = None
        self.reached_ns: int | None = None
        self._is_in_graph = False

    def record(self, stream: Stream) -> None:
        self._cuda.check_thread()
        if self._device_index not in {None, stream.device_index}:
            raise RuntimeError(f"Event device {self._device_index} does not match recording stream's device")
        self._device_index = stream.device_index
        self._is_in_graph = stream.is_capturing
        self.reached_ns = max(self._cuda.now_ns, stream.busy_until_ns)
        self._cuda.recorded += 1
        self._cuda.now_ns += self._cuda.record_ns

    def query(self) -> bool:
        self._cuda.check_thread()
        self._cuda.forbid_while_capturing("query")
        self._cuda.queried += 1
        assert self.reached_ns is not None
        if self._is_in_graph:
            raise RuntimeError("CUDA error: invalid argument: the event belongs to a graph")
        return self.reached_ns <= self._cuda.now_ns

    def elapsed_time(self, end: "StandInEvent") -> float:
        """Milliseconds from this event to the other."""
        if self.reached_ns is None or end.reached_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end.query()):
            raise RuntimeError("CUDA error: device not ready")
        return (end.reached_ns - self.reached_ns) / NS_PER_MS

    def synchronize(self) -> None:
        raise AssertionError("the host waited for an event")

    wait = synchronize


class StandInGraph:
    """Like torch.cuda.CUDAGraph; made by `StandInCuda.CUDAGraph`. Captures the current stream."""

    def __init__(self, cuda: "StandInCuda") -> None:
        self._cuda = cuda
        self._stream: Stream | None = None
        self.is_whole = False

    def capture_begin(self) -> None:
        self._stream = self._cuda.current_stream()
        self._stream.is_capturing = True
        self._cuda.capturing.append(self)
        self.is_whole = True

    def capture_end(self) -> None:
        assert self._stream is not None
        self._stream.is_capturing = False
        self._cuda.capturing.remove(self)
        if not self.is_whole:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


class StandInCuda:
    """Like the module torch.cuda. `work` is what a kernel would be; the host's clock moves by a tick when it is read.

    `record_ns` is what recording an event takes the host.
    """

    def __init__(self, *, initialized: bool = True, record_ns: int = 0) -> None:
        self._now_ns = 1_000
        self.record_ns = record_ns
        self.recorded = self.queried = self.made = 0
        self.capturing: list[StandInGraph] = []
        self.stream = Stream()
        self.initialized = initialized
        self.failure: Exception | None = None
        self._thread = get_ident()
        self.CUDAGraph = functools.partial(StandInGraph, self)

    @property
    def now_ns(self) -> int:
        """The host's clock; setting it lets time pass."""
        return self._now_ns

    @now_ns.setter
    def now_ns(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def read_clock_ns(self) -> int:
        """Return the host's clock, which never returns the same time twice."""
        self.now_ns += 1
        return self.now_ns

    def work(self, duration_ns: int) -> None:
        """Enqueue work on the current stream; while that is captured it is not done."""
        if not self.stream.is_capturing:
            self.stream.busy_until_ns = max(self.now_ns, self.stream.busy_until_ns) + duration_ns

    def is_initialized(self) -> bool:
        return self.initialized

    def Event(self, *, enable_timing: bool = False) -> StandInEvent:  # noqa: N802 - torch's name
        self.made += 1
        return StandInEvent(self, enable_timing=enable_timing)

    def current_stream(self) -> Stream:
        self.check_thread()
        assert self.initialized, "asking for a stream starts CUDA"
        if self.failure is not None:
            raise self.failure
        return self.stream

    def is_current_stream_capturing(self) -> bool:
        return self.stream.is_capturing

    def synchronize(self, _device: Any = None) -> None:
        raise AssertionError("the host waited for the device")

    def check_thread(self) -> None:
        assert get_ident() == self._thread, "CUDA was called on a thread that is not the training's"

    def forbid_while_capturing(self, call: str) -> None:
        if self.capturing:
            for graph in self.capturing:
                graph.is_whole = False
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {call}")
