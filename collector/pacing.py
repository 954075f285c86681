"""Turns among the threads that compute much: who receives, who keeps the state of the runs, who writes pages.

Each call into ZeroMQ lets go of the interpreter's lock, and whoever computes then keeps it for the switch interval:
side by side, the thread that receives takes three times as long for a message as alone. So who has long work to do does
it in its turns, with a rest between any two.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from rankscope.measure.units import NS_PER_S

WORK_S: Final = 0.01
PAUSE_S: Final = 0.001
"""After each ten milliseconds of work one of rest, and then the next turn: who waited for it has it meanwhile. With one
of each a page of 2,048 ranks took 0.8 s for 0.3 s of computing, and was that much older when it was asked for; with
four of work the oldest hundredth of what pages showed of 8,192 ranks was 3.7 s old in two runs, with ten 2.6 to 2.8 s
in three of four."""
WORK_PER_WAIT: Final = 0.5
"""Who has waited long for a turn works half as long in it: done too slowly, a page is old before it is written."""

T = TypeVar("T")

TakeTurn = Callable[[], contextlib.AbstractContextManager[None]]
"""Waits until the others are through with their turns, though not for ever, and has one while it is entered."""


PIECE: Final = 256
"""Ranks of which a piece of work takes up to some 0.5 ms."""


def no_yield() -> None:
    """No rest, for work that nobody waits for."""


def chunked(items: Iterable[T], rest: Callable[[], None], size: int = PIECE) -> Iterator[T]:
    """The items, and a rest after every so many of them.

    >>> for rank in chunked("abc", lambda: print("rest"), size=2):
    ...     print(rank)
    a
    b
    rest
    c
    """
    for count, item in enumerate(items, 1):
        yield item
        if not count % size:
            rest()


class GilYielder:
    """Long work of one thread, between entering and leaving, in pieces. May be entered again after that.

    `take_turn`: with whom it takes turns; `sleep` and `now_s` are the clock.
    """

    def __init__(
        self,
        take_turn: TakeTurn = contextlib.nullcontext,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._take_turn = take_turn
        self._sleep = sleep
        self._now_s = now_s
        self._turn = contextlib.ExitStack()
        self._work_until_s = 0.0
        self._look_s = 0.0
        """Before that it cannot have worked enough. The time of day takes 50 ns, that of a thread is a system call."""
        self._is_entered = False

    def __enter__(self) -> "GilYielder":  # noqa: PYI034 - typing.Self is Python 3.11
        self._is_entered = True
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_entered = False
        self._turn.close()

    def rest(self) -> None:
        """To be called between any two pieces: rest, if there has been enough work since the last time."""
        if not self._is_entered or time.monotonic() < self._look_s:
            return
        left_s = self._work_until_s - time.thread_time()
        if left_s > 0:
            self._look_s = time.monotonic() + left_s
            return
        self._turn.close()
        self._sleep(PAUSE_S)
        self._begin()

    def _begin(self) -> None:
        asked_s = self._now_s()
        self._turn.enter_context(self._take_turn())
        work_s = max(WORK_S, WORK_PER_WAIT * (self._now_s() - asked_s))
        self._work_until_s = time.thread_time() + work_s
        self._look_s = time.monotonic() + work_s


# When detection looks at the runs. Pure: the time is an argument.
#
# A look at 16,384 ranks takes 0.3 to 0.9 s, in which the state of the runs stands still: what comes meanwhile waits,
# and so does whoever wants a picture; and a page that is being written is written half as fast. So one that is due is
# put off for a while when a page is being written, and for longer when a picture is about to be ordered. Seen at that
# size: each look made one of the pages older by a whole scrape.

WRITING_NS_MAX: Final = NS_PER_S
"""Where pages follow each other so soon that there is no gap a look comes right after a picture, and its page waits."""
PUT_OFF_NS_MAX: Final = 4 * NS_PER_S
"""Where even pictures do it comes at any time."""


class DetectionSchedule:
    """Looks take no more than `share` of a core; `period_ns` is the time between two chances."""

    def __init__(self, share: float, period_ns: int) -> None:
        self._pace = CpuShareLimiter(share, period_ns)
        self._lasted_ns = 0
        self._put_off_ns: int | None = None

    def decide(self, now_ns: int, *, is_writing: bool, order_ns: int | None) -> bool:
        """Decide whether to look now, while a page `is_writing` or not, and the next order is expected at `order_ns`.
        A look that is due and does not come is put off from then on.
        """
        if not self._pace.is_due(now_ns):
            return False
        comes_amid = order_ns is not None and 0 <= order_ns - now_ns < self._lasted_ns
        if not is_writing and not comes_amid:
            return True
        if self._put_off_ns is None:
            self._put_off_ns = now_ns
        return now_ns - self._put_off_ns >= (PUT_OFF_NS_MAX if comes_amid else WRITING_NS_MAX)

    @property
    def is_put_off(self) -> bool:
        """Whether one has been due and did not come: it need not wait for the next chance."""
        return self._put_off_ns is not None

    def take(self, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """There was a look from then to then, and it has used so much of a core."""
        self._pace.take(began_ns, cpu_ns)
        self._lasted_ns = ended_ns - began_ns
        self._put_off_ns = None


class CpuShareLimiter:
    """Leaves so much time after each turn that all turns together take no more than `share` of it. What takes less than
    that share of `period_ns`, the time between two chances, is never put off.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._share = share
        self._free_ns = round(share * period_ns)
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether the next turn may be taken."""
        return self._due_ns is None or now_ns >= self._due_ns

    def take(self, now_ns: int, took_ns: int) -> None:
        """A turn that began then has taken so long.

        >>> pace = CpuShareLimiter(0.05, period_ns=1000)
        >>> pace.take(now_ns=0, took_ns=50), pace.is_due(1)
        (None, True)
        >>> pace.take(now_ns=0, took_ns=100), pace.is_due(1999), pace.is_due(2000)
        (None, False, True)
        """
        self._due_ns = now_ns + round(took_ns / self._share) if took_ns > self._free_ns else None
