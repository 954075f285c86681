"""Hold what was found in a world against its truth.

Only the public fields of findings are read, and what the account of the run's time says. Of a truth with a lost share
of 5 % or more (by the same run without it) it is asked:

- *set*: the findings about it together name exactly its ranks; of one about the whole run: a finding that names nobody
  says its cause.
- *passes*: the share of detection passes, from a minute after its begin on and while it lasts, at which that was so of
  the findings that were open.
- *begin*: the true one is in the stated range, or at most 5 steps from a begin that is stated without one. What began
  before anything was heard may be told as `or before`.
- *cause*: that of the costliest finding about it.
- *lost*: the share of the time in steps that the account calls lost, against the same run without all of these, may be
  off by 0.02 or a fifth of the true share, whichever is more. *cost* is the same of the finding's own ratio, over the
  steps that it speaks of.

Any finding that blames a rank with which nothing is wrong, or says of the run what is not so, is false.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from rankscope.collector.detect.finding import Finding
from tests.second_table.sentences import INFORMING, Wrong, check_course, find_innocents, find_lost, named_ranks
from tests.second_table.worlds import QUIET, RANKS, RUN_WIDE, WORK, Course, Pass, Truth, World, play

LOST_MIN: Final = 0.05
NAMED_WITHIN_S: Final = 60.0
LOST_ERROR_MIN, LOST_ERROR_SHARE = 0.02, 0.2
DATA_SHARE_MIN, GAP_SHARE_MIN = 0.08, 0.03
CHANGED: Final = frozenset({"run_slowdown", "stage_slowdown", "slower_than_earlier_runs"})


class TruthJudged(NamedTuple):
    """One truth. None: not asked, or nothing was found that could be asked."""

    level: str
    share: float
    named: bool
    passes: tuple[int, int]
    begin: bool | None
    cause: bool | None
    cost: bool | None
    said: str
    delay_s: float | None


class Judged(NamedTuple):
    """One world. `lost` is the stated and the true share of the account, None where it is not asked."""

    family: str
    about: str
    seed: int
    truths: tuple[TruthJudged, ...]
    lost: tuple[float, float] | None
    false_findings: tuple[str, ...]
    wrongs: tuple[Wrong, ...]
    rank_steps: int
    took_s: float = 0.0
    error: str = ""

    @property
    def lost_is_right(self) -> bool | None:
        return None if self.lost is None else is_near(*self.lost)


def is_near(stated: float, true: float) -> bool:
    """Return whether a stated share of lost time is near enough.

    >>> is_near(0.03, 0.05), is_near(0.30, 0.40), is_near(0.33, 0.40)
    (True, False, True)
    """
    return bool(abs(stated - true) <= max(LOST_ERROR_MIN, LOST_ERROR_SHARE * true) + 1e-9)  # numpy's is not `True`


def judge_world(world: World) -> Judged:
    return judge(play(world))


def judge(course: Course) -> Judged:
    world = course.world
    shares = find_lost(course, course.last)
    return Judged(
        family=world.family,
        about=world.about,
        seed=world.seed,
        truths=tuple(
            _judge_truth(place, truth, share, course)
            for place, (truth, share) in enumerate(zip(world.truths, shares, strict=True))
            if truth.level != QUIET
        ),
        lost=_judge_account(course),
        false_findings=tuple(_find_false(course)),
        wrongs=check_course(course),
        rank_steps=world.steps * world.layout.world,
    )


def is_about(finding: Finding, truth: Truth, course: Course) -> bool:
    """Return whether a finding is about a truth."""
    named = named_ranks(finding, course.world.layout)
    if truth.level == RANKS:
        return bool(named & truth.who) and not (finding.kind in INFORMING and not {finding.kind} & truth.causes)
    says = bool({finding.kind, finding.cause} & truth.causes)
    if truth.level == RUN_WIDE:
        return says and (not named or len(named) == course.world.layout.world)
    return says and named <= truth.who


def names_exactly(findings: Iterable[Finding], truth: Truth, course: Course) -> bool:
    """Return whether these findings together name what is true."""
    mine = [one for one in findings if is_about(one, truth, course)]
    if truth.level in (RUN_WIDE, WORK):
        return bool(mine)
    named = frozenset(rank for one in mine for rank in named_ranks(one, course.world.layout))
    return bool(mine) and named == truth.who


def _judge_truth(place: int, truth: Truth, share: float, course: Course) -> TruthJudged:
    mine = [one for one in course.findings if is_about(one, truth, course)]
    passes = [(one, names_exactly(one.open, truth, course)) for one in course.passes]
    due = [right for one, right in passes if _is_due(one, truth, course)]
    first_ns = next((one.now_ns for one, right in passes if right), None)
    begin_ns = course.ends_ns[min(len(course.ends_ns), truth.begin or 0) - 1] if truth.begin else 0.0
    main = max(mine, key=lambda one: (one.lost_rank_seconds or 0.0, -one.number), default=None)
    return TruthJudged(
        level=truth.level,
        share=share,
        named=names_exactly(course.findings, truth, course),
        passes=(sum(due), len(due)),
        begin=None if main is None or truth.begin is None else has_begin(main, truth),
        cause=None if main is None else bool({main.kind, main.cause} & truth.causes),
        cost=None if main is None else _judge_cost(main, place, course),
        said="; ".join(_describe(one) for one in course.findings) or course.last.text,
        delay_s=None if first_ns is None else max(0.0, first_ns - begin_ns) / 1e9,
    )


def _describe(finding: Finding) -> str:
    who = (
        f"ranks {list(finding.ranks[:4])}" if finding.ranks else finding.group or ", ".join(finding.nodes) or "the run"
    )
    since = finding.since_step, finding.since_step_min, finding.since_step_max
    ratio = "" if finding.run_slowdown_ratio is None else f" {finding.run_slowdown_ratio:.2f} x"
    return f"{finding.kind} {who} since {since[0]} ({since[1]}-{since[2]}) {finding.cause}{ratio}"


def _is_due(one: Pass, truth: Truth, course: Course) -> bool:
    steps = min(one.step, len(course.ends_ns))
    if truth.begin is None or steps <= truth.begin:
        return truth.begin is None
    begin_ns = course.ends_ns[truth.begin - 1] if truth.begin else course.begin_ns
    costs = [course.world.costs[number] for number in truth.costs]
    ends = [cost.when.end for cost in costs] + [cost.when.bouts[-1][1] for cost in costs if cost.when.bouts]
    is_over = any(end is not None and steps > end for end in ends)
    heard_ns = max(begin_ns, course.world.late_s * 1e9)
    return not is_over and one.now_ns - heard_ns >= NAMED_WITHIN_S * 1e9


def has_begin(finding: Finding, truth: Truth) -> bool:
    """Return whether a finding states the begin of a truth."""
    begin, since = truth.begin or 0, finding.since_step
    low, high = finding.since_step_min, finding.since_step_max
    if truth.is_older and "or before" in finding.sentence:
        return since is None or since >= begin
    if since is None:
        return False
    if low is None and high is not None and "or before" in finding.sentence:
        return begin <= high
    if low is None or high is None or high - low < 10:
        return abs(since - begin) <= 5 or (low is not None and high is not None and low <= begin <= high)
    return low <= begin <= high


def _judge_cost(finding: Finding, place: int, course: Course) -> bool | None:
    """Return whether the cost that a finding states is that of its steps; None where it states none."""
    ratio = finding.run_slowdown_ratio
    if ratio is None:
        return None
    first = min(len(course.ends_ns) - 1, max(0, finding.since_step or 0))
    last = min(
        len(course.ends_ns) - 1, finding.until_step if finding.until_step is not None else len(course.ends_ns) - 1
    )
    without = course.without_ns[place]
    before = (course.begin_ns, course.begin_ns) if first == 0 else (course.ends_ns[first - 1], without[first - 1])
    took, would = course.ends_ns[last] - before[0], without[last] - before[1]
    true = 0.0 if took <= 0 else float(1 - would / took)
    return is_near(1 - 1 / ratio, true)


def _judge_account(course: Course) -> tuple[float, float] | None:
    truths = course.world.truths
    if any(truth.level == WORK or (truth.level == RUN_WIDE and not truth.costs) for truth in truths):
        return None
    goodput = course.last.goodput
    took = course.ends_ns[-1] - course.begin_ns
    true = 0.0
    if any(truth.costs for truth in truths):
        true = float(course.ends_ns[-1] - course.without_ns[-1][-1]) / took
    return goodput.slow_ns / max(1, goodput.steps_ns), true


def _find_false(course: Course) -> Iterable[str]:
    """Yield the findings that are not so."""
    world = course.world
    said = frozenset(cause for truth in world.truths if truth.level != RANKS for cause in truth.causes)
    slowed = any(truth.level != QUIET for truth in world.truths)
    for finding in course.findings:
        named = named_ranks(finding, world.layout)
        if find_innocents(finding, course):
            yield _describe(finding)
        if named:
            continue
        is_true = (
            bool({finding.kind, finding.cause} & (said | world.true_kinds))
            or (finding.kind in CHANGED and slowed)
            or (finding.kind == "data_bound" and course.data_share >= DATA_SHARE_MIN)
            or (finding.kind == "uneven_work" and course.gap_share >= GAP_SHARE_MIN)
        )
        if not is_true:
            yield _describe(finding)


class Row(NamedTuple):
    """Shares over the truths of some worlds that cost 5 % or more; counts over all of them."""

    worlds: int
    asked: int
    named: float | None
    passes: float | None
    begin: float | None
    cause: float | None
    cost: float | None
    lost: float | None
    false_findings: int
    wrongs: dict[str, int]
    rank_steps: int
    delay_s: float | None


def summarize(judged: Sequence[Judged]) -> Row:
    truths = [truth for one in judged for truth in one.truths if truth.share >= LOST_MIN or truth.level == RUN_WIDE]
    found = [truth for truth in truths if truth.named]
    due = sum(truth.passes[1] for truth in truths)
    wrongs: dict[str, int] = {}
    for one in judged:
        for wrong in one.wrongs:
            wrongs[wrong.kind] = wrongs.get(wrong.kind, 0) + 1
    delays = sorted(truth.delay_s for truth in found if truth.delay_s is not None)
    return Row(
        worlds=len(judged),
        asked=len(truths),
        named=_share(truth.named for truth in truths),
        passes=sum(truth.passes[0] for truth in truths) / due if due else None,
        begin=_share(truth.begin is True for truth in truths if truth.begin is not None or not truth.named),
        cause=_share(truth.cause is True for truth in truths),
        cost=_share(truth.cost is True for truth in truths if truth.level == RANKS),
        lost=_share(one.lost_is_right is True for one in judged if one.lost is not None),
        false_findings=sum(len(one.false_findings) for one in judged),
        wrongs=wrongs,
        rank_steps=sum(one.rank_steps for one in judged),
        delay_s=delays[len(delays) // 2] if delays else None,
    )


def _share(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None
