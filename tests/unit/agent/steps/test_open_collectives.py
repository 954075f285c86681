"""A profiler session ends only when the collectives in it are over, as torch itself has it."""

import contextlib
import errno
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed

from rankscope.agent.steps.open_collectives import WORKS_MAX, OpenCollectives, enable, find_class

IDLE = "202 0x55ede7af2190 0x189 0x0 0x0 0x0 0xffffffff 0x7ff9afffed10 0x7ff9d6aa3f16"
IN_COLLECTIVE = "202 0x7ff9a4009b18 0x189 0x0 0x7ff9afffe240 0x0 0xffffffff 0x7ff9afffe0f0 0x7ff9d6aa3f16"
BEHIND_LOCK = "202 0x7ff9a4009b18 0x80 0x2 0x0 0x0 0xffffffff 0x7ff9afffe0f0 0x7ff9d6aa3f16"
GLIBC = "glibc 2.36"
LONG_S = 30.0


# -- torch -------------------------------------------------------------------------------------------------------------


def test_torchs_class_of_groups_is_found_and_recording_switched() -> None:
    assert find_class() is torch.distributed.ProcessGroup
    with torch.profiler.profile() as session:
        enable(False)
        torch.ones(2).add(1)
        enable(True)
        torch.ones(2).mul(2)
    names = {event.name for event in session.events()}
    assert "aten::mul" in names
    assert "aten::add" not in names


def test_script_without_process_groups_has_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    assert find_class() is None


# -- point to point ---------------------------------------------------------------------------------------------------


class Work:
    """Work as torch has it."""

    def __init__(self) -> None:
        self.is_done = False

    def is_completed(self) -> bool:
        return self.is_done


class Group:
    """A group whose receives return work, and whose sends return what cannot be referred to weakly."""

    def recv(self, _tensors: object) -> Work:
        return Work()

    def send(self, _tensors: object) -> object:
        return 7


@pytest.fixture
def points(tmp_path: Path) -> OpenCollectives:
    return OpenCollectives(str(tmp_path), find_group_class=lambda: Group, enable_recording=lambda _is_on: None)


def test_receive_of_a_session_is_open_until_it_is_waited_for(points: OpenCollectives) -> None:
    plain = Group.recv
    points.begin()
    assert Group.recv is not plain
    work = Group().recv([torch.ones(1)])
    assert Group().send([torch.ones(1)]) == 7
    points.end()
    assert Group.recv is plain
    assert not points.are_over()
    work.is_done = True
    assert points.are_over()


def test_receive_that_is_dropped_is_over(points: OpenCollectives) -> None:
    points.begin()
    Group().recv([torch.ones(1)])
    points.end()
    assert points.are_over()


def test_receive_outside_of_sessions_does_not_count(points: OpenCollectives) -> None:
    points.begin()
    points.end()
    work = Group().recv([torch.ones(1)])
    assert points.are_over()
    assert not work.is_completed()


def test_receives_on_devices_and_other_groups_do_not_count(points: OpenCollectives) -> None:
    points.begin()
    kept = Group().recv([torch.ones(1, device="meta")]), Group().recv([]), Group().recv(7)
    points.end()
    assert points.are_over()
    assert not any(work.is_completed() for work in kept)


def test_receive_after_the_pause_does_not_count(points: OpenCollectives) -> None:
    points.begin()
    first = Group().recv([torch.ones(1)])
    assert not points.settle(0.0)
    later = Group().recv([torch.ones(1)])
    first.is_done = True
    assert points.settle(0.0)
    points.end()
    assert not later.is_completed()


def test_receive_that_has_failed_is_over(points: OpenCollectives) -> None:
    class Failed(Work):
        def is_completed(self) -> bool:
            raise RuntimeError("the peer has gone")

    points.begin()
    points._add_work(work := Failed())
    assert points.are_over()
    points.end()
    with pytest.raises(RuntimeError):
        work.is_completed()


def test_what_is_over_is_forgotten_within_a_long_session(points: OpenCollectives) -> None:
    points.begin()
    kept = [Group().recv([torch.ones(1)]) for _ in range(WORKS_MAX)]
    for work in kept:
        work.is_done = True
    latest = Group().recv([torch.ones(1)])
    points.end()
    assert len(points._works) == 1
    assert not points.are_over()
    latest.is_done = True
    assert points.are_over()


# -- threads ----------------------------------------------------------------------------------------------------------


class Threads:
    """A folder as /proc/self/task."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def show(self, thread: int, name: str, call: str) -> None:
        (self.folder / str(thread)).mkdir(exist_ok=True)
        (self.folder / str(thread) / "comm").write_text(name + "\n")
        (self.folder / str(thread) / "syscall").write_text(call + "\n")

    def watch(self, *, machine: str = "x86_64", glibc: str = GLIBC, **more: Any) -> OpenCollectives:
        given = {"enable_recording": lambda _is_on: None, **more}  # else nothing in this process would be recorded
        collectives = OpenCollectives(str(self.folder), machine, glibc, **given)
        collectives.has_gloo = lambda: True
        return collectives


@pytest.fixture
def threads(tmp_path: Path) -> Threads:
    return Threads(tmp_path)


@pytest.mark.parametrize(
    ("call", "is_over"),
    [(IDLE, True), (IN_COLLECTIVE, False), (BEHIND_LOCK, False), ("running", False), ("0 0x3 0x0", False), ("", False)],
)
def test_thread_is_over_only_when_it_awaits_its_next_collective(threads: Threads, call: str, is_over: bool) -> None:
    threads.show(1, "python", "running")
    threads.show(2, "pt_gloo_runloop", IDLE)
    threads.show(3, "pt_gloo_runloop", call)
    assert threads.watch().are_over() is is_over


def test_older_c_library_waits_by_another_command(threads: Threads) -> None:
    threads.show(2, "pt_gloo_runloop", IDLE.replace("0x189", "0x80"))
    assert threads.watch(glibc="glibc 2.31").are_over()
    assert not threads.watch(glibc=GLIBC).are_over()


def test_other_machine_has_another_number(threads: Threads) -> None:
    threads.show(2, "pt_gloo_runloop", IDLE.replace("202", "98"))
    assert threads.watch(machine="aarch64").are_over()


@pytest.mark.parametrize(("named_after_s", "is_seen"), [(0.0, True), (2.0, True), (4.0, False)])
def test_thread_that_gets_its_name_later_is_seen(threads: Threads, named_after_s: float, *, is_seen: bool) -> None:
    now_s = [100.0]
    threads.show(2, "python", "running")
    collectives = threads.watch(monotonic=lambda: now_s[0])
    assert collectives.are_over()
    now_s[0] += named_after_s
    assert collectives.are_over()
    assert collectives.are_over()
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    assert collectives.are_over() is not is_seen


def test_thread_that_has_ended_is_over(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    collectives = threads.watch()
    assert not collectives.are_over()
    names = ["2"]
    (threads.folder / "2" / "comm").unlink()
    (threads.folder / "2" / "syscall").unlink()
    (threads.folder / "2").rmdir()
    monkeypatch.setattr("os.listdir", lambda _folder: names)  # it ends between the two reads
    assert collectives.are_over()


@pytest.mark.parametrize(
    ("name", "machine", "call", "can_be_watched"),
    [
        ("pt_gloo_runloop", "x86_64", IDLE, True),
        ("pt_gloo_runloop", "riscv64", IDLE, False),
        ("pt_gloo_runloop", "x86_64", "", False),
        ("python", "x86_64", IDLE, False),
    ],
)
def test_threads_with_a_name_and_a_shown_call_can_be_watched(
    threads: Threads, name: str, machine: str, call: str, can_be_watched: bool
) -> None:
    threads.show(2, name, call)
    if not call:
        (threads.folder / "2" / "syscall").unlink()
    assert threads.watch(machine=machine).can_be_watched is can_be_watched


def test_without_proc_nothing_can_be_watched(tmp_path: Path) -> None:
    now_s = [100.0]
    collectives = Threads(tmp_path / "none").watch(monotonic=lambda: now_s[0])
    assert not collectives.can_be_watched
    assert not collectives.may_be_recorded
    assert not collectives.were_left_out  # threads of a new group may only have no name yet
    now_s[0] += 5.0
    assert not collectives.may_be_recorded
    assert collectives.were_left_out
    assert collectives.are_over()


def test_session_begun_before_unwatchable_threads_ends(threads: Threads) -> None:
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    assert threads.watch(machine="riscv64").settle(LONG_S)
    (threads.folder / "2" / "syscall").unlink()
    assert threads.watch().settle(LONG_S)


def test_threads_that_cannot_be_listed_now_are_not_over(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_folder: str) -> list[str]:
        raise OSError(errno.EMFILE, "Too many open files")

    threads.show(2, "pt_gloo_runloop", IDLE)
    collectives = threads.watch()
    assert collectives.are_over()
    monkeypatch.setattr("os.listdir", refuse)
    assert not collectives.are_over()
    assert not collectives.can_be_watched


def test_name_that_cannot_be_read_is_read_again(threads: Threads) -> None:
    now_s = [100.0]
    threads.show(2, "", "running")
    collectives = threads.watch(monotonic=lambda: now_s[0])
    for _ in range(3):
        assert collectives.are_over()
        now_s[0] += 10.0
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    assert not collectives.are_over()


def test_where_groups_cannot_be_read_the_threads_decide(threads: Threads) -> None:
    def refuse() -> bool:
        raise RuntimeError("no pg_map here")

    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    collectives = threads.watch()
    collectives.has_gloo = refuse
    assert not collectives.settle(0.0)


def test_process_without_gloo_reads_no_thread(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    collectives = threads.watch()
    collectives.has_gloo = lambda: False
    monkeypatch.setattr("os.listdir", lambda _folder: pytest.fail("read"))
    assert collectives.are_over()
    assert collectives.settle(LONG_S)
    assert collectives.may_be_recorded


# -- a pause ----------------------------------------------------------------------------------------------------------


def test_session_that_may_not_end_stops_recording_until_it_may(threads: Threads) -> None:
    switched: list[bool] = []
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)
    collectives = threads.watch(find_group_class=lambda: None, enable_recording=switched.append)
    collectives.begin()
    slept: list[float] = []
    assert not collectives.settle(1e-6, slept.append)
    assert not collectives.settle(1e-6, slept.append)
    assert switched == [False]
    other = threading.Thread(target=collectives.end)  # the end of another thread's session
    other.start()
    other.join()
    assert switched == [False]
    threads.show(2, "pt_gloo_runloop", IDLE)
    assert collectives.settle(1e-6, slept.append)
    collectives.end()
    collectives.end()
    assert switched == [False, True]


def test_what_interrupts_the_wait_reaches_the_caller(threads: Threads) -> None:
    threads.show(2, "pt_gloo_runloop", IN_COLLECTIVE)

    def pause(_seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), contextlib.suppress(OSError):
        threads.watch().settle(LONG_S, pause)
