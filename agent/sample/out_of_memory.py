"""Notes when torch finds no GPU memory for an allocation: what was asked for, what was held, in which step and phase.

torch calls the observer inside the failing allocation, on the thread that allocates, before it raises OutOfMemoryError:

    that thread     keeps the arguments and the allocator's counts, and writes an event, which finds step and phase;
                    once a process, sums what parameters, gradients and optimizer state take (model_bytes.py), and
                    writes a snapshot (memory_history.py)
    agent thread    makes the notice at once; then, once a process, where the script itself records the history of the
                    memory, reads which allocations hold the most

The observer makes no CUDA call and allocates nothing on the device: the counts are those that TorchMemorySampler
reads, under a lock of the allocator that is free by then. No error leaves it. Attaching it would initialize CUDA, so
that waits until the script has. An error before the first report after that is not seen.

Which allocations hold the memory is known only where torch records the history of its memory: by the agent, once
little of it is left, or by the script (torch.cuda.memory._record_memory_history). Reading the blocks of the script's
recording takes torch under a millisecond, but names of C++ frames may take seconds, with the lock of the interpreter:
so it is done for the first error only, and not within the allocation.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rankscope.agent.captures.stacks import find_torch_folder, shorten_frame
from rankscope.agent.config import AgentConfig
from rankscope.agent.guard import Guard
from rankscope.agent.sample.memory_history import (
    MemoryHistory,
    WrittenSnapshot,
    find_torch_function,
    is_history_recorded,
)
from rankscope.agent.sample.model_bytes import ModelBytes, find_model_bytes
from rankscope.agent.sample.torch_memory import NATIVE, parse_stats
from rankscope.measure.bounds import NAME_LENGTH_MAX, TEXT_LENGTH_MAX
from rankscope.measure.clock import Clock
from rankscope.measure.errors import UnavailableError
from rankscope.measure.identity import RankIdentity
from rankscope.measure.module_frames import ModuleCodes, name_module
from rankscope.measure.out_of_memory import ALLOCATIONS_MAX, FRAMES_MAX, NOTICES_MAX, HeldMemory, OutOfMemory
from rankscope.measure.records import AllocatorSample, DeviceSample
from rankscope.measure.stalls import StackFrame
from rankscope.measure.text import to_unicode

PART: Final = "out_of_memory"
HISTORY: Final = "memory_history"
BLOCKS_READ_MAX: Final = 20_000
"""The largest blocks, of which the stacks are compared: 0.1 s on the agent thread."""
FRAMES_READ_MAX: Final = 256
"""Frames of a block that are read for Python frames. Those of C++ come first and may be a hundred."""
NO_HISTORY: Final = "memory_history_is_not_recorded"
NOT_TOLD: Final = "not_told_by_this_torch"
ONCE: Final = "read_for_the_first_error_only"
NO_MODEL: Final = "no_parameters_found_on_this_device"
NOT_READ: Final = "could_not_be_read"
TOO_MANY: Final = "too_many_objects_in_the_process"

MODEL_FIELDS: Final = ("parameters_bytes", "gradients_bytes", "optimizer_state_bytes")
"""Of a notice, in the order of ModelBytes."""

Place = tuple[int | None, str]
"""The step that was open, and its phase; None and empty outside of steps."""


class SeenError(msgspec.Struct):
    """What is kept inside the allocation. `place` is None until the event of the error has been processed."""

    number: int
    host_ns: int
    device: int
    asked_bytes: int
    limit_bytes: int
    free_bytes: int
    stats: Mapping[str, Any] | None
    model: ModelBytes | None = None
    why_no_model: str = ""
    held: tuple[HeldMemory, ...] = ()
    largest_free_bytes: int | None = None
    snapshot: str = ""
    why_no_snapshot: str = ""
    place: Place | None = None
    was_awaited: bool = False

    def set_place(self, _now_ns: int, find_place: Callable[[], Place]) -> None:
        """Handle the event of the error, when those before it have been processed."""
        self.place = find_place()


class OutOfMemoryWatch:
    """The watch of one process. `cuda` is torch.cuda or a replacement; None: a torch without GPUs, and nothing to do.
    `find_model` returns what the model takes of a device; `history` records and writes snapshots.

    `attach`, `collect`, `watch_headroom` and `read_held` are for the agent thread; `observe` runs on any.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        cuda: Any,
        find_model: Callable[[int], ModelBytes | None] = find_model_bytes,
        *,
        history: MemoryHistory | None = None,
    ) -> None:
        self._clock = clock
        self._guard = guard
        self._cuda = cuda
        self._find_model = find_model
        self._history = history
        self._seen: deque[SeenError] = deque(maxlen=NOTICES_MAX)
        self._with_held: OutOfMemory | None = None
        self._count = 0
        self._is_attached = self._is_on = self._has_read = False
        self._add_event: Callable[..., None] = lambda *_event: None
        self._find_place: Callable[[], Place] = lambda: (None, "")
        self._wake: Callable[[], None] = lambda: None

    @classmethod
    def make(
        cls, clock: Clock, guard: Guard, cuda: Any, config: AgentConfig, identity: RankIdentity
    ) -> "OutOfMemoryWatch":
        """Return the watch of a rank with these settings."""
        history = MemoryHistory(
            cuda,
            identity,
            folder=config.capture_folder,
            headroom_ratio=config.memory_history_headroom,
            cost_ratio_max=config.overhead_ratio_max,
        )
        return cls(clock, guard, cuda, history=history)

    @property
    def is_due(self) -> bool:
        """Whether there is something to report at once. An error whose event is awaited is in the next report."""
        return self._with_held is not None or any(not seen.was_awaited for seen in tuple(self._seen))

    def start(self, add_event: Callable[..., None], find_place: Callable[[], Place], wake: Callable[[], None]) -> None:
        """Begin to watch. `add_event` adds a hook event, which reads the place after those before it; `wake`
        wakes the agent thread. Both are called inside allocations, on any thread.
        """
        self._add_event, self._find_place, self._wake = add_event, find_place, wake
        self._is_on = True

    def stop(self) -> None:
        """Ignore all further errors. torch offers no way to detach an observer."""
        self._is_on = False

    def attach(self) -> None:
        """Attach the observer, once CUDA has been initialized by the script; cheap when called again."""
        if self._is_attached or not self._is_on or self._cuda is None or self._guard.is_off(PART):
            return
        try:
            attach = find_torch_function(self._cuda, "_cuda_attach_out_of_memory_observer")
            if attach is None:
                self._is_attached = True  # this torch has none
            elif self._cuda.is_initialized():
                self._is_attached = True
                attach(self.observe)
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(PART, error)

    def watch_headroom(self, index: int, devices: Sequence[DeviceSample], sample: AllocatorSample | None) -> None:
        """Have torch record the history of the memory once little of it is left; cheap otherwise."""
        if self._history is None or not self._is_on or self._guard.is_off(HISTORY):
            return
        try:
            self._history.consider(index, devices, sample)
        except Exception as error:  # noqa: BLE001 - no error of the agent may reach the training script
            self._guard.record(HISTORY, error)

    # -- inside the failing allocation --------------------------------------------------------------------------------

    def observe(self, device: int, asked_bytes: int, limit_bytes: int, free_bytes: int) -> None:
        """Keep what is known of an error. Never raise."""
        if not self._is_on:
            return
        try:
            self._count += 1
            now_ns, stats = self._clock.monotonic_ns(), self._read_stats(device)
            seen = SeenError(self._count, now_ns, device, asked_bytes, limit_bytes, free_bytes, stats)
            seen.model, seen.why_no_model = self._read_model(seen)
            if stats is not None:
                self._write_snapshot(seen)
            self._seen.append(seen)
            self._add_event(seen.set_place, now_ns, self._find_place)
            self._wake()
        except Exception as error:  # noqa: BLE001 - torch would raise it instead of its own
            self._guard.record(PART, error)

    def _read_stats(self, device: int) -> Mapping[str, Any] | None:
        if self._cuda.get_allocator_backend() != NATIVE:
            return None
        found: Mapping[str, Any] = self._cuda.memory_stats_as_nested_dict(device)
        return found

    def _read_model(self, seen: SeenError) -> tuple[ModelBytes | None, str]:
        """Return what the model takes of the device, or why that is not known. Scripts that search for the largest
        batch raise dozens of errors, so it is read for the first only.
        """
        if seen.number > 1:
            return None, ONCE
        try:
            found = self._find_model(seen.device)
        except UnavailableError:
            return None, TOO_MANY
        except Exception as error:  # noqa: BLE001 - the notice is worth more than what it lacks then
            self._guard.record(PART, error)
            return None, NOT_READ
        return found, NO_MODEL if found is None else ""

    def _write_snapshot(self, seen: SeenError) -> None:
        """Write a snapshot, and add what it shows to an error."""
        if self._history is None or self._guard.is_off(HISTORY):
            return
        try:
            written = self._history.write(seen.device, seen.host_ns)
            seen.held = sum_by_stack(written.segments, seen.device, written.codes)
        except Exception as error:  # noqa: BLE001 - the notice is worth more than what it lacks then
            self._guard.record(HISTORY, error)
            written = WrittenSnapshot(why_no_file=NOT_READ)
        seen.largest_free_bytes = written.largest_free_bytes
        seen.snapshot, seen.why_no_snapshot = to_unicode(written.path)[-TEXT_LENGTH_MAX:], written.why_no_file

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def collect(self, *, last: bool) -> tuple[OutOfMemory, ...]:
        """Return the errors since the last call, at most NOTICES_MAX. One whose event has not been processed yet waits
        for one more report, unless this is the last.
        """
        found = [] if self._with_held is None else [self._with_held]
        self._with_held = None
        for _ in range(len(self._seen)):
            seen = self._seen[0]
            if seen.place is None and not (seen.was_awaited or last):
                seen.was_awaited = True
                break
            found.append(to_notice(self._seen.popleft()))
        return tuple(found[-NOTICES_MAX:])

    def read_held(self, reported: Sequence[OutOfMemory]) -> None:
        """Read which allocations hold the memory, for the first of the errors reported; the next `collect` returns it
        again with them.
        """
        if not reported or self._has_read or self._guard.is_off(PART):
            return
        self._has_read = True
        first = reported[0]
        if first.held:
            return
        try:
            held = self._read_held(first.device)
        except Exception as error:  # noqa: BLE001 - as above
            self._guard.record(PART, error)
            return
        if held:
            absent = {name: why for name, why in first.absent.items() if name != "held"}
            self._with_held = msgspec.structs.replace(first, held=held, absent=absent)

    def _read_held(self, device: int) -> tuple[HeldMemory, ...]:
        if not is_history_recorded(self._cuda):
            return ()
        try:
            segments = self._cuda.memory_snapshot(include_traces=False)
        except TypeError:  # before torch 2.13, which would read the whole history, for seconds
            return ()
        return sum_by_stack(segments, device)


def to_notice(seen: SeenError) -> OutOfMemory:
    """Return the notice of an error."""
    step, phase = seen.place or (None, "")
    absent = {} if seen.held else {"held": NO_HISTORY if seen.number == 1 else ONCE}
    values: dict[str, Any] = {}
    if seen.largest_free_bytes is not None:
        values["largest_free_bytes"] = max(0, seen.largest_free_bytes)
    if seen.why_no_snapshot:
        absent["snapshot"] = to_unicode(seen.why_no_snapshot)[:NAME_LENGTH_MAX]
    if seen.place is None:
        absent["step"] = "not_processed_in_time"
    if seen.stats is None:
        absent["allocated_bytes"] = "another_allocator"
    else:
        sample = parse_stats(seen.stats, seen.host_ns)
        for name in ("allocated_bytes", "reserved_bytes", "inactive_split_bytes"):
            value = getattr(sample, name)
            if value is None:
                absent[name] = NOT_TOLD
            else:
                values[name] = max(0, value)
    if seen.model is None:
        absent |= dict.fromkeys(MODEL_FIELDS, seen.why_no_model)
    else:
        values |= dict(zip(MODEL_FIELDS, seen.model, strict=True))
    return OutOfMemory(
        number=seen.number,
        host_ns=seen.host_ns,
        device=seen.device,
        asked_bytes=max(0, seen.asked_bytes),
        free_bytes=max(0, seen.free_bytes),
        limit_bytes=max(0, seen.limit_bytes),
        step=step,
        phase=phase,
        held=seen.held,
        snapshot=seen.snapshot,
        absent=absent,
        **values,
    )


def sum_by_stack(
    segments: Sequence[Mapping[str, Any]], device: int, codes: ModuleCodes | None = None
) -> tuple[HeldMemory, ...]:
    """Return the stacks whose blocks hold the most memory of a device, largest first, from torch's segments, with the
    modules of `codes` that allocated; nothing where no block has a stack.

    Of more than BLOCKS_READ_MAX blocks the largest are read. Frames of C++ are left out.
    """
    blocks = [
        block
        for segment in segments
        if segment.get("device", device) == device
        for block in segment.get("blocks", ())
        if str(block.get("state", "")).startswith("active")
    ]
    if not any(block.get("frames") for block in blocks):
        return ()
    totals: dict[tuple[tuple[StackFrame, ...], str], list[int]] = {}
    torch_folder = find_torch_folder()
    for block in heapq.nlargest(BLOCKS_READ_MAX, blocks, key=_size_of):
        total = totals.setdefault((_read_frames(block, torch_folder), _read_module(block, codes or {})), [0, 0])
        total[0] += _size_of(block)
        total[1] += 1
    largest = heapq.nlargest(ALLOCATIONS_MAX, totals.items(), key=lambda item: item[1][0])
    return tuple(
        HeldMemory(bytes=size, blocks=count, frames=frames, module=module)
        for (frames, module), (size, count) in largest
    )


def _read_module(block: Mapping[str, Any], codes: ModuleCodes) -> str:
    frames = (block.get("frames") or ())[:FRAMES_READ_MAX] if codes else ()
    places = ((str(one.get("filename", "")), int(one.get("line", 0)), str(one.get("name", ""))) for one in frames)
    return to_unicode(name_module(places, codes))[:NAME_LENGTH_MAX]


def _size_of(block: Mapping[str, Any]) -> int:
    return max(0, int(block.get("size", 0)))


def _read_frames(block: Mapping[str, Any], torch_folder: str) -> tuple[StackFrame, ...]:
    found: list[StackFrame] = []
    for frame in (block.get("frames") or ())[:FRAMES_READ_MAX]:
        file = str(frame.get("filename", ""))
        if not file.endswith(".py"):
            continue
        line = int(frame.get("line", 0))
        found.append(shorten_frame(StackFrame(file, line, str(frame.get("name", ""))), torch_folder))
        if len(found) == FRAMES_MAX:
            break
    return tuple(found)
