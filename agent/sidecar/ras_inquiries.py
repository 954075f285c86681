"""Decides when NCCL's RAS service is asked in a stall.

One question gathers the whole job, so one place asks for all: the sidecar that watches rank 0. It asks when a rank on
its machine stalls, and again each AGAIN_NS while that lasts, on a thread of its own. Most sidecars never ask, so what
asks (`ras_notice.py`) is imported with the first question.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from rankscope.agent.sidecar.beacon import Descriptor, WatchedStall
from rankscope.measure.clock import Clock
from rankscope.measure.node_messages import RasAnswered
from rankscope.measure.units import NS_PER_S

if TYPE_CHECKING:
    from rankscope.agent.sidecar.ras_answer import RasAnswer

AGAIN_NS: Final = 60 * NS_PER_S
FIRST_RANK: Final = 0
"""Rank whose sidecar asks for the whole job."""
PROCESSES_MAX: Final = 1024


class RasInquiries:
    """The questions of one sidecar. `read` and `start` replace the service and the thread."""

    def __init__(
        self,
        clock: Clock,
        *,
        read: "Callable[[str], RasAnswer] | None" = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._clock = clock
        self._read = read
        self._start = start or _start_thread
        self._first: Descriptor | None = None
        self._ranks: dict[int, int] = {}
        self._asked_ns: int | None = None
        self._is_asking = False
        self._answered: tuple[Descriptor, RasAnswered] | None = None

    def run_pass(self, watched: Sequence[WatchedStall]) -> tuple[Descriptor, RasAnswered] | None:
        """Ask if it is time to; return the notice about an earlier question, once, with the rank it belongs to."""
        self._keep_ranks(one.descriptor for one in watched)
        since = [one.stalled_since_host_ns for one in watched if one.stalled_since_host_ns is not None]
        first = self._first
        if since and first is not None and first.ras_address and self._is_due():
            self._asked_ns, self._is_asking = self._clock.monotonic_ns(), True
            begin_ns, ranks = min(since), dict(self._ranks)
            try:
                self._start(lambda: self._ask(first, begin_ns, ranks))
            except RuntimeError:  # no thread can be started now: the next question is AGAIN_NS away
                self._is_asking = False
        answered, self._answered = self._answered, None
        return answered

    def _keep_ranks(self, watched: Iterable[Descriptor]) -> None:
        """Keep rank 0, and the last PROCESSES_MAX ranks by process id: after the end of one, others may still wait for
        it, and RAS names it.
        """
        for descriptor in watched:
            self._ranks[descriptor.identity.pid] = descriptor.identity.rank
            if descriptor.identity.rank == FIRST_RANK:
                self._first = descriptor
        while len(self._ranks) > PROCESSES_MAX:
            del self._ranks[next(iter(self._ranks))]

    def _is_due(self) -> bool:
        if self._is_asking:
            return False
        return self._asked_ns is None or self._clock.monotonic_ns() - self._asked_ns >= AGAIN_NS

    def _ask(self, first: Descriptor, stalled_since_host_ns: int, ranks: dict[int, int]) -> None:
        """Ask, on the thread of the question."""
        try:
            from rankscope.agent.sidecar.ras_notice import ask_for_notice  # noqa: PLC0415 - see the module docstring

            notice = ask_for_notice(first, stalled_since_host_ns, ranks, self._clock, self._read)
            if notice is not None:
                self._answered = first, notice
        finally:
            self._is_asking = False


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="rankscope-ras", daemon=True).start()
