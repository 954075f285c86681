"""Keep where ranks were in long steps, until these are looked at. Pure.

In a long step an agent looks where its training thread is (`agent/captures/quiet_steps.py`). Where ranks wait in a
collective, the only one that works, or goes on in its script, is the one that they wait for:

    step 160    rank 0: train.py:52 (main), time.sleep     works
                rank 1: train.py:53 (main), in a barrier   waits

A rank of which nothing is known is never taken for it: its agent may not look.
"""

from collections.abc import Sequence
from typing import Final

from rankscope.collector.invariants import require
from rankscope.measure.stalls import MOVES, WAITS_FOR_RANKS, WORKS, QuietPlace

PLACES_MAX: Final = 2**16
"""Places kept, 16 MB: four long steps of 16,384 ranks."""
MOST_RANKS: Final = 0.9
"""Share of the other ranks that must have waited."""


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

    def find_owner(self, step: int, ranks: Sequence[int]) -> int | None:
        """Return which of the ranks the others waited for in a step: the only one that did anything else. None where
        there is no such rank, or it is not known of a tenth of the others that they waited, or of one.
        """
        seen = self._by_step.get(step, {})
        owners = [rank for rank, one in seen.items() if one.does in {WORKS, MOVES}]
        if len(owners) != 1 or owners[0] not in ranks:
            return None
        waiting = sum(self.waits(step, rank) for rank in ranks)
        return owners[0] if waiting and waiting >= MOST_RANKS * (len(ranks) - 1) else None

    def is_seen(self, step: int) -> bool:
        """Return whether it is known of any rank what it did in a step."""
        return step in self._by_step

    def find_any(self, step: int) -> QuietPlace | None:
        """Return where the lowest rank was that was seen in a step and did not wait; None where none was."""
        seen = self._by_step.get(step, {})
        ranks = [rank for rank, one in seen.items() if one.does != WAITS_FOR_RANKS and (one.line or one.call)]
        return seen[min(ranks)] if ranks else None

    def waits(self, step: int, rank: int) -> bool:
        """Return whether a rank waited for others in a step."""
        place = self._by_step.get(step, {}).get(rank)
        return place is not None and place.does == WAITS_FOR_RANKS

    def find_work(self, step: int, rank: int) -> QuietPlace | None:
        """Return where a rank worked in a step; None where it is not known to have."""
        place = self._by_step.get(step, {}).get(rank)
        return place if place is not None and place.does == WORKS else None

    def _drop(self, step: int) -> None:
        self._count -= len(self._by_step.pop(step))

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        require(self._count == sum(map(len, self._by_step.values())) <= PLACES_MAX, "quiet places are miscounted")


NO_PLACES: Final = QuietPlaces()
"""For steps of which nothing was looked at. Nobody adds to it."""
