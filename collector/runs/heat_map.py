"""The last steps of all ranks as the last look of detection saw them: what a heat map of a run is drawn from. Pure.

It is a copy of little: of 16,384 ranks 17 MB, where what the look itself holds is ten times as much. Snapshots are kept
for a while by whoever reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from rankscope.collector.detect.view import RunView
from rankscope.collector.steps.peer_groups import PeerGroups
from rankscope.collector.steps.step_series import Floats, Ints

STEPS_MAX: Final = 512
"""More are not told apart on a screen."""
CELLS_MAX: Final = 2**21
"""Of the largest jobs 128 steps: a heat map of 2 MB, made and sent in a few hundredths of a second."""

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HeatMapSteps:
    """The last steps in which ranks could be compared: waiting is measured in some only.

    `steps` (their numbers) has shape (n,) and `ranks` shape (m,), both ascend. `self_ns`, the own times, and `excess`
    have shape (n, m), NaN where not known; excess is log(own time / median of those the rank is compared with), as in
    `detect/excess.py`. 32-bit floats: seven digits are more than any of these is good for. `latest_step` is the last
    one that was looked at, also when nothing of it is known yet; None when there is none. `attempt` counts elastic
    restarts; steps begin anew with each.
    """

    attempt: int
    steps: Ints
    ranks: Ints
    self_ns: Numbers
    excess: Numbers
    peer_groups: PeerGroups
    latest_step: int | None

    @classmethod
    def of(cls, attempt: int, view: RunView) -> "HeatMapSteps":
        """What this look was at."""
        series = view.series
        compared = view.excess if len(series.ranks) > 1 else series.self_ns  # with nobody to compare it with
        rows = _find_last_known(compared, min(STEPS_MAX, CELLS_MAX // max(1, len(series.ranks))))
        return cls(
            attempt=attempt,
            steps=series.steps[rows],
            ranks=np.array(series.ranks, dtype=np.int64),
            self_ns=_copy(series.self_ns, rows),
            excess=_copy(view.excess, rows),
            peer_groups=view.peer_groups,
            latest_step=int(series.steps[-1]) if len(series.steps) else None,
        )

    def find_column(self, rank: int) -> int | None:
        """Where a rank's times are; None when it is not in it."""
        column = int(np.searchsorted(self.ranks, rank))
        return column if column < len(self.ranks) and self.ranks[column] == rank else None

    def find_columns(self, ranks: Sequence[int]) -> Ints:
        """Where the times of these ranks are, all of which must be in it."""
        return np.searchsorted(self.ranks, np.array(ranks, dtype=np.int64))


def _copy(values: Floats, rows: Ints) -> Numbers:
    """These rows; where they follow each other, as they mostly do, in one go."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return values[rows[0] : rows[-1] + 1].astype(np.float32)
    return values[rows].astype(np.float32)


def _find_last_known(excess: Floats, most: int) -> Ints:
    """The last rows, at most so many, that are not all NaN, in order. It begins at the end: mostly the last will do."""
    rows: list[int] = []
    for row in range(len(excess) - 1, -1, -1):
        if len(rows) == most:
            break
        if not np.isnan(excess[row]).all():
            rows.append(row)
    return np.array(rows[::-1], dtype=np.int64)
