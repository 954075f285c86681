"""KernelWaits: in which system call a thread is, and of which file."""

import os
import platform
import socket
import threading
from pathlib import Path

import pytest

from rankscope.agent.captures.kernel_waits import CALLS, KernelWait, KernelWaits, describe_file, find_file_system

DEADLINE_S = 300.0
is_known = pytest.mark.skipif(platform.machine() not in CALLS, reason="its system calls have no names here")


@is_known
def test_thread_that_reads_a_pipe_is_told() -> None:
    end, begin = os.pipe()
    native: list[int] = []
    begun = threading.Event()

    def read() -> None:
        native.append(threading.get_native_id())
        begun.set()
        os.read(end, 1)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(DEADLINE_S)
    waits = KernelWaits(native[0])
    try:
        while (found := waits.read()) is None or found.argument != end:
            pass
        assert waits.describe(found) == "read of a pipe"
    finally:
        os.write(begin, b"x")
        thread.join()
        waits.close()
        os.close(begin)
        os.close(end)


def test_thread_that_is_gone_waits_for_nothing() -> None:
    waits = KernelWaits(2**30)
    assert waits.read() is None
    waits.close()


@is_known
def test_call_that_is_not_known_has_no_words() -> None:
    assert KernelWaits(os.getpid()).describe(KernelWait(9_999, 0)) == ""


def test_file_is_told_with_its_file_system(tmp_path: Path) -> None:
    with (tmp_path / "train.bin").open("wb") as file:
        assert describe_file(file.fileno()).startswith("train.bin (")


def test_socket_is_told() -> None:
    with socket.socket() as one:
        assert describe_file(one.fileno()) == "a socket"


def test_closed_file_is_nothing() -> None:
    assert describe_file(2**20) == ""


def test_file_system_is_that_of_the_device(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("36 35 0:52 / /data rw,noatime shared:1 - nfs4 server:/export rw\n", encoding="utf-8")
    assert find_file_system(os.makedev(0, 52), str(mounts)) == "nfs4"
    assert find_file_system(os.makedev(0, 53), str(mounts)) == ""
