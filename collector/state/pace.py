"""How often something is done that costs more the larger the job is. Pure: the time is an argument."""


class Pace:
    """Leaves so much time after each turn that all turns together take no more than `share` of it. What takes less than
    that share of `period_ns`, the time between two chances, is never put off.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._share = share
        self._free_ns = round(share * period_ns)
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether the next turn may be taken."""
        return self._due_ns is None or now_ns >= self._due_ns

    def take(self, now_ns: int, took_ns: int) -> None:
        """A turn that began then has taken so long.

        >>> pace = Pace(0.05, period_ns=1000)
        >>> pace.take(now_ns=0, took_ns=50), pace.is_due(1)
        (None, True)
        >>> pace.take(now_ns=0, took_ns=100), pace.is_due(1999), pace.is_due(2000)
        (None, False, True)
        """
        self._due_ns = now_ns + round(took_ns / self._share) if took_ns > self._free_ns else None
