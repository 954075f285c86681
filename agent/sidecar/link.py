"""Connects a rank to the sidecar of its node: writes the beacon, opens the worker server, starts the sidecar.

`open` is slow (starting a program takes 0.1 s and more) and runs on a separate thread; a heartbeat takes 5 us. Errors
here affect only the sidecar.
"""

import contextlib
import faulthandler
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.agent.guard import find_last_error, is_debugging
from rankscope.agent.identity import drop_rank_variables
from rankscope.agent.nameless_file import open_nameless
from rankscope.agent.private_folder import PRIVATE_FILE, choose_private
from rankscope.agent.sidecar.beacon import (
    AGENT_ENDED,
    CRASH_SUFFIX,
    GOODBYE_ACKNOWLEDGED,
    SOCKET_SUFFIX,
    Beacon,
    Descriptor,
    Heartbeat,
    remove_files,
)
from rankscope.agent.sidecar.directory import (
    ATTEMPTS,
    acquire_lock,
    find_places,
    folder_name,
    open_folder,
)
from rankscope.agent.sidecar.exit_status import read_start_ticks
from rankscope.agent.sidecar.faults import read_faults
from rankscope.agent.sidecar.worker_server import open_server
from rankscope.measure.child_command import build_child_command
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.units import NS_PER_S

START_S_MAX: Final = 60.0
STARTS_MAX: Final = 3
"""Starts of the sidecar by each rank, in case it is killed."""
CHECK_NS: Final = 30 * NS_PER_S
"""Interval at which a rank checks that the sidecar holds its lock, and reads the sidecar's errors."""
STDERR_BYTES_MAX: Final = 64 * 1024


class SidecarLink:
    """The connection of one rank to the sidecar of its node. Does nothing until `open` has succeeded."""

    def __init__(
        self,
        identity: RankIdentity,
        environment: Mapping[str, str],
        *,
        frozen_after_ns: int,
        crash_stacks: bool = True,
    ) -> None:
        self._environment = environment
        self._crash_stacks = crash_stacks
        self._descriptor = Descriptor(
            identity=identity, start_ticks=read_start_ticks(identity.pid), frozen_after_ns=frozen_after_ns
        )
        self.folder = ""
        """Folder of the beacon; empty before `open`."""
        self._writing = threading.Lock()
        self._has_ended = False
        self._is_descriptor_written = False
        self._beacon: Beacon | None = None
        self._heartbeat = Heartbeat(0)
        self._starts = 0
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
        self._start_if_needed()
        if self._crash_stacks:
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
            faults = read_faults(self.folder)
            self._start_if_needed()
            _raise_faults(faults)

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
                _raise_faults(read_faults(self.folder))

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
            faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE))

    def _open_server(self) -> None:
        path = os.path.join(self.folder, self._descriptor.identity.boot_id + SOCKET_SUFFIX)
        try:
            open_server(path)
        except (OSError, RuntimeError, UnavailableError) as error:
            self.update(why_no_socket=str(error)[:200])
        else:
            self.update(socket_path=path, why_no_socket="")

    def _start_if_needed(self) -> None:
        lock = acquire_lock(self.folder)
        if lock is None:
            return
        try:
            if self._starts < STARTS_MAX:
                self._starts += 1
                _start(self.folder, lock)
        finally:
            os.close(lock)  # the sidecar has its own copy


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)
        os.rmdir(os.path.dirname(folder))


def _raise_faults(faults: str) -> None:
    """Raise the sidecar's errors as UnavailableError, so that the watchdog counts and logs them."""
    if faults:
        raise UnavailableError(f"the sidecar of this node had an error: {faults}")


def _start(folder: str, lock: int) -> None:
    """Start the sidecar; return once it has detached from this process. Raise UnavailableError."""
    # The sidecar must not inherit the launcher's pipes or the training's sockets, whose closing is an event for peers.
    # It inherits stderr only for debugging.
    with open_nameless("rankscope-sidecar-start") as stderr:
        code = _start_and_wait(folder, lock, None if is_debugging() else stderr.fileno())
        if code:
            stderr.seek(0)
            why = find_last_error(stderr.read(STDERR_BYTES_MAX).decode(errors="replace"))
            raise UnavailableError(f"the sidecar did not start (exit code {code}{f', {why}' if why else ''})")


def _start_and_wait(folder: str, lock: int, stderr: int | None) -> int:
    child = subprocess.Popen(  # noqa: S603 - the agent's own program
        build_child_command(sys.executable, "rankscope.agent.sidecar", folder, str(lock)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=(lock,),
        start_new_session=True,
        env=drop_rank_variables(os.environ),
    )
    try:
        return child.wait(START_S_MAX)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
