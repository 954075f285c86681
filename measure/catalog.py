"""List every exported metric. The pages of metrics and docs/metrics.md are made from it.

Names follow Prometheus: prefix `rankscope_`, base units at the end, `_total` for what counts up, `_info` for what only
carries labels. The labels `job`, `instance` and `pod` belong to the scraper and are never used.

The median step is `rankscope_step_median_seconds` and not `rankscope_step_seconds`: OpenMetrics names the counter
`rankscope_step_seconds_total` without its `_total`, and two families of one name make the whole page invalid.

An unknown value is absent from the page, never 0. A rank that has ended keeps `rank_info`, `rank_up` and its counts of
step records.
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
"""The metric about the page itself."""

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
        "Series dropped from this page because of series_max or of the limit of series a rank.",
        "count", "collector: this page", NOT_NEGATIVE,
    ),
)  # fmt: skip

SERIES_PER_RANK_MAX: Final = sum(measure.series_per_rank_max for measure in CATALOG)
"""Most series of one rank on the page, with as many collectives, GPUs, phases and parts as are allowed."""
