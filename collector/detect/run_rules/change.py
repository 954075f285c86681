"""Define how a stage or the run has become slower, and write its sentence: what, by how much, since when, and why."""

from typing import NamedTuple

from rankscope.collector.detect.finding import DRIFTING, SinceRange, describe_begin
from rankscope.collector.detect.past import WHEN, put_in_past
from rankscope.collector.detect.stragglers.cost import Cost
from rankscope.collector.detect.stragglers.root_cause import Cause
from rankscope.collector.detect.stragglers.sentence import describe_cost
from rankscope.measure.units import format_duration


class Change(NamedTuple):
    """A rise of level: first step, level before and after in ns, and size in standard errors; the number of steps that
    show it, and the first step of the present level. `is_gradual`: it is a ramp, and `after_ns` its level by now.
    `since_range`: the earliest and the latest step that may be the first; None where it is that of the open finding.
    `more_tokens`: how many times as many tokens as the steps before have those since then, for which `before_ns` counts
    (`work_growth.py`); 1 where it is the level of steps with as many.
    """

    since_step: int
    before_ns: float
    after_ns: float
    robust_z: float
    steps: int
    level_from_step: int
    is_gradual: bool = False
    since_range: SinceRange | None = None
    more_tokens: float = 1.0

    @property
    def added_ns(self) -> float:
        """Return by how much the level has risen."""
        return self.after_ns - self.before_ns


class Blame(NamedTuple):
    """What is known about who is to blame: `verdict`, the same for programs (`finding.py`), and the clause."""

    verdict: str
    clause: str


class Subject(NamedTuple):
    """What has become slower: the kind of its finding, the begin of the sentence, who is to blame, and which ranks and
    nodes it is about, none for the run.
    """

    kind: str
    who: str
    blame: Blame
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


def write_sentence(
    change: Change, subject: Subject, cause: Cause, cost: Cost, pattern: str, *, is_over: bool = False
) -> str:
    """Write what has become slower, by how much, since when, who is to blame, and the cause. `is_over`: in the past
    tense, with WHEN in place of the period.
    """
    do, are, costs = ("did", "were", "cost") if is_over else ("do", "are", "costs")
    # The period that replaces WHEN has the range of the begin.
    since_range = None if is_over else change.since_range
    begin = describe_begin(change.since_step, since_range, is_gradual=pattern == DRIFTING)
    where = f" (node {subject.nodes[0]})" if subject.nodes else ""
    grows = ", growing slower gradually" if pattern == DRIFTING else ""
    for_each, counted = "", ""
    if change.more_tokens > 1.0:
        for_each = " for each token"
        counted = f", scaled up for {change.more_tokens:.2f} times as many tokens"
    blame, because = subject.blame.clause, cause.because
    if is_over:
        blame, because = put_in_past(blame), put_in_past(because)
    return (
        f"{subject.who.format(do=do, are=are, cost=costs)} {change.after_ns / change.before_ns:.2f} times as slow"
        f"{for_each} as before {begin}{where}{grows}{f',{WHEN}' if is_over else ''}: "
        f"{format_duration(change.after_ns)} a step against {format_duration(change.before_ns)}{counted}, {blame}; "
        f"cause {cause.name}: {because}.{describe_cost(cost, is_over=is_over)}"
    )
