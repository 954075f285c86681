"""What ends a session on its own thread: the end of the thread, or the next call there of what trains."""

import _thread
import ctypes
import os
import threading
from collections.abc import Callable

import pytest
import torch
from torch.optim import optimizer as optimizers

from rankscope.agent.profiler.session_thread import NextCall, ThreadEnds

DEADLINE_S = 60.0


def run_by_threading(body: Callable[[], object]) -> None:
    thread = threading.Thread(target=body)
    thread.start()
    thread.join(DEADLINE_S)


def run_raw(body: Callable[[], object]) -> None:
    _thread.start_new_thread(body, ())


def run_in_c(body: Callable[[], object]) -> None:
    library, thread = ctypes.CDLL(None), ctypes.c_ulong()
    call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: body() and None)
    library.pthread_create(ctypes.byref(thread), None, call, None)
    library.pthread_join(thread, None)


@pytest.mark.parametrize("run", [run_by_threading, run_raw, run_in_c])
def test_action_is_called_once_on_the_thread_that_ends(run: Callable[[Callable[[], object]], None]) -> None:
    threads: list[int] = []
    called: list[int] = []
    is_called = threading.Event()

    def note() -> None:
        called.append(threading.get_ident())
        is_called.set()

    ends = ThreadEnds(note)

    def body() -> None:
        threads.append(threading.get_ident())
        ends.watch()
        ends.watch()
        assert called == []

    run(body)
    assert is_called.wait(DEADLINE_S)
    assert called == threads


def test_action_is_called_before_join_returns() -> None:
    called: list[int] = []
    ends = ThreadEnds(lambda: called.append(1))
    run_by_threading(ends.watch)
    assert called == [1]


def test_action_is_not_called_in_a_forked_child() -> None:
    called: list[int] = []
    ends, may_end, is_watched = ThreadEnds(lambda: called.append(1)), threading.Event(), threading.Event()

    def body() -> None:
        ends.watch()
        is_watched.set()
        may_end.wait(DEADLINE_S)

    thread = threading.Thread(target=body)
    thread.start()
    is_watched.wait(DEADLINE_S)
    child = os.fork()  # which frees what the thread had
    if not child:
        os._exit(len(called))
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    thread.join(DEADLINE_S)
    assert called == [1]


def test_main_thread_is_not_watched_even_renumbered_by_gevent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[int] = []
    ends = ThreadEnds(lambda: called.append(1))
    monkeypatch.setattr(threading.main_thread(), "_ident", 1)
    ends.watch()
    del ends
    assert called == []


def backward() -> None:
    torch.ones(1, requires_grad=True).sum().backward()


def fetch() -> None:
    next(iter(torch.utils.data.DataLoader([1])))  # type: ignore[arg-type]


def test_question_leaves_running_hooks_of_optimizers_unchanged() -> None:
    before = dict(optimizers._global_optimizer_pre_hooks)
    next_call = NextCall(0, lambda: None)
    next_call.install()
    assert dict(optimizers._global_optimizer_pre_hooks) == before
    next_call.remove()


@pytest.mark.parametrize("call", [backward, fetch])
def test_next_call_on_that_thread_runs_the_action_once(call: Callable[[], object]) -> None:
    originals = torch.autograd.Variable._execution_engine, torch.utils.data.dataloader._BaseDataLoaderIter.__next__
    called: list[int] = []
    asks, is_asked = threading.Event(), threading.Event()

    def body() -> None:
        asks.set()
        is_asked.wait(DEADLINE_S)
        call()
        call()

    thread = threading.Thread(target=body)
    thread.start()
    asks.wait(DEADLINE_S)
    next_call = NextCall(thread.ident or 0, lambda: called.append(threading.get_ident()))
    next_call.install()
    call()  # on this thread
    assert called == []
    is_asked.set()
    thread.join(DEADLINE_S)
    assert called == [thread.ident]
    assert originals == (
        torch.autograd.Variable._execution_engine,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )
