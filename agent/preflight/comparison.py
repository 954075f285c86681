"""Decide whether a rate is slow beside the rates of peers, or beside its own past, by more than noise.

    ratio        exp(median of the peers' log rates - own median log rate)        at least `ratio_min` of the check
    deviations   log(ratio) / sigma                                              at least DEVIATIONS_MIN
    sigma        the largest of the spread between the peers, of the errors of the medians, and SIGMA_FLOOR

The spread between fewer than RANGE_PEERS_MAX + 1 peers is their range over its mean for normal noise (d2 of Tippett
1925), since the median absolute deviation of three values is often near 0 by chance; for more it is 1.4826 MAD, which
half of the peers may disturb.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

PEERS_MIN: Final = 3
DEVIATIONS_MIN: Final = 5.0
"""As `robust_z_min` of the collector."""
SIGMA_FLOOR: Final = 0.01
MAD_TO_SIGMA: Final = 1.4826
MEDIAN_ERROR: Final = 1.2533
"""sqrt(pi / 2): the standard error of a median over that of a mean, for normal noise."""
NEIGHBORS_AS_ONE: Final = 4
"""Values of neighboring parts of a check are alike: other load on a machine lasts longer than a part. So many of them
count as one."""
RANGE_OVER_SIGMA: Final = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326}
RANGE_PEERS_MAX: Final = max(RANGE_OVER_SIGMA)


class RateComparison(NamedTuple):
    """Own median, median of the peers' medians, both as rates; their ratio own / peers, and its distance from noise."""

    own: float
    against: float
    ratio: float
    deviations: float
    is_slow: bool


def compare(own: Sequence[float], peers: Sequence[Sequence[float]], ratio_min: float) -> RateComparison:
    """Return how the rate of a subject compares with those of its peers, two or more; each has one value or more, > 0.

    >>> peers = [[10.0, 10.1, 9.9], [10.2, 10.1, 10.3], [9.9, 9.8, 10.0]]
    >>> found = compare([5.0, 5.1, 4.9], peers, ratio_min=1.3)
    >>> found.ratio, found.is_slow
    (0.5, True)
    >>> compare([9.7, 9.8, 9.6], peers, ratio_min=1.3).is_slow
    False
    """
    own_logs = [math.log(value) for value in own]
    peer_logs = [[math.log(value) for value in values] for values in peers]
    medians = [statistics.median(values) for values in peer_logs]
    excess = statistics.median(medians) - statistics.median(own_logs)
    within = statistics.median(median_error(values, NEIGHBORS_AS_ONE) for values in peer_logs)
    sigma = max(SIGMA_FLOOR, find_spread(medians), within, median_error(own_logs, 1))
    deviations = excess / sigma
    return RateComparison(
        own=math.exp(statistics.median(own_logs)),
        against=math.exp(statistics.median(medians)),
        ratio=round(math.exp(-excess), 6),
        deviations=deviations,
        is_slow=excess >= math.log(ratio_min) and deviations >= DEVIATIONS_MIN,
    )


def find_spread(values: Sequence[float]) -> float:
    """Return the robust standard deviation of two or more values.

    >>> round(find_spread([0.0, 0.1, 0.3]), 3)  # 0.3 / 1.693
    0.177
    >>> find_spread([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 9.0])
    0.0
    """
    if len(values) <= RANGE_PEERS_MAX:
        return (max(values) - min(values)) / RANGE_OVER_SIGMA[len(values)]
    return MAD_TO_SIGMA * _deviation(values)


def median_error(values: Sequence[float], as_one: int) -> float:
    """Return the standard error of the median of values of which `as_one` neighbors count as one; 0 for one value.

    >>> round(median_error([1.0, 2.0, 3.0, 4.0, 5.0], 1), 3)  # 1.2533 x 1.4826 x 1 / sqrt(5)
    0.831
    """
    return MEDIAN_ERROR * MAD_TO_SIGMA * _deviation(values) / math.sqrt(max(1.0, len(values) / as_one))


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
