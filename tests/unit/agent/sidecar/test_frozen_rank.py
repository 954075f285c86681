"""Tests of reading thread states, from a fake /proc and from this process."""

import os
import threading
from pathlib import Path

from rankscope.agent.sidecar.frozen_rank import THREADS_MAX, read_threads

PID = 4711
HERTZ = os.sysconf("SC_CLK_TCK")


def write_thread(
    folder: Path, number: int, *, name: str = "python", state: str = "S", ticks: int = 0, **files: str
) -> None:
    place = folder / str(PID) / "task" / str(number)
    place.mkdir(parents=True)
    fields = [state, *["0"] * 10, str(ticks), str(ticks), *["0"] * 37]
    (place / "stat").write_text(f"{number} ({name}) {' '.join(fields)}\n")
    for file, text in files.items():
        (place / file).write_text(text)


def test_thread_has_state_wait_channel_and_cpu_time(tmp_path: Path) -> None:
    write_thread(tmp_path, PID, state="D", ticks=HERTZ, wchan="nfs_wait", syscall="0 0x3 0x7f 0x1000 0 0 0 0x7ffc 0x7f")
    view = read_threads(PID, str(tmp_path))
    (thread,) = view.threads
    assert (view.state, thread.state, thread.name) == ("D", "D", "python")
    # read(2) is system call 0; user and system time are one second each.
    assert (thread.wait_channel, thread.system_call, thread.cpu_ns) == ("nfs_wait", 0, 2_000_000_000)


def test_hidden_wait_channel_is_none(tmp_path: Path) -> None:
    write_thread(tmp_path, PID, state="R", wchan="0", syscall="running\n")
    write_thread(tmp_path, PID + 1)
    for thread in read_threads(PID, str(tmp_path)).threads:
        assert (thread.wait_channel, thread.system_call) == (None, None)


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    write_thread(tmp_path, PID, name="a) R (b")
    (thread,) = read_threads(PID, str(tmp_path)).threads
    assert (thread.name, thread.state) == ("a) R (b", "S")


def test_main_thread_first_then_those_not_sleeping(tmp_path: Path) -> None:
    for number in range(THREADS_MAX + 9):
        write_thread(tmp_path, PID + number, state="R" if number == THREADS_MAX + 8 else "S")
    view = read_threads(PID, str(tmp_path))
    assert [thread.thread for thread in view.threads[:3]] == [PID, PID + THREADS_MAX + 8, PID + 1]
    assert (len(view.threads), view.left_out) == (THREADS_MAX, 9)


def test_a_process_that_is_gone_has_no_threads(tmp_path: Path) -> None:
    assert read_threads(PID, str(tmp_path)) == ("", (), 0)


def test_this_process_shows_its_threads() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="waits")
    thread.start()
    try:
        view = read_threads(os.getpid())
    finally:
        release.set()
        thread.join()
    assert view.threads[0].thread == os.getpid()
    assert thread.native_id in {found.thread for found in view.threads}
