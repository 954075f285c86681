"""Read every sentence of every pass, and say which are not true and which contradict each other.

This is a second program: it knows the words that users read and the truth of the world, and nothing of how a verdict is
made. What it does not understand it leaves alone, so it finds too little rather than too much.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.goodput import GoodputSnapshot
from rankscope.measure.units import NS_PER_S
from tests.second_table.layout import Layout
from tests.second_table.worlds import RANKS, RUN_WIDE, Course, Pass, Truth

NOBODY_SLOWER: Final = re.compile(r"\bno rank (?:is|was)(?: found to be)? slower\b", re.IGNORECASE)
UNTIL_THEN: Final = re.compile(r"\bsince (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC; until then\b")
"""What follows is said of the time before; worlds begin in 1970."""
NOBODY_TO_BLAME: Final = re.compile(r"\bno (?:single |other )?rank (?:is |was )?to blame\b", re.IGNORECASE)
SUBJECT: Final = re.compile(r"^Ranks? ((?:\d+(?:-\d+)?(?:, | and )?)+)")
SINCE: Final = re.compile(r"(?:\bsince (?:about )?step|\bfrom step|, steps?) (\d+)")
PERCENT: Final = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?) ?%")
NEGATIVE: Final = re.compile(r"(?<![\w-])-\d+(?:\.\d+)? (?:ns|us|µs|ms|s|min|h)\b")
TO_THE_RUN: Final = re.compile(r"run (\d+\.\d+)x slower")
LOST_MIN: Final = 0.05
"""Share of the time so far from which on it is untrue that no rank is slower."""
MOVE_STEPS: Final = 5
RATIO_ROUNDED: Final = 0.051
SLACK: Final = 1.02
"""Of sums against the time that there was: reports round and arrive in seconds."""
GRACE_S: Final = 2.0
"""A sentence is of the reports that had come: two report intervals."""


class Wrong(NamedTuple):
    """Something that was said and is not so. `kind` is one of untrue, innocent, contradiction, moved, bounds."""

    kind: str
    text: str


def check_course(course: Course) -> tuple[Wrong, ...]:
    """Return everything that was wrong in a world's course, each once."""
    found: dict[Wrong, None] = {}
    begins: dict[int, tuple[int, int, int]] = {}
    for one in [*course.passes, course.last]:
        lost = find_lost(course, _look_back(one, course))
        for wrong in (
            *_check_text(one.text, one.open, course, lost),
            *(wrong for finding in one.open for wrong in _check_finding(finding, one, course)),
            *_check_moves(one.open, begins, course),
            *_check_goodput(one.goodput),
        ):
            found.setdefault(wrong)
    for finding in course.findings:
        for wrong in _check_finding(finding, course.last, course):
            found.setdefault(wrong)
    return tuple(found)


def find_lost(course: Course, one: Pass) -> list[float]:
    """Return by truth which share of the time until a pass its costs had taken; of what had come by then."""
    steps = max(0, min(one.step, len(course.ends_ns)) - 1)
    began = course.begin_ns
    took = course.ends_ns[steps] - began
    return [
        float(course.ends_ns[steps] - course.without_ns[place][steps]) / took if took > 0 else 0.0
        for place in range(len(course.world.truths))
    ]


def _look_back(one: Pass, course: Course) -> Pass:
    """Return a pass at the step that its text speaks of."""
    dated = UNTIL_THEN.search(one.text)
    if dated is None:
        return one
    then = datetime.strptime(f"{dated[1]}+0000", "%Y-%m-%d %H:%M:%S%z").timestamp()
    return one._replace(step=int(np.searchsorted(course.ends_ns, then * NS_PER_S, side="right")))


def _check_text(text: str, findings: Sequence[Finding], course: Course, lost: Sequence[float]) -> Iterator[Wrong]:
    truths = [(truth, share) for truth, share in zip(course.world.truths, lost, strict=True) if truth.level == RANKS]
    if NOBODY_SLOWER.search(text):
        for truth, share in truths:
            if share >= LOST_MIN:
                yield Wrong(
                    "untrue", f"no rank was slower, while ranks {_list(truth)} had cost 5 % of the time or more"
                )
    for sentence in [text, *(finding.sentence for finding in findings)]:
        if not NOBODY_TO_BLAME.search(sentence):
            continue
        for truth, share in truths:
            told = any(truth.who & named_ranks(one, course.world.layout) for one in findings)
            if share >= LOST_MIN and not told:
                yield Wrong("untrue", f"no rank is to blame, while ranks {_list(truth)} were")


def _list(truth: Truth) -> str:
    who = sorted(truth.who)
    return ", ".join(map(str, who[:4])) + (f" and {len(who) - 4} more" if len(who) > 4 else "")


def named_ranks(finding: Finding, layout: Layout) -> frozenset[int]:
    """Return the ranks that a finding blames: by number, by node, or of a link by its group. The node on which some of
    its ranks' links are slow is where that is; its other ranks are not blamed.
    """
    named = frozenset(finding.ranks) or layout.ranks_of(finding.nodes)
    if named or not finding.group:
        return named
    rows = [(dimension, row) for dimension, groups in layout.groups.items() for row in range(len(groups))]
    mine = [layout.groups[dimension][row] for dimension, row in rows if layout.label(dimension, row) == finding.group]
    return frozenset(int(rank) for members in mine for rank in members)


INFORMING: Final = frozenset({"imbalance", "uneven_work", "periodic_work", "data_bound", "communication_bound"})


def find_innocents(finding: Finding, course: Course) -> frozenset[int]:
    """Return the ranks that a finding blames and nothing is wrong with."""
    world = course.world
    guilty = frozenset(
        rank
        for truth in world.truths
        if truth.level == RANKS or {finding.kind, finding.cause} & truth.causes
        for rank in truth.who
    )
    named = named_ranks(finding, world.layout)
    if finding.kind in world.true_kinds or finding.cause in world.true_kinds:
        return frozenset()
    if finding.kind == "stage_slowdown" and named & guilty:
        return frozenset()
    everybody = len(named) == world.layout.world
    if everybody and any(truth.level == RUN_WIDE for truth in world.truths):
        return frozenset()
    return named - guilty


def _check_finding(finding: Finding, one: Pass, course: Course) -> Iterator[Wrong]:
    layout = course.world.layout
    subject = f"finding {finding.number} ({finding.kind})"
    innocents = find_innocents(finding, course)
    if innocents:
        yield Wrong("innocent", f"{subject} names {', '.join(map(str, sorted(innocents)[:4]))}")
    stated = SUBJECT.match(finding.sentence)
    if stated is not None and finding.ranks:
        ranks = _read_ranks(stated[1])
        if not ranks <= named_ranks(finding, layout):
            yield Wrong("contradiction", f"{subject} is about {finding.ranks}, and its sentence about {sorted(ranks)}")
    since = SINCE.search(finding.sentence)
    if since is not None and finding.since_step is not None and _number(since[1]) != finding.since_step:
        yield Wrong("contradiction", f"{subject} has since_step {finding.since_step}, its sentence says {since[0]}")
    ratio = TO_THE_RUN.search(finding.sentence)
    field = finding.run_slowdown_ratio
    if ratio is not None and field is not None and abs(float(ratio[1]) - field) > RATIO_ROUNDED:
        yield Wrong("contradiction", f"{subject} has ratio {finding.run_slowdown_ratio:.3f}, and says {ratio[0]}")
    yield from _check_bounds(finding, one, course, subject)


def _check_bounds(finding: Finding, one: Pass, course: Course, subject: str) -> Iterator[Wrong]:
    text = finding.sentence
    yield from (
        Wrong("bounds", f"{subject} says {found[0]}") for found in PERCENT.finditer(text) if float(found[1]) > 100
    )
    yield from (Wrong("bounds", f"{subject} says {found[0]}") for found in NEGATIVE.finditer(text))
    whole_s = one.now_ns / 1e9 * course.world.layout.world
    lost = finding.lost_rank_seconds
    if lost is not None and not -1e-9 <= lost <= whole_s * SLACK:
        yield Wrong("bounds", f"{subject} has lost {lost:.0f} rank-seconds of {whole_s:.0f}")
    if finding.run_slowdown_ratio is not None and finding.run_slowdown_ratio < 0.999:
        yield Wrong("bounds", f"{subject} has a ratio of {finding.run_slowdown_ratio:.3f}")
    known = [step for step in (finding.since_step_min, finding.since_step, finding.since_step_max) if step is not None]
    if known != sorted(known) or (known and known[-1] > max(1, one.step)):
        yield Wrong("bounds", f"{subject} began in a range {known} at step {one.step}")


def _check_moves(
    findings: Sequence[Finding], begins: dict[int, tuple[int, int, int]], course: Course
) -> Iterator[Wrong]:
    """Check that the begin of a finding stays where it was said to be, where what it is about has one begin."""
    changing = any(cost.when.ramp or cost.when.turns or cost.when.dice for cost in course.world.costs)
    for finding in findings:
        since = finding.since_step
        if since is None or changing:
            continue
        low, high = finding.since_step_min, finding.since_step_max
        now = since, since if low is None else low, since if high is None else high
        before = begins.get(finding.number)
        begins[finding.number] = now
        if before is not None and not before[1] - MOVE_STEPS <= since <= before[2] + MOVE_STEPS:
            yield Wrong("moved", f"finding {finding.number} ({finding.kind}) moves from {before} to {now}")


def _check_goodput(goodput: GoodputSnapshot) -> Iterator[Wrong]:
    parts = (
        goodput.productive_ns, goodput.slow_ns, goodput.startup_ns, goodput.between_steps_ns, goodput.stalled_ns,
        goodput.restart_ns, goodput.unreported_ns,
    )  # fmt: skip
    if any(part < 0 for part in parts) or sum(parts) != goodput.wall_ns:
        yield Wrong("bounds", "the parts of the time do not add up")


def _read_ranks(text: str) -> set[int]:
    """Return the ranks of a text.

    >>> sorted(_read_ranks("0-2, 5 and 7"))
    [0, 1, 2, 5, 7]
    """
    ends = [part.split("-") for part in re.findall(r"\d+(?:-\d+)?", text)]
    return {rank for end in ends for rank in range(int(end[0]), int(end[-1]) + 1)}


def _number(text: str) -> int:
    return int(text.replace(",", ""))
