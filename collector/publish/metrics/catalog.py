"""List every exported metric. The pages of metrics and docs/metrics.md are made from it.

Names follow Prometheus: prefix `rankscope_`, base units at the end, `_total` for what counts up, `_info` for what only
carries labels. The labels `job`, `instance` and `pod` belong to the scraper and are never used.

The median step is `rankscope_step_median_seconds` and not `rankscope_step_seconds`: OpenMetrics names the counter
`rankscope_step_seconds_total` without its `_total`, and two families of one name make the whole page invalid.

An unknown value is absent from the page, never 0. A rank that has ended keeps `rank_info`, `rank_end_info`, `rank_up`
and its counts of step records.
"""

from typing import Final

from rankscope.collector.publish.metrics.agent_metrics import AGENT, DELIVERY
from rankscope.collector.publish.metrics.collector_metrics import COLLECTOR
from rankscope.collector.publish.metrics.device_metrics import DEVICES
from rankscope.collector.publish.metrics.fabric_metrics import FABRIC
from rankscope.collector.publish.metrics.flop_metrics import RANK_FLOPS, RUN_FLOPS
from rankscope.collector.publish.metrics.measures import NOT_NEGATIVE, Measure, OfPage
from rankscope.collector.publish.metrics.node_metrics import HELD_GPUS, OVERVIEW, STORED_NODES
from rankscope.collector.publish.metrics.rank_metrics import RANKS
from rankscope.collector.publish.metrics.run_metrics import RUNS

SERIES_DROPPED: Final = "rankscope_series_dropped"
SERIES_IMPOSSIBLE: Final = "rankscope_series_impossible"
OF_PAGES: Final = (SERIES_DROPPED, SERIES_IMPOSSIBLE)
"""The metrics about a page itself."""

CATALOG: Final[tuple[Measure, ...]] = (
    *RANKS,
    *RANK_FLOPS,
    *RUNS,
    *OVERVIEW,
    *RUN_FLOPS,
    *STORED_NODES,
    *HELD_GPUS,
    *DEVICES,
    *FABRIC,
    *AGENT,
    *DELIVERY,
    *COLLECTOR,
    Measure(
        SERIES_DROPPED, "gauge", "", ("page",),
        "Series dropped from this page because of the limit of series a page or a rank.",
        "count", "collector: this page", NOT_NEGATIVE,
        OfPage(lambda page, dropped, _impossible: [((page,), dropped)]),
    ),
    Measure(
        SERIES_IMPOSSIBLE, "gauge", "", ("page",),
        "Series left out of this page because their value is outside the range of their metric and so cannot be; the "
        "first of each metric is logged with its labels.",
        "count", "collector: this page", NOT_NEGATIVE,
        OfPage(lambda page, _dropped, impossible: [((page,), impossible)]),
    ),
)  # fmt: skip

SERIES_PER_RANK_MAX: Final = sum(measure.series_per_rank_max for measure in CATALOG)
"""Most series of one rank on the page, with as many collectives, GPUs, phases and parts as are allowed."""
