"""Snapshots written by hand, with the fields that torch documents and writes in torch/csrc/cuda/Module.cpp."""

import pickle
from pathlib import Path
from typing import Any

MODEL: list[dict[str, Any]] = [
    {"filename": "/venv/torch/nn/modules/linear.py", "line": 125, "name": "forward"},
    {"filename": "/home/a/model.py", "line": 12, "name": "forward"},
    {"filename": "/home/a/train.py", "line": 40, "name": "main"},
]
LOSS: list[dict[str, Any]] = [{"filename": "/home/a/train.py", "line": 44, "name": "main"}]


def block(address: int, size: int, requested: int = 0, state: str = "active_allocated", frames: Any = ()) -> Any:
    """Return a block of a segment; an inactive one has no bytes that were requested."""
    return {
        "address": address, "size": size, "requested_size": requested, "state": state, "frames": list(frames),
    }  # fmt: skip


def segment(address: int, *blocks: Any, device: int = 0, kind: str = "large", **more: Any) -> Any:
    """Return a segment that its blocks fill."""
    return {
        "device": device, "address": address, "total_size": sum(one["size"] for one in blocks), "stream": 0,
        "allocated_size": 0, "active_size": 0, "requested_size": 0, "segment_type": kind, "segment_pool_id": (0, 0),
        "is_expandable": False, "frames": [], "blocks": list(blocks), **more,
    }  # fmt: skip


def entry(action: str, address: int, size: int, time_us: int, frames: Any = ()) -> Any:
    """Return an entry of a device's history; that of `oom` has the bytes that were free instead of an address."""
    key = "device_free" if action == "oom" else "addr"
    return {
        "action": action, key: address, "size": size, "stream": 0, "time_us": time_us, "frames": frames or [],
    }  # fmt: skip


def snapshot(*segments: Any, traces: Any = ()) -> Any:
    """Return a snapshot."""
    return {"segments": list(segments), "device_traces": list(traces), "allocator_settings": {"PYTORCH_ALLOC_CONF": ""}}


def write(folder: Path, content: Any, protocol: int = 2) -> str:
    """Write a snapshot as `_dump_snapshot` does, and return its path."""
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return str(path)
