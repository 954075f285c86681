"""Errors of torch's allocator: what is noted inside the allocation, and what of it is reported."""

import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch

from rankscope.agent.captures.stacks import TEXT_LENGTH_MAX
from rankscope.agent.guard import Guard
from rankscope.agent.sample.model_bytes import ModelBytes
from rankscope.agent.sample.out_of_memory import (
    MODEL_FIELDS,
    NO_HISTORY,
    NO_MODEL,
    NOT_READ,
    NOT_TOLD,
    ONCE,
    PART,
    TOO_MANY,
    OutOfMemoryWatch,
    sum_by_stack,
)
from rankscope.measure.codec import encode
from rankscope.measure.errors import UnavailableError
from rankscope.measure.messages import Report
from rankscope.measure.out_of_memory import ALLOCATIONS_MAX, FRAMES_MAX, NOTICES_MAX, HeldMemory, OutOfMemory
from rankscope.measure.stalls import StackFrame
from rankscope.measure.units import HostNs, WallNs
from tests.cuda_stand_in.allocator import StandInAllocator

GIB = 2**30
MODEL_BYTES = ModelBytes(parameters=14 * GIB, gradients=15 * GIB, optimizer_state=28 * GIB)
ABSENT = dict.fromkeys(("allocated_bytes", "reserved_bytes", "inactive_split_bytes", "held", *MODEL_FIELDS), NOT_TOLD)
ALL_ONCE = dict.fromkeys((*MODEL_FIELDS, "held"), ONCE)
NOTICE_BYTES_MAX = 64 * 1024


class Cuda(StandInAllocator):
    """torch.cuda, which the script initializes after a while."""

    initialized = True

    def is_initialized(self) -> bool:
        return self.initialized


class StillClock:
    def monotonic_ns(self) -> HostNs:
        return HostNs(77)

    def wall_ns(self) -> WallNs:
        return WallNs(0)


class Rank:
    """A watch with what surrounds it; `place` is what the event of an error finds, None: it is never processed."""

    def __init__(self, place: tuple[int | None, str] | None = (412, "forward"), cuda: Any = None) -> None:
        self.cuda: Any = Cuda(device_index=2) if cuda is None else cuda
        self.guard = Guard(3)
        self.model: Callable[[int], ModelBytes | None] = lambda device: MODEL_BYTES if device == 2 else None
        self.watch = OutOfMemoryWatch(StillClock(), self.guard, self.cuda, self._find_model)
        self.woken = 0
        self._is_processed = place is not None
        self.watch.start(self._add_event, lambda: place or (None, ""), self._wake)
        self.watch.attach()

    def _add_event(self, handle: Callable[..., None], now_ns: int, *arguments: object) -> None:
        if self._is_processed:
            handle(now_ns, *arguments)

    def _find_model(self, device: int) -> ModelBytes | None:
        return self.model(device)

    def _wake(self) -> None:
        self.woken += 1

    def run_out(self, asked_bytes: int = 2 * GIB) -> None:
        self.cuda.run_out(asked_bytes, limit_bytes=80 * GIB, free_bytes=GIB)

    def collect(self, *, last: bool = False) -> tuple[OutOfMemory, ...]:
        return self.watch.collect(last=last)


def test_error_is_reported_at_once_with_bytes_step_and_phase() -> None:
    rank = Rank()
    stats = rank.cuda.stats
    stats["allocated_bytes"]["all"].update(current=70 * GIB)
    stats["reserved_bytes"]["all"].update(current=78 * GIB)
    stats["inactive_split_bytes"]["all"].update(current=5 * GIB)
    assert not rank.watch.is_due
    rank.run_out()
    assert (rank.woken, rank.watch.is_due) == (1, True)
    (notice,) = rank.collect()
    assert notice == OutOfMemory(
        number=1, host_ns=77, device=2, asked_bytes=2 * GIB, free_bytes=GIB, limit_bytes=80 * GIB,
        allocated_bytes=70 * GIB, reserved_bytes=78 * GIB, inactive_split_bytes=5 * GIB, step=412, phase="forward",
        absent={"held": NO_HISTORY}, parameters_bytes=14 * GIB, gradients_bytes=15 * GIB,
        optimizer_state_bytes=28 * GIB,
    )  # fmt: skip
    assert (rank.watch.is_due, rank.collect()) == (False, ())


def test_counts_are_those_of_the_error_not_of_the_report() -> None:
    rank = Rank()
    held = rank.cuda.stats["allocated_bytes"]["all"]
    held.update(current=70 * GIB)
    rank.cuda.memory_stats_as_nested_dict = lambda _device: {"allocated_bytes": {"all": dict(held)}}
    rank.run_out()
    held.update(current=0)  # the script has caught the error, and freed everything
    (notice,) = rank.collect()
    assert (notice.allocated_bytes, notice.reserved_bytes) == (70 * GIB, None)
    assert notice.absent["reserved_bytes"] == NOT_TOLD


def test_model_is_read_within_the_first_error_only() -> None:
    rank = Rank()
    rank.run_out()
    rank.model = lambda _device: pytest.fail("it was read again")
    rank.run_out()
    first, second = rank.collect()
    assert first.parameters_bytes == 14 * GIB
    assert (second.parameters_bytes, second.absent) == (None, {**ALL_ONCE})


def test_device_without_a_model_says_so() -> None:
    rank = Rank()
    rank.model = lambda _device: None
    rank.run_out()
    (notice,) = rank.collect()
    assert notice.absent == {**dict.fromkeys(MODEL_FIELDS, NO_MODEL), "held": NO_HISTORY}
    assert (notice.parameters_bytes, notice.gradients_bytes, notice.optimizer_state_bytes) == (None, None, None)


def test_model_that_cannot_be_read_costs_no_notice() -> None:
    rank = Rank()
    rank.model = lambda _device: MODEL_BYTES if 1 // 0 else None
    rank.run_out()
    (notice,) = rank.collect()
    assert {notice.absent[name] for name in MODEL_FIELDS} == {NOT_READ}
    assert rank.guard.errors == {PART: 1}


def test_model_among_too_many_objects_is_no_error() -> None:
    rank = Rank()

    def refuse(_device: int) -> None:
        raise UnavailableError("the process has 10,000,000 objects; at most 5,000,000 are searched")

    rank.model = refuse
    rank.run_out()
    (notice,) = rank.collect()
    assert {notice.absent[name] for name in MODEL_FIELDS} == {TOO_MANY}
    assert rank.guard.errors == {}


def test_error_outside_of_steps_has_none() -> None:
    rank = Rank(place=(None, ""))
    rank.run_out()
    (notice,) = rank.collect()
    assert (notice.step, notice.phase, "step" in notice.absent) == (None, "", False)


def test_error_waits_one_report_for_its_step() -> None:
    rank = Rank(place=None)
    rank.run_out()
    assert (rank.collect(), rank.watch.is_due) == ((), False)
    (notice,) = rank.collect()
    assert (notice.step, notice.absent["step"]) == (None, "not_processed_in_time")


def test_last_report_waits_for_nothing() -> None:
    rank = Rank(place=None)
    rank.run_out()
    assert [notice.number for notice in rank.collect(last=True)] == [1]


def test_newest_of_many_errors_are_reported_and_all_counted() -> None:
    rank = Rank()
    for _ in range(10):
        rank.run_out()
    assert [notice.number for notice in rank.collect()] == [7, 8, 9, 10]
    assert NOTICES_MAX == 4


def test_observer_is_attached_once_and_only_to_initialized_cuda() -> None:
    cuda = Cuda()
    cuda.initialized = False
    rank = Rank(cuda=cuda)
    assert cuda.memory._C.observers == []
    cuda.initialized = True
    rank.watch.attach()
    rank.watch.attach()
    assert len(cuda.memory._C.observers) == 1


def test_stopped_watch_ignores_errors() -> None:
    rank = Rank()
    rank.watch.stop()
    rank.run_out()
    assert (rank.woken, rank.collect()) == (0, ())


def test_watch_that_was_not_started_attaches_nothing() -> None:
    cuda = Cuda()
    OutOfMemoryWatch(StillClock(), Guard(3), cuda).attach()
    assert cuda.memory._C.observers == []


@pytest.mark.parametrize("cuda", [None, object()])
def test_torch_without_observers_is_left_alone(cuda: Any) -> None:
    guard = Guard(3)
    watch = OutOfMemoryWatch(StillClock(), guard, cuda)
    watch.start(lambda *_event: None, lambda: (None, ""), lambda: None)
    watch.attach()
    watch.attach()
    assert (guard.errors, watch.collect(last=True)) == ({}, ())


def test_no_error_of_ours_leaves_the_allocation() -> None:
    rank = Rank()

    def fail(_device: int) -> dict[str, Any]:
        raise RuntimeError("another torch")

    rank.cuda.memory_stats_as_nested_dict = fail
    rank.run_out()
    assert (rank.guard.errors, rank.collect()) == ({PART: 1}, ())


def test_failing_attachment_is_counted_and_not_repeated() -> None:
    cuda = Cuda()

    def refuse(_observer: object) -> None:
        raise RuntimeError("another torch")

    bindings: Any = cuda.memory._C
    bindings._cuda_attach_out_of_memory_observer = refuse
    rank = Rank(cuda=cuda)
    rank.watch.attach()
    assert rank.guard.errors == {PART: 1}


def test_another_allocator_has_no_counts() -> None:
    rank = Rank(cuda=Cuda(device_index=2, backend="cudaMallocAsync"))
    rank.run_out()
    (notice,) = rank.collect()
    assert (notice.allocated_bytes, notice.absent["allocated_bytes"]) == (None, "another_allocator")
    assert (notice.asked_bytes, notice.free_bytes) == (2 * GIB, GIB)


# -- what holds the memory --------------------------------------------------------------------------------------------


def block(size: int, *frames: tuple[str, int, str], state: str = "active_allocated") -> dict[str, Any]:
    told = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return {"size": size, "state": state, "frames": told}


MODEL = ("/me/model.py", 24, "forward")
LOOP = ("/me/train.py", 7, "<module>")


def with_history(*blocks: dict[str, Any]) -> Rank:
    rank = Rank()
    rank.cuda.memory._C.records_history = True
    rank.cuda.segments = [{"device": 2, "blocks": list(blocks)}, {"device": 3, "blocks": [block(9 * GIB, LOOP)]}]
    return rank


def test_held_memory_is_summed_by_stack_and_keeps_its_number() -> None:
    rank = with_history(
        block(GIB, ("??", 0, "at::empty"), MODEL, LOOP),
        block(3 * GIB, MODEL, LOOP),
        block(5, LOOP),
        block(70 * GIB, LOOP, state="inactive"),
    )
    rank.run_out()
    reported = rank.collect()
    assert reported[0].held == ()
    rank.watch.read_held(reported)
    assert rank.watch.is_due
    (notice,) = rank.collect()
    model, loop = StackFrame("/me/model.py", 24, "forward"), StackFrame("/me/train.py", 7, "<module>")
    held = (HeldMemory(bytes=4 * GIB, blocks=2, frames=(model, loop)), HeldMemory(bytes=5, blocks=1, frames=(loop,)))
    assert notice == msgspec.structs.replace(reported[0], held=held, absent={})


def test_held_memory_is_read_once_in_a_process() -> None:
    rank = with_history(block(GIB, MODEL))
    rank.watch.read_held(())
    reported = []
    for _ in range(3):
        rank.run_out()
        reported.append(rank.collect())
        rank.watch.read_held(reported[-1])
    assert [[(one.number, len(one.held)) for one in some] for some in reported] == [
        [(1, 0)],
        [(1, 1), (2, 0)],
        [(3, 0)],
    ]
    assert reported[2][0].absent == ALL_ONCE


def test_held_memory_is_not_read_without_a_history() -> None:
    rank = with_history(block(GIB, MODEL))
    rank.cuda.memory._C.records_history = False
    rank.run_out()
    rank.watch.read_held(rank.collect())
    assert rank.collect() == ()


def test_torch_that_would_read_the_whole_history_is_not_asked() -> None:
    rank = with_history(block(GIB, MODEL))
    rank.cuda.memory_snapshot = lambda: pytest.fail("the whole history was read")
    rank.run_out()
    rank.watch.read_held(rank.collect())
    assert (rank.collect(), rank.guard.errors) == ((), {})


def test_history_that_cannot_be_read_is_counted() -> None:
    rank = with_history(block(GIB, MODEL))
    rank.cuda.segments = None
    rank.run_out()
    rank.watch.read_held(rank.collect())
    assert (rank.collect(), rank.guard.errors) == ((), {PART: 1})


def test_largest_notice_fits_into_64_kib() -> None:
    name = "\N{GRINNING FACE}" * 1000  # four bytes each
    blocks = [block(2**40 - n, *((f"{name}{n}{m}.py", 10**6, name) for m in range(50))) for n in range(100)]
    held = sum_by_stack([{"blocks": blocks}], 0)
    assert (len(held), {len(one.frames) for one in held}) == (ALLOCATIONS_MAX, {FRAMES_MAX})
    assert {len(frame.file) for one in held for frame in one.frames} == {TEXT_LENGTH_MAX}
    notices = [OutOfMemory(number=2**62, host_ns=2**62, held=held)]
    notices += [OutOfMemory(number=2**62, host_ns=2**62, phase="p" * 128, absent=ABSENT)] * 3
    empty = Report(sequence=1, host_ns=0)
    full = msgspec.structs.replace(empty, out_of_memory=tuple(notices))
    assert 40 * 1024 < len(encode(full)) - len(encode(empty)) <= NOTICE_BYTES_MAX


def test_torch_has_the_snapshot_without_traces() -> None:
    assert "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
    memory: Any = torch.cuda.memory
    assert memory._C is torch._C
