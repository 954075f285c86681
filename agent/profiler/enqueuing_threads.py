"""Tells which of the collectives that were enqueued during a window belong to the training thread.

A session of torch's profiler is one thread's: it has the collectives of gloo that this thread, or autograd for it, has
enqueued. The sequence numbers of a group count those of all threads. Where another thread of the script communicates,
as trainers do that reduce their metrics or plan a checkpoint beside the training, the window seemed to lack these, and
then nothing was known of its steps. The flight recorder says of each collective which thread has enqueued it.

    the training thread, autograd      recorded: one that has no range is lost
    a thread of gloo                   a callback of the script, as in DDP's PowerSGD hook. It is not recorded, and the
                                       training thread waits for its result: lost as well
    any other thread                   not recorded, and not waited for: left out, and counted

What the training thread may wait for is that other thread, as by `Future.result`: that counts as its own time.

Reading the recorder holds the GIL, some 20 us for each of up to 2,000 entries. So a group that other threads alone use
is remembered, and what did not help is done again only after twice as many windows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from rankscope.agent.profiler.process_groups import FlightEntry
from rankscope.agent.steps.open_collectives import THREAD_NAME

AUTOGRAD: Final = "pt_autograd"
"""Begin of the names that torch gives autograd's threads, which record for the thread that called them."""
PAUSE_WINDOWS_MAX: Final = 64
"""Most windows between two readings that do not explain what a window lacks."""

Sequences = Mapping[int, Sequence[int]]
"""The sequence numbers of collectives, ascending, by the number of their group."""


class OwnCollectives(NamedTuple):
    """The collectives of the training thread in a window, how many others there were, and the recorder's entries of the
    former; None: it was not read, or does not have all.
    """

    sequences: Sequences
    others: int
    entries: Sequence[FlightEntry] | None = None


class EnqueuingThreads:
    """Keep which groups other threads than the training thread use."""

    def __init__(self) -> None:
        self.others_alone: set[int] = set()
        """Numbers of groups."""
        self._pause_windows = self._windows_left = 0

    def find_own(
        self,
        thread: int,
        enqueued: Sequences,
        own: Sequences,
        recorded: int,
        read_entries: Callable[[], Sequence[FlightEntry]],
    ) -> OwnCollectives:
        """Return the collectives of this thread, which began the window. `own` are those of groups that others do not
        use alone; `recorded` is how many have ranges: not as many.
        """
        total, count = _count(enqueued), _count(own)
        if recorded >= total or not self._may_read():
            return OwnCollectives(enqueued, 0) if recorded > count else OwnCollectives(own, total - count)
        found = [one for one in read_entries() if one.sequence in enqueued.get(one.group_number, ())]
        if len(found) != total:  # it no longer has all
            return OwnCollectives(own, total - count)
        mine = [one for one in found if not _is_of_another(one, thread)]
        own = {number: [one.sequence for one in mine if one.group_number == number] for number in enqueued}
        self.others_alone = (self.others_alone - set(enqueued)) | {number for number in own if not own[number]}
        own = {number: found for number, found in own.items() if found}
        if len(mine) == recorded:
            self._pause_windows = self._windows_left = 0
        return OwnCollectives(own, total - len(mine), mine)

    def _may_read(self) -> bool:
        """Return whether the recorder may be read for this window; from then on it has not helped, until it has."""
        if self._windows_left:
            self._windows_left -= 1
            return False
        self._windows_left = self._pause_windows
        self._pause_windows = min(PAUSE_WINDOWS_MAX, 2 * self._pause_windows + 1)
        return True


def _count(sequences: Sequences) -> int:
    return sum(map(len, sequences.values()))


def _is_of_another(entry: FlightEntry, thread: int) -> bool:
    """Return whether a thread of the script enqueued this that is not this one. Threads of Python have the name of the
    one that started them.
    """
    return entry.thread not in (None, thread) and not entry.thread_name.startswith((THREAD_NAME, AUTOGRAD))
