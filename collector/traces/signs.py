"""What advice looks at in one trace and no table shows."""

from rankscope.collector.traces.rank_view import RankView
from rankscope.collector.traces.report import Signs


def find_signs(view: RankView) -> Signs:
    """The signs of one trace."""
    del view
    return Signs()
