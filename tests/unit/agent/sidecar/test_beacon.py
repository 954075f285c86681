"""Tests of writing and reading beacons."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.agent.sidecar.beacon import (
    AGENT_ENDED,
    DESCRIPTOR_SUFFIX,
    HEARTBEAT_SUFFIX,
    Heartbeat,
    find_names,
    read_descriptor,
    read_heartbeat,
    remove_files,
)
from tests.unit.agent.sidecar.ranks_of_a_node import Process, light_beacon

NAME = "boot-of-0"


@pytest.fixture
def process() -> Iterator[Process]:
    started = Process("pass")
    yield started
    started.kill()


def test_written_beacon_is_read(tmp_path: Path, process: Process) -> None:
    beacon = light_beacon(tmp_path, 0, process, Heartbeat(7), group_labels={"0": "default_pg"})
    descriptor = read_descriptor(str(tmp_path), NAME)
    assert descriptor is not None
    assert (descriptor.identity.pid, descriptor.start_ticks) == (process.pid, process.start_ticks)
    assert descriptor.group_labels == {"0": "default_pg"}
    for heartbeat in (
        Heartbeat(7),
        Heartbeat(8, 0, 5, 2, AGENT_ENDED, 0),
        Heartbeat(8, 0, 5, 0),
        Heartbeat(9, 41, None, 0, AGENT_ENDED, 3),
    ):
        beacon.write_heartbeat(heartbeat)
        assert read_heartbeat(str(tmp_path), NAME) == heartbeat
    beacon.close()


def test_heartbeat_is_written_to_a_truncated_file(tmp_path: Path, process: Process) -> None:
    """A store into a mapping of it would end the process by SIGBUS."""
    beacon = light_beacon(tmp_path, 0, process, Heartbeat(7))
    os.truncate(tmp_path / (NAME + HEARTBEAT_SUFFIX), 0)
    assert read_heartbeat(str(tmp_path), NAME) is None
    beacon.write_heartbeat(Heartbeat(8))
    assert read_heartbeat(str(tmp_path), NAME) == Heartbeat(8)
    beacon.close()


def test_only_this_user_may_read_it(tmp_path: Path, process: Process) -> None:
    light_beacon(tmp_path, 0, process, Heartbeat(7)).close()
    assert {os.stat(path).st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}  # noqa: PTH116


def test_partial_files_and_garbage_are_none(tmp_path: Path) -> None:
    assert read_descriptor(str(tmp_path), NAME) is None
    assert read_heartbeat(str(tmp_path), NAME) is None
    (tmp_path / (NAME + DESCRIPTOR_SUFFIX)).write_bytes(b'{"identity": [\xff')
    (tmp_path / (NAME + HEARTBEAT_SUFFIX)).write_bytes(b"\0" * 47)
    assert read_descriptor(str(tmp_path), NAME) is None
    assert read_heartbeat(str(tmp_path), NAME) is None


def test_beacons_are_found_and_removed(tmp_path: Path, process: Process) -> None:
    for rank in (1, 0):
        light_beacon(tmp_path, rank, process, Heartbeat(7)).close()
    assert find_names(str(tmp_path)) == ["boot-of-0", "boot-of-1"]
    for suffix in (".dump", ".dump.new", ".timed", ".timed.new"):
        (tmp_path / f"boot-of-0{suffix}").touch()
    remove_files(str(tmp_path), "boot-of-0")
    remove_files(str(tmp_path), "boot-of-1")
    assert list(tmp_path.iterdir()) == []
    assert find_names(str(tmp_path / "gone")) == []
