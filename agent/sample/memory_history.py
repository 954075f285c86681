"""Has torch record the history of a GPU's memory once little of it is left, and writes a snapshot when an allocation
fails. Imported once the script has initialized CUDA.

    agent thread        at each report: what the peak has left, and whether the allocator had to try again; below
                        the bound recording begins, in a ring of ENTRIES_MAX events with Python stacks
    allocating thread   at an error: which lines and modules hold the memory, the largest unused piece, and the file

Recording costs a stack for each allocation, 1 to 2 us. It begins only where allocations come so seldom that this is
within `overhead_ratio_max`, and is never switched off: nothing tells whether the script has since begun a recording of
its own, which that would end. One that the script has begun before is left alone, and its history, which may have no
bound, is not written.

A script that tries smaller batches raises dozens of errors, so a snapshot is written for the first, and for later ones
at most every SPACING_NS, FILES_MAX in all. It may stop the failing allocation for the better part of a second.
"""

import contextlib
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple

from rankscope.agent.capture_settings import is_url
from rankscope.agent.captures.stacks import find_torch_folder
from rankscope.agent.captures.trace_files import name_folders
from rankscope.agent.private_folder import PRIVATE_FILE, make_parents
from rankscope.measure.identity import RankIdentity
from rankscope.measure.module_frames import MODULES_KEY, ModuleCode, ModuleCodes, group_codes
from rankscope.measure.records import AllocatorSample, DeviceSample
from rankscope.measure.units import NS_PER_S, NS_PER_US

ENTRIES_MAX: Final = 20_000
"""Events in the ring, some KB each with its stack: 40 MB. Of what is held now the stacks are known without them."""
STACK_NS: Final = 3 * NS_PER_US
"""What an allocation is counted with: twice what a stack of 80 frames takes (bench/results/held_objects.md)."""
SPACING_NS: Final = 600 * NS_PER_S
FILES_MAX: Final = 4
FILE_BYTES_MAX: Final = 256 << 20
FREE_BYTES_MIN: Final = 1 << 30
"""What a disk must have left beside the file."""
CLASSES_MAX: Final = 5_000
FOLDER: Final = "out-of-memory"

NO_FOLDER: Final = "capture_folder_is_not_set"
OF_URL: Final = "capture_folder_is_a_url"
DISK_FULL: Final = "too_little_room_on_the_disk"
TOO_LARGE: Final = "too_large"
RECENT: Final = "one_was_written_shortly_before"
ENOUGH: Final = "enough_were_written"
FOREIGN: Final = "the_script_records_a_history_of_its_own"


class WrittenSnapshot(NamedTuple):
    """What a snapshot showed: the segments, with the code of modules; the largest unused piece in bytes; the path of
    the file, or why there is none.
    """

    segments: Sequence[Mapping[str, Any]] = ()
    codes: ModuleCodes | None = None
    largest_free_bytes: int | None = None
    path: str = ""
    why_no_file: str = ""


class MemoryHistory:
    """The recording of one process. `cuda` is torch.cuda or a replacement. `headroom_ratio` is the share of the device
    below which it begins, 0: never; `cost_ratio_max` the share of the time that it may take.
    """

    def __init__(
        self, cuda: Any, identity: RankIdentity, *, folder: str, headroom_ratio: float, cost_ratio_max: float
    ) -> None:
        self._cuda = cuda
        self._identity = identity
        self._folder = folder
        self._headroom_ratio = headroom_ratio
        self._cost_ratio_max = cost_ratio_max
        self._allocations: tuple[int, int] | None = None
        self._files = 0
        self._last_ns: int | None = None
        self.is_own = False
        """Whether the agent has begun the recording."""

    @property
    def is_foreign(self) -> bool:
        """Whether the script has torch record a history of its own."""
        return not self.is_own and is_history_recorded(self._cuda)

    # -- the agent thread ---------------------------------------------------------------------------------------------

    def consider(self, index: int, devices: Sequence[DeviceSample], sample: AllocatorSample | None) -> None:
        """Begin to record where little is left on the device with this index, by the last samples. Cheap otherwise."""
        if self.is_own or not self._headroom_ratio or sample is None or sample.allocated_peak_bytes is None:
            return
        device = devices[0] if devices else None
        total = None if device is None else device.memory_total_bytes
        total = int(self._cuda.get_device_properties(index).total_memory) if total is None else total
        left = find_least_headroom(total, device, sample)
        if (left >= self._headroom_ratio * total and not sample.retries) or self.is_foreign:
            self._allocations = None
            return
        if self._is_affordable(index, sample.host_ns):
            record = self._cuda.memory._record_memory_history  # noqa: SLF001 - there is no public way, here and below
            record("all", context="alloc", stacks="python", max_entries=ENTRIES_MAX)
            self.is_own = True

    def _is_affordable(self, index: int, now_ns: int) -> bool:
        """Return whether allocations come seldom enough, by their number since the last call with an earlier sample."""
        before = self._allocations
        if before is not None and now_ns <= before[1]:
            return False
        stats = self._cuda.memory_stats_as_nested_dict(index)
        count = int(stats["allocation"]["all"]["allocated"])
        self._allocations = count, now_ns
        return before is not None and STACK_NS * (count - before[0]) <= self._cost_ratio_max * (now_ns - before[1])

    # -- inside the failing allocation --------------------------------------------------------------------------------

    def write(self, device: int, now_ns: int) -> WrittenSnapshot:
        """Read what holds the memory of a device, and write the snapshot. Raises what torch does."""
        if self._last_ns is not None and now_ns - self._last_ns < SPACING_NS:
            return WrittenSnapshot(why_no_file=RECENT)
        if self._files >= FILES_MAX:
            return WrittenSnapshot(why_no_file=ENOUGH)
        if self.is_foreign:
            return WrittenSnapshot(why_no_file=FOREIGN)
        self._last_ns = now_ns
        self._files += 1
        snapshot = self._cuda.memory._snapshot()  # noqa: SLF001
        segments = [one for one in snapshot["segments"] if one.get("device", device) == device]
        codes = list(find_module_codes(segments))
        snapshot[MODULES_KEY] = [tuple(one) for one in codes]
        path, why = self._write_file(snapshot)
        return WrittenSnapshot(segments, group_codes(codes), find_largest_free(segments), path, why)

    def _write_file(self, snapshot: Mapping[str, Any]) -> tuple[str, str]:
        """Return the path of the file, or why there is none."""
        if not self._folder or is_url(self._folder):
            return "", OF_URL if self._folder else NO_FOLDER
        identity = self._identity
        folder = os.path.join(self._folder, *name_folders(identity.run, identity.restart_count), FOLDER)
        name = f"rank-{identity.rank}-{self._files}.pickle"
        part = os.path.join(folder, f".{name}")
        content = pickle.dumps(snapshot, protocol=4)
        if len(content) > FILE_BYTES_MAX:
            return "", TOO_LARGE
        try:
            make_parents(folder)
            if shutil.disk_usage(folder).free < len(content) + FREE_BYTES_MIN:
                return "", DISK_FULL
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb") as file:
                file.write(content)
            os.replace(part, os.path.join(folder, name))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            return "", str(error.strerror)
        return os.path.join(folder, name), ""


def find_torch_function(cuda: Any, name: str) -> Callable[..., Any] | None:
    """Return a function of torch's C++ part, which torch.cuda.memory imports as `_C`; None where it has none."""
    found: Callable[..., Any] | None = getattr(getattr(getattr(cuda, "memory", None), "_C", None), name, None)
    return found


def is_history_recorded(cuda: Any) -> bool:
    """Return whether torch records the history of a GPU's memory, whoever has begun that."""
    is_recorded = find_torch_function(cuda, "_cuda_isHistoryEnabled")
    return is_recorded is not None and bool(is_recorded())


def find_least_headroom(total_bytes: int, device: DeviceSample | None, sample: AllocatorSample) -> int:
    """Return what tensors had left of the device at their peak so far, at least 0. What is in use outside of torch is
    that of now; where it is not known, nothing.

    >>> device = DeviceSample(host_ns=0, uuid="GPU", memory_total_bytes=80, memory_used_bytes=70)
    >>> sample = AllocatorSample(host_ns=0, reserved_bytes=65, allocated_peak_bytes=62)
    >>> find_least_headroom(80, device, sample), find_least_headroom(80, None, sample)
    (13, 18)
    """
    used = None if device is None else device.memory_used_bytes
    outside = 0 if used is None or sample.reserved_bytes is None else max(0, used - sample.reserved_bytes)
    return max(0, total_bytes - outside - (sample.allocated_peak_bytes or 0))


def find_largest_free(segments: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest unused piece of the segments, in bytes; 0 where there is none. Not every allocation may use
    it: it may be of another stream, or of the pool of small ones.
    """
    blocks = (block for one in segments for block in one["blocks"])
    return max((int(block["size"]) for block in blocks if block["state"] == "inactive"), default=0)


def find_module_codes(segments: Sequence[Mapping[str, Any]]) -> Iterator[ModuleCode]:
    """Return the functions of classes of modules that are on the stacks of blocks."""
    from torch import nn  # noqa: PLC0415 - the user's torch

    on_stacks = {
        (frame.get("filename"), frame.get("name"))
        for one in segments
        for block in one["blocks"]
        for frame in block.get("frames") or ()
    }
    torch_folder = find_torch_folder()
    waiting, seen = [nn.Module], set[type]()
    while waiting and len(seen) < CLASSES_MAX:
        kind = waiting.pop()
        if kind in seen:
            continue
        seen.add(kind)
        waiting += type.__subclasses__(kind)
        for function in list(vars(kind).values()):
            code = function.__code__ if type(function) is FunctionType else None
            if code is None or kind is nn.Module or (code.co_filename, code.co_name) not in on_stacks:
                continue
            last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
            is_torch = bool(torch_folder) and code.co_filename.startswith(torch_folder)
            yield ModuleCode(code.co_filename, code.co_name, code.co_firstlineno, last, kind.__qualname__, is_torch)
