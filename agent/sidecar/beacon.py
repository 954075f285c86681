"""What a rank leaves in the sidecar's directory: who it is, and a heartbeat.

`NAME.json` is written anew when something in it changes, under another name first, so that a reader never sees half of
one. `NAME.beat` is a row of 64-bit numbers, written over in place: 2 us, once a report, on the agent thread. It is not
mapped: where the file system is full, or somebody has cut the file, a store into a mapping ends the process (SIGBUS),
while a write only fails.
`NAME.crash` is empty until Python's faulthandler writes the stacks into it that a fatal signal has struck. All lie in
memory (/dev/shm), so that no disk can keep the writer waiting. NAME is the rank's boot id.
"""

import contextlib
import os
import struct
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.private_folder import PRIVATE_FILE
from rankscope.measure.identity import RankIdentity
from rankscope.measure.key_files import ClientKeys

DESCRIPTOR_SUFFIX: Final = ".json"
HEARTBEAT_SUFFIX: Final = ".beat"
SOCKET_SUFFIX: Final = ".sock"
CRASH_SUFFIX: Final = ".crash"
CRASH_BYTES_MAX: Final = 256 * 1024
DESCRIPTOR_BYTES_MAX: Final = 1024 * 1024

_BEAT: Final = struct.Struct("=6q")
_NONE: Final = -(2**63)

ALIVE, GOODBYE_ACKNOWLEDGED, LEFT = 0, 1, 2


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """Who writes the beacon. `start_ticks` is the process's start as /proc/PID/stat has it, which tells it from a later
    process with the same id; `group_labels` are by torch's own name; an empty `endpoint`, `socket_path` or
    `spill_folder`: none (yet). `keys` are those of the rank, which the sidecar speaks with too: the file and its folder
    are this user's alone.
    """

    identity: RankIdentity
    start_ticks: int | None
    frozen_after_ns: int
    endpoint: str = ""
    keys: ClientKeys | None = None
    socket_path: str = ""
    why_no_socket: str = "it is not up yet"
    group_labels: dict[str, str] = {}
    spill_folder: str = ""


class Heartbeat(NamedTuple):
    """The heartbeat. `state` is ALIVE; GOODBYE_ACKNOWLEDGED when the collector has acknowledged the goodbye, which had
    this `exit_code`; LEFT when the agent has ended and nobody has heard it: from either on no beat is due. At
    `deadline_host_ns` the first of the collectives that were pending when last looked at passes its timeout.
    """

    written_host_ns: int
    last_step: int | None = None
    stalled_since_host_ns: int | None = None
    deadline_host_ns: int | None = None
    state: int = ALIVE
    exit_code: int | None = None


class Beacon:
    """The writing side. Raises OSError where the files cannot be made or written; then it leaves none behind."""

    def __init__(self, folder: str, descriptor: Descriptor, beat: Heartbeat) -> None:
        name = descriptor.identity.boot_id
        self._path = os.path.join(folder, name)
        self._beat_file = os.open(self._path + HEARTBEAT_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE)
        try:
            self.beat(beat)
            self.describe(descriptor)
        except OSError:
            self.close()
            remove_files(folder, name)
            raise

    def beat(self, beat: Heartbeat) -> None:
        """Write a heartbeat. Raise OSError."""
        _write_whole(self._beat_file, _BEAT.pack(*(_NONE if value is None else value for value in beat)))

    def describe(self, descriptor: Descriptor) -> None:
        """Write the descriptor anew. Raise OSError, and leave the one before as it is."""
        path = self._path + DESCRIPTOR_SUFFIX
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
        try:
            _write_whole(file, msgspec.json.encode(descriptor))
            os.rename(path + ".new", path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path + ".new")
            raise
        finally:
            os.close(file)

    def close(self) -> None:
        """Let go of the files; they stay for the sidecar, which removes them once the process has ended."""
        os.close(self._beat_file)


def _write_whole(file: int, block: bytes) -> None:
    """Write all of it from the file's start. A file system that fills up writes a part, and fails the next call."""
    written = 0
    while written < len(block):
        written += os.pwrite(file, block[written:], written)


def find_names(folder: str) -> list[str]:
    """The boot ids that have a descriptor in the folder."""
    with contextlib.suppress(OSError):
        return sorted(
            entry.removesuffix(DESCRIPTOR_SUFFIX) for entry in os.listdir(folder) if entry.endswith(DESCRIPTOR_SUFFIX)
        )
    return []


def read_descriptor(folder: str, name: str) -> Descriptor | None:
    """A rank's descriptor; None when there is none that can be read."""
    try:
        with open(os.path.join(folder, name + DESCRIPTOR_SUFFIX), "rb") as file:
            return msgspec.json.decode(file.read(DESCRIPTOR_BYTES_MAX), type=Descriptor)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_heartbeat(folder: str, name: str) -> Heartbeat | None:
    """A rank's last heartbeat; None when there is none that can be read."""
    try:
        with open(os.path.join(folder, name + HEARTBEAT_SUFFIX), "rb") as file:
            block = file.read(_BEAT.size)
    except OSError:
        return None
    if len(block) < _BEAT.size:
        return None
    at, step, stalled, deadline, state, code = (None if value == _NONE else value for value in _BEAT.unpack(block))
    return Heartbeat(at or 0, step, stalled, deadline, state or ALIVE, code)


def read_crash(folder: str, name: str) -> str:
    """What the rank's faulthandler wrote when it crashed; empty when there is nothing."""
    with contextlib.suppress(OSError), open(os.path.join(folder, name + CRASH_SUFFIX), "rb") as file:
        return file.read(CRASH_BYTES_MAX).decode(errors="replace")
    return ""


def remove_files(folder: str, name: str) -> None:
    """Remove what a rank has left."""
    for suffix in (DESCRIPTOR_SUFFIX, DESCRIPTOR_SUFFIX + ".new", HEARTBEAT_SUFFIX, SOCKET_SUFFIX, CRASH_SUFFIX):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name + suffix))
