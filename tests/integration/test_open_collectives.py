"""Collectives of two members of a real group, both in this process, and sessions of torch's profiler around them."""

import datetime as dt
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from rankscope.agent.profiler.torch_profiler import TorchProfiler
from rankscope.agent.shutdown.torch_threads import drain_gloo_threads
from rankscope.agent.steps.open_collectives import OpenCollectives
from rankscope.agent.steps.open_ranges import OpenRanges

LONG_S = 30.0


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    """Two members of a group, both in this process."""
    store, members = HashStore(), list[Any]([None, None])

    def join(rank: int) -> None:
        members[rank] = ProcessGroupGloo(store, rank, 2, dt.timedelta(seconds=60))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while not OpenCollectives().can_be_watched:  # a thread names itself when it runs for the first time
        time.sleep(0.001)
    yield members
    drain_gloo_threads()
    members.clear()


@pytest.fixture
def profiler() -> TorchProfiler:
    """torch's profiler, with what it is given in an agent."""
    ranges = OpenRanges()
    ranges.collectives.has_gloo = lambda: True
    return TorchProfiler.find(ranges)


def names_of(session: Any) -> list[str]:
    return [activity.name() for activity in session.trace_activities()]


def test_session_waits_for_a_collective_a_peer_has_not_joined(pair: list[Any], profiler: TorchProfiler) -> None:
    profiler.start(full=False)
    begin_ns = time.perf_counter_ns()
    work = pair[0].allreduce([torch.ones(4)])
    assert not profiler.settle(0.01)
    with torch.profiler.record_function("after the window"):
        assert not profiler.settle(0.01)
    pair[1].allreduce([torch.ones(4)])  # while nothing is recorded
    work.wait()
    lasted_ns = time.perf_counter_ns() - begin_ns
    assert profiler.settle(LONG_S)
    (recorded,) = profiler.stop().trace_activities()
    assert recorded.name() == "gloo:all_reduce"
    assert 5e6 < recorded.duration() < lasted_ns + 100e6  # two waits of 10 ms, by a clock that torch approximates
    profiler.start(full=False)
    with torch.profiler.record_function("recorded again"):
        pass
    assert names_of(profiler.stop()) == ["recorded again"]


def test_recorded_end_is_waited_for_beyond_the_result(pair: list[Any], profiler: TorchProfiler) -> None:
    # As DDP waits: for the future alone. By `is_completed`, which torch answers under the lock of the end, it is over.
    for _ in range(300):
        profiler.start(full=False)
        works = [member.allreduce([torch.ones(4)]) for member in pair]
        for work in works:
            work.get_future().wait()
        assert profiler.settle(LONG_S)
        assert all(work.is_completed() for work in works)
        assert names_of(profiler.stop()) == ["gloo:all_reduce"] * 2


def test_consecutive_sessions_have_their_own_collectives(pair: list[Any], profiler: TorchProfiler) -> None:
    for name in ("broadcast", "allreduce"):
        profiler.start(full=False)
        for member in pair:
            getattr(member, name)([torch.ones(4)])
        assert profiler.settle(LONG_S)
        assert len(names_of(profiler.stop())) == 2


def test_where_gloo_cannot_be_watched_no_session_has_collectives(pair: list[Any]) -> None:
    ranges = OpenRanges()
    ranges.collectives = OpenCollectives(machine="riscv64")
    ranges.collectives.has_gloo = lambda: True
    profiler = TorchProfiler.find(ranges)
    with pytest.raises(RuntimeError, match="corrupt"):
        profiler.start(full=False)
    profiler.start(full=True)
    for member in pair:
        member.allreduce([torch.ones(4)])
    names = names_of(profiler.stop())
    assert "aten::ones" in names
    assert not any(name.startswith("gloo") for name in names)
