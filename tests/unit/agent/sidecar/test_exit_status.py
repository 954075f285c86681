"""Tests of reading the exit status of real processes without reaping them."""

import os
from collections.abc import Iterator

import pytest

from rankscope.agent.sidecar.exit_status import (
    ExitStatus,
    has_ended,
    open_process,
    parse_status,
    read_exit_status,
    read_start_ticks,
)
from tests.unit.agent.sidecar.ranks_of_a_node import ENDS, Process

each_end = pytest.mark.parametrize("end", ENDS)


@pytest.fixture
def process(end: str) -> Iterator[Process]:
    started = Process(ENDS[end][0])
    yield started
    started.kill()


@each_end
def test_exit_status_of_a_zombie(end: str, process: Process) -> None:
    process.end()
    status = read_exit_status(process.pid, process.start_ticks, None)
    assert status is not None
    assert (status.exit_code, status.signal) == ENDS[end][1:]


@each_end
def test_exit_status_after_reaping_is_from_the_kernel(end: str, process: Process) -> None:
    pidfd = open_process(process.pid)
    process.end()
    process.reap()
    status = read_exit_status(process.pid, process.start_ticks, pidfd)
    # Linux tells since 6.15; an earlier one must not be made to tell something else.
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= (6, 15):
        assert status is not None
    if status is not None:
        assert (status.exit_code, status.signal) == ENDS[end][1:]
    if pidfd is not None:
        os.close(pidfd)


@pytest.mark.parametrize("end", ["exit 3"])
def test_a_process_has_ended_as_soon_as_it_is_a_zombie(end: str, process: Process) -> None:
    assert end in ENDS
    assert not has_ended(process.pid, process.start_ticks)
    process.end()
    assert has_ended(process.pid, process.start_ticks)


def test_a_later_process_with_the_same_id_is_another_one() -> None:
    mine = read_start_ticks(os.getpid())
    assert mine is not None
    assert not has_ended(os.getpid(), mine)
    assert not has_ended(os.getpid(), None)
    assert has_ended(os.getpid(), mine - 1)


@pytest.mark.parametrize("end", ["exit 3"])
def test_reused_process_id_is_another_process(end: str, process: Process) -> None:
    assert end in ENDS
    process.end()
    assert read_exit_status(process.pid, 1, None) is None


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert read_start_ticks(2**22 + 1) is None
    assert open_process(2**22 + 1) is None


def test_waitpid_status_is_parsed() -> None:
    # waitpid(2): the exit code in the second byte, the signal in the lower seven bits, the core dump in the eighth.
    assert parse_status(255 << 8) == ExitStatus(255, None, core_dumped=False)
    assert parse_status(6 | 0x80) == ExitStatus(None, 6, core_dumped=True)
