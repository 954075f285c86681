"""Looks into the queues of torch's data loaders with workers while the collector has ordered samples: whether batches
are ready when training wants one, whether only the one that is next is lacking, and whether they wait for the thread
that pins memory.

    workers -> queue of the workers -> [thread that pins memory -> queue] -> reordered -> training

A loader is known from its begin on, as a weak reference. Nothing is read without an order.
"""

import contextlib
import functools
import sys
import weakref
from typing import Any, Final

from rankscope.agent.steps.patches import Patch
from rankscope.measure.line_samples import SampledLoader

LOADERS_MAX: Final = 16
"""Loaders that are known, the latest; of each epoch there is one."""
READY: Final = 2
"""Entries of torch's note of a batch once it has arrived: its worker, and the batch."""


class _Seen:
    """What was seen of one loader."""

    def __init__(self, received: int) -> None:
        self.first_received = self.received = received
        self.looks = self.ready = self.early = self.unpinned = 0


class LoaderQueues:
    """The loaders of one process. `install` and `remove` belong to the training thread, `look` to the sampler's, all
    else to the agent's.
    """

    def __init__(self) -> None:
        self._loaders: list[weakref.ref[Any]] = []
        self._seen: dict[int, _Seen] = {}
        self._patch: Patch | None = None

    def install(self) -> None:
        """Note loaders as they begin. Nothing happens where torch has none of the known name."""
        owner = getattr(sys.modules.get("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
        if owner is not None:
            self._patch = Patch(owner, "__init__", self._wrap)
            self._patch.apply()

    def remove(self) -> None:
        """Restore torch."""
        if self._patch is not None:
            self._patch.revert()
            self._patch = None

    def _wrap(self, original: Any) -> Any:
        @functools.wraps(original)
        def begin(loader: Any, *args: Any, **keywords: Any) -> None:
            original(loader, *args, **keywords)
            with contextlib.suppress(Exception):  # no error of the agent may reach the loader
                self._loaders = [*self._loaders[1 - LOADERS_MAX :], weakref.ref(loader)]

        return begin

    def begin(self) -> None:
        """Forget what was seen."""
        self._seen = {}

    def look(self) -> None:
        """Look into the queues now. What torch names otherwise is not seen."""
        for known in self._loaders:
            loader = known()
            if loader is not None:
                with contextlib.suppress(AttributeError, NotImplementedError, OSError, ValueError):
                    self._look_into(loader)

    def _look_into(self, loader: Any) -> None:
        arrived, unpinned_in, next_number, notes = (
            getattr(loader, name) for name in ("_data_queue", "_worker_result_queue", "_rcvd_idx", "_task_info")
        )
        received = int(next_number)
        queued = int(arrived.qsize())
        unpinned = 0 if unpinned_in is arrived else int(unpinned_in.qsize())
        here = [number for number, note in notes.copy().items() if len(note) == READY]
        seen = self._seen.setdefault(id(loader), _Seen(received))
        seen.received = received
        seen.looks += 1
        seen.ready += queued + len(here)
        seen.early += sum(number != received for number in here)
        seen.unpinned += unpinned

    def read(self) -> SampledLoader | None:
        """Return what was seen of the loader from which training has had most batches meanwhile; None without one."""
        found = [
            (seen.received - seen.first_received, place, loader, seen)
            for place, loader in enumerate(known() for known in self._loaders)
            if loader is not None and (seen := self._seen.get(id(loader))) is not None
        ]
        if not found:
            return None
        _, _, loader, seen = max(found, key=lambda one: one[:2])
        workers = getattr(loader, "_workers", ())
        return SampledLoader(
            workers=len(workers),
            start_method=next((str(getattr(one, "_start_method", None) or "fork") for one in workers), ""),
            looks=seen.looks,
            ready=seen.ready,
            early=seen.early,
            unpinned=seen.unpinned if getattr(loader, "_pin_memory_thread", None) is not None else None,
        )
