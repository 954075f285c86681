"""Traces written by hand: events as the profiler writes them, their JSON, and what differs between two traces read."""

import json
from dataclasses import fields
from typing import Any

import numpy as np

from rankscope.measure.kineto import KinetoTrace
from rankscope.measure.kineto_columns import read_trace

Event = dict[str, Any]


def event(category: str, name: str, start_us: Any, duration_us: Any, **args: Any) -> Event:
    """Return an event on the host, thread 1 unless `tid` is given. Every other keyword is one of its `args`."""
    place = {"pid": 100, "tid": args.pop("tid", 1)}
    return {"ph": "X", "cat": category, "name": name, **place, "ts": start_us, "dur": duration_us, "args": args}


def kernel(name: str, start_us: Any, duration_us: Any, **args: Any) -> Event:
    """Return a kernel on the device, stream 7 of device 0 unless `args` give others."""
    args = {"device": 0, "stream": 7, **args}
    return {**event("kernel", name, start_us, duration_us, **args), "pid": args["device"], "tid": args["stream"]}


def launch(start_us: Any, correlation: int, name: str = "cudaLaunchKernel", tid: int = 1) -> Event:
    return event("cuda_runtime", name, start_us, 1, correlation=correlation, tid=tid)


def allocation(time_us: Any, size: Any, **args: Any) -> Event:
    """A `[memory]` instant of the first GPU."""
    args = {"Bytes": size, "Device Type": 1, "Device Id": 0, **args}
    return {"ph": "i", "name": "[memory]", "pid": 100, "tid": 1, "ts": time_us, "args": args}


def to_json(*events: Any, **head: Any) -> bytes:
    return json.dumps({**head, "traceEvents": list(events)}).encode()


def read(text: bytes, *, chunk_bytes: int | None = None, block_bytes: int = 4 << 20) -> KinetoTrace:
    step = chunk_bytes or max(1, len(text))
    return read_trace((text[at : at + step] for at in range(0, len(text), step)), block_bytes=block_bytes)


def read_events(*events: Any, **head: Any) -> KinetoTrace:
    return read(to_json(*events, **head))


def differences(left: Any, right: Any, where: str = "trace") -> list[str]:
    """The names of the parts in which two traces differ."""
    if isinstance(left, np.ndarray):
        return [] if np.array_equal(left, right, equal_nan=left.dtype.kind == "f") else [where]
    if hasattr(left, "__dataclass_fields__"):
        parts = (field.name for field in fields(left))
        return [one for part in parts for one in differences(getattr(left, part), getattr(right, part), part)]
    return [] if left == right else [where]
