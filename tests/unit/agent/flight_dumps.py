"""Dumps of torch's flight recorder as torch 2.13 writes them, for tests."""

import json
from typing import Any

CREATED_WALL_NS = 1_795_000_000_000_000_000


def entry_of(record_id: int, sequence: int, **changes: Any) -> dict[str, Any]:
    """An all_reduce of 777 floats over gloo, which has not completed."""
    return {
        "collective_seq_id": sequence, "input_dtypes": ["Float"], "input_sizes": [[777]], "is_p2p": False,
        "op_id": record_id, "output_dtypes": ["Float"], "output_sizes": [[777]], "p2p_seq_id": 0, "pg_id": 0,
        "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce", "record_id": record_id,
        "retired": False, "state": "scheduled", "time_created_ns": CREATED_WALL_NS, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 600_000,
    } | changes  # fmt: skip


def status_of(enqueued: int, started: int = -1, completed: int = -1) -> dict[str, str]:
    """The status of one group; torch writes the numbers as text."""
    return {
        "last_enqueued_collective": str(enqueued),
        "last_started_collective": str(started),
        "last_completed_collective": str(completed),
    }


def dump_of(*entries: dict[str, Any], **statuses: dict[str, str]) -> dict[str, Any]:
    """A whole dump; `g0=status_of(...)` is the status of group 0. Without entries the key is absent, as in torch."""
    dump: dict[str, Any] = {"pg_status": {name.removeprefix("g"): status for name, status in statuses.items()}}
    return dump | ({"entries": list(entries)} if entries else {})


class Recorder:
    """A stand-in for torch's dump function, which records its calls."""

    def __init__(self, dump: dict[str, Any]) -> None:
        self.dump = dump
        self.asked_for_collectives: list[bool] = []

    def __call__(self, *, includeCollectives: bool) -> str:  # noqa: N803 - torch's own name
        self.asked_for_collectives.append(includeCollectives)
        left_out = () if includeCollectives else ("entries",)
        return json.dumps({name: value for name, value in self.dump.items() if name not in left_out})
