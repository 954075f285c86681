"""Build what `rankscope.agent.status()` returns: the collector's last summary, and why parts of it are missing. Pure.

The collector sends a summary to rank 0 about every 10 s on the connection of its reports. Nothing is asked for, so
nothing waits for an answer.
"""

import math
from typing import Final, NamedTuple, TypedDict

from rankscope.measure.messages import OpenFinding, RunSummary
from rankscope.measure.text import to_line
from rankscope.measure.units import NS_PER_S, format_length, ns_to_s

VALUES: Final = ("slowdown_ratio", "goodput_ratio", "mfu", "exposed_communication_ratio", "data_wait_ratio")
"""Names of the numbers in a report."""
FINDINGS: Final = "findings"
STALE_NS: Final = 60 * NS_PER_S
"""Age at which a summary says nothing about the present any more: six of them have not come."""

NOT_MEASURED: Final = "this process is not measured"
NOT_FOUND: Final = "no collector has been found yet"
NOT_REACHED: Final = "the collector is not connected"
NONE_SENT: Final = "the collector has sent no summary yet; it sends one about every 10 s, if it is as new as this agent"
FAILED: Final = "the report could not be read; a line on stderr says why"
NOT_SAID: Final = "the collector did not say why"


class ReceivedSummary(NamedTuple):
    """A summary, and when it came, by the monotonic clock of this machine."""

    summary: RunSummary
    host_ns: int


class FindingReport(TypedDict):
    """A finding that holds now. `number` counts those of the run from 1, `severity` is info, warning or critical."""

    number: int
    kind: str
    cause: str
    subject: str
    sentence: str
    severity: str
    since_step: int | None


class RunReport(TypedDict):
    """The run as its collector sees it. `age_s` is how long ago the summary came (s).

    `slowdown_ratio` is the step over the ideal step (from 1), `goodput_ratio` the productive share of all time so far
    (0 to 1), `mfu` the mean over the live ranks, `exposed_communication_ratio` the share of the time in the last
    windows in which ranks only communicated (0 to 1), `data_wait_ratio` the share of the last steps in which ranks
    waited for batches (0 to 1). Whatever is None has its reason under its name in `absent`.

    `findings` are those that hold now, the most severe first, `findings_left_out` how many more there are.
    """

    run: str
    rank: int | None
    age_s: float | None
    slowdown_ratio: float | None
    goodput_ratio: float | None
    mfu: float | None
    exposed_communication_ratio: float | None
    data_wait_ratio: float | None
    findings: list[FindingReport] | None
    findings_left_out: int
    absent: dict[str, str]


def build_report(run: str, rank: int | None, received: ReceivedSummary | str, now_host_ns: int) -> RunReport:
    """Return the report of a rank of a run. `received` is the last summary, or why there is none."""
    if rank not in {0, None}:
        received = f"the collector sends its summaries to rank 0; this is rank {rank}"
    if isinstance(received, str):
        return _build(run, rank, None, RunSummary(), dict.fromkeys((*VALUES, FINDINGS), received))
    age_ns = now_host_ns - received.host_ns
    if age_ns >= STALE_NS:
        why = f"the last summary of the collector came {format_length(ns_to_s(age_ns))} ago"
        return _build(run, rank, ns_to_s(age_ns), RunSummary(), dict.fromkeys((*VALUES, FINDINGS), why))
    summary = received.summary
    unknown = [name for name in VALUES if _read_value(summary, name) is None]
    absent = {name: to_line(summary.absent.get(name, NOT_SAID)) for name in unknown}
    return _build(run, rank, ns_to_s(age_ns), summary, absent)


def _build(run: str, rank: int | None, age_s: float | None, summary: RunSummary, absent: dict[str, str]) -> RunReport:
    return RunReport(
        run=run,
        rank=rank,
        age_s=age_s,
        slowdown_ratio=_read_value(summary, "slowdown_ratio"),
        goodput_ratio=_read_value(summary, "goodput_ratio"),
        mfu=_read_value(summary, "mfu"),
        exposed_communication_ratio=_read_value(summary, "exposed_communication_ratio"),
        data_wait_ratio=_read_value(summary, "data_wait_ratio"),
        findings=None if FINDINGS in absent else [_to_report(finding) for finding in summary.findings],
        findings_left_out=summary.findings_left_out,
        absent=absent,
    )


def _read_value(summary: RunSummary, name: str) -> float | None:
    """Return a number of a summary; None where it is not known, or no finite number."""
    value: float | None = getattr(summary, name)
    return value if value is not None and math.isfinite(value) else None


def _to_report(finding: OpenFinding) -> FindingReport:
    return FindingReport(
        number=finding.number,
        kind=to_line(finding.kind),
        cause=to_line(finding.cause),
        subject=to_line(finding.subject),
        sentence=to_line(finding.sentence),
        severity=to_line(finding.severity),
        since_step=finding.since_step,
    )
