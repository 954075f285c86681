"""Tell whether all collectives that a profiler session has recorded are over: only then may it end.

torch 2.13 records a collective on the CPU from its call to its end. The end is written by a thread of the backend's, or
by `wait` of a point-to-point operation, into the memory of the session of the call, also when that session has ended
and the memory has been freed: the heap is corrupted (valgrind: invalid write in onFunctionExit, called by
`Work::finish`). The write may come after training went on: DDP waits for the result of a collective, which is there
before its end is recorded. Backends of a device record the end before the call returns.

Two things are read, both without a lock or a collective of our own:

    threads of gloo         each serves a queue of collectives; one that waits for the next is in a futex without a time
                            limit (proc(5), `syscall`), while within a collective the waits have that of the group
    point to point          the work objects of `ProcessGroup.send` and `recv` are noted while a session is on
"""

import contextlib
import functools
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Final

from rankscope.agent.guard import is_of_script
from rankscope.agent.steps.patches import Patch

TASKS: Final = "/proc/self/task"
THREAD_NAME: Final = "pt_gloo_runloop"
"""The name that torch gives gloo's threads, from 2.11 on."""
NAMED_WITHIN_S: Final = 3.0
"""Time for which a thread may be without its name: it gives itself one when it runs for the first time."""
FUTEX_CALLS: Final = {"x86_64": "202", "aarch64": "98"}
"""Number of the system call futex(2) by machine."""
FUTEX_COMMANDS: Final = 0x7F
WAIT, WAIT_BITSET = 0, 9
"""Commands of futex(2) in a wait for a condition: the second from glibc 2.33 on, where the first is one for a lock."""
BITSET_SINCE: Final = (2, 33)
POLL_S: Final = 50e-6
"""Pause between two checks, in which a thread of gloo may have the core and the GIL."""
POINT_TO_POINT: Final = ("send", "recv", "recv_anysource")
SETTLE_S: Final = 2e-3
"""Time for which a step boundary waits until collectives are over. The threads that end them mostly need 0.1 ms; later
than that the session records nothing more, and ends at a later boundary."""
SETTLE_S_MAX: Final = 0.1
"""The same before an evaluation, a fork and the user's profiler."""
SETTLE_S_LAST: Final = 1.0
"""The same where the session must end, since the agent stops: left on it would crash the process at its exit."""
WORKS_MAX: Final = 1024
"""Noted point-to-point operations beyond which those that are over are forgotten."""


class OpenCollectives:
    """What is still to be recorded of collectives on the CPU. For the training thread."""

    def __init__(
        self,
        tasks: str = TASKS,
        machine: str | None = None,
        glibc: str | None = None,
        *,
        find_group_class: Callable[[], Any] | None = None,
        enable_recording: Callable[[bool], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self.has_gloo: Callable[[], bool] = lambda: False
        """Returns whether a process group may communicate on the CPU."""
        self.were_left_out = False
        """Whether sessions had no collectives of the CPU for NAMED_WITHIN_S, since they cannot be watched."""
        self._unwatched_since_s: float | None = None
        self._find_group_class = find_group_class or find_class
        self._enable_recording = enable_recording or enable
        self._paused_thread: int | None = None
        self._patches: list[Patch] = []
        self._tasks = tasks
        self._futex = FUTEX_CALLS.get(machine or os.uname().machine)
        self._wait = WAIT_BITSET if parse_glibc(glibc or find_glibc()) >= BITSET_SINCE else WAIT
        self._threads: dict[str, bool | float] = {}  # whether a thread is gloo's; or when it was seen first
        self._works: list[Callable[[], Any]] = []
        self._works_max = WORKS_MAX

    @property
    def may_be_recorded(self) -> bool:
        """Whether a session may have collectives of the CPU: not where it could not be known when they are over."""
        if not self.has_gloo() or self.can_be_watched:
            self._unwatched_since_s = None
            return True
        now_s = self._monotonic()
        since_s = self._unwatched_since_s = now_s if self._unwatched_since_s is None else self._unwatched_since_s
        self.were_left_out |= now_s - since_s >= NAMED_WITHIN_S  # not while threads only have no name yet
        return False

    @property
    def can_be_watched(self) -> bool:
        """Whether the threads of gloo show whether they wait for a collective. Not so before torch 2.11, which gives
        them no name, on another machine than FUTEX_CALLS has, and where the kernel does not say it.
        """
        gloo = self._find_gloo()
        if not gloo or self._futex is None:
            return False
        calls = (f"{self._tasks}/{thread}" for thread in gloo)
        return all(_read(f"{folder}/syscall") or not os.path.exists(folder) for folder in calls)

    def are_over(self) -> bool:
        """Return whether nothing of the collectives of this process is still to be recorded. True where that cannot be
        known: a session that began before the first group of gloo must end some time.
        """
        return self._are_over(self._find_watched())

    def settle(self, limit_s: float, pause: Callable[[float], None] = time.sleep) -> bool:
        """Wait until they are over, at most `limit_s`, and return whether they are: then the session may end. If not,
        this thread records nothing more of it. Raises what `pause` does.
        """
        end_s = time.monotonic() + limit_s
        threads = self._find_watched()  # once: only this thread makes others, and it waits
        while not (are_over := self._are_over(threads)) and time.monotonic() < end_s:
            pause(POLL_S)
        if not are_over and self._paused_thread is None:
            self._enable_recording(False)
            self._paused_thread = get_ident()
        return are_over

    def begin(self) -> None:
        """Note point-to-point work from now on: a session begins."""
        if not self._patches and (group := self._find_group_class()) is not None:
            self._patches = [Patch(group, name, self._note) for name in POINT_TO_POINT if hasattr(group, name)]
        for patch in self._patches:
            patch.apply()

    def end(self) -> None:
        """Note no more: the session has ended. What has been noted stays until it is over."""
        for patch in self._patches:
            patch.revert()
        if self._paused_thread == get_ident():
            self._paused_thread = None
            self._enable_recording(True)

    def _find_watched(self) -> list[str] | None:
        """Return the threads whose collectives are to be over, None if they cannot be read now."""
        try:
            has_gloo = self.has_gloo()
        except Exception:  # noqa: BLE001 - a change in torch's internals: then the threads decide
            has_gloo = True
        return self._find_gloo() if has_gloo else []

    def _add_work(self, work: Any) -> None:
        self._works.append(weakref.ref(work))
        if len(self._works) > self._works_max:
            self._are_works_over()
            self._works_max = max(WORKS_MAX, 2 * len(self._works))

    def _are_works_over(self) -> bool:
        self._works = [find for find in self._works if is_open(find())]
        return not self._works

    def _are_over(self, threads: Sequence[str] | None) -> bool:
        if not self._are_works_over() or threads is None:
            return False
        return self._futex is None or all(self._is_idle(thread) for thread in threads)

    def _note(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            work = original(*arguments, **named)
            try:
                if self._paused_thread is None and arguments[1][0].device.type == "cpu":
                    self._add_work(work)
            except Exception as error:
                if is_of_script(error):
                    raise
            return work

        return call

    def _find_gloo(self) -> list[str] | None:
        """Return the threads of gloo, None if they cannot be read now. A thread that is new may have no name yet, so it
        is read for a while.
        """
        try:
            threads = os.listdir(self._tasks)
        except FileNotFoundError:
            return []
        except OSError:
            return None
        now_s, known, self._threads = self._monotonic(), self._threads, {}
        for thread in threads:
            state = known.get(thread, now_s)
            if not isinstance(state, bool):
                name = _read(f"{self._tasks}/{thread}/comm").strip()
                is_settled = bool(name) and now_s - state >= NAMED_WITHIN_S
                state = name == THREAD_NAME or (False if is_settled else state)
            self._threads[thread] = state
        return [thread for thread, state in self._threads.items() if state is True]

    def _is_idle(self, thread: str) -> bool:
        """Return whether this thread waits for its next collective, has ended, or cannot be watched."""
        path = f"{self._tasks}/{thread}/syscall"
        call = _read(path)
        if not call.strip():
            return not os.path.exists(path)
        return waits_without_limit(call, self._futex, self._wait)


def waits_without_limit(call: str, futex: str | None, command: int) -> bool:
    """Return whether a `syscall` file of proc(5) shows a wait by futex(2) with this command and without a time limit.

    >>> waits_without_limit("202 0x55ede7af2190 0x189 0x0 0x0 0x0 0xffffffff 0x7ff9afffed10 0x7ff9d6aa3f16", "202", 9)
    True
    >>> waits_without_limit("202 0x7ff9a4009b18 0x189 0x0 0x7ff9afffe240 0x0 0xffffffff 0x7ff9afffe0f0 0x7f", "202", 9)
    False
    >>> waits_without_limit("running", "202", 9)
    False
    """
    number, *arguments = call.split()
    if number != futex:
        return False
    operation, limit = int(arguments[1], 16), int(arguments[3], 16)
    return operation & FUTEX_COMMANDS == command and limit == 0


def is_open(work: Any) -> bool:
    """Return whether this work, if it is still there, is not over."""
    try:
        return work is not None and not work.is_completed()
    except Exception:  # noqa: BLE001 - an error of its backend's: it has ended
        return False


def find_class() -> Any:
    """Return torch's class of process groups; None where the script has none."""
    distributed = sys.modules.get("torch.distributed")
    return distributed.ProcessGroup if distributed is not None and distributed.is_available() else None


def enable(is_on: bool) -> None:  # noqa: FBT001 - as torch's own
    """Let the profiler's sessions record what this thread does, or not; ranges that are open still end."""
    sys.modules["torch"]._C._autograd._enable_record_function(is_on)


def find_glibc() -> str:
    """Return the C library's name and version, "" with another one than glibc."""
    with contextlib.suppress(ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    return ""


def parse_glibc(text: str) -> tuple[int, ...]:
    """Return the version of a C library, () if there is none.

    >>> parse_glibc("glibc 2.36"), parse_glibc("")
    ((2, 36), ())
    """
    numbers = text.rpartition(" ")[2].split(".")
    return tuple(int(number) for number in numbers if number.isdigit())


def _read(path: str) -> str:
    """Return the content of a small file, "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
