"""Connect the receive thread and the thread that keeps run state, by two queues."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rankscope.collector.runs.events import PeerEvent
from rankscope.collector.wakeup import Wakeup
from rankscope.measure.messages import Message

EVENTS_WAITING_MAX: Final = 32_768
"""Two seconds of 16,384 ranks, about 60 MB. Beyond it the receive thread stops reading until the state has caught up.
"""


AddressedEvent = tuple[str, PeerEvent]
"""The name of a run, and an event of it."""


class Numbered(NamedTuple):
    """A numbered message to acknowledge: the peer that waits for it, the number up to which every message of the peer
    is in the run state once the batch is, and the boot id of the rank process it belongs to.
    """

    peer: bytes
    through: int
    boot_id: str


@dataclass(slots=True)
class EventBatch:
    """The events of one receive pass, in order, and what to acknowledge once they are in the run state."""

    events: list[AddressedEvent] = field(default_factory=list)
    numbered: list[Numbered] = field(default_factory=list)
    """One for each numbered message."""
    at_once: set[bytes] = field(default_factory=set)
    """Peers to acknowledge without delay: after the last message of a rank process, or a duplicate."""
    notices: list[Numbered] = field(default_factory=list)
    """Notices of sidecars, each acknowledged by its own number."""
    without_run: set[str] = field(default_factory=set)
    """Boot ids of rank processes that no run knows: none of their messages may be acknowledged."""
    hello_wanted: set[str] = field(default_factory=set)
    """Those of them to ask for a Hello. The others were asked when an earlier batch came back."""
    forgotten: list[str] = field(default_factory=list)
    """The names of runs that admission has forgotten for those that begin in this batch."""
    messages: int = 0
    """How many messages it was made of."""


class AskForClock(NamedTuple):
    """Ask a rank process for the time of its clock."""

    boot_id: str


class SendToRank(NamedTuple):
    """Send a message to a rank process; nothing where it has no connection."""

    boot_id: str
    message: Message


class SendToPeer(NamedTuple):
    """Send a message to a peer that has sent no Hello."""

    peer: bytes
    message: Message


Answer = EventBatch | AskForClock | SendToRank | SendToPeer
"""What other threads ask of the receive thread. A batch that comes back has been processed."""


class Exchange:
    """The two queues and a wake-up for each side. Every method may be called from both threads."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._inbox: list[EventBatch] = []
        self._events = 0
        self._outbox: deque[Answer] = deque()
        self.wakeup = Wakeup()
        """Of the receive thread: set when there is something in the outbox."""

    @property
    def is_full(self) -> bool:
        """Whether EVENTS_WAITING_MAX events wait for the state thread."""
        return self._events >= EVENTS_WAITING_MAX

    def put(self, batch: EventBatch) -> None:
        """Queue a batch for the state thread."""
        with self._arrived:
            self._inbox.append(batch)
            self._events += len(batch.events)
            self._arrived.notify()

    def get(self, wait_s: float) -> list[EventBatch]:
        """Return all batches that wait for the state thread, in order; none if none came within `wait_s`."""
        with self._arrived:
            if not self._inbox:
                self._arrived.wait(max(0.0, wait_s))
            batches, self._inbox, self._events = self._inbox, [], 0
            return batches

    def interrupt(self) -> None:
        """Make a waiting `get` return; also from a signal handler."""
        with self._arrived:
            self._arrived.notify_all()

    def answer(self, *answers: Answer) -> None:
        """Queue answers for the receive thread, and wake it."""
        if answers:
            self._outbox.extend(answers)
            self.wakeup.set()

    def get_answers(self) -> list[Answer]:
        """Return all answers that wait for the receive thread, in order."""
        self.wakeup.clear()  # before the outbox is read, so that none is missed
        answers: list[Answer] = []
        while self._outbox:
            answers.append(self._outbox.popleft())
        return answers

    def close(self) -> None:
        """Close the wake-up pipe. Both threads must have ended."""
        self.wakeup.close()
