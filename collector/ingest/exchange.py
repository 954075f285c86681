"""What the receiving thread and the thread of the state of all runs give each other, in two queues."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankscope.collector.runs.events import PeerEvent

EVENTS_WAITING_MAX: Final = 32_768
"""Two seconds of 16,384 ranks, about 60 MB. Beyond that the receiving thread reads no more until the state has caught
up."""

TURN_WAIT_S: Final = 0.05
"""Longest wait for the other thread's turn to end: then both compute, which is slow, but nobody waits for longer."""


AddressedEvent = tuple[str, PeerEvent]
"""The name of a run, and what happens to it."""


class Numbered(NamedTuple):
    """The peer that waits for an acknowledgement, the number up to which everything of it is in the state once the
    batch is, and the life it is of.
    """

    peer: bytes
    through: int
    boot_id: str


@dataclass(slots=True)
class Batch:
    """What one turn has read: events in their order, and what is to be acknowledged once they are in the state."""

    events: list[AddressedEvent] = field(default_factory=list)
    numbered: list[Numbered] = field(default_factory=list)
    """What to acknowledge: of each numbered message."""
    at_once: set[bytes] = field(default_factory=set)
    """Peers that wait for it: the last message of a life, or one that came a second time."""
    notices: list[Numbered] = field(default_factory=list)
    """Notices of sidecars, each acknowledged by its own number."""
    untaken: set[str] = field(default_factory=set)
    """Lives that no run knows, as the thread of the state has found: nothing of theirs may be acknowledged."""
    unknown: set[str] = field(default_factory=set)
    """Those of them that have to say Hello again. The others have been asked when an earlier batch came back."""
    messages: int = 0
    """How many it was made of."""


class AskForClock(NamedTuple):
    """Ask this life of a rank what time it is."""

    boot_id: str


Answer = Batch | AskForClock
"""What the thread of the state asks of the receiving one. A Batch that comes back has been taken in."""


class Exchange:
    """The two queues, a bell for each side, and turns. Everything here may be called from both threads."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._inbox: list[Batch] = []
        self._events = 0
        self._outbox: deque[Answer] = deque()
        self._turn = threading.Lock()
        self.bell, self._rope = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        """Readable when there is something in the outbox, or `ring` was called."""

    @property
    def is_full(self) -> bool:
        """Whether as many events wait for the state as may."""
        return self._events >= EVENTS_WAITING_MAX

    @property
    def has_batches(self) -> bool:
        """Whether anything waits for the state."""
        return bool(self._inbox)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """While it lasts the other thread mostly does not compute, but waits for its own turn.

        Nothing depends on it but speed. Each call into ZeroMQ lets go of Python's lock, two in a message, and a
        thread that computes then keeps it for up to `sys.getswitchinterval()`: two threads that compute side by side
        spend more time on handing the lock over than on their work.
        """
        is_own = self._turn.acquire(timeout=TURN_WAIT_S)
        try:
            yield
        finally:
            if is_own:
                self._turn.release()

    def hand_on(self, batch: Batch) -> None:
        """From the receiving thread: something to be taken in."""
        with self._arrived:
            self._inbox.append(batch)
            self._events += len(batch.events)
            self._arrived.notify()

    def take(self, wait_s: float) -> list[Batch]:
        """To the thread of the state: everything that waits, in order; nothing when nothing came within that time."""
        with self._arrived:
            if not self._inbox:
                self._arrived.wait(max(0.0, wait_s))
            batches, self._inbox, self._events = self._inbox, [], 0
            return batches

    def interrupt(self) -> None:
        """Make the present `take` return; from any thread, and from a signal's handler."""
        with self._arrived:
            self._arrived.notify_all()

    def answer(self, *answers: Answer) -> None:
        """From the thread of the state: to be done by the receiving one, soon."""
        if answers:
            self._outbox.extend(answers)
            self.ring()

    def take_answers(self) -> list[Answer]:
        """To the receiving thread: everything that is to be done, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, 4096)  # many rings are one; one that is lost rings for what is taken now
        answers: list[Answer] = []
        while self._outbox:
            answers.append(self._outbox.popleft())
        return answers

    def ring(self) -> None:
        """Wake the receiving thread."""
        with contextlib.suppress(BlockingIOError, OSError):  # full: it will wake anyway; or closed
            os.write(self._rope, b"\0")

    def close(self) -> None:
        """Let go of the bell. Both threads are through."""
        os.close(self.bell)
        os.close(self._rope)
