"""Space repeated work so that it uses a bounded share of a core."""


class CpuShareLimiter:
    """Spaces repeated work so that it uses at most `share` of a core. Work below that share of `period_ns`, the time
    between two opportunities, is never delayed. The time is an argument.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._share = share
        self._free_ns = round(share * period_ns)
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Return whether the work may be done again."""
        return self._due_ns is None or now_ns >= self._due_ns

    def find_wait_ns(self, now_ns: int) -> int:
        """Return how long the work has to wait; 0 when it is due."""
        return 0 if self._due_ns is None else max(0, self._due_ns - now_ns)

    def record(self, began_ns: int, took_ns: int) -> None:
        """Record work that began at `began_ns` and took `took_ns`.

        >>> limiter = CpuShareLimiter(0.05, period_ns=1000)
        >>> limiter.record(began_ns=0, took_ns=50), limiter.is_due(1)
        (None, True)
        >>> limiter.record(began_ns=0, took_ns=100), limiter.is_due(1999), limiter.find_wait_ns(1999)
        (None, False, 1)
        >>> limiter.is_due(2000), limiter.find_wait_ns(2000)
        (True, 0)
        """
        self._due_ns = began_ns + round(took_ns / self._share) if took_ns > self._free_ns else None
