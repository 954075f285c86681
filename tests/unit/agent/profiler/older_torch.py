"""Stand-ins for torch before 2.13, whose profiler's results have events and a file, but no list of activities."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch._C import _autograd, _profiler

from rankscope.agent.profiler.kineto_events import USER_SCOPE, SessionEvents
from rankscope.agent.profiler.torch_profiler import TorchProfiler, communicates, find_devices
from tests.unit.agent.traced_activities import TracedActivity

HOST, DEVICE = "cpu", "cuda"
BASE_NS = 1_600_000_000_000_000_000
ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"}


def find_older_profiler() -> TorchProfiler:
    """The real profiler of this torch, used like that of an older one."""
    parts = {name: getattr(_autograd, name) for name in dir(_autograd) if not name.startswith("__")}
    autograd = SimpleNamespace(**{**parts, "_ProfilerResult": object})
    return TorchProfiler(autograd, _profiler, None, find_devices(autograd, _profiler), communicates)


@dataclass
class _Event:
    """An activity as torch's own event."""

    activity: TracedActivity

    def name(self) -> str:
        return self.activity.name()

    def scope(self) -> int:
        return USER_SCOPE if self.activity.type() == "user_annotation" else 0

    def device_type(self) -> str:
        return DEVICE if self.activity.type() in ON_DEVICE else HOST

    def start_ns(self) -> int:
        return self.activity.timestamp()

    def duration_ns(self) -> int:
        return self.activity.duration()

    def device_resource_id(self) -> int:
        return self.activity.resource_id()

    def shapes(self) -> list[list[int]]:
        return []

    def dtypes(self) -> list[str]:
        return []


@dataclass
class _Result:
    """A session's result; with `is_cut` its file does not fit on the disk."""

    activities: Sequence[TracedActivity]
    is_cut: bool

    def events(self) -> list[_Event]:
        return [_Event(activity) for activity in self.activities]

    def save(self, path: str) -> None:
        text = f'{{"baseTimeNanoseconds": {BASE_NS}, "traceEvents": [{", ".join(map(_to_json, self.activities))}]}}'
        Path(path).write_text(text[:-20] if self.is_cut else text)


def _to_json(activity: TracedActivity) -> str:
    """Return the event as Kineto writes it, with times in us and the metadata of a collective at its kernel."""
    arguments = [f'"correlation": {activity.correlation}', f'"stream": {activity.lane}']
    if activity.linked is not None:
        arguments.append(activity.linked.metadata)
    start_ns = activity.start_ns - BASE_NS
    fields = [
        f'"ph": "X", "cat": "{activity.kind}", "name": {json.dumps(activity.label)}, "pid": 0, "tid": {activity.lane}',
        f'"ts": {start_ns // 1000}.{start_ns % 1000:03d}, "dur": {activity.length_ns / 1000}',
        f'"args": {{{", ".join(arguments)}}}',
    ]
    return f"{{{', '.join(fields)}}}"


def to_session_events(activities: Sequence[TracedActivity], *, is_cut: bool = False) -> Any:
    """Return the session's result for the agent, with these activities."""
    return SessionEvents(_Result(activities, is_cut), HOST)
