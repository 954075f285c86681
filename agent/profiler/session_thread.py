"""Ends a session of torch's profiler on the thread that has begun it: no other one can.

A session belongs to its thread. torch 2.13 also keeps a pointer to it, which the exit of the process destroys: where
the thread had ended before, or is the main one, that writes a line by what is gone by then (SIGSEGV in
ProfilerStateBase::~ProfilerStateBase). A thread that is still there at the exit does no harm, so its session is left.

    a thread ends           Python then frees what `threading.local` holds for it, on that thread: one of `threading`,
                            of `_thread`, or one of C that calls Python. join() returns later, exit handlers run later.
    another thread asks     the thread meets the question when it next begins a backward or fetches a batch. Not in a
                            hook of optimizers: another thread may be going through these, which would raise there
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Any

from rankscope.agent.steps.patches import EnginePatch, Patch


class ThreadEnds:
    """Calls `action`, which must not raise, on each watched thread when that ends."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._of_thread = threading.local()
        self._main = main_thread().ident  # as it is now: gevent, patched later, gives the main thread another one

    def watch(self) -> None:
        """Watch the calling thread, unless it is the main one: the process ends with it."""
        if not hasattr(self._of_thread, "end"):
            self._of_thread.end = None if get_ident() == self._main else _End(self._action)


class _End:
    """Freed when its thread ends; in a forked child, and when the interpreter ends, by another thread."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action
        self._place = os.getpid(), get_ident()

    def __del__(self) -> None:
        if (os.getpid(), get_ident()) == self._place:
            self._action()


class NextCall:
    """Calls `action` once on another thread, when that calls what trains. It may raise only what is the script's."""

    def __init__(self, thread: int, action: Callable[[], object]) -> None:
        self._thread = thread
        self._action = action
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin to wait for the call. Raises the error of a torch that lacks one of these functions."""
        import torch.utils.data.dataloader as loader  # noqa: PLC0415 - the user's torch

        for patch in (EnginePatch(self._wrap), Patch(loader._BaseDataLoaderIter, "__next__", self._wrap)):
            patch.apply()
            self._undo.append(patch.revert)

    def remove(self) -> None:
        """Restore torch. Any thread."""
        with contextlib.suppress(IndexError):  # another one restores it, too
            while self._undo:
                self._undo.pop()()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*arguments: Any, **named: Any) -> Any:
            self._look()
            return original(*arguments, **named)

        return call

    def _look(self) -> None:
        if self._undo and get_ident() == self._thread:
            self.remove()
            self._action()
