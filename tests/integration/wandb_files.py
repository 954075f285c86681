"""Reads back what Weights & Biases has written offline.

The file is a log in LevelDB's format (doc/log_format.md there): blocks of 32 KiB, in each records of a checksum of 4
bytes, a length of 2, a type of 1, and data; W&B's own header of 7 bytes comes first. A record of type 2 begins one that
goes on in the next block (3), and is complete with type 4; type 1 is a whole one.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32 * 1024
FILE_HEADER_BYTES = 7
HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the run's history, in order."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415 - only where W&B is installed

    rows = []
    for data in _read_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def _read_records(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B", content[:4]
    at, part = FILE_HEADER_BYTES, b""
    while at + HEADER.size <= len(content):
        if BLOCK_BYTES - at % BLOCK_BYTES < HEADER.size:  # the rest of a block is padding
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = HEADER.unpack_from(content, at)
        data = content[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        part = data if kind in {FULL, FIRST} else part + data
        if kind in {FULL, LAST}:
            yield part
