"""Pickles that would run code, or take memory or time without end, are refused, soon and cheaply."""

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.memory.plain_pickle import load_plain
from rankscope.collector.memory.read_snapshot import NO_FLOW, Answer
from rankscope.collector.memory.snapshot_events import check_snapshot
from rankscope.collector.memory.snapshot_process import MODULE, read_snapshot
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import TraceError, UnavailableError
from tests.unit.collector.memory.snapshots import block, segment, snapshot, write

CPU_S_MAX = 2.0
MEMORY_MIB_MAX = 200
MARKER = "rankscope_was_here"


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {MARKER}",)


def share(levels: int) -> bytes:
    """Return a pickle of some bytes for a list with 2 ** levels leaves, as the segments of a snapshot."""
    doubled = b"".join(b"]q" + bytes([i + 1]) + b"(h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(levels))
    return b"\x80\x02}X\x08\x00\x00\x00segments]q\x00" + doubled[:-1] + b"es."


def long_texts() -> bytes:
    """A text of a MB as the file of each of 10,000 frames, and then something that is no frame."""
    text = "x" * 1_000_000
    frames = [{"filename": text, "line": place, "name": text} for place in range(10_000)]
    stacks = [frames[place : place + 10] for place in range(0, len(frames), 10)]
    blocks = [block(place, 512, 512, frames=stack) for place, stack in enumerate(stacks)]
    return pickle.dumps(snapshot(segment(0, *blocks, block(0, 512, frames=[1]))))


def same_block() -> bytes:
    """Ten thousand segments with the same ten thousand blocks: 10 ** 8 entries."""
    blocks = [block(place, 512, 512) for place in range(10_000)]
    return pickle.dumps(snapshot(*({**segment(0, block(0, 512)), "blocks": blocks} for _ in range(10_000))))


HOSTILE = {
    "a command by reduce": pickle.dumps({"segments": [Evil()]}),
    "a command by reduce, as text": pickle.dumps({"segments": [Evil()]}, protocol=0),
    "a command by the oldest opcodes": b"\x80\x02(S'touch rankscope_was_here'\nios\nsystem\n.",
    "a name alone": b"\x80\x02cos\nsystem\n.",
    "an object that is built": b"\x80\x02]}b.",
    "a memo number of 2 ** 31": b"\x80\x02Nr" + struct.pack("<I", 0x7FFFFFFF) + b".",
    "a claim of a TiB of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "a claim of a TiB of text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "a claim of 4 GiB of text": b"\x80\x02X" + struct.pack("<I", 0xFFFFFFFF) + b".",
    "a claim of a TiB of a bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "2 ** 60 leaves by sharing": share(60),
    "lists in lists": b"\x80\x02" + 5_000_000 * b"]" + b".",
    "marks in marks": b"\x80\x02" + 5_000_000 * b"(" + b".",
    "a list that ends before it begins": b"\x80\x02e.",
    "a stack that is empty": b"\x80\x02aaa.",
    "a file that is cut off": pickle.dumps(snapshot(segment(0, block(0, 512))))[:-40],
    "a number of a MB": b"\x80\x02\x8b" + struct.pack("<i", 1_000_000) + 1_000_000 * b"\x7f" + b".",
    "a number of 255 bytes": b"\x80\x02\x8a\xff" + 255 * b"\x7f" + b".",
    "a number of a million digits": b"\x80\x02I" + 1_000_000 * b"9" + b"\n.",
    "a persistent id": b"\x80\x02Pabc\n.",
    "a persistent id by the stack": b"\x80\x02NQ.",
    "an extension code": b"\x80\x02\x82\x01.",
    "a buffer from elsewhere": b"\x80\x05\x97.",
    "no pickle": b"PK\x03\x04 a zip file",
    "nothing": b"",
    "a text of a MB in ten thousand frames": long_texts(),
    "the same blocks in all segments": same_block(),
    "a list as a key": b"\x80\x02}]Ns.",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickle_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match=r"refused|damaged|no pickle|no memory snapshot|unpickled|no list|than"):
        check_snapshot(load_plain(HOSTILE[kind]))
    assert not Path(MARKER).exists()


def test_the_command_would_run_without_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the marker above proves nothing.
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["a command by reduce"])  # noqa: S301 - our own
    assert Path(MARKER).exists()


EXPENSIVE = (
    "a memo number of 2 ** 31", "a claim of a TiB of bytes", "a claim of a TiB of text", "a claim of 4 GiB of text",
    "a claim of a TiB of a bytearray", "2 ** 60 leaves by sharing", "lists in lists", "marks in marks",
    "a number of a MB", "a number of a million digits", "a text of a MB in ten thousand frames",
    "the same blocks in all segments",
)  # fmt: skip


MEASURE = """
import resource, subprocess, sys
ended = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(ended.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss, file=sys.stderr)
sys.stdout.buffer.write(ended.stdout)
"""
"""Runs a command as a child of a small process: the peak of a child that a large one forks is not below that one's."""


@pytest.mark.parametrize("kind", EXPENSIVE)
def test_refusal_costs_little_time_and_memory(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE[kind])
    command = build_child_command(sys.executable, MODULE, str(path), NO_FLOW)
    measuring = [sys.executable, "-S", "-c", MEASURE, *command]
    ended = subprocess.run(measuring, capture_output=True, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, check=True)
    status, cpu_s, peak_kib = ended.stderr.split()
    answer = msgspec.msgpack.decode(ended.stdout, type=Answer)
    assert int(status) == 0
    assert answer.problem
    assert answer.result is None
    assert float(cpu_s) < CPU_S_MAX
    assert int(peak_kib) / 1024 < MEMORY_MIB_MAX


def test_refusal_names_file_and_reason(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HOSTILE["a name alone"])
    with pytest.raises(UnavailableError, match=r"snapshot\.pickle: refused: opcode GLOBAL is not one of plain data"):
        read_snapshot(str(path))


@pytest.mark.parametrize("name", ["missing.pickle", "."])
def test_what_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"cannot be read|no regular file|directory"):
        read_snapshot(str(tmp_path / name))


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="no regular file"):
        read_snapshot(str(tmp_path / "pipe"))


def test_reading_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"took longer than 0 s"):
        read_snapshot(write(tmp_path, snapshot()), child_s_max=0.0)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_is_read_as_pickle_reads_it(protocol: int) -> None:
    content = snapshot(segment(2**40, block(2**40, 512, 100, frames=[{"line": 2**33, "x": (1, 2.5, None, True)}])))
    content["many"] = [{"place": place, "pair": (place, -place), "empty": ()} for place in range(5_000)]
    assert load_plain(pickle.dumps(content, protocol=protocol)) == content
    assert json.dumps(content)  # plain data indeed
