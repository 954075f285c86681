"""What the agent leaves on a machine is its user's alone, whatever the umask of the job: other users share /dev/shm."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.agent.sidecar.beacon import find_names, read_descriptor
from rankscope.agent.sidecar.directory import find_root
from tests.connections import list_connections
from tests.integration.serving import serving, wait_for
from tests.integration.small_disk import why_not_with_full
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Job, python, started

WIDE_OPEN = ("/bin/sh", "-c", 'umask 0; exec "$@"', "sh")
"""Begins a command that makes files for everybody unless it says otherwise."""


def find_folder(job: Job) -> Path | None:
    """Where a rank of the job has left its beacon, once its socket is there too."""
    pids = {process.pid for process in job.find_members()}
    for folder in Path(find_root()).glob("*/"):
        for name in find_names(str(folder)):
            descriptor = read_descriptor(str(folder), name)
            if descriptor is not None and descriptor.identity.pid in pids and descriptor.socket_path:
                return folder
    return None


BLOCKED = """
mount -t tmpfs -o mode=1777 tmpfs /dev/shm &&
setpriv --reuid=65534 --clear-groups ln -s /tmp /dev/shm/rankscope-0 && exec "$@"
"""
"""A /dev/shm of a job's own, in which `nobody` has taken the name of root's folder."""
WHY_NOT = "only root can be another user too" if os.getuid() else why_not_with_full()
"""In most containers root cannot mount anything either."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Job, Path]]:
    """A job of one rank that trains, and the folder it meets its sidecar in."""
    folder = tmp_path_factory.mktemp("job")
    stop, spill = folder / "stop", folder / "missing" / "spill"
    with serving() as served:
        settings = {**ALONE, **OFTEN, "RANKSCOPE_COLLECTOR": served.endpoint, "RANKSCOPE_SPILL_DIR": str(spill)}
        with started([*WIDE_OPEN, *python(*AGENT, "paced.py", "--stop", str(stop))], settings) as job:
            yield job, wait_for(lambda: find_folder(job), lambda: f"no beacon of the job in {find_root()}")
            stop.touch()
            assert job.wait().exit_code == 0


def mode_of(path: Path) -> str:
    """As `ls -l` shows it."""
    return stat.filemode(path.lstat().st_mode)


def test_the_folders_are_their_user_s_alone(running: tuple[Job, Path]) -> None:
    _, folder = running
    assert [mode_of(one) for one in (folder, folder.parent)] == ["drwx------"] * 2
    assert [one.stat().st_uid for one in (folder, folder.parent)] == [os.getuid()] * 2


def test_every_file_in_them_is_too(running: tuple[Job, Path]) -> None:
    _, folder = running
    modes = {path.suffix or path.name: mode_of(path) for path in folder.iterdir() if not path.is_socket()}
    assert modes.items() >= {".json": "-rw-------", ".beat": "-rw-------", "lock": "-rw-------"}.items()
    assert set(modes.values()) == {"-rw-------"}


def test_a_spill_dir_that_was_missing_is_too(running: tuple[Job, Path]) -> None:
    job, _ = running
    spill = Path(psutil.Process(job.launcher.pid).environ()["RANKSCOPE_SPILL_DIR"])
    files = wait_for(lambda: list(spill.glob("*/*.spill")) or None, lambda: f"no report in {spill}", 120)
    assert [mode_of(one) for one in (spill.parent, spill, files[0].parent)] == ["drwx------"] * 3
    assert {mode_of(one) for one in files[0].parent.iterdir()} == {"-rw-------"}


def test_the_socket_lies_where_only_its_user_gets_to(running: tuple[Job, Path]) -> None:
    """torch makes it, with the mode of the umask: what keeps others from it is the folder."""
    _, folder = running
    assert [path.parent for path in folder.iterdir() if path.is_socket()] == [folder]
    assert folder.stat().st_mode & 0o077 == 0


def test_the_sidecar_listens_nowhere(running: tuple[Job, Path]) -> None:
    _, folder = running
    sidecars = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "rankscope.agent.sidecar" in process.cmdline() and str(folder) in process.cmdline():
                sidecars.append(process)
    assert len(sidecars) == 1
    assert list_connections(sidecars[0], "all") == []


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_link_of_another_user_does_not_switch_the_sidecar_off(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    command = ["unshare", "--mount", "sh", "-c", BLOCKED, "sh", *python(*AGENT, "paced.py", "--stop", str(stop))]
    with started(command, {**ALONE, **OFTEN}) as job:
        memory = Path(f"/proc/{job.launcher.pid}/root/dev/shm")
        (folder,) = wait_for(
            lambda: list(memory.glob("rankscope-0.2/*/*.json")) or None,
            lambda: f"no descriptor in {list(memory.iterdir())}; exit {job.launcher.poll()}",
            120,
        )
        assert mode_of(folder.parent.parent) == "drwx------"
        stop.touch()
        ended = job.wait()
    assert ended.exit_code == 0, ended.stderr
    assert [line for line in ended.heard_of_agent if "failed" in line] == []
