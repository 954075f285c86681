"""The facts of a finding, each in a few words: who is how much slower, since when, and what it costs. Pure."""

from typing import Final

import msgspec

from rankscope.collector.detect.finding import DRIFTING, RUN_SLOWDOWN, SLOW_LINK, STRAGGLER, Finding, describe_begin


class FindingFacts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Facts of a finding as text; empty where they are not known, or do not apply."""

    headline: str
    since: str = ""
    cost: str = ""


def read_facts(finding: Finding, world_size: int, node: str = "") -> FindingFacts:
    """Return the facts of a finding about a run of so many ranks; `node` is that of its only rank, empty: not known.

    >>> found = Finding(kind="straggler", ranks=(2,), cause="host_cpu", sentence="", slowdown_ratio=3.39, since_step=60,
    ...                 run_slowdown_ratio=3.25, lost_rank_seconds=90.0)
    >>> facts = read_facts(found, world_size=4, node="node-7")
    >>> facts.headline, facts.since
    ('Rank 2 (node-7): 3.4x slower than its peers', 'step 60')
    >>> facts.cost
    'run 3.2x slower, 2.8 of 4 ranks wasted; 90 rank-seconds so far'
    """
    return FindingFacts(
        headline=_write_headline(finding, node), since=_write_since(finding), cost=_write_cost(finding, world_size)
    )


WHOLE_MIN: Final = 10
"""Ranks from which their number is whole."""
THAN: Final = {STRAGGLER: " than its peers", RUN_SLOWDOWN: " than before", SLOW_LINK: " transfers"}


def _write_headline(finding: Finding, node: str) -> str:
    subject = finding.subject
    who = f"{subject[0].upper()}{subject[1:]}{f' ({node})' if node and len(finding.ranks) == 1 else ''}"
    if finding.slowdown_ratio is None:
        return f"{who}: {finding.kind.replace('_', ' ')}"
    than = THAN.get(finding.kind, "")
    return (
        f"{who}: {finding.slowdown_ratio:.1f}x slower{than.replace('its', 'their') if len(finding.ranks) > 1 else than}"
    )


def _write_since(finding: Finding) -> str:
    if finding.since_step is None:
        return ""
    begin = describe_begin(finding.since_step, finding.since_range, is_gradual=finding.pattern == DRIFTING)
    return begin if finding.until_step is None else f"{begin}, to step {finding.until_step}"


def _write_cost(finding: Finding, world_size: int) -> str:
    parts = []
    ratio = finding.run_slowdown_ratio
    if ratio is not None and ratio > 1.0:
        wasted = world_size * (1.0 - 1.0 / ratio)
        parts.append(
            f"run {ratio:.1f}x slower, {wasted:,.{0 if wasted >= WHOLE_MIN else 1}f} of {world_size:,} ranks wasted"
        )
    if finding.lost_rank_seconds:
        parts.append(f"{_write_length(finding.lost_rank_seconds)} so far")
    return "; ".join(parts)


def _write_length(rank_seconds: float) -> str:
    hours = rank_seconds / 3600.0
    return f"{hours:,.1f} rank-hours" if hours >= 1.0 else f"{rank_seconds:.0f} rank-seconds"
