"""How much earlier pages are begun because some were late: on a busy machine writing one takes longer now and then than
it took the last times, and a scrape that finds none is shown what the one before it was, a whole interval older.
"""

from typing import Final

STEP_S: Final = 0.4
EARLIER_S_MAX: Final = 1.6
CALM_PAGES: Final = 400
"""After so many pages in time a step is given back: so no more than about one in so many is late for long."""


class PrerenderLead:
    """Each page that is late has all begun a step earlier; each that is in time takes a little of that back.

    >>> lead = PrerenderLead()
    >>> lead.note(is_late=True)
    >>> lead.earlier_s
    0.4
    >>> for _ in range(CALM_PAGES):
    ...     lead.note(is_late=False)
    >>> round(lead.earlier_s, 9)
    0.0
    """

    def __init__(self) -> None:
        self.earlier_s = 0.0

    def note(self, *, is_late: bool) -> None:
        """A page was asked for when it was expected."""
        change_s = STEP_S if is_late else -STEP_S / CALM_PAGES
        self.earlier_s = min(EARLIER_S_MAX, max(0.0, self.earlier_s + change_s))
