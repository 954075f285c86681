"""Copy the last steps of all ranks after a detection pass, for the heat map of a run. Pure.

Snapshots are kept for a while, so this is small: 17 MB of 16,384 ranks, a tenth of what the pass itself reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PeerGroups
from rankscope.collector.steps.step_series import Floats, Ints

MARKS_MAX: Final = 1_024
"""Twice STEPS_MAX: a step has at most one mark, and one that is not known in any rank has no column."""
NO_STEPS: Final[Ints] = np.empty(0, dtype=np.int64)
NO_TIMES: Final[Floats] = np.empty(0)

STEPS_MAX: Final = 512
"""A screen does not show more."""
CELLS_MAX: Final = 2**21
"""Of the largest runs 128 steps: a heat map of 2 MB."""

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HeatMapSteps:
    """The last steps in which ranks could be compared: waiting is measured in some only.

    `steps` (their numbers) has shape (n,) and `ranks` shape (m,), both ascend. `own_ns`, the own times, and `excess`
    have shape (n, m), NaN where not known; excess is log(own time / median of those the rank is compared with), as in
    `detect/statistics/excess.py`. 32-bit floats: seven digits are enough. `latest_step` is the last step of the pass,
    also when nothing of it is known yet; None when there is none. `attempt` counts elastic restarts; steps begin anew
    with each. `marked_steps`, shape (k,), are the latest steps of the last passes of this attempt, ascending, and
    `marked_wall_s` when the last report before that pass had come, in seconds since 1970.
    """

    attempt: int
    steps: Ints
    ranks: Ints
    own_ns: Numbers
    excess: Numbers
    peer_groups: PeerGroups
    latest_step: int | None
    marked_steps: Ints = field(default_factory=lambda: NO_STEPS)
    marked_wall_s: Floats = field(default_factory=lambda: NO_TIMES)

    @classmethod
    def of(
        cls, attempt: int, view: RunView, before: "HeatMapSteps | None" = None, reported_wall_s: float | None = None
    ) -> "HeatMapSteps":
        """Return the steps of this view. `before` are those of the pass before it; `reported_wall_s` is when the last
        report came, None: not known.
        """
        series = view.series
        latest_step = int(series.steps[-1]) if len(series.steps) else None
        of_attempt = before is not None and before.attempt == attempt
        marked = (
            (before.marked_steps, before.marked_wall_s) if before is not None and of_attempt else (NO_STEPS, NO_TIMES)
        )
        compared = view.excess if len(series.ranks) > 1 else series.own_ns  # a single rank has no peers
        rows = _find_last_known(compared, min(STEPS_MAX, CELLS_MAX // max(1, len(series.ranks))))
        return cls(
            attempt=attempt,
            steps=series.steps[rows],
            ranks=np.array(series.ranks, dtype=np.int64),
            own_ns=_copy(series.own_ns, rows),
            excess=_copy(view.excess, rows),
            peer_groups=view.peer_groups,
            latest_step=latest_step,
            **_mark(*marked, latest_step, reported_wall_s),
        )

    def find_wall_s(self) -> Floats:
        """Return when the collector had each of `steps`, in seconds since 1970, between marks in proportion; NaN for
        one that came before the first mark.
        """
        if not len(self.marked_steps):
            return np.full(len(self.steps), np.nan)
        return np.interp(self.steps, self.marked_steps, self.marked_wall_s, left=np.nan, right=np.nan)

    def find_column(self, rank: int) -> int | None:
        """Return the column of a rank; None when it is not included."""
        column = int(np.searchsorted(self.ranks, rank))
        return column if column < len(self.ranks) and self.ranks[column] == rank else None

    def find_columns(self, ranks: Sequence[int]) -> Ints:
        """Return the columns of these ranks, all of which must be included."""
        return np.searchsorted(self.ranks, np.array(ranks, dtype=np.int64))


def _mark(
    steps: Ints, wall_s: Floats, latest_step: int | None, reported_wall_s: float | None
) -> dict[str, npt.NDArray[Any]]:
    """Return the marks with one more where there is a new step; a clock that is set back forgets those before."""
    if latest_step is None or reported_wall_s is None or (len(steps) and latest_step <= steps[-1]):
        return {"marked_steps": steps, "marked_wall_s": wall_s}
    kept_max = 0 if len(wall_s) and reported_wall_s < wall_s[-1] else MARKS_MAX - 1
    first = max(0, len(steps) - kept_max)
    steps, wall_s = np.append(steps[first:], latest_step), np.append(wall_s[first:], reported_wall_s)
    return {"marked_steps": steps, "marked_wall_s": wall_s}


def _copy(values: Floats, rows: Ints) -> Numbers:
    """Return these rows; adjacent ones, as they mostly are, as one slice."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return values[rows[0] : rows[-1] + 1].astype(np.float32)
    return values[rows].astype(np.float32)


def _find_last_known(excess: Floats, most: int) -> Ints:
    """Return the last rows, at most `most`, that are not all NaN, in order."""
    rows: list[int] = []
    for row in range(len(excess) - 1, -1, -1):
        if len(rows) == most:
            break
        if not np.isnan(excess[row]).all():
            rows.append(row)
    return np.array(rows[::-1], dtype=np.int64)
