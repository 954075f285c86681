"""Describe in sentences how a run ended. Pure."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from rankscope.collector.detect.finding import Finding, format_ranks
from rankscope.collector.detect.finding_words import join_sentences
from rankscope.collector.detect.hang_state import EXIT_UNKNOWN
from rankscope.collector.detect.suggestions import LEFT, OF_GPU, suggest
from rankscope.collector.runs.run_end import LOST, NOT_HEARD, FirstToFail, RunEnd

DETAIL_LENGTH_MAX: Final = 160
FAILURE: Final = "run_failure"
"""Kind of the incident of a run that ended badly (`incidents/ledger.py`)."""
ON_PURPOSE: Final = frozenset({"interrupted", "terminated"})
"""Ends caused from outside: by a person, a scheduler, a launcher."""
EXIT_NOT_KNOWN: Final = "its exit status is not known"
VERBS: Final[Mapping[str, str]] = {
    "finished": "finished",
    "stopped": "stopped reporting (rankscope.agent.stop)",
    "failed": "failed",
    "crashed": "crashed",
    "killed": "was killed",
    "out_of_memory": "ran out of memory",
    EXIT_UNKNOWN: "ended in a way that is not known",
    "collective_timeout": "was ended by a collective's timeout",
    "interrupted": "was interrupted",
    "terminated": "was terminated",
    LOST: "was lost",
    NOT_HEARD: "has not been heard of",
}


def describe_end(end: RunEnd) -> str:
    """Return how and when the run ended, as half a sentence: `crashed at 2026-11-25 10:03:01 UTC`."""
    verb = VERBS.get(end.reason, f"ended: {end.reason}")
    if end.reason in {LOST, NOT_HEARD}:
        since_s = end.ended_wall_s  # of any rank: the first one that was lost may have been so for long by then
        since = f"since {'an unknown time' if since_s is None else format_utc(since_s)}"
        return f"{verb}: not heard of {since}" if end.reason == LOST else f"{verb} {since}"
    return verb if end.ended_wall_s is None else f"{verb} at {format_utc(end.ended_wall_s)}"


def describe_first_to_fail(first: FirstToFail) -> str:
    """Return `rank 1 (n0), crashed (SIGSEGV) at a.py:24 (run), the last step it reported was 412`."""
    if first.failed_for_want:
        return _describe_leaver(first)
    known = first.detail or first.signal or (EXIT_NOT_KNOWN if first.reason == EXIT_UNKNOWN else "")
    detail = f" ({_shorten(known)})" if known else ""
    place = f" at {first.line}" if first.line else ""
    text = f"rank {first.rank} ({first.node}), {first.reason}{detail}{place}, {_describe_step(first)}"
    if first.out_of_memory:
        text = f"{text}; {first.out_of_memory}"
    if not first.together:
        return text
    return f"{text}; {name_ranks(first.together)} died within a second of it"


def _describe_step(first: FirstToFail) -> str:
    return "no step reported" if first.last_step is None else f"the last step it reported was {first.last_step}"


def _describe_leaver(first: FirstToFail) -> str:
    """Return `rank 1 (n0), by itself with status 0 while rank 0 was to go on, the last step it reported was 80; rank 0
    failed for want of it (Connection closed by peer)`.
    """
    ranks, are = name_ranks(first.failed_for_want), "was" if len(first.failed_for_want) == 1 else "were"
    status = " with status 0" if first.exit_code == 0 else ""
    others = f" and {name_ranks(first.together)}" if first.together else ""
    said = f" ({_shorten(first.failure)})" if first.failure else ""
    return (
        f"rank {first.rank} ({first.node}){others}, by itself{status} while {ranks} {are} to go on, "
        f"{_describe_step(first)}; {ranks} failed for want of it{said}"
    )


def name_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks as text.

    >>> name_ranks((3,)), name_ranks((0, 2))
    ('rank 3', 'ranks 0, 2')
    """
    return f"rank{'' if len(ranks) == 1 else 's'} {format_ranks(ranks)}"


def name_first(end: RunEnd) -> str:
    """Return what the first rank was: the first to fail, or to end where others failed for want of it."""
    return "first to end" if end.first is not None and end.first.failed_for_want else "first to fail"


def describe_lost(end: RunEnd) -> str:
    """Return which ranks do not report any more, and since when; empty where there are none."""
    if not end.lost_ranks:
        return ""
    count = end.ranks.get("silent", len(end.lost_ranks))
    shown = format_ranks(end.lost_ranks)
    who = f"{'rank' if count == 1 else 'ranks'} {shown}{', ...' if count > len(end.lost_ranks) else ''}"
    since = "" if end.lost_since_wall_s is None else f" since {format_utc(end.lost_since_wall_s)}"
    if count > 1 and end.ended_wall_s is not None and not since.endswith(format_utc(end.ended_wall_s)):
        since = f", the first of them{since}"  # the others may have been heard of later
    whether = "its process still runs" if count == 1 else "their processes still run"
    return f"{who} not heard of{since}; whether {whether} is not known"


def describe_no_first(end: RunEnd) -> str:
    """Return why no rank is named as the first to fail; empty where one is, or where none failed."""
    if not end.unknown or end.reason in ON_PURPOSE:
        return end.unknown
    return f"not known, {end.unknown}"


def find_failure(end: RunEnd | None) -> Finding | None:
    """Return the end of a run that did not end well as a finding, for its incident; None for any other run, and for one
    of which nothing is known but that nobody is heard: all of these have one finding together (`hearing.py`).

    Its number is 0, which no finding of detection has.
    """
    if end is None or end.is_good or end.reason == NOT_HEARD:
        return None
    first = end.first
    variant = "" if first is None else LEFT if first.failed_for_want else OF_GPU if first.out_of_memory else ""
    return Finding(
        kind=FAILURE,
        ranks=end.lost_ranks if first is None else tuple(sorted((first.rank, *first.together))),
        cause=end.reason,
        what=f"the run {describe_end(end)}",
        why=_describe_reason(end),
        also=tuple(text for text in (describe_lost(end), end.injected_faults) if text),
        suggestion=suggest(FAILURE, "out_of_memory" if variant == OF_GPU else end.reason, variant),
        severity="info" if end.reason in ON_PURPOSE else "warning",
    )


def write_end(end: RunEnd) -> str:
    """Return in sentences when the run ended, who was the first to fail, and which ranks do not report any more."""
    return join_sentences(
        (f"the run {describe_end(end)}", _describe_reason(end), describe_lost(end), end.injected_faults)
    )


def _describe_reason(end: RunEnd) -> str:
    """Return who was the first to fail, or why that is not known."""
    if end.first is not None:
        return f"{name_first(end)}: {describe_first_to_fail(end.first)}"
    if end.reason == NOT_HEARD:
        return "nothing else heard since either, so whether the run goes on is not known"
    if end.reason in ON_PURPOSE or not end.unknown:
        return end.unknown
    return f"first to fail not known: {end.unknown}"


def format_utc(wall_s: float) -> str:
    """Return a time as text.

    >>> format_utc(0)
    '1970-01-01 00:00:00 UTC'
    """
    return datetime.fromtimestamp(wall_s, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _shorten(text: str) -> str:
    return text if len(text) <= DETAIL_LENGTH_MAX else f"{text[: DETAIL_LENGTH_MAX - 3]}..."
