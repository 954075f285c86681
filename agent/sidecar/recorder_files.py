"""Reduces dumps of a rank's flight recorder in the sidecar, so that the rank's interpreter need not parse them.

    rank     asks torch's worker server for a dump, and writes it to NAME.dump as it is
    sidecar  parses it within its tick, removes it, and writes the collectives to NAME.timed
    rank     reads NAME.timed with its next report, and removes it

The files are beside the beacon, in memory: about 1 MB until the sidecar's next tick. The rank itself asks, because only
it knows when no CUDA graph can be captured: a dump queries CUDA events, which would invalidate a capture.
"""

import os
import struct
import time
from typing import Final

import msgspec

from rankscope.agent.captures.timed_entries import RecorderReading, parse_dump
from rankscope.agent.guard import describe
from rankscope.agent.sidecar.beacon import DUMP_SUFFIX, TIMED_SUFFIX, replace_file
from rankscope.agent.sidecar.worker_questions import ANSWER_BYTES_MAX

_HEADER: Final = struct.Struct("=2q")
"""The time of the dump, and that from which collectives are wanted, both in ns of the rank's wall clock."""


def write_dump(folder: str, name: str, text: bytes, *, taken_wall_ns: int, since_wall_ns: int) -> None:
    """Write a dump for the sidecar. Raise OSError."""
    replace_file(os.path.join(folder, name + DUMP_SUFFIX), _HEADER.pack(taken_wall_ns, since_wall_ns), text)


def pop_reading(folder: str, name: str) -> RecorderReading | None:
    """Read and remove what the sidecar has found; None before that. Raise msgspec.MsgspecError if it is damaged."""
    block = _pop(os.path.join(folder, name + TIMED_SUFFIX))
    return None if block is None else msgspec.msgpack.decode(block, type=RecorderReading)


def pop_dump(folder: str, name: str) -> RecorderReading | None:
    """Parse and remove a dump; None if there is none. A dump that cannot be parsed is a reading with a `problem`."""
    begin_ns = time.thread_time_ns()
    block = _pop(os.path.join(folder, name + DUMP_SUFFIX))
    if block is None or len(block) < _HEADER.size:
        return None
    taken_wall_ns, since_wall_ns = _HEADER.unpack_from(block)
    reading = parse_safely(block[_HEADER.size :], taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)
    return msgspec.structs.replace(reading, cpu_ns=time.thread_time_ns() - begin_ns)


def parse_safely(text: bytes | str, *, taken_wall_ns: int, since_wall_ns: int) -> RecorderReading:
    """Return `parse_dump` of the text, or a reading with a `problem`."""
    try:
        return parse_dump(text, taken_wall_ns=taken_wall_ns, since_wall_ns=since_wall_ns)
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError, OverflowError, RecursionError) as error:
        return RecorderReading(taken_wall_ns=taken_wall_ns, problem=describe(error)[:200])


def reduce_dump(folder: str, name: str) -> bool:
    """Replace the rank's dump by its collectives; return whether there was one. Raise OSError."""
    reading = pop_dump(folder, name)
    if reading is not None:
        replace_file(os.path.join(folder, name + TIMED_SUFFIX), msgspec.msgpack.encode(reading))
    return reading is not None


def _pop(path: str) -> bytes | None:
    """Read and remove a file; None if there is none. What is beyond ANSWER_BYTES_MAX is left out."""
    try:
        with open(path, "rb") as file:
            block = file.read(_HEADER.size + ANSWER_BYTES_MAX)
        os.unlink(path)
    except FileNotFoundError:
        return None
    return block
