"""Rules over the reports. (Filled in its own commit.)"""

from collections.abc import Sequence

from rankscope.collector.traces.report import Abstention, Advice, CrossRank, RankReport


def advise(reports: Sequence[RankReport], across: CrossRank | None) -> tuple[list[Advice], list[Abstention]]:
    """What the rules found, and which could not judge."""
    del reports, across
    return [], []
