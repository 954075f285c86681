"""Ranks that meet in a store, in threads; and processes that are ended from outside."""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed

from rankscope.agent.preflight.meeting import IncompleteError, Meeting

DEADLINE_S = 300.0


def meet(store: Any, ranks: list[int], world_size: int, call: Callable[[Meeting, int], str]) -> list[Any]:
    """Return what each rank returns, or the error that it raises."""

    def run(rank: int) -> Any:
        try:
            return call(Meeting(store, rank, world_size, 1.0), rank)
        except IncompleteError as error:
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks, timeout=DEADLINE_S))


def make_store() -> Any:
    distributed: Any = torch.distributed
    return distributed.HashStore()


def test_rank_0_answers_all_with_what_all_have() -> None:
    answers = meet(make_store(), [0, 1, 2], 3, lambda meeting, rank: meeting.exchange("join", str(rank), "-".join))
    assert answers == ["0-1-2"] * 3


def test_missing_rank_is_named_to_everybody() -> None:
    def join(meeting: Meeting, rank: int) -> str:
        meeting.names = [f"rank {number} (node-{number})" for number in range(4)]
        return meeting.exchange("join", str(rank), "-".join)

    errors = meet(make_store(), [0, 2], 4, join)
    text = "rank 1 (node-1), rank 3 (node-3) did not answer within 1 s at join"
    assert [str(error) for error in errors] == [text, text]


def test_missing_rank_0_is_named() -> None:
    (error,) = meet(make_store(), [1], 2, lambda meeting, _: meeting.exchange("join", "", "".join))
    assert str(error) == "rank 0 did not answer within 2 s at join"


def test_of_many_missing_ranks_eight_are_named() -> None:
    (error,) = meet(make_store(), [0], 64, lambda meeting, _: meeting.exchange("join", "", "".join))
    assert str(error).endswith("rank 8 and 55 others did not answer within 1 s at join")


def test_store_that_is_gone_is_said() -> None:
    class Gone:
        def __getattr__(self, _name: str) -> Callable[..., None]:
            return self._fail

        def _fail(self, *_: object) -> None:
            raise RuntimeError("Connection reset by peer\nException raised from ...")

    with pytest.raises(IncompleteError, match=r"is gone at join: Connection reset by peer$"):
        Meeting(Gone(), 1, 2, 1.0).exchange("join", "", "".join)
    Meeting(Gone(), 1, 2, 1.0).leave()  # raises nothing


def test_rank_0_leaves_last() -> None:
    store = make_store()

    def leave(meeting: Meeting, _: int) -> str:
        meeting.leave()
        return ""

    meet(store, [0, 1], 2, leave)
    store.wait(["all_left"], timedelta(seconds=1))


WAITING = """
import sys, threading
from rankscope.agent.preflight.ending import DeadlineWatch, block_sigterm
block_sigterm()
watch = DeadlineWatch(lambda text: print(text, flush=True), float(sys.argv[1]), 3)
watch.stage = "memory"
watch.start()
print("ready", flush=True)
import ctypes
ctypes.CDLL(None).pause()  # as inside torch: the main thread runs no Python
"""


def run_waiting(limit_s: str, sent: signal.Signals | None) -> tuple[int, str]:
    with subprocess.Popen([sys.executable, "-c", WAITING, limit_s], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if sent is not None:
            process.send_signal(sent)
        rest, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, rest


def test_sigterm_inside_a_library_ends_with_a_sentence() -> None:
    text = "ended by SIGTERM at memory: the launcher sends it when another rank has failed\n"
    assert run_waiting("60", signal.SIGTERM) == (3, text)


def test_deadline_inside_a_library_ends_with_a_sentence() -> None:
    assert run_waiting("0", None) == (3, "not over 0 s later, at memory: ended\n")
