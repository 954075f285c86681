"""Define what is counted as wrong in a run, beside a wrong name and a miss (`scoring.py`)."""

from typing import Final, NamedTuple

CONTRADICTION: Final = "contradiction"
"""Two findings are open that exclude each other: one denies that a rank is to blame that the other names, or both name
the same rank as slow; or a slower run has the cause that the finding about a link explains already."""
UNTRUE: Final = "untrue sentence"
"""A finding says what is not so: since when or until when, that something goes on that is long over or the reverse,
that no rank is to blame, or that a healthy rank is slow."""
MOVED: Final = "since moved forward"
"""The begin of an open finding became later."""
CLOSED: Final = "closed early"
"""A finding has passed while what it is about lasts."""
UNCOUNTED: Final = "uncounted kind"
"""A finding is of a kind whose truth nothing here knows."""
COST: Final = "cost off"
"""A stated cost is further from that of the run without the fault than `cost_truth.TOLERANCE`."""
UNSAID: Final = "not said"
"""A rank has left out a collective, so that the waits of its group are not known, and at the end of the run no reason
for the lack of a verdict names it."""
KINDS: Final = (CONTRADICTION, UNTRUE, MOVED, CLOSED, UNCOUNTED, COST, UNSAID)


class Wrong(NamedTuple):
    """One thing that was wrong in a run; `text` says what."""

    kind: str
    text: str
