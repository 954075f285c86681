"""What each kind of fault does to a process, by what the kernel and Python say of that process."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from rankscope.agent.fault_spec import parse_fault
from rankscope.agent.faults.actions import CHURN_BYTES, HOGS, Actions

MS = 40
NS = MS * 1_000_000
DEADLINE_S = 300.0


def actions_of(kind: str, words: str = "") -> Actions:
    return Actions(parse_fault(f"rank=0 steps=0:0 kind={kind} {words}"))


@contextlib.contextmanager
def process_that_acts(kind: str, words: str = "", then: str = "") -> Iterator["subprocess.Popen[str]"]:
    """A Python process that does this fault once, and after it `then`."""
    code = (
        "from rankscope.agent.fault_spec import parse_fault; from rankscope.agent.faults.actions import Actions\n"
        f"actions = Actions(parse_fault('rank=0 steps=0:0 kind={kind} {words}')); actions.act()\n{then}"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with child:
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("kind", ["host_sleep", "loader_delay", "hang"])
def test_a_sleep_takes_its_time_and_no_cpu(kind: str) -> None:
    begin_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
    actions_of(kind, f"ms={MS}").act()
    assert time.monotonic_ns() - begin_ns >= NS
    assert time.thread_time_ns() - cpu_ns < NS / 2


def test_a_spin_computes_on_another_thread_while_this_one_waits() -> None:
    actions = actions_of("gil_spin", f"ms={MS}")
    actions.act()  # learns how fast sums are
    begin_ns, all_ns, mine_ns = time.monotonic_ns(), time.process_time_ns(), time.thread_time_ns()
    actions.act()
    mine_ns, all_ns = time.thread_time_ns() - mine_ns, time.process_time_ns() - all_ns
    assert time.monotonic_ns() - begin_ns >= NS / 4
    assert all_ns - mine_ns >= NS / 4, "sums may be faster now than when they were measured, not four times"
    assert mine_ns < NS / 4


def test_collections_last_as_long_as_ordered() -> None:
    begun_ns, paused_ns = 0, 0

    def on_collection(phase: str, _: dict[str, int]) -> None:
        nonlocal begun_ns, paused_ns
        if phase == "start":
            begun_ns = time.monotonic_ns()
        else:
            paused_ns += time.monotonic_ns() - begun_ns

    gc.callbacks.append(on_collection)
    try:
        actions_of("garbage_collection", f"ms={MS}").act()
    finally:
        gc.callbacks.remove(on_collection)
    assert paused_ns >= 0.9 * NS  # the calls of the callbacks are not in it


def test_churn_maps_new_pages_and_keeps_none() -> None:
    # In a process of its own: threads of other tests allocate and free in this one meanwhile.
    then = (
        "import psutil, resource\n"
        "def look(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt, psutil.Process().memory_info().rss\n"
        "before = look(); actions.act(); print(*(now - then for now, then in zip(look(), before)))"
    )
    with process_that_acts("allocation_churn", f"ms={MS}", then) as child:
        page_faults, kept_bytes = map(int, child.communicate(timeout=DEADLINE_S)[0].split())
    assert page_faults > 0
    assert kept_bytes < CHURN_BYTES


def test_hogs_share_one_core_with_this_thread_until_the_end() -> None:
    before, others = os.sched_getaffinity(0), set(psutil.Process().children())  # a process pool of another test
    actions = actions_of("cpu_hog")
    try:
        actions.act()
        actions.act()
        (core,) = os.sched_getaffinity(0)
        hogs = set(psutil.Process().children()) - others
        assert len(hogs) == HOGS
        wait_until(lambda: all(hog.cpu_affinity() == [core] for hog in hogs))
    finally:
        actions.end()
    assert os.sched_getaffinity(0) == before
    assert not any(hog.is_running() for hog in hogs)
    actions.end()


def test_hogs_end_with_the_process_that_started_them() -> None:
    then = "import os, psutil; print(*(p.pid for p in psutil.Process().children()), flush=True); os._exit(0)"
    with process_that_acts("cpu_hog", then=then) as child:
        pids = [int(word) for word in child.communicate(timeout=DEADLINE_S)[0].split()]
    assert len(pids) == HOGS
    wait_until(lambda: not any(map(psutil.pid_exists, pids)))


def test_a_stopped_process_continues_by_itself() -> None:
    with process_that_acts("sigstop", "ms=300", "print('went on')") as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert os.WSTOPSIG(status) == signal.SIGSTOP
        output, _ = child.communicate(timeout=DEADLINE_S)
    assert (output, child.returncode) == ("went on\n", 0)


@pytest.mark.parametrize(("kind", "code"), [("exit", 3), ("crash", -signal.SIGSEGV)])
def test_a_process_ends_as_ordered(kind: str, code: int) -> None:
    with process_that_acts(kind, then="print('still here')") as child:
        output, _ = child.communicate(timeout=DEADLINE_S)
    assert (output, child.returncode) == ("", code)


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; fail after the deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.01)
