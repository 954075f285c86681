"""Passes what is new in the report of the run to a logger: numbers by name, and the findings as text (docs/loggers.md).

A log is updated on the training thread, as the script's own calls of its logger are. Once a second it reads the report,
which waits for nothing; what is new it writes, for MLflow on a thread of its own. An error of the logger never reaches
the script, and one that is slow every time is used no more.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import rankscope.agent as rankscope
from rankscope.agent.guard import explain, is_of_script, log_line
from rankscope.agent.run_report import VALUES, RunReport

PREFIX: Final = "rankscope/"
"""First part of every name in a logger, which charts of one prefix are grouped by."""
FINDINGS: Final = f"{PREFIX}findings"
OPEN_FINDINGS: Final = f"{PREFIX}open_findings"
NO_FINDINGS: Final = "no finding holds now"
FINDINGS_TAG: Final = "rankscope.findings"
"""Name of MLflow's tag with the findings."""
TAG_LENGTH_MAX: Final = 5000
"""Characters that every tracking store of MLflow accepts in a tag (mlflow.set_tag)."""
READ_S: Final = 1.0
"""Time between two reads of the report: a summary comes every 10 s or so."""
FAILURES_MAX: Final = 3
"""Failures in a row after which a log is switched off: a logger that waits for a network would hold up training."""
WRITE_S_MAX: Final = 1.0
"""A longer write counts as a failure, though it was one only for training: with a summary every 10 s it would cost 10 %
of its time."""


class LogEntry(NamedTuple):
    """What is new for a logger: numbers by name, those that are known, and the findings that hold now as text, a line
    each; None where they are as before.
    """

    scalars: dict[str, float]
    findings: str | None


class RunLog:
    """The log of one run: `write` gets each new entry and the step it is logged at, None where none was given.

    `read_report` and `read_clock_s` are the agent's report and a monotonic clock (s). `logger` is named where it fails;
    empty: it is the only one.
    """

    def __init__(
        self,
        write: Callable[[LogEntry, int | None], object],
        read_report: Callable[[], RunReport] = rankscope.status,
        read_clock_s: Callable[[], float] = time.monotonic,
        *,
        logger: str = "",
    ) -> None:
        self._write = write
        self._read_report = read_report
        self._read_clock_s = read_clock_s
        self._read_s: float | None = None
        self._logged_s: float | None = None
        self._findings: str | None = NO_FINDINGS
        self._failures = 0
        self._is_reported = False
        self._with_logger = f" with {logger}" if logger else ""

    def update(self, step: int | None = None) -> None:
        """Write what is new, if anything is. Call it after each step: between two reads it costs under 1 us.

        Everything is on rank 0; on other ranks this does nothing. No failure is raised: they are logged once, and
        FAILURES_MAX in a row, or writes that take more than WRITE_S_MAX, switch this log off, which is logged too.
        """
        if self._failures >= FAILURES_MAX:
            return
        try:
            entry = self.find_new()
            if entry is not None:
                began_s = self._read_clock_s()
                self._write(entry, step)
                self._judge(self._read_clock_s() - began_s)
        except Exception as error:
            if is_of_script(error):  # a signal handler of the script has raised it meanwhile
                raise
            self._note(error)  # no error of a logger may reach the training script

    def find_new(self) -> LogEntry | None:
        """Return what is new since the last call that returned something; None if nothing is, or was read just now."""
        now_s = self._read_clock_s()
        if self._read_s is not None and now_s - self._read_s < READ_S:
            return None
        self._read_s = now_s
        report = self._read_report()
        age_s = report["age_s"]
        if age_s is None or report["findings"] is None:
            return None
        if self._logged_s is not None and age_s >= now_s - self._logged_s:  # it came before the last one was logged
            return None
        self._logged_s = now_s
        findings = describe_findings(report)
        changed = findings if findings != self._findings else None
        self._findings = findings
        return LogEntry(read_scalars(report), changed)

    def _judge(self, took_s: float) -> None:
        if took_s <= WRITE_S_MAX:
            self._failures, self._is_reported = 0, False
        else:
            self._count_failure(f"it took {took_s:.1f} s, in which training waited")

    def _note(self, error: Exception) -> None:
        self._findings = None  # the logger may not have them: the next entry has them again
        reason = explain("run_log", error)
        if not self._is_reported:
            log_line(f"the run could not be logged{self._with_logger} ({reason}); training continues")
            self._is_reported = True
        self._count_failure(reason)

    def _count_failure(self, reason: str) -> None:
        """Count a failure or a slow write, and report the last one: a first slow write may have imported a package."""
        self._failures += 1
        if self._failures == FAILURES_MAX:
            times = f"failed or was slow {FAILURES_MAX} times in a row"
            log_line(f"the run is not logged{self._with_logger} any more, since that {times}; the last time: {reason}")


def read_scalars(report: RunReport) -> dict[str, float]:
    """Return the known numbers of a report by their names in a logger, and how many findings hold."""
    values = {name: report[name] for name in VALUES}
    scalars = {f"{PREFIX}{name}": value for name, value in values.items() if value is not None}
    if report["findings"] is not None:
        scalars[OPEN_FINDINGS] = float(len(report["findings"]) + report["findings_left_out"])
    return scalars


def describe_findings(report: RunReport) -> str:
    """Return the findings that hold now, one on each line with its severity; NO_FINDINGS where none does."""
    findings = report["findings"] or []
    lines = [f"{finding['severity']}: {finding['sentence']}" for finding in findings]
    if report["findings_left_out"]:
        lines.append(f"and {report['findings_left_out']:,} more")
    return "\n".join(lines) or NO_FINDINGS
