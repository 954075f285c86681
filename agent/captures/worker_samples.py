"""Samples of the workers of data loaders, while the collector has ordered samples of their rank: the order and what was
sampled go through memory that they share (`worker_page.py`).
"""

import contextlib
import multiprocessing
import sys
import threading
import time
from types import FrameType
from typing import Final

import msgspec

from rankscope.agent.captures.kernel_waits import KernelWaits
from rankscope.agent.captures.script_files import ScriptFiles
from rankscope.agent.captures.stack_samples import WALK_MAX, StackKey, StackSamples
from rankscope.agent.captures.thread_sampler import ThreadSampler
from rankscope.agent.captures.worker_page import ERRORS_MAX, WorkerOrder, WorkerPage
from rankscope.agent.guard import Guard
from rankscope.measure.line_samples import (
    COLLATE,
    FETCH,
    HAND_OVER,
    IDLE,
    NOW,
    WORKERS_MAX,
    SampledLoader,
    SampledWorker,
)
from rankscope.measure.messages import SampleOrder

_SIGNS: Final = (
    ("multiprocessing/queues.py", "get", IDLE),
    ("multiprocessing/queues.py", "put", HAND_OVER),
    ("torch/utils/data/_utils/collate.py", "", COLLATE),
    ("torch/utils/data/_utils/fetch.py", "fetch", FETCH),
)
"""End of a frame's file, its function (empty: any), and the stage of a worker in it."""


class WorkerSamples:
    """The orders to the workers of one rank process, by its `page`. For the agent's thread."""

    def __init__(self, page: WorkerPage) -> None:
        self._page = page
        self._end_ns: int | None = None

    def order(self, interval_ns: int, end_ns: int) -> None:
        """Have the workers sampled from their next batch on until this time."""
        self._end_ns = end_ns
        self._page.queues.begin()
        self._page.order(WorkerOrder(interval_ns, end_ns))

    def look(self) -> None:
        """Look into the queues of the loaders. For the sampler's thread."""
        self._page.queues.look()

    def read_loader(self) -> SampledLoader | None:
        """Return what the looks have seen."""
        return self._page.queues.read()

    def is_awaited(self, now_ns: int) -> bool:
        """Return whether a worker samples whose answer may still come."""
        return self._end_ns is not None and now_ns < self._end_ns and self._page.is_awaited

    def collect(self) -> tuple[SampledWorker, ...]:
        """Return what the workers have answered, by their numbers. What cannot be read is left out."""
        is_ordered, self._end_ns = self._end_ns is not None, None
        found: list[SampledWorker] = []
        for answer in self._page.read() if is_ordered else ():
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.msgpack.decode(answer, type=SampledWorker))
        return tuple(sorted(found, key=lambda one: one.number)[:WORKERS_MAX])


def begin_job(
    wanted: WorkerOrder, files: ScriptFiles, page: WorkerPage, rank_pid: int | None = None
) -> "WorkerJob | None":
    """Begin to sample this worker; return None in a process that is none of that rank, after the end, and where too
    many answer.
    """
    worker = find_worker(rank_pid)
    if worker is None or time.monotonic_ns() >= wanted.end_ns:
        return None
    place = page.take_place()
    if place is None:
        return None
    order = SampleOrder(id="worker", mode=NOW, interval_ns=wanted.interval_ns, lasts_ns=0, steps_max=1)
    sampler = ThreadSampler(Guard(ERRORS_MAX))  # a lock of the rank's may have been held at the fork
    job = WorkerJob(order, files, sampler, end_ns=wanted.end_ns, page=page, place=place, worker=worker)
    sampler.start()
    sampler.begin(job)
    return job


def find_worker(rank_pid: int | None = None) -> tuple[int, int] | None:
    """Return the number of this worker and how many there are; None in a process that is none, and in a worker of
    another one than `rank_pid`.
    """
    parent = multiprocessing.parent_process()
    if rank_pid is not None and parent is not None and parent.pid != rank_pid:
        return None
    module = sys.modules.get("torch.utils.data._utils.worker")
    found = None if module is None else module.get_worker_info()
    return None if found is None else (int(found.id), int(found.num_workers))


class WorkerJob(StackSamples):
    """The samples of one worker's main thread, which end themselves, and are written to its place."""

    wants_others = False
    is_due = True

    def __init__(
        self,
        order: SampleOrder,
        files: ScriptFiles,
        sampler: ThreadSampler,
        *,
        end_ns: int,
        page: WorkerPage,
        place: int,
        worker: tuple[int, int],
    ) -> None:
        super().__init__(order, threading.get_ident(), files, waits=KernelWaits(threading.get_native_id()))
        self.fetches = 0
        self._sampler = sampler
        self._end_ns = end_ns
        self._page, self._place = page, place
        self._worker = worker

    def add(self, host_ns: int, frame: FrameType | None) -> None:
        """Add a sample; after the end write the answer."""
        if host_ns < self._end_ns:
            super().add(host_ns, frame)
            return
        stacks, steps = self.finish()
        self._sampler.close()
        number, count = self._worker
        answer = b""
        if steps:
            found = SampledWorker(number=number, count=count, fetches=self.fetches, stacks=stacks, step=steps[-1])
            answer = msgspec.msgpack.encode(found)
        self._page.write(self._place, answer)

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
