"""The rank's side of the sidecar: the beacon it leaves, the worker server it opens, and how it starts a sidecar.

`open` is slow (starting a program takes 0.1 s and more) and runs on a thread of its own; a heartbeat takes 5 us.
Whatever fails here costs the sidecar only.
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
    CRASH_SUFFIX,
    GOODBYE_ACKNOWLEDGED,
    LEFT,
    SOCKET_SUFFIX,
    Beacon,
    Descriptor,
    Heartbeat,
    remove_files,
)
from rankscope.agent.sidecar.directory import (
    ATTEMPTS,
    find_places,
    folder_name,
    open_folder,
    take_lock,
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
"""A sidecar that somebody kills is started again, so many times by each rank."""
CHECK_NS: Final = 30 * NS_PER_S
"""How often a rank looks whether the sidecar still holds its lock, and whether it has noted an error of its own."""
SAID_BYTES_MAX: Final = 64 * 1024


class SidecarLink:
    """One rank's connection to the sidecar of its node. Does nothing until `open` has succeeded."""

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
        """Where the beacon is; empty before `open`."""
        self._writing = threading.Lock()
        self._has_left = False
        self._is_described = False
        self._beacon: Beacon | None = None
        self._beat = Heartbeat(0)
        self._starts = 0
        self._checked_ns = 0

    def open(self, now_ns: int) -> None:
        """Leave the beacon, see to it that a sidecar runs, open the worker server. Raises OSError or RankscopeError."""
        beacon = self._leave_beacon(Heartbeat(now_ns))
        with self._writing:
            if self._has_left:  # a job of a second
                beacon.close()
                remove_files(self.folder, self._descriptor.identity.boot_id)
                return
            self._checked_ns = now_ns
            self._beacon = beacon
            self._is_described = False  # what was told meanwhile is not written yet
            self._describe()
        self._start_if_needed()
        if self._crash_stacks:
            self._catch_crashes()
        self._open_server()

    def tell(self, **changed: object) -> None:
        """Fields of the descriptor that may have changed; it is written anew only when one has."""
        with self._writing:
            descriptor = msgspec.structs.replace(self._descriptor, **changed)
            if descriptor != self._descriptor:
                self._descriptor = descriptor
                self._is_described = False
                self._describe()

    def beat(self, beat: Heartbeat) -> None:
        """The agent lives."""
        with self._writing:
            if self._beacon is None:
                return
            self._beat = beat
            self._beacon.beat(beat)
            self._describe()
        if beat.written_host_ns - self._checked_ns >= CHECK_NS:
            self._checked_ns = beat.written_host_ns
            faults = read_faults(self.folder)
            self._start_if_needed()
            _raise_faults(faults)

    def stop_heartbeat(self) -> None:
        """Say that no heartbeat is to be expected any more, although the rank goes on. Raise OSError."""
        with self._writing:
            if self._beacon is not None:
                self._beacon.beat(self._beat._replace(state=LEFT))

    def say_goodbye(self, exit_code: int | None, *, is_acknowledged: bool) -> None:
        """The agent ends; the process is going to end with this exit code, as far as is known."""
        with self._writing:
            self._has_left = True
            if self._beacon is not None:
                state = GOODBYE_ACKNOWLEDGED if is_acknowledged else LEFT
                beacon, self._beacon = self._beacon, None
                try:
                    beacon.beat(self._beat._replace(state=state, exit_code=exit_code))
                finally:
                    beacon.close()
                _raise_faults(read_faults(self.folder))

    def _describe(self) -> None:
        """Write what has changed of the descriptor, or could not be written the last time. Raise OSError."""
        if self._beacon is not None and not self._is_described:
            self._beacon.describe(self._descriptor)
            self._is_described = True

    def _leave_beacon(self, beat: Heartbeat) -> Beacon:
        problems = []
        for place in find_places(self._environment.get("TMPDIR", "")):
            try:
                return self._leave_beacon_in(place, beat)
            except (OSError, UnavailableError) as error:
                problems.append(f"{place}: {error}")
        raise UnavailableError(
            f"there is no place for the sidecar's files ({'; '.join(problems)}), so how ranks end is not reported. "
            "Free some space there (df -h /dev/shm; docker run --shm-size gives more), or set sidecar = false."
        )

    def _leave_beacon_in(self, place: str, beat: Heartbeat) -> Beacon:
        folder, name = place, folder_name(self._descriptor.identity)
        for _ in range(ATTEMPTS):
            folder = open_folder(choose_private(place), name)
            try:
                beacon = Beacon(folder, self._descriptor, beat)
            except FileNotFoundError:
                continue  # a sidecar that ended at this very moment has removed the directory
            except OSError:
                _remove_if_empty(folder)
                raise
            self.folder = folder
            return beacon
        raise UnavailableError(f"{folder} was removed each of the {ATTEMPTS} times it was made")

    def _catch_crashes(self) -> None:
        """Have a fatal signal leave the Python stacks. Where the script's own faulthandler is at work it stays so."""
        if not faulthandler.is_enabled():
            path = os.path.join(self.folder, self._descriptor.identity.boot_id + CRASH_SUFFIX)
            # The file stays open to the end of the process: after the agent's end it may still crash.
            faulthandler.enable(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE))

    def _open_server(self) -> None:
        path = os.path.join(self.folder, self._descriptor.identity.boot_id + SOCKET_SUFFIX)
        try:
            open_server(path)
        except (OSError, RuntimeError, UnavailableError) as error:
            self.tell(why_no_socket=str(error)[:200])
        else:
            self.tell(socket_path=path, why_no_socket="")

    def _start_if_needed(self) -> None:
        lock = take_lock(self.folder)
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
    """Hand what the sidecar has noted to whoever counts and says it. Raise UnavailableError."""
    if faults:
        raise UnavailableError(f"the sidecar of this node had an error: {faults}")


def _start(folder: str, lock: int) -> None:
    """Start the sidecar; returns when it has left this process. Raises UnavailableError."""
    # No pipe of the launcher's may stay open for it, and no socket of the training: peers watch for those to close.
    # Only who looks for a fault wants its tracebacks, and waits for it to end.
    with open_nameless("rankscope-sidecar-start") as said:
        code = _start_and_wait(folder, lock, None if is_debugging() else said.fileno())
        if code:
            said.seek(0)
            why = find_last_error(said.read(SAID_BYTES_MAX).decode(errors="replace"))
            raise UnavailableError(f"the sidecar did not start (exit code {code}{f', {why}' if why else ''})")


def _start_and_wait(folder: str, lock: int, stderr: int | None) -> int:
    child = subprocess.Popen(  # noqa: S603 - our own program
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
