"""What the rules of advice.py share: the window that shares are of, and how a rank is named."""

from rankscope.collector.detect.run_rules.thresholds import CRITICAL_RATIO
from rankscope.collector.traces.report import Abstention, RankReport

NO_DEVICE = "no device work in the trace"


def window_of(report: RankReport) -> int:
    """What shares are of: the steps, from the first one's start to the last one's end, else the whole breakdown."""
    return report.signs.window_ns or report.window_ns


def severity_of(ratio: float) -> str:
    """Of something that takes this share of the time."""
    return "critical" if ratio >= CRITICAL_RATIO else "warning"


def ranks_of(report: RankReport) -> list[int]:
    """Whom an advice about this trace is about; a trace that tells no rank stands for itself."""
    return [report.rank] if report.rank is not None else []


def of_rank(report: RankReport) -> str:
    """` of rank 3`, or nothing when the trace tells no rank."""
    return f" of rank {report.rank}" if report.rank is not None else ""


def on_rank(report: RankReport) -> str:
    """`On rank 3, `, or `Here ` when the trace tells no rank: the start of a sentence."""
    return f"On rank {report.rank} " if report.rank is not None else "Here "


def no_device(key: str) -> Abstention:
    """The abstention of rules about a device."""
    return Abstention(key=key, reason=NO_DEVICE)
