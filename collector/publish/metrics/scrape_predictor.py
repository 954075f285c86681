"""When a page is asked for next, from when it was asked for before: Prometheus asks on an even beat."""

import itertools
from collections import deque
from typing import Final

ASKED_KEPT: Final = 5
"""Two servers that scrape one collector ask at two alternating distances; five moments hold both twice."""

BEAT_TOLERANCE_S: Final = 1.0
"""Prometheus keeps its beat to some milliseconds; a busy machine may hold it up for longer."""


class ScrapePredictor:
    """The moments at which one page was asked for, in seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._asked_s: deque[float] = deque(maxlen=ASKED_KEPT)

    def note(self, now_s: float) -> None:
        """It is asked for now."""
        self._asked_s.append(now_s)

    def is_on_beat(self, now_s: float) -> bool:
        """Whether it was to be expected that it is asked for about now.

        >>> beat = ScrapePredictor()
        >>> for moment_s in (0.0, 15.0):
        ...     beat.note(moment_s)
        >>> [beat.is_on_beat(moment_s) for moment_s in (20.0, 29.5, 31.5)]
        [False, True, False]
        """
        return any(abs(moment_s - now_s) <= BEAT_TOLERANCE_S for moment_s in self._coming_s())

    def expected_s(self, after_s: float) -> float | None:
        """The first moment after this one at which it may be asked for: as long after the last time as any two of the
        last times were apart. None: that has passed, and nobody may ask any more; or it was asked for only once.

        >>> beat = ScrapePredictor()
        >>> for moment_s in (0.0, 7.0, 15.0, 22.0):
        ...     beat.note(moment_s)
        >>> beat.expected_s(22.0), beat.expected_s(29.0), beat.expected_s(30.0)
        (29.0, 30.0, None)
        """
        return min((moment_s for moment_s in self._coming_s() if moment_s > after_s), default=None)

    def _coming_s(self) -> list[float]:
        moments_s = list(self._asked_s)
        return [moments_s[-1] + later - earlier for earlier, later in itertools.pairwise(moments_s)]
