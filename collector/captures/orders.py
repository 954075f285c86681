"""Take one capture from its order to its files, as a state machine. Pure: no socket, clock or disk.

    tick, take_state, take_part, note_file -> effects: messages to rank processes, bytes to write, files to finish

The order is repeated until each rank has answered for good. A rank that is past the first step refuses: then all are
called off, and ordered once more under another id, with twice the margin. A file is fetched part by part; a part that
does not come is asked for again. Whatever arrives or does not, every rank ends as `fetched`, `refused` or `failed`.
Times are seconds of a monotonic clock, `_s`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from rankscope.collector.captures.capture import FETCHING, ORDERED, RECORDING, RankCapture
from rankscope.measure.messages import (
    CAPTURE_PART_BYTES_MAX,
    CaptureOrder,
    CapturePart,
    CapturePartWanted,
    CaptureState,
    Message,
)
from rankscope.measure.units import NS_PER_S, ns_to_s

REPEAT_S: Final = 2.0
"""Time between two orders to a rank that has not ended."""
SILENT_S_MAX: Final = 30.0
"""A rank that is asked and says nothing for this long is given up: it answers each order at once."""
ENDED_S_MAX: Final = 10.0
"""The same for a rank process that has ended: its agent may still serve its file for a moment."""
STEPS_S_MIN: Final = 600.0
"""Shortest time that is given to the ranks to reach the steps and write their files."""
STEPS_FACTOR: Final = 10.0
"""The time given grows with this multiple of what the steps take by their median."""
PART_S_MAX: Final = 5.0
"""Time after which a part is asked for again."""
FETCH_S_MAX: Final = 60.0
"""A file of which nothing arrives for this long is given up."""
PARTS_IN_FLIGHT: Final = 4
"""Parts of one file that are asked for at a time: 1 MiB."""
FILES_IN_FLIGHT: Final = 4
"""Files that are fetched at a time, so that the messages of a run's ranks come in between."""
MARGIN_STEPS: Final = 2
ATTEMPTS_MAX: Final = 2

PROGRESS: Final = {"asked": 0, "accepted": 1, "recording": 2, "written": 3}
OUTCOMES: Final = frozenset({"refused", "failed", "fetched"})


class AskedRank(msgspec.Struct, frozen=True):
    """A rank that is asked for a capture, and its process."""

    rank: int
    node: str
    boot_id: str


class Pace(msgspec.Struct, frozen=True):
    """How fast the ranks train: the last step of any that is known, their median step, and their longest interval of
    reports.
    """

    last_step: int
    step_ns: float
    interval_ns: int

    def count_margin(self, attempt: int) -> int:
        """Return how many steps after the last known one the capture begins.

        >>> Pace(last_step=100, step_ns=500_000_000, interval_ns=1_000_000_000).count_margin(1)  # (2 + 1) / 0.5 + 2
        8
        """
        ahead_ns = 2 * self.interval_ns + NS_PER_S
        return attempt * (math.ceil(ahead_ns / max(1.0, self.step_ns)) + MARGIN_STEPS)

    def find_given_s(self, attempt: int, steps: int) -> float:
        """Return within which time after the order so many steps have to be in a file."""
        return STEPS_S_MIN + STEPS_FACTOR * (self.count_margin(attempt) + steps) * ns_to_s(self.step_ns)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What is ordered. `bytes_max` is the largest file of a rank; `pause_ns_max` None: however long it takes."""

    id: str
    steps: int
    options: tuple[str, ...] = ()
    bytes_max: int
    pause_ns_max: int | None = None


class Send(NamedTuple):
    """Send a message to a rank process."""

    boot_id: str
    message: Message


class WriteBytes(NamedTuple):
    """Write bytes of a rank's file."""

    rank: int
    offset: int
    data: bytes


class FinishFile(NamedTuple):
    """A rank's file has all of its bytes: check it, and answer by `note_file`."""

    rank: int
    size_bytes: int
    sha256: str


class DiscardFile(NamedTuple):
    """What has arrived of a rank's file is of no use."""

    rank: int


Effect = Send | WriteBytes | FinishFile | DiscardFile


class Progress(msgspec.Struct, frozen=True):
    """What a restarted collector has to know to go on with a capture."""

    terms: Terms
    asked: tuple[AskedRank, ...]
    pace: Pace
    attempt: int
    first_step: int


@dataclass(slots=True)
class _Fetch:
    """The parts of a file that are still to come: those asked for with the time, and the first that was not yet."""

    size_bytes: int
    sha256: str
    asked_s: dict[int, float] = field(default_factory=dict)
    next_offset: int = 0

    @property
    def is_whole(self) -> bool:
        return not self.asked_s and self.next_offset >= self.size_bytes

    def length_at(self, offset: int) -> int:
        return min(CAPTURE_PART_BYTES_MAX, self.size_bytes - offset)

    def choose(self, now_s: float) -> Iterator[int]:
        """Yield the offsets of the parts to ask for now."""
        for offset, asked_s in self.asked_s.items():
            if now_s - asked_s >= PART_S_MAX:
                self.asked_s[offset] = now_s
                yield offset
        while len(self.asked_s) < PARTS_IN_FLIGHT and self.next_offset < self.size_bytes:
            self.asked_s[self.next_offset] = now_s
            yield self.next_offset
            self.next_offset += CAPTURE_PART_BYTES_MAX


@dataclass(slots=True)
class _Rank:
    asked: AskedRank
    state: RankCapture
    heard_s: float
    ordered_s: float | None = None
    fetch: _Fetch | None = None

    @property
    def is_over(self) -> bool:
        return self.state.state in OUTCOMES

    def find_problem(self, now_s: float, ended: Mapping[str, str], begun_s: float, given_s: float) -> str:
        """Return why it is given up now; empty where it is not."""
        silent_s = now_s - self.heard_s
        how = ended.get(self.asked.boot_id)
        if how is not None and silent_s >= ENDED_S_MAX:
            lost = (
                "; files that the collector has not fetched within drain_s are lost, unless there is a capture_folder"
            )
            return f"its process has ended ({how}){lost if self.fetch is not None else ''}"
        if self.fetch is not None:
            waits = bool(self.fetch.asked_s) and silent_s >= FETCH_S_MAX
            return f"nothing of its file has arrived for {FETCH_S_MAX:.0f} s" if waits else ""
        if silent_s >= SILENT_S_MAX:
            what = (
                "an agent of an earlier release takes no orders: upgrade it"
                if self.state.state == "asked"
                else "its last answer came before that"
            )
            return f"it has not answered for {SILENT_S_MAX:.0f} s; {what}"
        if now_s - begun_s >= given_s:
            return f"it has not written its file within {given_s:.0f} s after the order"
        return ""

    def set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


class Orders:
    """One capture of some ranks, until each of them has ended."""

    def __init__(self, progress: Progress, now_s: float) -> None:
        """Go on with a capture, from its order; files that have not arrived as a whole are fetched again."""
        self._terms, self._pace = progress.terms, progress.pace
        self._attempt, self._first_step = progress.attempt, progress.first_step
        self._begun_s = now_s
        self._ranks = {one.rank: _Rank(one, RankCapture(rank=one.rank, node=one.node), now_s) for one in progress.asked}
        self._by_boot_id = {one.asked.boot_id: one for one in self._ranks.values()}
        self._next_step = 0
        """The latest step that a rank has said to be next."""

    @classmethod
    def begin(cls, terms: Terms, asked: tuple[AskedRank, ...], pace: Pace, now_s: float) -> "Orders":
        """Begin a capture; the first call of `tick` returns its orders."""
        return cls(Progress(terms, asked, pace, 1, pace.last_step + pace.count_margin(1)), now_s)

    # -- what has become of it ----------------------------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """What is to be kept of it."""
        asked = tuple(one.asked for one in self._ranks.values())
        return Progress(self._terms, asked, self._pace, self._attempt, self._first_step)

    @property
    def steps(self) -> tuple[int, int]:
        """The first and the last step that are ordered now."""
        return self._first_step, self._first_step + self._terms.steps - 1

    @property
    def boot_ids(self) -> frozenset[str]:
        """The rank processes that are asked."""
        return frozenset(self._by_boot_id)

    @property
    def ranks(self) -> tuple[RankCapture, ...]:
        """What has become of it on each rank, in their order."""
        return tuple(self._ranks[number].state for number in sorted(self._ranks))

    @property
    def state(self) -> str:
        """ORDERED, RECORDING or FETCHING; once `is_over` it has no meaning."""
        states = {one.state.state for one in self._ranks.values()}
        if "asked" in states:
            return ORDERED
        return RECORDING if states & {"accepted", "recording"} else FETCHING

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return all(one.is_over for one in self._ranks.values())

    # -- events -------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, ended: Mapping[str, str]) -> list[Effect]:
        """Return what is due now. `ended` has how rank processes have ended, by boot id."""
        effects: list[Effect] = []
        given_s = self._pace.find_given_s(self._attempt, self._terms.steps)
        for one in self._open():
            problem = one.find_problem(now_s, ended, self._begun_s, given_s)
            if problem:
                effects += self._end(one, "failed", problem)
            elif one.fetch is None and (one.ordered_s is None or now_s - one.ordered_s >= REPEAT_S):
                one.ordered_s = now_s
                effects.append(self._order(one))
        return effects + self._fetch(now_s)

    def take_state(self, boot_id: str, found: CaptureState, now_s: float) -> list[Effect]:
        """Apply the state that a rank process reports of a capture; one of another capture is ignored."""
        one = self._by_boot_id.get(boot_id)
        if one is None or one.is_over or found.id != self._wire_id or one.fetch is not None:
            return []
        one.heard_s = now_s
        self._next_step = max(self._next_step, found.next_step)
        one.set(
            expected_pause_s=_to_s(found.expected_pause_ns),
            pause_s=_to_s(found.pause_ns),
            first_step=found.first_step,
            last_step=found.last_step,
            size_bytes=found.size_bytes,
            reason=found.reason,
        )
        if found.state == "refused" and found.next_step >= self._first_step and self._attempt < ATTEMPTS_MAX:
            return self._order_again(now_s)
        if found.state in {"refused", "failed"}:
            return self._end(one, found.state, found.reason or "no reason was given")
        if found.state == "written":
            return self._begin_fetch(one, found, now_s)
        if PROGRESS.get(found.state, -1) > PROGRESS[one.state.state]:
            one.set(state=found.state)
        return []

    def take_part(self, boot_id: str, part: CapturePart, now_s: float) -> list[Effect]:
        """Take a part of a file. One that was not asked for, or of another length, is ignored."""
        one = self._by_boot_id.get(boot_id)
        if one is None or one.is_over or part.id != self._wire_id or one.fetch is None:
            return []
        if part.problem:
            return self._end(one, "failed", f"its file could not be read: {part.problem}")
        fetch = one.fetch
        if part.offset not in fetch.asked_s or len(part.data) != fetch.length_at(part.offset):
            return []
        del fetch.asked_s[part.offset]
        one.heard_s = now_s
        one.set(fetched_bytes=one.state.fetched_bytes + len(part.data))
        effects: list[Effect] = [WriteBytes(one.asked.rank, part.offset, part.data)]
        if fetch.is_whole:
            effects.append(FinishFile(one.asked.rank, fetch.size_bytes, fetch.sha256))
        return effects + self._fetch(now_s)

    def note_file(self, rank: int, name: str, problem: str = "") -> list[Effect]:
        """Note that a file is whole in the store under this name, or why it is lost. Either way the rank is told that
        the capture is over.
        """
        one = self._ranks[rank]
        if one.is_over:
            return []
        one.set(file="" if problem else name)
        return self._end(one, "failed" if problem else "fetched", problem or one.state.reason)

    def call_off(self, reason: str) -> list[Effect]:
        """End it on all ranks that have not ended."""
        return [effect for one in self._open() for effect in self._end(one, "failed", reason)]

    # -- parts of that ------------------------------------------------------------------------------------------------

    @property
    def _wire_id(self) -> str:
        return self._terms.id if self._attempt == 1 else f"{self._terms.id}-{self._attempt}"

    def _open(self) -> list[_Rank]:
        return [one for one in self._ranks.values() if not one.is_over]

    def _order(self, one: _Rank, *, is_over: bool = False) -> Send:
        first_step, last_step = self.steps
        terms = self._terms
        order = CaptureOrder(
            id=self._wire_id,
            first_step=first_step,
            last_step=last_step,
            options=terms.options,
            bytes_max=terms.bytes_max,
            pause_ns_max=terms.pause_ns_max,
            is_over=is_over,
        )
        return Send(one.asked.boot_id, order)

    def _end(self, one: _Rank, state: str, reason: str) -> list[Effect]:
        has_part = one.fetch is not None and state != "fetched"
        one.fetch = None
        one.set(state=state, reason=reason)
        discard: list[Effect] = [DiscardFile(one.asked.rank)] if has_part else []
        return [*discard, self._order(one, is_over=True)]

    def _order_again(self, now_s: float) -> list[Effect]:
        """Call all off, and order later steps of all that can still be asked."""
        again = [one for one in self._ranks.values() if one.state.state != "failed"]
        effects: list[Effect] = [self._order(one, is_over=True) for one in again]
        effects += [DiscardFile(one.asked.rank) for one in again if one.fetch is not None or one.state.file]
        self._attempt += 1
        self._first_step = max(self._pace.last_step, self._next_step) + self._pace.count_margin(self._attempt)
        self._begun_s = now_s
        for one in again:
            one.state = RankCapture(rank=one.asked.rank, node=one.asked.node)
            one.fetch, one.ordered_s, one.heard_s = None, now_s, now_s
            effects.append(self._order(one))
        return effects

    def _begin_fetch(self, one: _Rank, found: CaptureState, now_s: float) -> list[Effect]:
        size_bytes = found.size_bytes or 0
        if not size_bytes or not found.sha256:
            return self._end(one, "failed", "its file is empty, or has no checksum")
        if size_bytes > self._terms.bytes_max:
            limit = f"{size_bytes:,} bytes; at most {self._terms.bytes_max:,} of a rank are accepted"
            return self._end(one, "failed", f"its file has {limit} (capture_bytes_max by the number of ranks)")
        one.set(state="written")
        one.fetch = _Fetch(size_bytes, found.sha256)
        return self._fetch(now_s)

    def _fetch(self, now_s: float) -> list[Effect]:
        """Ask for parts of the files that are fetched now, the ranks with the lowest numbers first."""
        fetching = [one for one in self._open() if one.fetch is not None and not one.fetch.is_whole]
        started = [one for one in fetching if one.state.fetched_bytes or (one.fetch and one.fetch.asked_s)]
        waiting = [one for one in fetching if one not in started]
        effects: list[Effect] = []
        for one in (started + waiting)[:FILES_IN_FLIGHT]:
            assert one.fetch is not None  # noqa: S101 - chosen by it
            if not one.fetch.asked_s:
                one.heard_s = max(one.heard_s, now_s)
            for offset in one.fetch.choose(now_s):
                wanted = CapturePartWanted(id=self._wire_id, offset=offset, length=one.fetch.length_at(offset))
                effects.append(Send(one.asked.boot_id, wanted))
        return effects


def _to_s(duration_ns: int | None) -> float | None:
    return None if duration_ns is None else ns_to_s(duration_ns)
