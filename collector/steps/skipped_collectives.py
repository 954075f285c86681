"""Find ranks whose count of collectives in a group differs from the other members': they have left one out. Pure.

Backends pair the n-th collective of one member with the n-th of the others. After a rank has left one out, its
collectives meet those of another place, often of another step, of the others, so that nothing can be matched in a step.
"""

import numpy as np

from rankscope.collector.steps.collectives import Step
from rankscope.collector.steps.step_series import Lag
from rankscope.measure.table import MISSING


def find_lags(step: Step) -> dict[tuple[str, int], int]:
    """Return by group and rank how many collectives the rank is behind most members after a step; only those that are.

    Of a group whose members agree half by half nothing is said: who has left one out is not known.
    """
    last: dict[str, dict[int, int]] = {}
    for block in step:
        names = [block.groups.lists[row] for row in block.groups.row.tolist()]
        for place in range(max(map(len, names), default=0)):
            counts = np.where(block.group == place, block.sequence, MISSING).max(axis=1, initial=MISSING)
            for row in np.flatnonzero(counts != MISSING).tolist():
                last.setdefault(names[row][place], {})[int(block.ranks[row])] = int(counts[row])
    return {
        (group, rank): most - sequence
        for group, members in last.items()
        if (most := _find_most_common(list(members.values()))) is not None
        for rank, sequence in members.items()
        if sequence != most
    }


def _find_most_common(values: list[int]) -> int | None:
    """Return the value that more than half of them have; None without such."""
    middle = sorted(values)[len(values) // 2]
    return middle if 2 * values.count(middle) > len(values) else None


class Lags:
    """The lags that hold now: those of the last unmatched step that were in every one since they began."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, step: int, found: dict[tuple[str, int], int]) -> None:
        """Add what was found in a step, later than those before."""
        kept: dict[tuple[str, int], tuple[int, int]] = {}
        for key, behind in found.items():
            before = self._since.get(key)
            kept[key] = before if before is not None and before[0] == behind else (behind, step)
        self._since = kept

    def read(self) -> tuple[Lag, ...]:
        """Return them by group and rank."""
        return tuple(Lag(*key, behind, since) for key, (behind, since) in sorted(self._since.items()))
