"""The sidecar as a process: one a node, small, and never there longer than the ranks."""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rankscope.agent.sidecar.beacon import read_descriptor
from rankscope.agent.sidecar.link import CHECK_NS
from tests.integration.serving import wait_for

SCRIPT = Path(__file__).parent / "scripts" / "beaconing.py"
MEMORY_BYTES_MAX = 25 * 2**20
"""What a sidecar may take of a node's memory, its share of pages that others use too counted."""


class Rank:
    """A process that leaves a beacon."""

    def __init__(self, run: str, rank: int) -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(SCRIPT), run, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.folder = self._read_line()

    def say(self, line: str) -> None:
        """Have it do that, and wait until it is done."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{line}\n")
        self._child.stdin.flush()
        assert self._read_line() == "done"

    def end(self, number: signal.Signals | None = None) -> None:
        """End it: by that signal, else by the end of its input."""
        if number is not None:
            self._child.send_signal(number)
        self._child.communicate(timeout=500)

    def _read_line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()


@pytest.fixture
def start() -> Iterator[Callable[[int], Rank]]:
    """Start a rank of a run that no other test has; at the end none is left, nor their sidecar."""
    run, ranks = f"run-{secrets.token_hex(8)}", []

    def start_rank(rank: int) -> Rank:
        ranks.append(Rank(run, rank))
        return ranks[-1]

    yield start_rank
    for rank in ranks:
        rank.end(signal.SIGKILL)
    for rank in ranks[:1]:
        wait_for_sidecars(rank.folder, 0)


def find_sidecars(folder: str) -> list[psutil.Process]:
    """The sidecars that watch the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if folder in process.cmdline() and "rankscope.agent.sidecar" in process.cmdline():
                found.append(process)
    return found


def wait_for_sidecars(folder: str, count: int) -> list[psutil.Process]:
    def look() -> list[psutil.Process] | None:
        found = find_sidecars(folder)
        return found or [] if len(found) == count else None

    return wait_for(look, lambda: f"not {count} sidecars: {find_sidecars(folder)}")


def kill(sidecar: psutil.Process) -> None:
    """Kill it, and wait until the kernel has let go of its lock: that is after its command line is gone."""
    end = os.pidfd_open(sidecar.pid)
    try:
        sidecar.kill()
        assert select.select([end], [], [], 60)[0], "not ended within 60 s"
    finally:
        os.close(end)


def test_all_ranks_of_a_node_share_one_sidecar(start: Callable[[int], Rank]) -> None:
    first, second = start(0), start(1)
    assert first.folder == second.folder
    (sidecar,) = wait_for_sidecars(first.folder, 1)
    # No child of a rank: neither has to wait for it, and it outlives the one that started it.
    assert sidecar.parent() is None or sidecar.parent().pid not in {first._child.pid, second._child.pid}
    assert os.getsid(sidecar.pid) != os.getsid(0)


def test_it_is_small_and_has_neither_numpy_nor_torch(start: Callable[[int], Rank]) -> None:
    rank = start(0)
    (sidecar,) = wait_for_sidecars(rank.folder, 1)
    assert [mapped.path for mapped in sidecar.memory_maps() if "numpy" in mapped.path or "torch" in mapped.path] == []
    assert sidecar.memory_full_info().pss < MEMORY_BYTES_MAX


def test_it_holds_no_file_of_its_starter_s_open(start: Callable[[int], Rank]) -> None:
    # A pipe of the launcher's would never end, a socket of the training never close.
    rank = start(0)
    (sidecar,) = wait_for_sidecars(rank.folder, 1)
    links = []
    for link in Path(f"/proc/{sidecar.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(link.readlink()))
    # In its own folder it may be reading a beacon at this very moment.
    foreign = {target.split(":")[0] for target in links if not target.startswith(f"{rank.folder}/")}
    assert foreign <= {"/dev/null", "anon_inode", "pidfd"}, links
    assert f"{rank.folder}/lock" in links


def test_sidecar_outlives_its_killed_starter_until_the_last_rank(
    start: Callable[[int], Rank],
) -> None:
    first, second = start(0), start(1)
    (sidecar,) = wait_for_sidecars(first.folder, 1)
    first.end(signal.SIGKILL)
    wait_for(lambda: not (Path(first.folder) / "boot-of-0.json").exists() or None, lambda: "rank 0 is still there")
    assert sidecar.is_running()
    second.say("goodbye 0")
    second.end()
    wait_for_sidecars(first.folder, 0)
    assert not Path(first.folder).exists()


def test_a_sidecar_that_is_killed_is_started_again_by_a_rank(start: Callable[[int], Rank]) -> None:
    rank = start(0)
    (sidecar,) = wait_for_sidecars(rank.folder, 1)
    kill(sidecar)
    rank.say(f"beat {CHECK_NS - 1}")
    assert find_sidecars(rank.folder) == []
    rank.say(f"beat {CHECK_NS}")
    wait_for_sidecars(rank.folder, 1)


def test_missing_worker_server_of_torch_is_told_and_rest_works(start: Callable[[int], Rank]) -> None:
    descriptor = read_descriptor(start(0).folder, "boot-of-0")
    assert descriptor is not None
    assert (descriptor.socket_path, descriptor.why_no_socket) == ("", "this torch has no worker server")
