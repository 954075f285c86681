"""The measures of what is lost on the way from a rank to the collector; docs/delivery.md explains them together.

Per rank, at any time: `steps_made = steps_published + steps_published_elsewhere + steps_lost (all reasons) +
steps_buffered`.
"""

from typing import Final

from rankscope.measure.exported import NOT_NEGATIVE, RANK, Measure

_LOSSES: Final = "agent: its own count (Losses)"
_ADMISSION: Final = "collector: admission"
_ACCOUNT: Final = "collector: the account of a life's steps (StepAccounting)"

DELIVERY: Final[tuple[Measure, ...]] = (
    Measure(
        "rankscope_reports_dropped_total", "counter", "", RANK,
        "Reports that fell out of the agent's full buffer.", "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_report_gaps_total", "counter", "", RANK,
        "Reports of this life of the rank that never came.", "numbers given up", _ADMISSION, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_created_total", "counter", "", RANK,
        "Step records the rank has made: those published (here or elsewhere), lost and buffered add up to it.",
        "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_published_total", "counter", "", RANK,
        "Step records of the rank that this collector has taken in, in time to compare them.",
        "count of rows admitted - late", _ACCOUNT, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_acked_by_previous_collector_total", "counter", "", RANK,
        "Step records of the rank that a collector before this one has taken in.",
        "steps reported - admitted - dropped", _ACCOUNT, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_buffered", "gauge", "", RANK,
        "Step records the rank had made and not yet put into a report when it made its last one.",
        "count", _LOSSES, NOT_NEGATIVE,
    ),
    Measure(
        "rankscope_step_records_lost_total", "counter", "", (*RANK, "reason"),
        "Step records that were lost on the way: overwritten in the agent's ring, dropped_in_reports, or late.",
        "count by reason", "agent: Losses; collector: step window, StepAccounting", NOT_NEGATIVE,
    ),
)  # fmt: skip
