"""Everything a job asks of the world."""

from typing import NamedTuple

from rankscope.collector.detect.finding import Finding


class AskClock(NamedTuple):
    """Ping this life for its clock."""

    boot_id: str


class OpenFinding(NamedTuple):
    """A verdict is new: tell people."""

    run: str
    finding: Finding


class UpdateFinding(NamedTuple):
    """A verdict that holds has changed in its ranks, cause, severity or pattern."""

    run: str
    finding: Finding


class CloseFinding(NamedTuple):
    """A verdict no longer holds: it has passed, is part of another finding now, whose number is `merged_into`, or its
    attempt is over.
    """

    run: str
    finding: Finding
    reason: str
    merged_into: int | None = None


JobEffect = AskClock | OpenFinding | UpdateFinding | CloseFinding
