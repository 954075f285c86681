"""Read a finished session through torch's events where torch cannot list Kineto's activities: before 2.13.

An event of the host has all that its activity has, so it is wrapped with the activity's methods and both are read
alike. An event of a device has neither its kind nor the metadata of its collective. The trace file that torch writes of
the session has both, so windows of a device are read from it, in the process that computes the breakdown.
"""

import json
import os
import tempfile
from typing import Any, Final

from rankscope.agent.temporary_folders import WINDOW
from rankscope.measure.errors import UnavailableError

USER_SCOPE: Final = 7
"""The value of `RecordScope.USER_SCOPE` in events."""
MEMORY: Final = "/dev/shm"  # noqa: S108 - a private folder is made in it
OF_DEVICE: Final = "of a device"
"""The type given to all activities on a device, since events do not contain their type."""
_CALLS: Final = (
    "name", "scope", "device_type", "start_ns", "duration_ns", "device_resource_id", "shapes", "dtypes",
)  # fmt: skip


def check_events(autograd: Any) -> None:
    """Raise UnavailableError if this torch's events lack a method, naming it."""
    missing = [name for name in _CALLS if not hasattr(autograd._KinetoEvent, name)]
    if missing:
        raise UnavailableError(f"this torch has no profiler that windows could use: events have no {missing[0]}")


class HostActivity:
    """An event with the methods of an activity that are used for work on the host."""

    __slots__ = ("_event", "_host")

    def __init__(self, event: Any, host: Any) -> None:
        self._event = event
        self._host = host

    def type(self) -> str:
        """Return the activity's type as Kineto spells it, or OF_DEVICE."""
        if self._event.device_type() != self._host:
            return OF_DEVICE
        return "user_annotation" if self._event.scope() == USER_SCOPE else "cpu_op"

    def name(self) -> str:
        """Return the name of the operator or range."""
        name: str = self._event.name()
        return name

    def timestamp(self) -> int:
        """Return its start by the wall clock (ns)."""
        start_ns: int = self._event.start_ns()
        return start_ns

    def duration(self) -> int:
        """Return its duration (ns)."""
        duration_ns: int = self._event.duration_ns()
        return duration_ns

    def resource_id(self) -> int:
        """Return the operating system's id of its thread."""
        thread: int = self._event.device_resource_id()
        return thread

    def metadata_json(self) -> str:
        """Return the members of a JSON object with the types and shapes of the inputs; empty if not recorded."""
        dims, types = self._event.shapes(), self._event.dtypes()
        return f'"Input Dims": {json.dumps(dims)}, "Input type": {json.dumps(types)}' if dims else ""


class SessionEvents:
    """The result of a session in a torch before 2.13. `is_in_file`: what is on a device is only in its trace file."""

    is_in_file: Final = True

    def __init__(self, result: Any, host: Any) -> None:
        self._result = result
        self._host = host

    def trace_activities(self) -> list[HostActivity]:
        """Return all that was recorded; only activities on the host have a type."""
        return [HostActivity(event, self._host) for event in self._result.events()]

    def save(self, path: str) -> None:
        """Write the session as a trace file."""
        self._result.save(path)


def read_saved(result: Any) -> bytes:
    """Return the trace file of a session, written to memory where possible. Raises OSError if it cannot be written."""
    place = MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else None
    with tempfile.TemporaryDirectory(prefix=WINDOW, dir=place) as folder:
        path = os.path.join(folder, "window.json")
        result.save(path)
        with open(path, "rb") as file:
            return file.read()
