"""Dumps as NCCL's Inspector plugin writes them, for tests: written after the plugin's source of 2.28.3 to 2.30.7, and
without the reader under test.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SAMPLED = "2.29.7"
"""Before 2.30.3: a dump has the last operation of each communicator only, and no name of it."""
WHOLE = "2.30.7"
US_PER_S = 10**6


def bus_factor(op: str, size: int) -> float:
    """The factor of nccl-tests from bytes over time to bus bandwidth, with all-gather and reduce-scatter counting the
    data of all ranks."""
    if op == "AllReduce":
        return 2 * (size - 1) / size
    return size - 1 if op in {"AllGather", "ReduceScatter"} else 1


class Plugin:
    """The plugin in process `pid`: operations complete, and now and then it dumps them."""

    def __init__(self, folder: Path, pid: int, version: str = WHOLE, rank: int = 0, begin_us: int = 0) -> None:
        self.path = folder / f"{os.uname().nodename}-pid{pid}.log"
        self.pid, self.version, self.rank = pid, version, rank
        self.now_us = begin_us
        self.changed: dict[str, Any] = {}
        """Fields of every line to replace, by `part.field`."""
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._counts: dict[tuple[str, str], int] = {}

    def complete(
        self, op: str = "AllReduce", id_: str = "0x7f8c496ae9f661", *, size: int = 8, name: str = "",
        bytes_: int = 1 << 20, took_us: int = 100, source: str = "kernel_gpu",
    ) -> dict[str, Any]:  # fmt: skip
        """A collective, or Send or Recv, has completed; returns its line as an object."""
        number = self._counts.get((id_, op), 0)
        self._counts[id_, op] = number + 1
        kind, perf = ("p2p", "p2p_perf") if op in {"Send", "Recv"} else ("coll", "coll_perf")
        bandwidth = bytes_ / 1e9 / (took_us / US_PER_S) if took_us else 0.0
        on_bus = bandwidth * bus_factor(op, size)
        header = {"id": id_, "rank": self.rank, "n_ranks": size, "nnodes": 1}
        if self.version == WHOLE:
            header["comm_name"] = name or "unknown"
        line = {
            "header": header,
            "metadata": {
                "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 0, "hostname": os.uname().nodename, "pid": self.pid,
            },
            perf: {
                kind: op, f"{kind}_sn": number, **({"p2p_peer": 1} if kind == "p2p" else {}),
                f"{kind}_msg_size_bytes": bytes_, f"{kind}_exec_time_us": took_us, f"{kind}_timing_source": source,
                f"{kind}_algobw_gbs": round(bandwidth, 6), f"{kind}_busbw_gbs": round(on_bus, 6),
            },
        }  # fmt: skip
        waiting = self._waiting.setdefault(id_, [])
        if self.version == SAMPLED:
            waiting.clear()
        waiting.append(line)
        del waiting[:-1024]
        return line

    def dump(self, **changed: Any) -> int:
        """Append what has completed since the last dump; returns the number of lines. `changed`: see `changed`."""
        lines = [line for waiting in self._waiting.values() for line in waiting]
        self._waiting.clear()
        with self.path.open("ab") as file:
            for line in lines:
                self.now_us += 10
                line["metadata"]["dump_timestamp_us"] = self.now_us
                _change(line, self.changed | changed)
                file.write(json.dumps(line).encode() + b"\n")
        return len(lines)

    def append(self, text: bytes) -> None:
        """Append anything."""
        with self.path.open("ab") as file:
            file.write(text)


def _change(line: dict[str, Any], changed: Mapping[str, Any]) -> None:
    for name, value in changed.items():
        part, _, field = name.partition("__")
        if value is None:
            line[part].pop(field, None)
        else:
            line[part][field] = value
