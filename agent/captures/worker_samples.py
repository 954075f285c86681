"""Samples of the workers of data loaders, while the collector has ordered samples of their rank.

A worker is a process of its own, forked from the rank, without an agent. It learns of an order from a page of memory
that forks share, at which it looks when it fetches a batch, and answers by a file:

    rank:    order -> the page: number, interval, end, folder        collect <- the files, and the folder is removed
    worker:  fetch -> a number it has not seen -> samples of its main thread until the end -> a file

So nothing runs in a worker without an order. Workers that are spawned, and not forked, do not have the page.
"""

import contextlib
import functools
import mmap
import os
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import msgspec

from rankscope.agent.captures.kernel_waits import KernelWaits
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stack_samples import WALK_MAX, StackKey, StackSamples
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.guard import Guard
from rankscope.measure.line_samples import COLLATE, FETCH, HAND_OVER, IDLE, NOW, WORKERS_MAX, SampledWorker
from rankscope.measure.messages import SampleOrder

PAGE_BYTES: Final = 4096
ORDER: Final = struct.Struct("<QQQH")
"""The number of the order, its interval in ns, when it ends by the monotonic clock, and the length of the name of the
folder, which follows. The number is written last.
"""
NUMBER: Final = struct.Struct("<Q")
PART_OF: Final = ".part"
"""End of the name of a file that is not whole."""
FILE_BYTES_MAX: Final = 1 << 20
EARLY_NS: Final = 400_000_000
"""Workers end that long before the rank, so that their files are there."""
ERRORS_MAX: Final = 3
_SIGNS: Final = (
    ("multiprocessing/queues.py", "get", IDLE),
    ("multiprocessing/queues.py", "put", HAND_OVER),
    ("torch/utils/data/_utils/collate.py", "", COLLATE),
    ("torch/utils/data/_utils/fetch.py", "fetch", FETCH),
)
"""End of a frame's file, its function (empty: any), and the stage of a worker in it."""

Fetch = Callable[[Any, Any], Any]


class WorkerSamples:
    """The orders to the workers of one rank process. `order` and `collect` belong to the agent's thread, `install` and
    `remove` to the training thread; all else runs in workers.
    """

    def __init__(self, files: ScriptFiles) -> None:
        self._files = files
        self._pid = os.getpid()
        self._page = mmap.mmap(-1, PAGE_BYTES)
        self._folder = ""
        self._end_ns = 0
        self._orders = 0
        self._seen = 0
        self._job: WorkerJob | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Have fetches of torch's loaders look for orders. Nothing happens where torch has none of the known names."""
        fetching = sys.modules.get("torch.utils.data._utils.fetch")
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            owner = getattr(fetching, name, None)
            original = None if owner is None else vars(owner).get("fetch")
            if original is not None:
                self._replace(owner, original)

    def remove(self) -> None:
        """Restore torch."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, original: Fetch) -> None:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            try:  # noqa: SIM105 - suppress() takes 1 us
                self.note_fetch()
            except Exception:  # noqa: BLE001, S110 - no error of the agent may reach the loader
                pass
            return original(fetcher, index)

        def undo() -> None:
            if vars(owner).get("fetch") is fetch:  # else another tool has wrapped it
                owner.fetch = original

        owner.fetch = fetch
        self._undo.append(undo)

    # -- in the rank --------------------------------------------------------------------------------------------------

    def order(self, interval_ns: int, end_ns: int) -> None:
        """Have the workers sampled from their next batch on until this time. Raises OSError without a folder."""
        self._end_ns = end_ns
        self._folder = tempfile.mkdtemp(prefix="rankscope-workers-")
        name = os.fsencode(self._folder)
        self._orders += 1
        ORDER.pack_into(self._page, 0, self._orders - 1, interval_ns, max(0, end_ns - EARLY_NS), len(name))
        self._page[ORDER.size : ORDER.size + len(name)] = name
        NUMBER.pack_into(self._page, 0, self._orders)

    def is_awaited(self, now_ns: int) -> bool:
        """Return whether a worker samples whose file may still come."""
        if not self._folder or now_ns >= self._end_ns:
            return False
        try:
            return any(name.endswith(PART_OF) for name in os.listdir(self._folder))
        except OSError:
            return False

    def collect(self) -> tuple[SampledWorker, ...]:
        """Return what the workers have left, by their numbers, and remove it. What cannot be read is left out."""
        folder, self._folder = self._folder, ""
        found: list[SampledWorker] = []
        if folder:
            with contextlib.suppress(OSError):
                names = [name for name in sorted(os.listdir(folder)) if name.isdecimal()]
                for path in (os.path.join(folder, name) for name in names[:WORKERS_MAX]):
                    with contextlib.suppress(OSError, msgspec.MsgspecError), open(path, "rb") as file:
                        found.append(msgspec.msgpack.decode(file.read(FILE_BYTES_MAX), type=SampledWorker))
            shutil.rmtree(folder, ignore_errors=True)
        return tuple(sorted(found, key=lambda one: one.number))

    # -- in a worker --------------------------------------------------------------------------------------------------

    def note_fetch(self) -> None:
        """Count a batch, and begin to sample where there is a new order."""
        (number,) = NUMBER.unpack_from(self._page, 0)
        if number != self._seen and os.getpid() != self._pid:
            self._seen = number
            self._begin()
        if self._job is not None and self._job.is_wanted:
            self._job.fetches += 1

    def _begin(self) -> None:
        worker = find_worker()
        _, interval_ns, end_ns, length = ORDER.unpack_from(self._page, 0)
        if worker is None or time.monotonic_ns() >= end_ns:
            return
        folder = os.fsdecode(bytes(self._page[ORDER.size : ORDER.size + length]))
        order = SampleOrder(id="worker", mode=NOW, interval_ns=interval_ns, lasts_ns=0, steps_max=1)
        sampler = ThreadSampler(Guard(ERRORS_MAX))  # a lock of the rank's may have been held at the fork
        self._job = WorkerJob(order, self._files, sampler, end_ns=end_ns, folder=folder, worker=worker)
        sampler.start()
        sampler.begin(self._job)


def find_worker() -> tuple[int, int] | None:
    """Return the number of this worker and how many there are; None in a process that is none."""
    module = sys.modules.get("torch.utils.data._utils.worker")
    found = None if module is None else module.get_worker_info()
    return None if found is None else (int(found.id), int(found.num_workers))


class WorkerJob(StackSamples):
    """The samples of one worker's main thread, which end themselves, and are left in a file."""

    def __init__(
        self,
        order: SampleOrder,
        files: ScriptFiles,
        sampler: ThreadSampler,
        *,
        end_ns: int,
        folder: str,
        worker: tuple[int, int],
    ) -> None:
        super().__init__(order, threading.get_ident(), files, waits=KernelWaits(threading.get_native_id()))
        self.fetches = 0
        self._sampler = sampler
        self._end_ns = end_ns
        self._path = os.path.join(folder, str(os.getpid()))
        self._worker = worker
        with open(f"{self._path}{PART_OF}", "wb"):
            pass  # the rank waits for it

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Add a sample; after the end write the file."""
        if host_ns < self._end_ns:
            super().add(host_ns, frame)
            return
        stacks, steps = self.finish()
        self._sampler.close()
        number, count = self._worker
        for step in steps:
            found = SampledWorker(number=number, count=count, fetches=self.fetches, stacks=stacks, step=step)
            with open(f"{self._path}{PART_OF}", "wb") as file:
                file.write(msgspec.msgpack.encode(found))
            os.rename(f"{self._path}{PART_OF}", self._path)

    def _fold(self, frame: FrameType | None) -> StackKey:
        return super()._fold(frame)._replace(stage=find_stage(frame))


def find_stage(frame: FrameType | None) -> str:
    """Return what a worker does in a frame, one of STAGES; empty where it is none of these."""
    for _ in range(WALK_MAX):
        if frame is None:
            return ""
        code = frame.f_code
        for file, function, stage in _SIGNS:
            if code.co_filename.endswith(file) and function in {"", code.co_name}:
                return stage
        frame = frame.f_back
    return ""
