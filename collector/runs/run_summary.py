"""Sum up a run for its rank 0, which logs it beside the loss (docs/loggers.md). Pure."""

from collections.abc import Mapping
from typing import Final

from rankscope.collector.detect.finding import Finding, order_findings
from rankscope.collector.runs.ratio_basis import NO_WINDOW
from rankscope.collector.runs.run_flops import find_run_flops
from rankscope.collector.runs.run_ratios import find_run_ratios
from rankscope.collector.runs.run_status import find_live
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.measure.bounds import SHORT_NAME_LENGTH_MAX, to_count
from rankscope.measure.messages import SUMMARY_FINDINGS_MAX, OpenFinding, RunSummary
from rankscope.measure.records import Totals
from rankscope.measure.text import to_line

TEXT_LENGTH_MAX: Final = 512
"""Characters of a sentence or reason: all of a summary, in any script, stays under the 64 KiB that an agent accepts."""
SUBJECT_LENGTH_MAX: Final = 128
NO_STEPS: Final = "no step has been reported since the summary before"
NO_TIME: Final = "the run has only just begun"
NOT_COMPARED: Final = "the ranks could not be compared yet"
NO_FLOPS_KNOWN: Final = "no rank has reported FLOPs of its steps"


class DataWait:
    """The share of the steps of a run in which its ranks waited for batches, from one call to the next."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int]] = {}

    def update(self, totals: Mapping[str, Totals]) -> float | None:
        """Return the share, 0 to 1, over the steps since the call before; None without any. `totals` are those of each
        rank process by its boot id: one that is new counts from its begin.

        >>> wait, totals = DataWait(), Totals(steps=2, step_ns=200, phases_ns={"data": 50})
        >>> wait.update({"a": totals}), wait.update({"a": totals})
        (0.25, None)
        """
        now = {boot_id: (one.phases_ns.get("data", 0), one.step_ns) for boot_id, one in totals.items()}
        data_ns = step_ns = 0
        for boot_id, (rank_data_ns, rank_step_ns) in now.items():
            data_before_ns, step_before_ns = self._before.get(boot_id, (0, 0))
            data_ns += max(0, rank_data_ns - data_before_ns)
            step_ns += max(0, rank_step_ns - step_before_ns)
        self._before = now
        return data_ns / step_ns if step_ns > 0 else None


def build_run_summary(run: RunSnapshot, data_wait_ratio: float | None) -> RunSummary:
    """Return the summary of a run whose ranks have SUMMARY_FIELDS at least."""
    ratios = find_run_ratios(run.ranks)
    flops = find_run_flops(find_live(run.ranks))
    values = {
        "slowdown_ratio": (run.run_slowdown_ratio, run.abstained or NOT_COMPARED),
        "goodput_ratio": (run.goodput.goodput_ratio, NO_TIME),
        "mfu": (flops.mfu, flops.absent or NO_FLOPS_KNOWN),
        "exposed_communication_ratio": (
            ratios.ratios.get("exposed_communication"),
            ratios.absent or NO_WINDOW.absent or "",
        ),
        "data_wait_ratio": (data_wait_ratio, NO_STEPS),
    }
    open_findings = order_findings(run.open_findings)
    return RunSummary(
        **{name: value for name, (value, _) in values.items()},
        absent={name: to_line(why, TEXT_LENGTH_MAX) for name, (value, why) in values.items() if value is None},
        findings=tuple(map(_to_open_finding, open_findings[:SUMMARY_FINDINGS_MAX])),
        findings_left_out=len(open_findings[SUMMARY_FINDINGS_MAX:]),
    )


def _to_open_finding(finding: Finding) -> OpenFinding:
    return OpenFinding(
        number=to_count(finding.number),
        kind=to_line(finding.kind, SHORT_NAME_LENGTH_MAX),
        cause=to_line(finding.cause, SHORT_NAME_LENGTH_MAX),
        subject=to_line(finding.subject, SUBJECT_LENGTH_MAX),
        sentence=to_line(finding.sentence, TEXT_LENGTH_MAX),
        severity=to_line(finding.severity, SHORT_NAME_LENGTH_MAX),
        since_step=finding.since_step,
    )
