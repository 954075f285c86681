"""Define what the rules of advice.py share: the window that shares refer to, and the names of ranks."""

from rankscope.collector.detect.run_rules.thresholds import CRITICAL_RATIO
from rankscope.collector.traces.report import Abstention, RankReport

NO_DEVICE = "no device work in the trace"


def window_of(report: RankReport) -> int:
    """Return the ns that shares refer to: from the first step's start to the last one's end, else the breakdown."""
    return report.signs.window_ns or report.window_ns


def severity_of(ratio: float) -> str:
    """Return the severity of something that takes this share of the time."""
    return "critical" if ratio >= CRITICAL_RATIO else "warning"


def ranks_of(report: RankReport) -> list[int]:
    """Return the ranks of an advice about this trace; none for a trace without a rank."""
    return [report.rank] if report.rank is not None else []


def of_rank(report: RankReport) -> str:
    """Return ` of rank 3`, or nothing for a trace without a rank."""
    return f" of rank {report.rank}" if report.rank is not None else ""


def on_rank(report: RankReport) -> str:
    """Return `On rank 3 `, or `Here ` for a trace without a rank, to begin a sentence."""
    return f"On rank {report.rank} " if report.rank is not None else "Here "


def no_device(key: str, report: RankReport | None = None) -> Abstention:
    """Return the abstention of rules about a device, or about the idle time of one whose work is lost."""
    lost, launched = (report.signs.lost_launch_count, report.signs.launch_count) if report is not None else (None, None)
    if lost and launched:
        return Abstention(
            key=key,
            reason=f"{lost:,} of {launched:,} launches have no work in the trace: its idle time is not known",
        )
    return Abstention(key=key, reason=NO_DEVICE)
