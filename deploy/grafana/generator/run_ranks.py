"""Rows of the run dashboard about ranks: findings, missing ranks, and the slowdown of each rank."""

from typing import Final

from deploy.grafana.generator import thresholds
from deploy.grafana.generator.expressions import NODE_OF_RANK, series, worst
from deploy.grafana.generator.frame import NODE, OF_RUN, RANK, Placed, link_to, link_to_live_page
from deploy.grafana.generator.panels import (
    GPU_HOURS,
    HALF,
    NUMBER,
    ROWS_MAX,
    SECONDS,
    TIMES,
    Column,
    Query,
    areas,
    cells,
    heat_map,
    lines,
    listing,
    too_high,
    too_low,
)

BUCKET: Final = 0.05
"""Height of a row of the heat map, about the smallest slowdown that detection reports."""
BUCKETS: Final = (0.8, 3)
"""Ranks outside this range are counted in the outermost rows."""

SLOWDOWN: Final = series("rank_slowdown_ratio", OF_RUN)
SLOWDOWN_COLORS: Final = too_high(yellow=thresholds.SLOWDOWN, red=thresholds.SLOWDOWN_LARGE)
LEFT_COLORS: Final = too_low(red=thresholds.LEFT_S, yellow=thresholds.LEFT_LITTLE_S)
SLOWEST: Final = f"topk({ROWS_MAX}, {SLOWDOWN})"
FINDING: Final = ("kind", "scope", "subject", "rank", "node", "cause")

TO_RANK: Final = link_to(RANK, "The rank", run="run", rank="__data.fields.Rank")
LIVE_PAGE_OF_RANK: Final = link_to_live_page(run="run", rank="__data.fields.Rank")
TO_RANK_OF_LINE: Final = link_to(RANK, "The rank", run="run", rank="__field.labels.rank")
TO_NODE: Final = link_to(NODE, "The node", run="run", node="__data.fields.Node")


def verdicts() -> list[Placed]:
    """Return the panels of findings and of missing ranks."""
    return [
        listing(
            "Findings",
            "Open findings. `rankscope status` prints them in full.",
            {
                "open": Column("", series("finding_open", OF_RUN)),
                "kind": Column("Finding"),
                "subject": Column("Of"),
                "rank": Column("Rank", link=TO_RANK, also=LIVE_PAGE_OF_RANK),
                "node": Column("Node"),
                "cause": Column("Cause"),
                "slower": Column(
                    "Slower", series("finding_slowdown_ratio", OF_RUN), TIMES, SLOWDOWN_COLORS, decimals=3
                ),
                "wasted": Column("Ranks wasted", series("finding_wasted_ranks", OF_RUN), NUMBER, decimals=1),
                "left": Column("Time left", series("finding_left_seconds", OF_RUN), SECONDS, LEFT_COLORS),
            },
            keys=FINDING,
            first="slower",
        ),
        areas(
            "Ranks by state",
            "Ranks by state. failed: the rank ended badly; silent: its reports stopped; never_reported: no report has "
            "arrived; stalled: the rank makes no progress.",
            NUMBER,
            Query(series("ranks", OF_RUN), "{{state}}"),
            width=HALF,
        ),
        listing(
            "Missing ranks",
            "Ranks that failed, are silent or have never reported while others of the run report; at most the first "
            "64.",
            {
                "rank": Column("Rank", link=TO_RANK),
                "node": Column("Node", link=TO_NODE),
                "reason": Column("How"),
                "missing": Column("", f"topk({ROWS_MAX}, {series('rank_missing', OF_RUN)})"),
            },
            keys=["rank"],
            first="rank",
            width=HALF,
        ),
        lines(
            "Stalled ranks and missing nodes",
            "Stalled ranks, and nodes whose ranks all failed or are silent while others report.",
            NUMBER,
            Query(f"sum({series('rank_stalled', OF_RUN)})", "stalled ranks"),
            Query(f"count({series('node_missing', OF_RUN)}) or vector(0)", "missing nodes"),
            colors=too_high(red=1),
        ),
    ]


def slowness() -> list[Placed]:
    """Return the panels of the slowdown of ranks."""
    lowest, highest = BUCKETS
    return [
        heat_map(
            "Distribution of rank slowdown",
            "Compute time of a rank excluding waits over that of its peer ranks; 1 is equal. A row holds the ranks "
            "nearest to it. One rank far above the band is a straggler, a wide band is unequal work.",
            Query(f'count_values("slowdown", clamp(round({SLOWDOWN}, {BUCKET}), {lowest}, {highest}))', "{{slowdown}}"),
        ),
        cells(
            "The slowest ranks over time",
            f"The {ROWS_MAX} ranks with the largest slowdown in the selected time range.",
            TIMES,
            Query(worst(ROWS_MAX, SLOWDOWN, "rank"), "{{rank}}"),
            colors=SLOWDOWN_COLORS,
            link=TO_RANK_OF_LINE,
        ),
        listing(
            "The slowest ranks now",
            "Compute time excluding waits over that of the peer ranks; and the waiting of all ranks that originated "
            "at the rank, per step.",
            {
                "rank": Column("Rank", link=TO_RANK),
                "node": Column("Node", link=TO_NODE),
                "slower": Column("Slower", f"{SLOWEST} * {NODE_OF_RANK}", TIMES, SLOWDOWN_COLORS, decimals=3),
                "waits": Column(
                    "Caused wait a step",
                    f"{series('rank_caused_wait_seconds', OF_RUN)} and on (cluster, rank) {SLOWEST}",
                    SECONDS,
                ),
                "lost": Column(
                    "Lost so far",
                    f"sum by (cluster, rank) ({series('lost_gpu_seconds_total', OF_RUN)}) / 3600"
                    f" and on (cluster, rank) {SLOWEST}",
                    GPU_HOURS,
                ),
            },
            keys=["rank"],
            first="slower",
            width=HALF,
        ),
        lines(
            "Caused wait",
            "Waiting of all ranks per step, by the rank that caused it; the ten that caused the most, and what none is "
            "charged.",
            SECONDS,
            Query(worst(10, series("rank_caused_wait_seconds", OF_RUN), "rank"), "rank {{rank}}"),
            Query(f"sum({series('wait_not_attributed_seconds', OF_RUN)})", "not attributed"),
            link=TO_RANK_OF_LINE,
        ),
    ]
