"""Leave out values that cannot be: those outside the range that their metric declares. A wrong number that is told is
worse than none.
"""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rankscope.collector.publish.metrics.measures import Measure, Value
from rankscope.collector.publish.metrics.rank_columns import Labels, Number
from rankscope.collector.valid_answers import ROUNDING, Range, describe_range

LOG = logging.getLogger("rankscope.collector")

_LOGGED: Final[set[str]] = set()
"""Metrics of which this process has logged a value."""


def find_outside(values: Sequence[Number], valid_range: Range) -> list[int]:
    """Return the places of the values outside a range. Unknown ones, None or no finite number, are not among them.

    >>> find_outside([0.2, None, 1.25, float("nan"), -0.5], (0, 1)), find_outside([7, 1e12], (0, None))
    ([2, 4], [])
    """
    smallest = -math.inf if valid_range[0] is None else valid_range[0] - ROUNDING
    largest = math.inf if valid_range[1] is None else valid_range[1] + ROUNDING
    if _are_within(values, smallest, largest):
        return []
    return [
        place
        for place, value in enumerate(values)
        if value is not None and math.isfinite(value) and not smallest <= value <= largest
    ]


def _are_within(values: Sequence[Number], smallest: float, largest: float) -> bool:
    """Return True only if all known values are: 2 us for 128 of them, as nearly all are on every page. A NaN is either
    the least itself, or hides no number.
    """
    known: Sequence[Any] = values
    for _ in range(2):
        try:
            least, most = min(known, default=smallest), largest if largest == math.inf else max(known, default=largest)
            return bool(smallest <= least and most <= largest)
        except TypeError:  # some are unknown
            known = [value for value in known if value is not None]
    return False


class ImpossibleValues:
    """What one page or push leaves out: `count` values. Of each metric the first one is logged, once in a process."""

    def __init__(self) -> None:
        self.count = 0

    def without(
        self, measure: Measure, values: Sequence[Number], find_labels: Callable[[int], Labels]
    ) -> Sequence[Number]:
        """Return values of a metric with None for those that cannot be. `find_labels` returns the labels of a place."""
        outside = find_outside(values, measure.valid_range)
        if not outside:
            return values
        self.count += len(outside)
        if measure.name not in _LOGGED:
            _LOGGED.add(measure.name)
            labels = dict(zip(measure.labels, find_labels(outside[0]), strict=True))
            text = "%s cannot be %r (%s; its range is %s): the value is left out; further ones are only counted"
            LOG.warning(text, measure.name, values[outside[0]], labels, describe_range(measure.valid_range))
        kept = list(values)
        for place in outside:
            kept[place] = None
        return kept

    def keep_known(self, measure: Measure, values: Iterable[Value]) -> dict[Labels, float]:
        """Return the values of a metric that are numbers and can be, each series once."""
        found = {labels: value for labels, value in values if value is not None and math.isfinite(value)}
        labels = list(found)
        kept = self.without(measure, list(found.values()), labels.__getitem__)
        return {own: value for own, value in zip(labels, kept, strict=True) if value is not None}
