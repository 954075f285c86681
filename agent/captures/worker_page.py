"""The memory by which workers of data loaders learn that the collector has ordered samples of their rank, and answer.

A worker is a process of its own, without an agent. It looks at the first page, which it shares with its rank, when it
fetches a batch (`worker_samples.py` is imported with the first order):

    rank:    order -> the page: number, interval, end                                    collect <- the places
    worker:  fetch -> a number it has not seen -> a place -> samples of its main thread until the end -> the place

So nothing runs in a worker without an order, and nothing is left on a disk, however either of them ends. Memory of a
place is used only where a worker answers. A worker that is forked has it from its rank. One that is spawned, or forked
by multiprocessing's server, opens it at its `import torch`, by the rank's file descriptor, which the environment names
(`join_rank`).
"""

import contextlib
import functools
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from rankscope.agent.captures.loader_queues import LoaderQueues
from rankscope.agent.captures.sampling import Sampling
from rankscope.agent.guard import Guard, is_of_script
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.nameless_file import open_nameless

if TYPE_CHECKING:
    from rankscope.agent.captures.worker_samples import WorkerJob

PAGE_VARIABLE: Final = "RANKSCOPE_WORKER_PAGE"
"""Process id of the rank, and its file descriptor of the memory, `4711:12`."""
ERRORS_MAX: Final = 3
MEMORY_NAME: Final = "rankscope-workers"
PAGE_BYTES: Final = 4096
ORDER: Final = struct.Struct("<QQQ")
"""The number of the order, its interval in ns, and when it ends by the monotonic clock. The number is written last."""
NUMBER: Final = struct.Struct("<Q")
EARLY_NS: Final = 400_000_000
"""Workers end that long before the rank, so that their answers are there."""
PLACES: Final = 64
PLACE_BYTES: Final = 512 << 10
"""The largest answer, 256 stacks of 24 frames of 80 characters, has 480 KiB; most have some."""
PLACE: Final = struct.Struct("<QQQ")
"""The number of the order, the worker's process id, and the length of what follows. 0: it samples still."""
LENGTH: Final = struct.Struct("<Q")
WHOLE_BYTES: Final = PAGE_BYTES + PLACES * PLACE_BYTES

Fetch = Callable[[Any, Any], Any]


class WorkerOrder(NamedTuple):
    """What a worker reads: how often to sample, and until when, by the monotonic clock."""

    interval_ns: int
    end_ns: int


class WorkerPage:
    """The memory of one rank process. `order`, `is_awaited` and `read` belong to the agent's thread, `install` and
    `remove` to the training thread; all else runs in workers. Raises OSError without memory.
    """

    def __init__(self, sampling: Sampling, file: IO[bytes] | None = None, rank_pid: int | None = None) -> None:
        """Make the memory of this rank, or open that in `file`, of the rank `rank_pid`, in a worker."""
        self._sampling = sampling
        self._pid = rank_pid or os.getpid()
        self._descriptor = -1 if file is not None else _open_memory()
        self._page = mmap.mmap(self._descriptor if file is None else file.fileno(), WHOLE_BYTES)
        self._orders = 0
        self._seen = 0
        self._job: WorkerJob | None = None
        self._undo: list[Callable[[], None]] = []
        self.queues = LoaderQueues()
        """The loaders of the rank; of a worker there are none."""

    def install(self) -> None:
        """Have fetches of torch's loaders look for orders. Nothing happens where torch has none of the known names."""
        fetching = sys.modules.get("torch.utils.data._utils.fetch")
        for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
            owner = getattr(fetching, name, None)
            original = None if owner is None else vars(owner).get("fetch")
            if original is not None:
                self._replace(owner, original)
        if self._pid == os.getpid():
            self.queues.install()
        if self._descriptor >= 0:
            os.environ[PAGE_VARIABLE] = f"{self._pid}:{self._descriptor}"

    def remove(self) -> None:
        """Restore torch."""
        self.queues.remove()
        if self._descriptor >= 0:
            os.environ.pop(PAGE_VARIABLE, None)
            os.close(self._descriptor)
            self._descriptor = -1
        while self._undo:
            self._undo.pop()()

    def order(self, wanted: WorkerOrder) -> None:
        """Have the workers sampled from their next batch on. For the agent's thread."""
        self._orders += 1
        ORDER.pack_into(self._page, 0, self._orders - 1, wanted.interval_ns, max(0, wanted.end_ns - EARLY_NS))
        NUMBER.pack_into(self._page, 0, self._orders)

    @property
    def is_awaited(self) -> bool:
        """Whether a worker samples for the last order."""
        return any(length == 0 for _, length in self._find_answers())

    def read(self) -> list[bytes]:
        """Return the answers to the last order."""
        return [self._page[start : start + length] for start, length in self._find_answers() if length]

    def _find_answers(self) -> list[tuple[int, int]]:
        """Return where each answer to the last order begins, and its length."""
        places = range(PAGE_BYTES, len(self._page), PLACE_BYTES)
        heads = [(start, *PLACE.unpack_from(self._page, start)) for start in places]
        return [
            (start + PLACE.size, min(length, PLACE_BYTES - PLACE.size))
            for start, number, _, length in heads
            if number == self._orders
        ]

    def _replace(self, owner: Any, original: Fetch) -> None:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            try:
                self.note_fetch()
            except Exception as error:
                if is_of_script(error):  # a loader without workers fetches in the rank
                    raise  # no error of the agent may reach the loader
            return original(fetcher, index)

        def undo() -> None:
            if vars(owner).get("fetch") is fetch:  # else another tool has wrapped it
                owner.fetch = original

        owner.fetch = fetch
        self._undo.append(undo)

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
        _, interval_ns, end_ns = ORDER.unpack_from(self._page, 0)
        with LATE_IMPORTS:
            from rankscope.agent.captures.worker_samples import begin_job  # noqa: PLC0415 - hardly any worker needs it

        self._job = begin_job(WorkerOrder(interval_ns, end_ns), self._sampling.files, self, self._pid)

    def take_place(self) -> int | None:
        """Take a place for this worker's answer; None where all are taken. Workers that are forked one after another
        begin to look at different ones, so that two hardly ever take the same.
        """
        pid = os.getpid()
        for shift in range(PLACES):
            start = PAGE_BYTES + (pid + shift) % PLACES * PLACE_BYTES
            if PLACE.unpack_from(self._page, start)[0] != self._seen:
                PLACE.pack_into(self._page, start, self._seen, pid, 0)
                return start
        return None

    def write(self, start: int, answer: bytes) -> None:
        """Write the answer to the place that begins there, unless another one has it by now. One that is too long has
        the length 1, and cannot be read.
        """
        number, pid, _ = PLACE.unpack_from(self._page, start)
        if (number, pid) != (self._seen, os.getpid()):
            return
        fits = 0 < len(answer) <= PLACE_BYTES - PLACE.size
        if fits:
            self._page[start + PLACE.size : start + PLACE.size + len(answer)] = answer
        LENGTH.pack_into(self._page, start + PLACE.size - LENGTH.size, len(answer) if fits else 1)


def _open_memory() -> int:
    """Return the descriptor of new memory, which only a process that is told of it can open; -1 where there is none."""
    with contextlib.suppress(OSError), open_nameless(MEMORY_NAME) as file:
        file.truncate(WHOLE_BYTES)
        return os.dup(file.fileno())
    return -1


def join_rank(environment: Mapping[str, str], arguments: Sequence[str]) -> WorkerPage | None:
    """Return the memory of the rank that has started this process as a worker, installed; None in any other process.

    `arguments` are those of the interpreter (`sys.orig_argv`), by which a child of multiprocessing is known. Raises
    OSError and ValueError where the memory cannot be opened: then the worker is not sampled. The descriptor of a rank
    whose agent has ended meanwhile may be another file's by now: only memory of that name is written to.
    """
    pid, _, number = environment.get(PAGE_VARIABLE, "").partition(":")
    if not number or int(pid) == os.getpid() or not any("multiprocessing" in one for one in arguments):
        return None
    with open(f"/proc/{int(pid)}/fd/{int(number)}", "r+b") as file:
        if not os.readlink(f"/proc/self/fd/{file.fileno()}").startswith(f"/memfd:{MEMORY_NAME}"):
            return None
        page = WorkerPage(Sampling(environment, Guard(ERRORS_MAX), is_wanted=True), file, int(pid))
    page.install()
    return page
