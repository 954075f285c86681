"""The page of memory by which workers of data loaders learn that the collector has ordered samples of their rank.

A worker is a process of its own, without an agent. It looks at the page, which it shares with its rank, when it fetches
a batch, and answers by a file (`worker_samples.py`, which is imported with the first order):

    rank:    order -> the page: number, interval, end, folder        collect <- the files, and the folder is removed
    worker:  fetch -> a number it has not seen -> samples of its main thread until the end -> a file

So nothing runs in a worker without an order. One that is forked has the page from its rank. One that is spawned, or
forked by multiprocessing's server, opens it at its `import torch`, by the rank's file descriptor, which the environment
names (`join_rank`).
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
from rankscope.agent.guard import Guard
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.nameless_file import open_nameless

if TYPE_CHECKING:
    from rankscope.agent.captures.worker_samples import WorkerJob

PAGE_VARIABLE: Final = "RANKSCOPE_WORKER_PAGE"
"""Process id of the rank, and its file descriptor of the page, `4711:12`."""
PAGE_BYTES: Final = 4096
ERRORS_MAX: Final = 3
ORDER: Final = struct.Struct("<QQQH")
"""The number of the order, its interval in ns, when it ends by the monotonic clock, and the length of the name of the
folder, which follows. The number is written last.
"""
NUMBER: Final = struct.Struct("<Q")
EARLY_NS: Final = 400_000_000
"""Workers end that long before the rank, so that their files are there."""

Fetch = Callable[[Any, Any], Any]


class WorkerOrder(NamedTuple):
    """What a worker reads: how often to sample, until when, by the monotonic clock, and the folder for its file."""

    interval_ns: int
    end_ns: int
    folder: str


class WorkerPage:
    """The page of one rank process. `order` belongs to the agent's thread, `install` and `remove` to the training
    thread; all else runs in workers.
    """

    def __init__(self, sampling: Sampling, file: IO[bytes] | None = None, rank_pid: int | None = None) -> None:
        """Make the page of this rank, or open that in `file`, of the rank `rank_pid`, in a worker."""
        self._sampling = sampling
        self._pid = rank_pid or os.getpid()
        self._descriptor = -1
        if file is not None:
            self._page = mmap.mmap(file.fileno(), PAGE_BYTES)
        else:
            self._descriptor = _open_page()
            self._page = mmap.mmap(self._descriptor, PAGE_BYTES)
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
        name = os.fsencode(wanted.folder)
        self._orders += 1
        end_ns = max(0, wanted.end_ns - EARLY_NS)
        ORDER.pack_into(self._page, 0, self._orders - 1, wanted.interval_ns, end_ns, len(name))
        self._page[ORDER.size : ORDER.size + len(name)] = name
        NUMBER.pack_into(self._page, 0, self._orders)

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
        _, interval_ns, end_ns, length = ORDER.unpack_from(self._page, 0)
        folder = os.fsdecode(bytes(self._page[ORDER.size : ORDER.size + length]))
        with LATE_IMPORTS:
            from rankscope.agent.captures.worker_samples import begin_job  # noqa: PLC0415 - hardly any worker needs it

        self._job = begin_job(WorkerOrder(interval_ns, end_ns, folder), self._sampling.files, self._pid)


def _open_page() -> int:
    """Return the descriptor of a new page, which only a process that is told of it can open; -1 where there is none."""
    with contextlib.suppress(OSError), open_nameless("rankscope-workers") as file:
        file.truncate(PAGE_BYTES)
        return os.dup(file.fileno())
    return -1


def join_rank(environment: Mapping[str, str], arguments: Sequence[str]) -> WorkerPage | None:
    """Return the page of the rank that has started this process as a worker, installed; None in any other process.

    `arguments` are those of the interpreter (`sys.orig_argv`), by which a child of multiprocessing is known. Raises
    OSError and ValueError where the page cannot be opened: then the worker is not sampled.
    """
    pid, _, number = environment.get(PAGE_VARIABLE, "").partition(":")
    if not number or int(pid) == os.getpid() or not any("multiprocessing" in one for one in arguments):
        return None
    with open(f"/proc/{int(pid)}/fd/{int(number)}", "r+b") as file:
        page = WorkerPage(Sampling(environment, Guard(ERRORS_MAX), is_wanted=True), file, int(pid))
    page.install()
    return page
