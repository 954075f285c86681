"""Parses what NCCL's RAS service says about a job: which ranks of which communicators are missing or behind. Pure.

NCCL 2.28.7 and later give JSON with every rank of every communicator. Before, there is a text for people, which lists
the ranks that differ from most others, in words that changed with 2.26. Whatever cannot be read is left out, with a
reason; nothing is raised.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from rankscope.measure.identity import Count
from rankscope.measure.nccl_ras import BEHIND, DEAD, FAILED, MISSING, NOT_MEMBER, RAS_STATES, RasCommunicator, RasRank

RANKS_MAX: Final = 16
"""Ranks listed of one communicator. In a hang few are late, and all others wait for them."""
COMMUNICATORS_MAX: Final = 32
READ_MAX: Final = 8192
"""Communicators of an answer, and ranks of each, that are read; an honest answer of that length has fewer."""
HOST_LENGTH_MAX: Final = 64
NO_ERRORS: Final = (0, 7)
"""NCCL's results for success, and for an operation in progress."""
ERRORS: Final = {
    1: "unhandled CUDA error", 2: "system error", 3: "internal error", 4: "invalid argument", 5: "invalid usage",
    6: "remote process error",
}  # fmt: skip

Process = tuple[str, int]
"""Address of a machine, and process id there."""


class RasAnswer(NamedTuple):
    """An answer as it was read. `cut` is why its end is missing, empty for a whole one."""

    text: str
    is_json: bool = False
    cut: str = ""


class JobStatus(NamedTuple):
    """What RAS says about a job. `communicators` are those with listed ranks, at most COMMUNICATORS_MAX, and
    `left_out` counts those that were not read or not listed. `processes` are all that the answer names, which is the
    whole job if `lists_all`. `problem` is why something is missing, empty if nothing is.
    """

    nccl_version: str = ""
    communicators_total: int | None = None
    communicators: tuple[RasCommunicator, ...] = ()
    left_out: int = 0
    timeouts: int | None = None
    processes: frozenset[Process] = frozenset()
    lists_all: bool = False
    problem: str = ""


def parse_answer(answer: RasAnswer) -> JobStatus:
    """Return what an answer says."""
    status = _parse_json(answer.text) if answer.is_json else _TextParser().parse(answer.text)
    if not answer.cut:
        return status
    return status._replace(problem=f"the answer is not whole: {answer.cut}")


@dataclass
class _Communicator:
    """A communicator while it is read. `missing` is how many ranks gave no data, where RAS says so."""

    name: str
    size: int | None = None
    ranks: dict[int, RasRank] = field(default_factory=dict)
    missing: int = 0
    unlisted: int = 0

    def add(self, rank: RasRank) -> None:
        """Add a rank: of one that is added more than once the worst state is kept, or what it is most behind in."""
        before = self.ranks.get(rank.communicator_rank)
        if before is None and len(self.ranks) >= READ_MAX:
            self.unlisted += 1
        elif before is None or _badness(rank) > _badness(before):
            self.ranks[rank.communicator_rank] = rank

    def build(self) -> RasCommunicator:
        """Return it with at most RANKS_MAX ranks."""
        ordered = sorted(self.ranks.values(), key=lambda one: (RAS_STATES.index(one.state), one.communicator_rank))
        without_data = sum(one.state in {DEAD, MISSING} for one in ordered)
        return RasCommunicator(
            name=self.name[:HOST_LENGTH_MAX],
            size=self.size,
            ranks=tuple(ordered[:RANKS_MAX]),
            ranks_left_out=max(0, len(ordered) - RANKS_MAX) + self.unlisted + max(0, self.missing - without_data),
        )


def _badness(one: RasRank) -> tuple[int, int]:
    return -RAS_STATES.index(one.state), (one.furthest or 0) - (one.launched or 0)


def _build_status(found: Iterable[_Communicator], total: int | None, unread: int = 0, **more: object) -> JobStatus:
    """Return the status, with the communicators that have something to list, the worst ones first."""
    built = [one for one in (each.build() for each in found) if one.ranks or one.ranks_left_out]
    built.sort(key=lambda one: (RAS_STATES.index(one.ranks[0].state) if one.ranks else len(RAS_STATES), one.name))
    left_out = unread + max(0, len(built) - COMMUNICATORS_MAX)
    return JobStatus(
        communicators_total=total, communicators=tuple(built[:COMMUNICATORS_MAX]), left_out=left_out
    )._replace(**more)  # type: ignore[arg-type]


# -- JSON -------------------------------------------------------------------------------------------------------------


class _JsonStatus(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    unresponsive: bool = False
    considered_dead: bool = False


class _JsonRank(msgspec.Struct):
    rank: Count
    host: str = ""
    pid: int = -1
    status: _JsonStatus = msgspec.field(default_factory=_JsonStatus)
    collective_counts: dict[str, Count] = {}

    @property
    def process(self) -> Process | None:
        return (self.host[:HOST_LENGTH_MAX], self.pid) if self.pid >= 0 else None

    def to_rank(self, state: str) -> RasRank:
        host, pid = self.process or ("", None)
        return RasRank(communicator_rank=self.rank, state=state, host=host, pid=pid)


class _JsonCommunicator(msgspec.Struct):
    hash: str = ""
    size: Count | None = None
    ranks: list[_JsonRank] = []
    missing_ranks: list[_JsonRank] = []


_JSON_LIST: Final = re.compile(r'"communicators"\s*:\s*\[')
_JSON_BETWEEN: Final = re.compile(r"[\s,]*")
_JSON_FAULT: Final = re.compile(r'("nvml_dev": -?\d+)(\s*"status")')
"""NCCL 2.28.7 to 2.28.9 lack the comma between these two fields of a missing rank."""


def _parse_json(text: str) -> JobStatus:
    """Parse the communicators one by one, so that those before the end of a cut answer are known."""
    text = _JSON_FAULT.sub(r"\1,\2", text)
    total = _find_number(r'"communicators_count"\s*:\s*(\d+)', text)
    begin = _JSON_LIST.search(text)
    if begin is None:
        return JobStatus(problem="the answer has no list of communicators")
    found, end = _read_communicators(text, begin.end())
    is_whole = text[end : end + 1] == "]"
    processes = {one.process for each in found for one in (*each.ranks, *each.missing_ranks)}
    version = re.search(r'"nccl_version"\s*:\s*"([^"]{1,64})"', text)
    return _build_status(
        map(_read_json_communicator, found),
        total,
        unread=max(0, (total or 0) - len(found)),
        nccl_version="" if version is None else version[1],
        timeouts=_find_number(r'"timeouts_count"\s*:\s*(\d+)', text[end:]) if is_whole else None,
        processes=frozenset(one for one in processes if one is not None),
        lists_all=is_whole,
        problem="" if is_whole else f"the answer could not be read beyond {len(found)} communicators",
    )


def _read_communicators(text: str, place: int) -> tuple[list[_JsonCommunicator], int]:
    """Return the communicators from this place on, up to the first that cannot be read, and the place after them."""
    found: list[_JsonCommunicator] = []
    decoder = json.JSONDecoder()
    while True:
        place = _end_of_gap(text, place)
        if text[place : place + 1] != "{" or len(found) >= READ_MAX:
            return found, place
        try:
            one, after = decoder.raw_decode(text, place)
            found.append(msgspec.convert(one, _JsonCommunicator))
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return found, place
        place = after


def _end_of_gap(text: str, place: int) -> int:
    gap = _JSON_BETWEEN.match(text, place)
    return place if gap is None else gap.end()


def _read_json_communicator(found: _JsonCommunicator) -> _Communicator:
    one = _Communicator(found.hash.removeprefix("0x"), found.size)
    for rank in found.missing_ranks:
        dead, missing = rank.status.considered_dead, rank.status.unresponsive
        one.add(rank.to_rank(DEAD if dead else MISSING if missing else NOT_MEMBER))
    for rank in found.ranks:
        for result in (rank.status.init_state, rank.status.async_error):
            if result not in NO_ERRORS:
                error = ERRORS.get(result, f"error {result}")
                one.add(msgspec.structs.replace(rank.to_rank(FAILED), error=error[:HOST_LENGTH_MAX]))
    for behind in _find_behind(found.ranks):
        one.add(behind)
    return one


def _find_behind(ranks: list[_JsonRank]) -> Iterator[RasRank]:
    """Yield, for each kind of operation, the ranks that had launched fewer of it than another one."""
    furthest: dict[str, int] = {}
    for rank in ranks:
        for op, count in rank.collective_counts.items():
            furthest[op] = max(count, furthest.get(op, 0))
    for rank in ranks:
        for op, most in furthest.items():
            launched = rank.collective_counts.get(op, 0)
            if launched < most:
                yield _place_behind(rank.to_rank(BEHIND), op, launched, most)


def _place_behind(rank: RasRank, op: str, launched: int, furthest: int) -> RasRank:
    return msgspec.structs.replace(rank, op=op[:HOST_LENGTH_MAX], launched=launched, furthest=furthest)


def _find_number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text)
    return None if found is None else int(found[1][:18])


# -- text -------------------------------------------------------------------------------------------------------------

_VERSION: Final = re.compile(r"NCCL version (\S{1,64})")
_ROW: Final = re.compile(r"\s*(\d+)\s+(\d+)\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*$")
"""Row of the table: group, communicators in it, nodes, ranks a node, ranks of each communicator, and so on."""
_NONE: Final = "No communicator data collected"
_HEAD: Final = re.compile(r"#(\d+)-\d+ \(([0-9a-f]+)\) (INCOMPLETE|ERROR|MISMATCH)")
_JOB_HEAD: Final = re.compile(r"(INCOMPLETE|DEAD|TIMEOUT)\s*$")
_JOB_PROCESS: Final = re.compile(r"  Process (\d+) on node (\S+)")
_WITHOUT_DATA: Final = re.compile(r"  Missing communicator data from (\d+) rank")
_NUMBERS: Final = re.compile(r"  The (missing|unknown) ranks?: ([\d,]+)")
"""Without processes: NCCL 2.24 and 2.25."""
_OPERATION: Final = re.compile(r"  Communicator ranks have different (\S+) operation counts")
_STATUS: Final = re.compile(r"  Communicator ranks have different status")
_LAUNCHED: Final = re.compile(
    r"  (?:Rank )?(\d+)(?: ranks)? ha(?:s|ve) (?:launched up to operation (\d+)|not launched any)"
)
_HAS_STATUS: Final = re.compile(r"  (?:Rank )?(\d+)(?: ranks)? ha(?:s|ve) status (\S+)")
_REPORTED: Final = re.compile(r"  (?:Rank )?(\d+)(?: ranks)? reported (.+?)(?: -- .*)?$")
_MEMBER: Final = re.compile(r"  Rank (\d+)\b")
_PROCESS: Final = re.compile(r" process (\d+) on node (\S+)")
_TIMEOUTS: Final = re.compile(r"  Encountered (\d+) communication timeout")
_ALL_KINDS: Final = "collective"
"""Counted together by NCCL 2.24 and 2.25."""
_NO_MEMBERS: Final = frozenset({"NOCOMM", "UNKNOWN"})


@dataclass
class _Count:
    """How many ranks had launched so many operations, and those of them that are listed."""

    launched: int
    ranks: int
    listed: list[RasRank] = field(default_factory=list)


class _TextParser:
    """Reads the text line by line. A line about several ranks (`6 ranks have ...`) is followed by one for each of them,
    unless they are too many.
    """

    def __init__(self) -> None:
        self._version = ""
        self._total: int | None = None
        self._sizes: dict[str, int] = {}
        self._communicators: dict[str, _Communicator] = {}
        self._one = _Communicator("")
        self._job_head = ""
        self._state = ""
        self._error = ""
        self._op = ""
        self._counts: list[_Count] = []
        self._dead: set[Process] = set()
        self._processes: set[Process] = set()
        self._timeouts: int | None = None

    def parse(self, text: str) -> JobStatus:
        """Return what the text says."""
        for line in text.splitlines():
            self._read(line)
        self._end_counts()
        for one in self._communicators.values():
            for number, rank in one.ranks.items():
                if rank.state == MISSING and (rank.host, rank.pid) in self._dead:
                    one.ranks[number] = msgspec.structs.replace(rank, state=DEAD)
        return _build_status(
            self._communicators.values(),
            self._total,
            nccl_version=self._version,
            timeouts=self._timeouts,
            processes=frozenset(self._processes),
            problem="" if self._total is not None else "the answer has no data about communicators",
        )

    def _read(self, line: str) -> None:
        if (found := _HEAD.match(line)) is not None:
            self._begin(found[1], found[2], found[3])
        elif line.startswith("  ") and self._one.name:
            self._read_of_communicator(line)
        elif line.startswith("  ") and self._job_head:
            self._read_of_job(line)
        elif (found := _JOB_HEAD.match(line)) is not None:
            self._leave()
            self._job_head = found[1]
        else:
            self._read_outside(line)

    def _read_outside(self, line: str) -> None:
        """Read a line of the first part, up to the table of communicators, or between two blocks."""
        if (found := _VERSION.match(line)) is not None:
            self._version = found[1]
        elif (found := _ROW.match(line)) is not None:
            self._total = (self._total or 0) + _to_int(found[2])
            self._sizes[found[1]] = _to_int(found[3])
        elif line.startswith(_NONE):
            self._total = 0
        elif line.startswith("Warnings"):  # what comes before is whole, so no timeout is known to be none
            self._timeouts = 0

    def _read_of_job(self, line: str) -> None:
        if (found := _JOB_PROCESS.match(line)) is not None:
            process = (found[2][:HOST_LENGTH_MAX], _to_int(found[1]))
            self._processes.add(process)
            if self._job_head == "DEAD":
                self._dead.add(process)
        elif (found := _TIMEOUTS.match(line)) is not None:
            self._timeouts = _to_int(found[1])

    def _leave(self) -> None:
        self._end_counts()
        self._one, self._job_head = _Communicator(""), ""

    def _begin(self, group: str, name: str, what: str) -> None:
        """Begin a block about a communicator."""
        self._leave()
        self._one = self._communicators.get(name) or _Communicator(name, self._sizes.get(group))
        if len(self._communicators) < READ_MAX:
            self._communicators[name] = self._one
        self._state = MISSING if what == "INCOMPLETE" else ""

    def _read_of_communicator(self, line: str) -> None:
        if (found := _WITHOUT_DATA.match(line)) is not None:
            self._one.missing = _to_int(found[1])
        elif (found := _NUMBERS.match(line)) is not None:
            state = MISSING if found[1] == "missing" else NOT_MEMBER
            for number in filter(None, found[2].split(",")):
                self._one.add(RasRank(communicator_rank=_to_int(number), state=state))
        elif (found := _OPERATION.match(line)) is not None:
            self._end_counts()
            self._op, self._state = "" if found[1] == _ALL_KINDS else found[1], BEHIND
        elif _STATUS.match(line) is not None:
            self._state = ""
        else:
            self._read_group(line)
            member = _MEMBER.match(line)
            if member is not None:
                self._add_member(_to_int(member[1]), line)

    def _read_group(self, line: str) -> None:
        """Read what one or several ranks have done; the ranks follow, or are in the same line."""
        is_one = line.startswith("  Rank ")
        if (found := _LAUNCHED.match(line)) is not None and self._state == BEHIND:
            self._counts.append(_Count(_to_int(found[2] or "0"), 1 if is_one else _to_int(found[1])))
        elif (found := _HAS_STATUS.match(line)) is not None:
            self._state = NOT_MEMBER if found[2] in _NO_MEMBERS else ""
        elif (found := _REPORTED.match(line)) is not None:
            self._state, self._error = FAILED, found[2].strip()[:HOST_LENGTH_MAX]

    def _add_member(self, number: int, line: str) -> None:
        place = _PROCESS.search(line)
        host, pid = ("", None) if place is None else (place[2][:HOST_LENGTH_MAX], _to_int(place[1]))
        if pid is not None:
            self._processes.add((host, pid))
        rank = RasRank(communicator_rank=number, state=self._state or BEHIND, host=host, pid=pid)
        if self._state == BEHIND and self._counts:
            self._counts[-1].listed.append(rank)
        elif self._state == FAILED:
            self._one.add(msgspec.structs.replace(rank, error=self._error))
        elif self._state in {MISSING, NOT_MEMBER}:
            self._one.add(rank)

    def _end_counts(self) -> None:
        """Add the ranks that had launched fewer operations than the furthest one."""
        furthest = max((one.launched for one in self._counts), default=0)
        for count in self._counts:
            if count.launched == furthest:
                continue
            self._one.unlisted += max(0, count.ranks - len(count.listed))
            for rank in count.listed:
                self._one.add(_place_behind(rank, self._op, count.launched, furthest))
        self._counts = []


def _to_int(digits: str) -> int:
    """Return a number of the answer, of at most 18 digits, which fits into a message."""
    return int(digits[:18])
