"""Turns among the threads that compute much: who receives, who keeps the state of the runs, who writes pages.

Each call into ZeroMQ lets go of the interpreter's lock, and whoever computes then keeps it for the switch interval:
side by side, the thread that receives takes three times as long for a message as alone. So who has long work to do does
it in its turns, with a rest between any two.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

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


def go_on() -> None:
    """No rest, for work that nobody waits for."""


def in_pieces(items: Iterable[T], rest: Callable[[], None], size: int = PIECE) -> Iterator[T]:
    """The items, and a rest after every so many of them.

    >>> for rank in in_pieces("abc", lambda: print("rest"), size=2):
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


class Turns:
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

    def __enter__(self) -> "Turns":  # noqa: PYI034 - typing.Self is Python 3.11
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
