"""Connects a rank to the sidecar of its node: writes the beacon, opens the worker server, starts the sidecar.

`open` is slow (starting a program takes 0.1 s and more) and runs on a separate thread; a heartbeat takes 5 us. Errors
here affect only the sidecar.
"""

import contextlib
import faulthandler
import os
import threading
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.agent.private_folder import PRIVATE_FILE, choose_private
from rankscope.agent.sidecar.beacon import (
    AGENT_ENDED,
    CRASH_SUFFIX,
    GOODBYE_ACKNOWLEDGED,
    SOCKET_SUFFIX,
    Beacon,
    Descriptor,
    Heartbeat,
    RecorderPlace,
    remove_files,
)
from rankscope.agent.sidecar.directory import (
    ATTEMPTS,
    find_places,
    folder_name,
    open_folder,
)
from rankscope.agent.sidecar.exit_status import read_start_ticks
from rankscope.agent.sidecar.inspector_place import find_inspector_place
from rankscope.agent.sidecar.start import SidecarStarter, raise_faults
from rankscope.agent.sidecar.worker_server import open_server
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import NS_PER_S

CHECK_NS: Final = 30 * NS_PER_S
"""Interval at which a rank checks that the sidecar holds its lock, and reads the sidecar's errors."""


class SidecarLink:
    """The connection of one rank to the sidecar of its node. Does nothing until `open` has succeeded."""

    def __init__(
        self,
        identity: RankIdentity,
        environment: Mapping[str, str],
        *,
        frozen_after_ns: int,
        ras_address: str = "",
    ) -> None:
        self._environment = environment
        self._descriptor = Descriptor(
            identity=identity,
            start_ticks=read_start_ticks(identity.pid),
            frozen_after_ns=frozen_after_ns,
            ras_address=ras_address,
            inspector=find_inspector_place(environment, pid=identity.pid, wall_ns=time.time_ns()),
        )
        self.folder = ""
        """Folder of the beacon; empty before `open`."""
        self._writing = threading.Lock()
        self._has_ended = False
        self._is_descriptor_written = False
        self._beacon: Beacon | None = None
        self._heartbeat = Heartbeat(0)
        self._starter = SidecarStarter()
        self._checked_ns = 0

    def open(self, now_ns: int) -> None:
        """Write the beacon, start the sidecar if needed, open the worker server. Raise OSError or RankscopeError."""
        beacon = self._create_beacon(Heartbeat(now_ns))
        with self._writing:
            if self._has_ended:  # a very short run
                beacon.close()
                remove_files(self.folder, self._descriptor.identity.boot_id)
                return
            self._checked_ns = now_ns
            self._beacon = beacon
            self._is_descriptor_written = False  # it may have been updated meanwhile
            self._write_descriptor()
        self._starter.start_if_needed(self.folder)
        self._catch_crashes()
        self._open_server()

    def update(self, **fields: object) -> None:
        """Set fields of the descriptor, and write it if one has changed. Raise OSError."""
        with self._writing:
            descriptor = msgspec.structs.replace(self._descriptor, **fields)
            if descriptor != self._descriptor:
                self._descriptor = descriptor
                self._is_descriptor_written = False
                self._write_descriptor()

    @property
    def recorder_place(self) -> RecorderPlace | None:
        """Where dumps of the flight recorder are left for the sidecar; None before `open`."""
        if self._beacon is None:
            return None
        return RecorderPlace(self.folder, self._descriptor.identity.boot_id, self._descriptor.socket_path)

    def write_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Write a heartbeat, and now and then check the sidecar. Raise OSError or RankscopeError."""
        with self._writing:
            if self._beacon is None:
                return
            self._heartbeat = heartbeat
            self._beacon.write_heartbeat(heartbeat)
            self._write_descriptor()
        if heartbeat.written_host_ns - self._checked_ns >= CHECK_NS:
            self._checked_ns = heartbeat.written_host_ns
            self._starter.check(self.folder)

    def stop_heartbeat(self) -> None:
        """Mark that no heartbeat follows, although the rank continues. Raise OSError."""
        with self._writing:
            if self._beacon is not None:
                self._beacon.write_heartbeat(self._heartbeat._replace(state=AGENT_ENDED))

    def end(self, exit_code: int | None, *, is_acknowledged: bool) -> None:
        """Mark the end of the agent, with the exit code of the process if it is known. Raise OSError."""
        with self._writing:
            self._has_ended = True
            if self._beacon is not None:
                state = GOODBYE_ACKNOWLEDGED if is_acknowledged else AGENT_ENDED
                beacon, self._beacon = self._beacon, None
                try:
                    beacon.write_heartbeat(self._heartbeat._replace(state=state, exit_code=exit_code))
                finally:
                    beacon.close()
                raise_faults(self.folder)

    def _write_descriptor(self) -> None:
        """Write the descriptor unless that has been done since its last change. Raise OSError."""
        if self._beacon is not None and not self._is_descriptor_written:
            self._beacon.write_descriptor(self._descriptor)
            self._is_descriptor_written = True

    def _create_beacon(self, heartbeat: Heartbeat) -> Beacon:
        problems = []
        for place in find_places(self._environment.get("TMPDIR", "")):
            try:
                return self._create_beacon_in(place, heartbeat)
            except (OSError, UnavailableError) as error:
                problems.append(f"{place}: {error}")
        raise UnavailableError(
            f"the sidecar's files cannot be written ({'; '.join(problems)}), so how ranks end is not reported. "
            "Free some space there (df -h /dev/shm; docker run --shm-size gives more), or set sidecar = false."
        )

    def _create_beacon_in(self, place: str, heartbeat: Heartbeat) -> Beacon:
        folder, name = place, folder_name(self._descriptor.identity)
        for _ in range(ATTEMPTS):
            folder = open_folder(choose_private(place), name)
            try:
                beacon = Beacon(folder, self._descriptor, heartbeat)
            except FileNotFoundError:
                continue  # a sidecar that has just ended has removed the directory
            except OSError:
                _remove_if_empty(folder)
                raise
            self.folder = folder
            return beacon
        raise UnavailableError(f"{folder} was removed each of the {ATTEMPTS} times it was made")

    def _catch_crashes(self) -> None:
        """Enable faulthandler for fatal signals, unless the script has enabled it."""
        if not faulthandler.is_enabled():
            path = os.path.join(self.folder, self._descriptor.identity.boot_id + CRASH_SUFFIX)
            # The file stays open until the process ends, which may crash after the agent's end.
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE)
            faulthandler.enable(file)
            opened = os.fstat(file)
            os.register_at_fork(after_in_child=lambda: _leave_crash_file(file, opened))

    def _open_server(self) -> None:
        path = os.path.join(self.folder, self._descriptor.identity.boot_id + SOCKET_SUFFIX)
        try:
            open_server(path)
        except (OSError, RuntimeError, UnavailableError) as error:
            self.update(why_no_socket=str(error)[:200])
        else:
            self.update(socket_path=path, why_no_socket="")


def _leave_crash_file(file: int, opened: os.stat_result) -> None:
    """Let a forked child, such as a worker of a DataLoader, write no stacks into the file of the rank: a crash of the
    child is none of the rank. `opened` shows whether the number is still that of the file.
    """
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(file), opened):
            nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nothing, file, inheritable=False)
            os.close(nothing)


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))
