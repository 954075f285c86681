"""Keep where ranks were in long steps, until these are looked at. Pure.

A rank whose training thread passes no hook for longer than a usual step is looked at once (`agent/captures/
quiet_steps.py`). In a step in which ranks wait in a collective, the one that works is the one that they wait for:

    step 160    rank 0: train.py:52 (main), time.sleep    works
                rank 1: train.py:53 (main), in a barrier   waits
"""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.invariants import require
from rankscope.measure.stalls import WAITS_FOR_RANKS, WORKS, QuietPlace

PLACES_MAX: Final = 2**16
"""Places kept, 16 MB: four long steps of 16,384 ranks."""


class QuietPlaces:
    """The places of the ranks of one attempt, by step. Written by Attempt only."""

    def __init__(self) -> None:
        self._by_step: dict[int, dict[int, QuietPlace]] = {}
        self._count = 0
        self._dropped_through = -1

    def add(self, rank: int, places: Sequence[QuietPlace]) -> None:
        """Keep the places of a rank, the first one of a step."""
        for one in places:
            if one.step > self._dropped_through and rank not in self._by_step.setdefault(one.step, {}):
                self._by_step[one.step][rank] = one
                self._count += 1
        if self._count > PLACES_MAX:  # the earlier half, so that a flood costs little
            for step in sorted(self._by_step)[: (len(self._by_step) + 1) // 2]:
                self._drop(step)

    def drop_through(self, step: int) -> None:
        """Drop what is of steps up to this one, which have been looked at."""
        self._dropped_through = max(self._dropped_through, step)
        for kept in [one for one in self._by_step if one <= step]:
            self._drop(kept)

    def find(self, step: int, ranks: Sequence[int]) -> tuple[int | None, QuietPlace | None]:
        """Return which of the ranks the others waited for in a step, and where it was.

        It is the only one that worked while another waited, or the only one that did not wait; None where there is no
        such rank. Its place is None where it was not seen.
        """
        seen = self._by_step.get(step, {})
        waiting = {rank for rank, one in seen.items() if one.does == WAITS_FOR_RANKS}
        working = [rank for rank, one in seen.items() if one.does == WORKS]
        if not waiting or len(working) > 1:
            return None, None
        if working:
            return working[0], seen[working[0]]
        left = [rank for rank in ranks if rank not in waiting]
        return (left[0], seen.get(left[0])) if len(left) == 1 else (None, None)

    def first(self, step: int) -> QuietPlace | None:
        """Return where the lowest rank was that was seen in a step; None where none was."""
        seen = self._by_step.get(step, {})
        return seen[min(seen)] if seen else None

    def waits(self, step: int, rank: int) -> bool:
        """Return whether a rank waited for others in a step."""
        place = self._by_step.get(step, {}).get(rank)
        return place is not None and place.does == WAITS_FOR_RANKS

    def _drop(self, step: int) -> None:
        self._count -= len(self._by_step.pop(step))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        require(self._count == sum(map(len, self._by_step.values())) <= PLACES_MAX, "quiet places are miscounted")


NO_PLACES: Final = QuietPlaces()
"""For steps of which nothing was looked at. Nobody adds to it."""
