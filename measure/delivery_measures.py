"""Metrics of what is lost between a rank and the collector; docs/delivery.md explains them together.

Per rank, at any time, with the prefix `step_records_`: `created = published + acked_by_previous_collector + lost (all
reasons) + buffered`.
"""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, RANK, Measure

_LOSSES: Final = "agent: own counters (Losses)"
_ADMISSION: Final = "collector: admission"
_ACCOUNT: Final = "collector: step records of a rank process (StepAccounting)"

DELIVERY: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_reports_dropped_total", "counter", "", RANK,
        "Reports dropped from the agent's full resend buffer.", "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_report_gaps_total", "counter", "", RANK,
        "Reports of the current rank process that never arrived.",
        "sequence numbers given up", _ADMISSION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_created_total", "counter", "", RANK,
        "Step records the rank has created: published + acked_by_previous_collector + lost + buffered.",
        "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_published_total", "counter", "", RANK,
        "Step records this collector admitted in time to compare them with other ranks.",
        "rows admitted - late", _ACCOUNT, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_acked_by_previous_collector_total", "counter", "", RANK,
        "Step records that the collector before this one acknowledged.",
        "steps reported - admitted - dropped", _ACCOUNT, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_buffered", "gauge", "", RANK,
        "Step records created but not yet in a report, at the time of the last report.",
        "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_lost_total", "counter", "", (*RANK, "reason"),
        "Step records lost, by reason: overwritten in the agent's ring, dropped_in_reports, or late.",
        "count by reason", "agent: Losses; collector: step window, StepAccounting", NOT_NEGATIVE,
    ),
)  # fmt: skip
