"""HostTransfers: sends and receives on a stand-in of torch's process groups, and on torch itself."""

import threading
import weakref
from time import monotonic_ns
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankscope.agent.guard import Guard
from rankscope.agent.steps.host_transfers import (
    FINISHED_MAX,
    PART,
    TRANSFER_NS,
    WAIT_NS,
    WORKS_MAX,
    HostTransfers,
    WaitedTransfer,
)

FLOATS = torch.ones(10)


def make_c10d() -> Any:
    """A module with classes of its own, which may be patched."""

    class Work:
        """A transfer that has begun; waiting for it returns the timeout, or raises."""

        error: Exception | None = None

        def wait(self, timeout: int = 0) -> int:
            if self.error is not None:
                raise self.error
            return timeout

    class ProcessGroup:
        group_name = "5"

        def send(self, _tensors: Any, dstRank: int, _tag: int = 0) -> Work:  # noqa: ARG002, N803 - torch's name
            return Work()

        def recv(self, _tensors: Any, srcRank: int, _tag: int = 0) -> Work:  # noqa: ARG002, N803
            return Work()

        def recv_anysource(self, _tensors: Any, _tag: int = 0) -> Work:
            return Work()

    return SimpleNamespace(ProcessGroup=ProcessGroup, Work=Work)


class Process:
    """A process in which transfers are recorded."""

    def __init__(self) -> None:
        self.guard = Guard(error_budget=100)
        self.transfers = HostTransfers(self.guard, lambda: self.thread)
        self.thread: int | None = None
        self.before_ns = monotonic_ns()
        self.c10d = make_c10d()
        self.transfers.install(self.c10d)
        self.group = self.c10d.ProcessGroup()
        self.from_ns = monotonic_ns()

    def find(self) -> list[WaitedTransfer]:
        found = self.transfers.find_between(self.from_ns, monotonic_ns())
        assert found is not None
        return found


def test_transfer_is_recorded_when_it_was_waited_for() -> None:
    process = Process()
    sent, received = process.group.send([FLOATS], 2, 7), process.group.recv([FLOATS], srcRank=1)
    anything = process.group.recv_anysource([FLOATS], 0)
    assert process.find() == []
    for work in (received, sent, anything):
        assert work.wait(3) == 3
        assert work.wait(3) == 3, "a second wait is for nothing"
    found = process.find()
    assert [(one.transfer.op, one.transfer.group, one.transfer.peer, one.transfer.bytes) for one in found] == [
        ("recv", "5", 1, 40), ("send", "5", 2, 40), ("recvAnySource", "5", None, 40),  # 10 floats of 4 bytes
    ]  # fmt: skip
    for one in found:
        assert process.from_ns <= one.transfer.start_host_ns <= one.wait_host_ns <= one.end_host_ns
    assert process.transfers.spent_ns == 3 * TRANSFER_NS + 6 * WAIT_NS


def test_error_of_a_wait_is_the_scripts_and_its_time_counts() -> None:
    process = Process()
    work = process.group.recv([FLOATS], 1)
    work.error = RuntimeError("connection closed by peer")
    with pytest.raises(RuntimeError, match="connection closed by peer"):
        work.wait()
    assert len(process.find()) == 1


def test_transfer_of_a_device_is_not_recorded() -> None:
    process = Process()
    process.group.send([SimpleNamespace(is_cpu=False)], 1).wait()
    assert (process.find(), process.guard.errors) == ([], {})


def test_call_that_is_not_understood_is_made_and_counted() -> None:
    process = Process()
    assert process.group.send("no tensors", dstRank=1).wait() == 0
    assert (process.find(), process.guard.errors) == ([], {PART: 1})


def test_works_that_nobody_waits_for_are_forgotten() -> None:
    process = Process()
    works = process.transfers._works
    process.group.send([FLOATS], 1)
    (gone,) = works.values()
    works.clear()
    works.update((-number, gone) for number in range(1, WORKS_MAX + 1))
    process.group.send([FLOATS], 1).wait()
    assert (len(works), -1 in works) == (WORKS_MAX - 1, False)
    assert len(process.find()) == 1


def test_works_that_are_kept_in_number_make_their_time_unknown() -> None:
    process = Process()
    works = [process.group.send([FLOATS], 1) for _ in range(WORKS_MAX + 1)]
    for work in works:
        work.wait()
    assert process.transfers.find_between(process.from_ns, monotonic_ns()) is None


def test_wait_for_another_work_at_the_address_is_no_transfer() -> None:
    process = Process()
    address = id(work := process.group.send([FLOATS], 1))
    gone = weakref.ref(work)
    del work
    assert gone() is None
    other = process.c10d.Work()
    process.transfers._works[id(other)] = process.transfers._works.pop(address)
    assert (other.wait(), process.find()) == (0, [])


def test_wait_outside_the_training_thread_is_left_out() -> None:
    process = Process()
    thread = threading.Thread(target=process.group.send([FLOATS], 1).wait)
    thread.start()
    thread.join()
    assert process.find() == []
    process.thread = thread.ident
    assert len(process.find()) == 1
    process.thread = None  # at the end of training
    assert len(process.find()) == 1


def test_transfers_before_and_after_recording_are_unknown() -> None:
    process = Process()
    process.group.send([FLOATS], 1).wait()
    until_ns = monotonic_ns()
    assert process.transfers.find_between(process.before_ns - 1, until_ns) is None
    process.transfers.remove()
    assert len(process.transfers.find_between(process.from_ns, until_ns) or ()) == 1
    assert process.transfers.find_between(process.from_ns, monotonic_ns()) is None


def test_too_many_transfers_for_one_window_are_unknown() -> None:
    process = Process()
    for _ in range(FINISHED_MAX):
        process.group.send([FLOATS], 1).wait()
    now_ns = monotonic_ns()
    assert process.transfers.find_between(process.from_ns, now_ns) is None
    assert process.transfers.find_between(now_ns, now_ns) == []


def test_torch_that_lacks_a_method_is_left_as_it_is() -> None:
    c10d = make_c10d()
    del c10d.Work.wait
    send = c10d.ProcessGroup.send
    transfers = HostTransfers(Guard(error_budget=1))
    transfers.install(c10d)
    assert c10d.ProcessGroup.send is send
    assert transfers.find_between(0, monotonic_ns()) is None


def test_methods_of_torch_are_wrapped_until_removal() -> None:
    work = torch._C._distributed_c10d.Work
    original = work.wait
    transfers = HostTransfers(Guard(error_budget=1))
    transfers.install()
    assert work.wait is not original
    transfers.remove()
    assert work.wait is original
