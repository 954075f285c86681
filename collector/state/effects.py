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


class CloseFinding(NamedTuple):
    """A verdict no longer holds."""

    run: str
    finding: Finding


JobEffect = AskClock | OpenFinding | CloseFinding
