"""The table of every exported measure: the page of metrics is driven by it, and the documentation is printed from it.

Names follow Prometheus: prefix `rankscope_`, base units at the end, `_total` for what counts up, `_info` for what only
carries labels. The labels `job`, `instance` and `pod` belong to whoever scrapes and are never used.

The median step is `rankscope_step_median_seconds` and not `rankscope_step_seconds`: OpenMetrics, which Prometheus asks
for first, names the counter `rankscope_step_seconds_total` without its `_total`, and two families of one name make the
whole page invalid.

A measure that is unknown is absent from the page, never 0. A rank that has ended keeps its `rank_info`, its
`rank_up` and the account of its step records.
"""

from typing import Final

from rankscope.measure.agent_measures import AGENT
from rankscope.measure.collector_measures import COLLECTOR
from rankscope.measure.delivery_measures import DELIVERY
from rankscope.measure.device_measures import DEVICES
from rankscope.measure.exported import NOT_NEGATIVE, Measure
from rankscope.measure.overview_measures import OVERVIEW
from rankscope.measure.rank_measures import RANKS
from rankscope.measure.run_measures import RUNS

SERIES_DROPPED: Final = "rankscope_series_dropped"
"""The one measure that is about the page itself."""

CATALOG: Final[tuple[Measure, ...]] = (
    *RANKS,
    *RUNS,
    *OVERVIEW,
    *DEVICES,
    *AGENT,
    *DELIVERY,
    *COLLECTOR,
    Measure(
        SERIES_DROPPED, "gauge", "", ("page",),
        "Series that this page lacks: of a family that would bring it beyond series_max, or of a rank with too many.",
        "count", "collector: this page", NOT_NEGATIVE,
    ),
)  # fmt: skip

SERIES_PER_RANK_MAX: Final = sum(measure.series_per_rank_max for measure in CATALOG)
"""Most series that one rank can have: with every kind of collective, GPU, phase and part there may be."""
