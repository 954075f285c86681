"""Writes and reads the beacon of a rank: its description and heartbeat, as files in the sidecar's directory.

`NAME.json` is replaced atomically when something in it changes. `NAME.beat` is a row of 64-bit numbers overwritten in
place, once per report on the agent thread (2 us). It is not memory-mapped: with a full file system or a truncated file,
a store into a mapping ends the process (SIGBUS), while a write only fails. `NAME.crash` is empty until Python's
faulthandler writes the stacks of a fatal signal into it. All files are in memory (/dev/shm), so that no disk delays the
writer. NAME is the rank's boot id.
"""

import contextlib
import os
import struct
from typing import Final, NamedTuple

import msgspec

from rankscope.agent.private_folder import PRIVATE_FILE
from rankscope.agent.sidecar.inspector_place import InspectorPlace
from rankscope.measure.identity import RankIdentity
from rankscope.measure.key_files import ClientKeys

DESCRIPTOR_SUFFIX: Final = ".json"
HEARTBEAT_SUFFIX: Final = ".beat"
SOCKET_SUFFIX: Final = ".sock"
CRASH_SUFFIX: Final = ".crash"
DUMP_SUFFIX: Final = ".dump"
TIMED_SUFFIX: Final = ".timed"
NEW_SUFFIX: Final = ".new"
"""Of a file that is being written, after its own suffix."""
CRASH_BYTES_MAX: Final = 256 * 1024
DESCRIPTOR_BYTES_MAX: Final = 1024 * 1024

_HEARTBEAT: Final = struct.Struct("=6q")
_NONE: Final = -(2**63)

ALIVE, GOODBYE_ACKNOWLEDGED, AGENT_ENDED = 0, 1, 2


class Descriptor(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a rank process.

    `start_ticks` is the start time in /proc/PID/stat, which distinguishes it from a later process with the same id;
    `group_labels` are by torch's name of a group; `endpoint`, `socket_path` and `spill_folder` are empty while unknown.
    `keys` are those of the rank, which the sidecar also uses: file and folder are private to this user. NCCL's RAS
    service is asked at `ras_address` in a stall; it is not asked if that is empty. `inspector` is where NCCL's
    Inspector writes; None where it is switched off.
    """

    identity: RankIdentity
    start_ticks: int | None
    frozen_after_ns: int
    endpoint: str = ""
    keys: ClientKeys | None = None
    socket_path: str = ""
    why_no_socket: str = "it has not been started yet"
    group_labels: dict[str, str] = {}
    spill_folder: str = ""
    ras_address: str = ""
    inspector: InspectorPlace | None = None


class WatchedStall(NamedTuple):
    """A rank of this machine: since when it is stalled, by the host's clock; None where it is not."""

    descriptor: Descriptor
    stalled_since_host_ns: int | None


class Heartbeat(NamedTuple):
    """The heartbeat of a rank.

    `state` is ALIVE; GOODBYE_ACKNOWLEDGED after the collector has acknowledged the goodbye with this `exit_code`; or
    AGENT_ENDED when the agent has ended without that. No heartbeat follows the last two. `deadline_host_ns` is the
    earliest timeout of the collectives that were pending at the last observation.
    """

    written_host_ns: int
    last_step: int | None = None
    stalled_since_host_ns: int | None = None
    deadline_host_ns: int | None = None
    state: int = ALIVE
    exit_code: int | None = None


class RecorderPlace(NamedTuple):
    """Where the files of a rank are: `socket_path` is that of its worker server, empty if there is none."""

    folder: str
    name: str
    socket_path: str


class Beacon:
    """The writer of a beacon. Raise OSError, and leave no files, if they cannot be made or written."""

    def __init__(self, folder: str, descriptor: Descriptor, heartbeat: Heartbeat) -> None:
        name = descriptor.identity.boot_id
        self._path = os.path.join(folder, name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._heartbeat_file = os.open(self._path + HEARTBEAT_SUFFIX, flags, PRIVATE_FILE)
        try:
            self.write_heartbeat(heartbeat)
            self.write_descriptor(descriptor)
        except OSError:
            self.close()
            remove_files(folder, name)
            raise

    def write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Overwrite the heartbeat. Raise OSError."""
        numbers = (_NONE if value is None else value for value in heartbeat)
        _write_whole(self._heartbeat_file, _HEARTBEAT.pack(*numbers))

    def write_descriptor(self, descriptor: Descriptor) -> None:
        """Replace the descriptor. Raise OSError, and keep the previous one."""
        replace_file(self._path + DESCRIPTOR_SUFFIX, msgspec.json.encode(descriptor))

    def close(self) -> None:
        """Close the files; the sidecar removes them once the process has ended."""
        os.close(self._heartbeat_file)


def _write_whole(file: int, *blocks: bytes) -> None:
    """Write the blocks at the start of the file. A full file system writes a part, then fails the next call."""
    place = 0
    for block in blocks:
        left = memoryview(block)
        while left:
            written = os.pwrite(file, left, place)
            left, place = left[written:], place + written


def replace_file(path: str, *blocks: bytes) -> None:
    """Write a file that is never seen in parts. Raise OSError, and keep the previous one."""
    file = os.open(path + NEW_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    try:
        _write_whole(file, *blocks)
        os.rename(path + NEW_SUFFIX, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(path + NEW_SUFFIX)
        raise
    finally:
        os.close(file)


def find_names(folder: str) -> list[str]:
    """Return the boot ids that have a descriptor in the folder."""
    with contextlib.suppress(OSError):
        return sorted(
            entry.removesuffix(DESCRIPTOR_SUFFIX) for entry in os.listdir(folder) if entry.endswith(DESCRIPTOR_SUFFIX)
        )
    return []


def read_descriptor(folder: str, name: str) -> Descriptor | None:
    """Return a rank's descriptor; None if it cannot be read."""
    try:
        with open(os.path.join(folder, name + DESCRIPTOR_SUFFIX), "rb") as file:
            return msgspec.json.decode(file.read(DESCRIPTOR_BYTES_MAX), type=Descriptor)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_heartbeat(folder: str, name: str) -> Heartbeat | None:
    """Return a rank's last heartbeat; None if it cannot be read."""
    try:
        with open(os.path.join(folder, name + HEARTBEAT_SUFFIX), "rb") as file:
            block = file.read(_HEARTBEAT.size)
    except OSError:
        return None
    if len(block) < _HEARTBEAT.size:
        return None
    numbers = _HEARTBEAT.unpack(block)
    at, step, stalled, deadline, state, code = (None if value == _NONE else value for value in numbers)
    return Heartbeat(at or 0, step, stalled, deadline, state or ALIVE, code)


def read_crash(folder: str, name: str) -> str:
    """Return the faulthandler output of a crashed rank; empty if there is none."""
    with contextlib.suppress(OSError), open(os.path.join(folder, name + CRASH_SUFFIX), "rb") as file:
        return file.read(CRASH_BYTES_MAX).decode(errors="replace")
    return ""


def read_last_crash(folder: str, name: str, heartbeat: Heartbeat) -> str:
    """Return faulthandler's output of the signal that has ended a rank; empty if there is none, or the agent has ended
    after it: then the rank survived the signal, since a handler that was there before faulthandler's lets it go on.

    Both times are those of the files, by one clock. A heartbeat alone shows nothing: other threads go on while a
    handler of another library still prints.
    """
    crash = read_crash(folder, name)
    if not crash or heartbeat.state == ALIVE:
        return crash
    path = os.path.join(folder, name)
    with contextlib.suppress(OSError):
        if os.stat(path + HEARTBEAT_SUFFIX).st_mtime_ns > os.stat(path + CRASH_SUFFIX).st_mtime_ns:
            return ""
    return crash


def remove_files(folder: str, name: str) -> None:
    """Remove the files of a rank."""
    replaced = (DESCRIPTOR_SUFFIX, DUMP_SUFFIX, TIMED_SUFFIX)
    being_written = (suffix + NEW_SUFFIX for suffix in replaced)
    for suffix in (*replaced, *being_written, HEARTBEAT_SUFFIX, SOCKET_SUFFIX, CRASH_SUFFIX):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name + suffix))
