"""What a finished session tells where torch cannot list Kineto's activities: before 2.13, through torch's own events.

Of what ran on the host torch tells by events what its activities tell: so an event is given the activity's methods, and
whoever reads a window reads both alike. Of a device it does not: an event has neither its kind nor what was said of the
collective that it moves. The file that torch writes of the session has all of it, and is what such a window is read
from, in the process that breaks it down.
"""

import json
import os
import tempfile
from typing import Any, Final

from rankscope.measure.errors import UnavailableError

USER_SCOPE: Final = 7
"""`RecordScope.USER_SCOPE` as an event tells it."""
MEMORY: Final = "/dev/shm"  # noqa: S108 - a private folder is made in it
OF_DEVICE: Final = "of a device"
"""The kind of an activity of which an event does not tell more."""
_CALLS: Final = (
    "name", "scope", "device_type", "start_ns", "duration_ns", "device_resource_id", "shapes", "dtypes",
)  # fmt: skip


def check_events(autograd: Any) -> None:
    """Raises UnavailableError naming what this torch's events lack."""
    missing = [name for name in _CALLS if not hasattr(autograd._KinetoEvent, name)]
    if missing:
        raise UnavailableError(f"this torch has no profiler that windows could use: events have no {missing[0]}")


class HostActivity:
    """An event with those of the activity's methods that are asked of work on the host."""

    __slots__ = ("_event", "_host")

    def __init__(self, event: Any, host: Any) -> None:
        self._event = event
        self._host = host

    def type(self) -> str:
        """The activity's kind as Kineto spells it, or OF_DEVICE."""
        if self._event.device_type() != self._host:
            return OF_DEVICE
        return "user_annotation" if self._event.scope() == USER_SCOPE else "cpu_op"

    def name(self) -> str:
        """What ran."""
        name: str = self._event.name()
        return name

    def timestamp(self) -> int:
        """Its start by the wall clock, in ns."""
        start_ns: int = self._event.start_ns()
        return start_ns

    def duration(self) -> int:
        """In ns."""
        duration_ns: int = self._event.duration_ns()
        return duration_ns

    def resource_id(self) -> int:
        """The thread, by the kernel's number."""
        thread: int = self._event.device_resource_id()
        return thread

    def metadata_json(self) -> str:
        """The inside of a JSON object with the types and shapes of the inputs, if they were recorded."""
        dims, types = self._event.shapes(), self._event.dtypes()
        return f'"Input Dims": {json.dumps(dims)}, "Input type": {json.dumps(types)}' if dims else ""


class SessionEvents:
    """The result of a session of such a torch."""

    def __init__(self, result: Any, host: Any) -> None:
        self._result = result
        self._host = host

    def trace_activities(self) -> list[HostActivity]:
        """Everything that was recorded, of which only what ran on the host tells what it is."""
        return [HostActivity(event, self._host) for event in self._result.events()]

    def save(self, path: str) -> None:
        """Write the session as a trace file."""
        self._result.save(path)


def read_saved(result: Any) -> bytes:
    """The trace file of a session of any torch, by way of memory. Raises OSError when it cannot be written."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else None) as folder:
        path = os.path.join(folder, "window.json")
        result.save(path)
        with open(path, "rb") as file:
            return file.read()
