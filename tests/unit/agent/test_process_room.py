"""Tests of the room for threads and files, from fake cgroups and real limits."""

import os
import resource
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from rankscope.agent.process_room import (
    ADDRESS_BYTES_MIN,
    find_address_room,
    find_file_room,
    find_obstacle,
    find_thread_room,
    require_address_space,
)
from rankscope.measure.errors import UnavailableError


@pytest.fixture
def files_limit() -> Iterator[int]:
    """The number of files that are open; afterwards the limit is as before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("line", "folder"),
    [("8:pids:/jobs/bert", "pids/jobs/bert"), ("0::/jobs/bert", "jobs/bert"), ("0::/", ""), ("0::/../pod7", "")],
)
def test_thread_room_is_limited_by_the_cgroup(tmp_path: Path, line: str, folder: str) -> None:
    write(tmp_path / "cgroup", f"3:cpuset:/\n{line}\n")
    write(tmp_path / "mounts" / folder / "pids.max", "1024\n")
    write(tmp_path / "mounts" / folder / "pids.current", "1000\n")
    room = find_thread_room(str(tmp_path / "cgroup"), str(tmp_path / "mounts"))
    assert room is not None
    assert room <= 24  # 1,024 - 1,000; a limit of the user's own may be lower


def test_no_limit_is_not_a_room_of_zero(tmp_path: Path) -> None:
    write(tmp_path / "cgroup", "0::/jobs\n")
    write(tmp_path / "mounts" / "jobs" / "pids.max", "max\n")
    write(tmp_path / "mounts" / "jobs" / "pids.current", "1000\n")
    room = find_thread_room(str(tmp_path / "cgroup"), str(tmp_path / "mounts"))
    assert room is None or room > 0


@pytest.mark.parametrize("left", [200 << 20, 4 << 30])
def test_agent_needs_address_space_for_its_threads(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    real = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda which: (used + left, 0) if which == resource.RLIMIT_AS else real(which)
    )
    room = find_address_room()
    assert room is not None
    assert abs(room - left) < 64 << 20
    with nullcontext() if left > ADDRESS_BYTES_MIN else pytest.raises(UnavailableError, match="of address space"):
        require_address_space()


def test_open_files_leave_the_rest_of_their_limit(files_limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_limit + 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    room = find_file_room()
    assert room is not None
    assert 18 <= room <= 22
    assert find_obstacle(threads=0, files=4) == ""
    assert find_obstacle(threads=0, files=8).startswith("it takes 8 files where 32 more may be open, and not")


def test_process_without_any_file_left_has_no_room(files_limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        assert find_file_room() == 0
    finally:
        for one in held:
            os.close(one)
