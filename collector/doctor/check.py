"""Results of the doctor's checks."""

from typing import Final

import msgspec

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `state` is OK, NOTE for something optional that is missing, or PROBLEM for something configured that
    does not work. `costs` names what is lost, `cure` what to do; both are empty for OK.
    """

    name: str
    state: str
    found: str
    costs: str = ""
    cure: str = ""


def ok(name: str, found: str) -> Check:
    """Return a check that found nothing missing."""
    return Check(name=name, state=OK, found=found)


def note(name: str, found: str, costs: str, cure: str) -> Check:
    """Return a check that found something optional missing."""
    return Check(name=name, state=NOTE, found=found, costs=costs, cure=cure)


def problem(name: str, found: str, costs: str, cure: str) -> Check:
    """Return a check of something configured that does not work."""
    return Check(name=name, state=PROBLEM, found=found, costs=costs, cure=cure)
