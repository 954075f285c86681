"""Records sends and receives between two ranks on the host, over gloo: torch's flight recorder has none of them, and
its profile neither the group nor for how long the script waited.

`send`, `recv`, `isend`, `irecv` and `batch_isend_irecv` all call `ProcessGroup.send` or `recv`, which return a Work,
and wait in `Work.wait`. Both are wrapped: the first to note which transfer a Work is, the second to note when the
script waited for it. What they return and raise is the original's. A transfer is recorded once it was waited for:
nothing is known of one that never is, nor of a wait by another way (`is_completed` in a loop).

Tensors of devices are left out: their transfers are kernels, which windows record.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident, main_thread
from time import monotonic_ns
from typing import Any, Final, NamedTuple

from rankscope.agent.guard import Guard
from rankscope.agent.steps.patches import Patch, hide_from_compiler

PART: Final = "transfers"
WORKS_MAX: Final = 1024
"""Transfers that have begun and were not waited for."""
FINISHED_MAX: Final = 8192
"""Transfers kept until their window is reduced: 50 steps of a window with 160 each."""
TRANSFER_NS: Final = 8_000
"""Assumed cost of noting one transfer and recording its wait. Measured in a bare loop: 1.7 to 2.6 us; during training,
when code is not in the caches, that of a hook event is three times as long (`event_buffer.py`)."""
WAIT_NS: Final = 600
"""Assumed cost of looking at a wait for anything: 0.2 us, by the same factor."""
OPS: Final = {"send": "send", "recv": "recv", "recv_anysource": "recvAnySource"}
"""The name of an operation, as in gloo's profile, by the method that begins it."""

Call = Callable[..., Any]


class Transfer(NamedTuple):
    """One end of a transfer. `group` is torch's name, `peer` the place of the other end in the group, None if any."""

    op: str
    group: str
    peer: int | None
    bytes: int
    start_host_ns: int


class WaitedTransfer(NamedTuple):
    """A transfer that was waited for on a thread from `wait_host_ns` to `end_host_ns`."""

    transfer: Transfer
    wait_host_ns: int
    end_host_ns: int
    thread: int


_Noted = tuple[str, str, int | None, int, int]
"""The fields of a Transfer. Making one takes longer than a tuple, and is left to who reads it."""


class HostTransfers:
    """The transfers of this process, recorded on any thread and read on one, the agent's. `find_thread` returns which
    thread trains, None while that is not known.
    """

    def __init__(self, guard: Guard, find_thread: Callable[[], int | None] = lambda: None) -> None:
        self._guard = guard
        self._find_thread = find_thread
        self._thread = main_thread().ident
        self._works: dict[int, tuple[weakref.ref[Any], _Noted]] = {}
        self._waited: deque[tuple[_Noted, int, int, int]] = deque(maxlen=FINISHED_MAX)
        self._patches: list[Patch] = []
        self._noted = self._waits = 0
        self._from_host_ns: int | None = None
        self._to_host_ns: int | None = None

    @property
    def spent_ns(self) -> int:
        """The estimated cost to the training thread so far."""
        return self._noted * TRANSFER_NS + self._waits * WAIT_NS

    def install(self, c10d: Any = None) -> None:
        """Wrap torch's methods. A torch without torch.distributed, or that does not allow it, is left as it is.

        `c10d` is the module with ProcessGroup and Work, by default torch's.
        """
        try:
            if c10d is None:
                from torch._C import _distributed_c10d as c10d  # noqa: PLC0415 - the user's torch
            hide_from_compiler(HostTransfers._forget_first)
            for name, op in OPS.items():
                self._replace(c10d.ProcessGroup, name, functools.partial(self._wrap_begin, op))
            self._replace(c10d.Work, "wait", self._wrap_wait)
            self._from_host_ns, self._to_host_ns = monotonic_ns(), None
        except Exception:  # noqa: BLE001 - training goes on without
            self.remove()

    def remove(self) -> None:
        """Restore torch."""
        self._to_host_ns = monotonic_ns()
        while self._patches:
            self._patches.pop().revert()

    def find_between(self, begin_host_ns: int, end_host_ns: int) -> list[WaitedTransfer] | None:
        """Return the transfers that the training thread began to wait for in this time, in the order of their ends;
        None where they are not recorded, or some of them are no longer kept.
        """
        waited = [WaitedTransfer(Transfer(*noted), *times) for noted, *times in list(self._waited)]
        is_lost = len(waited) == FINISHED_MAX and waited[0].end_host_ns > begin_host_ns
        if is_lost or not self._was_on(begin_host_ns, end_host_ns):
            return None
        self._thread = self._find_thread() or self._thread
        return [one for one in waited if one.thread == self._thread and begin_host_ns <= one.wait_host_ns < end_host_ns]

    def _was_on(self, begin_host_ns: int, end_host_ns: int) -> bool:
        if self._from_host_ns is None or begin_host_ns < self._from_host_ns:
            return False
        return self._to_host_ns is None or end_host_ns <= self._to_host_ns

    def _replace(self, owner: Any, name: str, wrap: Callable[[Call], Call]) -> None:
        patch = Patch(owner, name, wrap)
        patch.apply()
        self._patches.append(patch)

    def _wrap_begin(self, op: str, original: Call) -> Call:
        works, guard, has_peer = self._works, self._guard, op != OPS["recv_anysource"]
        peer_name = "dstRank" if op == "send" else "srcRank"

        @functools.wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            start_host_ns = monotonic_ns()
            work = original(*args, **kwargs)
            try:  # the arguments are (group, tensors, peer, tag)
                tensor = (args[1] if len(args) > 1 else kwargs["tensors"])[0]
                if tensor.is_cpu:
                    peer = (args[2] if len(args) > 2 else kwargs[peer_name]) if has_peer else None  # noqa: PLR2004
                    noted = op, args[0].group_name, peer, tensor.nbytes, start_host_ns
                    works[id(work)] = weakref.ref(work), noted
                    self._noted += 1
                    if len(works) > WORKS_MAX:
                        self._forget_first()
            except BaseException as error:  # noqa: BLE001 - the transfer itself has begun
                guard.record(PART, error)
            guard.raise_held()
            return work

        return begin

    def _forget_first(self) -> None:
        """Forget the Work that began first. Mostly it is gone, and nobody has waited for it."""
        work, _ = self._works.pop(next(iter(self._works)))
        if work() is not None:
            self._from_host_ns = monotonic_ns()  # a wait for it would not be recorded

    def _wrap_wait(self, original: Call) -> Call:
        works, record = self._works, self._waited.append

        @functools.wraps(original)
        def wait_for_transfer(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            self._waits += 1
            found = works.pop(id(work), None) if works else None
            if found is None or found[0]() is not work:
                return original(work, *args, **kwargs)
            transfer = found[1]  # `capture/blocked_transfer.py` reads it in this frame
            wait_host_ns = monotonic_ns()
            try:
                return original(work, *args, **kwargs)
            finally:
                record((transfer, wait_host_ns, monotonic_ns(), get_ident()))

        return wait_for_transfer
