"""Define captures that the collector orders: what is asked for, and what has become of it. Pure.

    ordered -> recording -> fetching -> analyzing -> complete
       |           |           |            +-- the files are there, their analysis failed: complete, with `problem`
       +-----------+-----------+--> failed, with `problem`: no rank has a file

Times are seconds since 1970 by the collector's wall clock, `_wall_s`.
"""

from pathlib import Path
from typing import Final

import msgspec

ORDERED: Final = "ordered"
"""The ranks have been told the steps, or are being told."""
RECORDING: Final = "recording"
"""Every rank that is asked has answered; those that accepted wait for the steps, record, or write their files."""
FETCHING: Final = "fetching"
"""Files are on their way to the collector."""
ANALYZING: Final = "analyzing"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
STATES: Final = (ORDERED, RECORDING, FETCHING, ANALYZING, COMPLETE, FAILED)
REFUSED: Final = "refused"
"""No state of a capture: an order that did not become one, in counts."""
ENDED: Final = frozenset({COMPLETE, FAILED})

STATE_WORDS: Final = {
    ORDERED: "the ranks are being told the steps",
    RECORDING: "the ranks wait for these steps, record them and write their files",
    FETCHING: "the files are on their way to the collector",
    ANALYZING: "the collector analyses the files",
}
"""What each state means while it has not ended."""

SLOWEST: Final = "slowest"
ALL: Final = "all"


def find_captures_folder(store: Path) -> Path:
    """Return the folder of captures beside a store: a folder for each, by its id.

    >>> find_captures_folder(Path("/data/rankscope.db"))
    PosixPath('/data/rankscope.db-captures')
    """
    return store.with_name(store.name + "-captures")


class Around(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank, with its healthiest peer and a neighbor on its node."""

    around: int


class CaptureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a capture of a run, by its id or name. `ranks` are rank numbers, one with those that belong beside
    it, or SLOWEST (the slowest rank, its healthiest peer, and a neighbor on its node) or ALL.

    `is_forced`: also where it is expected to stop training for longer than `capture_pause_s_max` of the collector or of
    the agent. `asked_by` is for users: an address, or the number of an incident.
    """

    run: str
    ranks: tuple[int, ...] | Around | str = SLOWEST
    steps: int = 3
    options: tuple[str, ...] = ()
    is_forced: bool = False
    asked_by: str = ""
    incident: str = ""


class RankCapture(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a capture on one rank. `state` is one of `measure.messages.CAPTURE_STATES`, or `asked` before
    the rank has answered, or `fetched` once its file is whole in the store. `file` is its name there.
    """

    rank: int
    node: str = ""
    state: str = "asked"
    reason: str = ""
    first_step: int | None = None
    last_step: int | None = None
    expected_pause_s: float | None = None
    pause_s: float | None = None
    size_bytes: int | None = None
    fetched_bytes: int = 0
    file: str = ""


class CaptureFile(msgspec.Struct, frozen=True):
    """A file of a capture in the store: its name, and its size in bytes."""

    name: str
    size_bytes: int


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """One capture. `first_step` and `last_step` are those that were ordered. `verdict` are the first lines of the
    analysis; `files` has `report.html`, `report.json`, `merged.json.gz`, and the traces of the ranks. `problem`: why it
    failed, or what of it did; empty while all is well.
    """

    id: str
    run: str
    run_id: str
    state: str
    asked_wall_s: float
    changed_wall_s: float
    asked_by: str = ""
    incident: str = ""
    options: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    ranks: tuple[RankCapture, ...] = ()
    verdict: str = ""
    files: tuple[CaptureFile, ...] = ()
    problem: str = ""


class CaptureTotals:
    """Captures since the collector started; one thread at a time changes them."""

    def __init__(self) -> None:
        self.by_state = {COMPLETE: 0, FAILED: 0, REFUSED: 0}
        """Captures that have ended, and orders that were refused."""
        self.pause_s = 0.0
        """For how long they have stopped training: of each its longest pause, as ranks wait for each other."""
        self.fetched_bytes = 0
        """Bytes of the files that ranks have delivered."""

    def add(self, capture: Capture) -> None:
        """Add a capture that has ended."""
        self.by_state[capture.state] += 1
        self.pause_s += max((one.pause_s for one in capture.ranks if one.pause_s is not None), default=0.0)
        self.fetched_bytes += sum(one.size_bytes or 0 for one in capture.ranks if one.file)


class CaptureRefusal(msgspec.Struct, frozen=True):
    """Why no capture is taken: the HTTP status that says so (404 no such run, 409 another one has not ended, 422 what
    is asked for cannot be, 503 no store), and the reason with the cure.
    """

    status: int
    error: str


NO_CAPTURES: Final = CaptureRefusal(503, "this collector takes no captures")
