"""One thing the doctor has looked at."""

from typing import Final

import msgspec

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: OK, NOTE where something is done without, PROBLEM where something the user asked for does not work.
    `costs` says what is lost by that, `cure` what to do; both are empty for OK.
    """

    name: str
    state: str
    found: str
    costs: str = ""
    cure: str = ""


def ok(name: str, found: str) -> Check:
    """Nothing is missing."""
    return Check(name=name, state=OK, found=found)


def note(name: str, found: str, costs: str, cure: str) -> Check:
    """Something is done without."""
    return Check(name=name, state=NOTE, found=found, costs=costs, cure=cure)


def problem(name: str, found: str, costs: str, cure: str) -> Check:
    """Something that was asked for does not work."""
    return Check(name=name, state=PROBLEM, found=found, costs=costs, cure=cure)
