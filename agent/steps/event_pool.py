"""Keep the CUDA events of device times for reuse: making one costs more than recording it."""

from collections.abc import Iterable
from typing import Any


class EventPool:
    """CUDA events by device, at most `events_max` in all. `cuda` is torch.cuda or a stand-in.

    Used on the training thread only. An event belongs to the device that it was first recorded on.
    """

    def __init__(self, cuda: Any, events_max: int) -> None:
        self._cuda = cuda
        self._events_max = events_max
        self._events_made = 0
        self._free: dict[int, list[Any]] = {}

    def get(self, stream: Any) -> Any:
        """Return an event for the stream, to be recorded; None when all are in use."""
        free = self._free.setdefault(stream.device_index, [])
        if free:
            return free.pop()
        if self._events_made >= self._events_max:
            return None
        self._events_made += 1
        return self._cuda.Event(enable_timing=True)

    def record(self, stream: Any) -> Any:
        """Record and return an event in the stream; None when all are in use."""
        event = self.get(stream)
        if event is not None:
            event.record(stream)
        return event

    def release(self, stream: Any, events: Iterable[Any]) -> None:
        """Put events of this stream back, also those not complete yet: recording them anew resets them. None: there are
        none.
        """
        if stream is not None:
            self._free.setdefault(stream.device_index, []).extend(events)

    def give_up(self, event: Any) -> None:
        """Make room for another event in place of this one, which somebody may still record."""
        del event
        self._events_made -= 1
