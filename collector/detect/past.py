"""Write closed findings in the past tense: from when until when, for how long, and how a hang ended."""

from collections.abc import Mapping
from typing import Final

import msgspec

from rankscope.collector.detect.finding import DRIFTING, HANG, PAUSES, Finding, describe_begin
from rankscope.measure.units import format_length

WHEN: Final = "{when}"
"""Placeholder for the period in the past form of a sentence."""
WENT_ON: Final = "went on"
FINISHED: Final = "finished"
ENDED: Final = "ended"


def close_finding(
    finding: Finding, *, until_step: int | None = None, lasted_s: float | None = None, outcome: str = ""
) -> Finding:
    """Return the finding in its closed form. `outcome` is what followed a hang: WENT_ON, FINISHED or ENDED, empty when
    not known. A closed finding may be closed again when more is known.
    """
    closed = msgspec.structs.replace(finding, until_step=until_step, lasted_s=lasted_s)
    if finding.kind == HANG and outcome == FINISHED:
        closed = msgspec.structs.replace(closed, severity="info", suggestion="")
    if not finding.past:  # kept by a collector of an earlier version
        return closed
    return msgspec.structs.replace(closed, sentence=finding.past.replace(WHEN, describe_when(closed, outcome)))


def describe_when(finding: Finding, outcome: str = "") -> str:
    """Return the period of a finding, to replace WHEN."""
    return _describe_hang(finding, outcome) if finding.kind == HANG else _describe_period(finding)


def _describe_period(finding: Finding) -> str:
    since, until = finding.since_step, finding.until_step
    length = "" if finding.lasted_s is None else format_length(finding.lasted_s)
    begin = "" if since is None else describe_begin(since, finding.since_range, is_gradual=finding.pattern == DRIFTING)
    if until is None or (since is not None and until < since):
        return f"{f' from {begin} on' if begin else ''}{f' for {length}' if length else ''}"
    span = f" from {begin} to step {until}" if begin else f" until step {until}"
    return f"{span}{f' ({length})' if length else ''}"


def _describe_hang(finding: Finding, outcome: str) -> str:
    step = "" if finding.since_step is None else f" in step {finding.since_step}"
    length = "" if finding.lasted_s is None else f" for {format_length(finding.lasted_s)}"
    if outcome == FINISHED:
        place = "" if finding.since_step is None else " in or after its last step"
        return f" stalled{length}{place}, and then finished"
    after = {WENT_ON: ", and then went on", ENDED: ", until it ended"}.get(outcome, "")
    return f" {'paused' if finding.cause in PAUSES else 'hung'}{step}{length}{after}"


PAST_FORMS: Final[Mapping[str, str]] = {
    "allocates": "allocated", "are": "were", "calls": "called", "compute": "computed", "computes": "computed",
    "does": "did", "explain": "explained", "explains": "explained", "frees": "freed",
    "gives": "gave", "hides": "hid", "is": "was", "overlaps": "overlapped", "passes": "passed", "reads": "read",
    "reports": "reported", "run": "ran", "runs": "ran", "save": "have saved", "saves": "saved", "stops": "stopped",
    "takes": "took", "throttles": "throttled", "wait": "waited", "waits": "waited",
}  # fmt: skip
"""The verbs of causes and of sentences about a whole run. These texts hold no name before the phase that a cause ends
with (OF_IT), so no name is changed."""
OF_IT: Final = " of it in "


def put_in_past(text: str) -> str:
    """Return a cause's text in the past tense.

    >>> put_in_past("its GPU computes 2 ms a step longer on the same work, 1 ms of it in waits")
    'its GPU computed 2 ms a step longer on the same work, 1 ms of it in waits'
    """
    cause, of_it, phase = text.partition(OF_IT)
    return " ".join(_put_word(word) for word in cause.split(" ")) + of_it + phase


def _put_word(word: str) -> str:
    bare = word.rstrip(",.;:")
    return PAST_FORMS.get(bare, bare) + word[len(bare) :]
