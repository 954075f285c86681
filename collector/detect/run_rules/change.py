"""Define how a stage or the run has become slower, and write what it is slower than."""

from typing import NamedTuple

from rankscope.collector.detect.finding import DRIFTING, SinceRange


class LevelChange(NamedTuple):
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
    """What is known about who is to blame: `verdict`, the same for programs (`finding.py`), and in words."""

    verdict: str
    words: str


class Subject(NamedTuple):
    """What has become slower: the kind of its finding, who it is (empty: its ranks, or the run), who is to blame, which
    ranks and nodes it is about, none for the run, and what the cost of is left out (`besides`).
    """

    kind: str
    who: str
    blame: Blame
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    besides: str = ""


def write_what(change: LevelChange, subject: Subject, pattern: str) -> str:
    """Return what it is slower than, to follow by how much."""
    for_each = "for each token " if change.more_tokens > 1.0 else ""
    besides = f", without what is due to {subject.besides}," if subject.besides else ""
    return f"{for_each}than before{besides}{' and getting slower' if pattern == DRIFTING else ''}"
