"""Share the interpreter's lock among the threads that compute for long: receiving, run state, page rendering, the
store.

Each call into ZeroMQ releases the lock, and a thread that computes then holds it for a whole switch interval: beside
one, receiving a message takes three times as long. Long work therefore runs in slots of WORK_S with pauses between.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from rankscope.measure.units import NS_PER_S

WORK_S: Final = 0.01
PAUSE_S: Final = 0.001
"""Ten milliseconds of work, then one of pause in which another thread gets its slot. Shorter slots make pages older:
computing them takes too many switches."""
WORK_PER_WAIT: Final = 0.5
"""A thread that has waited long for its slot works half as long in it, so that its page is not old before it is
written."""

T = TypeVar("T")

ComputeSlot = Callable[[], contextlib.AbstractContextManager[None]]
"""A context manager that is entered when no other thread has a slot, or after a bounded wait."""


CHUNK_RANKS: Final = 256
"""Ranks whose processing takes up to about 0.5 ms."""


def no_yield() -> None:
    """Do nothing: for work that no other thread waits for."""


def chunked(items: Iterable[T], maybe_yield: Callable[[], None], size: int = CHUNK_RANKS) -> Iterator[T]:
    """Iterate over `items`, calling `maybe_yield` after every `size` of them.

    >>> for rank in chunked("abc", lambda: print("yield"), size=2):
    ...     print(rank)
    a
    b
    yield
    c
    """
    for count, item in enumerate(items, 1):
        yield item
        if not count % size:
            maybe_yield()


class GilYielder:
    """Context manager for one thread's long work, which runs in compute slots. Can be entered again.

    `compute_slot` is shared with the other threads; `sleep` and `now_s` are the clock.
    """

    def __init__(
        self,
        compute_slot: ComputeSlot = contextlib.nullcontext,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute_slot = compute_slot
        self._sleep = sleep
        self._now_s = now_s
        self._slot = contextlib.ExitStack()
        self._work_until_s = 0.0
        self._next_check_s = 0.0
        """Earliest time at which the slot can be used up. The monotonic clock takes 50 ns to read, that of a thread is
        a system call."""
        self._is_entered = False

    def __enter__(self) -> "GilYielder":  # noqa: PYI034 - typing.Self is Python 3.11
        self._is_entered = True
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_entered = False
        self._slot.close()

    def maybe_yield(self) -> None:
        """Pause and wait for a new slot if the present one is used up. Call it between any two pieces of work."""
        if not self._is_entered or time.monotonic() < self._next_check_s:
            return
        left_s = self._work_until_s - time.thread_time()
        if left_s > 0:
            self._next_check_s = time.monotonic() + left_s
            return
        self._slot.close()
        self._sleep(PAUSE_S)
        self._begin()

    def _begin(self) -> None:
        asked_s = self._now_s()
        self._slot.enter_context(self._compute_slot())
        work_s = max(WORK_S, WORK_PER_WAIT * (self._now_s() - asked_s))
        self._work_until_s = time.thread_time() + work_s
        self._next_check_s = time.monotonic() + work_s


RENDERING_DEFER_NS_MAX: Final = NS_PER_S
"""Longest deferral of a detection pass for a page that is being rendered."""
SNAPSHOT_DEFER_NS_MAX: Final = 4 * NS_PER_S
"""Longest deferral of a detection pass for a snapshot that is expected while it would run."""


class DetectionSchedule:
    """When detection passes run: at most `share` of a core, `period_ns` between two ticks. The time is an argument.

    A pass over 16,384 ranks takes 0.3 to 0.9 s, in which events and snapshot requests wait. A pass that is due is
    therefore deferred, for a bounded time, while a page is being rendered or a snapshot is about to be requested.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._limiter = CpuShareLimiter(share, period_ns)
        self._lasted_ns = 0
        self._deferred_since_ns: int | None = None

    def decide(self, now_ns: int, *, is_rendering: bool, next_request_ns: int | None) -> bool:
        """Return whether to run a pass now; a pass that is due and does not run is deferred from then on.

        `next_request_ns` is when the next snapshot request is expected, None where that is not known.
        """
        if not self._limiter.is_due(now_ns):
            return False
        would_delay = next_request_ns is not None and 0 <= next_request_ns - now_ns < self._lasted_ns
        if not is_rendering and not would_delay:
            return True
        if self._deferred_since_ns is None:
            self._deferred_since_ns = now_ns
        return now_ns - self._deferred_since_ns >= (SNAPSHOT_DEFER_NS_MAX if would_delay else RENDERING_DEFER_NS_MAX)

    @property
    def is_deferred(self) -> bool:
        """Whether a pass was due and did not run: it need not wait for the next tick."""
        return self._deferred_since_ns is not None

    def record(self, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """Record a pass and its CPU time."""
        self._limiter.record(began_ns, cpu_ns)
        self._lasted_ns = ended_ns - began_ns
        self._deferred_since_ns = None


class CpuShareLimiter:
    """Spaces repeated work so that it uses at most `share` of a core. Work below that share of `period_ns`, the time
    between two opportunities, is never delayed. The time is an argument.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._share = share
        self._free_ns = round(share * period_ns)
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether the work may be done again."""
        return self._due_ns is None or now_ns >= self._due_ns

    def record(self, began_ns: int, took_ns: int) -> None:
        """Record work that began at `began_ns` and took `took_ns`.

        >>> limiter = CpuShareLimiter(0.05, period_ns=1000)
        >>> limiter.record(began_ns=0, took_ns=50), limiter.is_due(1)
        (None, True)
        >>> limiter.record(began_ns=0, took_ns=100), limiter.is_due(1999), limiter.is_due(2000)
        (None, False, True)
        """
        self._due_ns = began_ns + round(took_ns / self._share) if took_ns > self._free_ns else None
