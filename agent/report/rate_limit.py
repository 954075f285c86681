"""How much of a thing is done in a second, whoever asks for more."""

from rankscope.measure.units import NS_PER_S


class RateLimit:
    """Allows `count_max` in each second of the caller's clock, which never goes back. Counts in `ignored` what it has
    not allowed.

    >>> limit = RateLimit(2)
    >>> [limit.allows(ns) for ns in (0, 1, 2, 10**9)], limit.ignored
    ([True, True, False, True], 1)
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._count = 0
        self._second_began_ns = 0
        self.ignored = 0

    def allows(self, now_ns: int) -> bool:
        """Whether it may be done once more now."""
        if self.find_next_ns(now_ns) is not None:
            self.ignored += 1
            return False
        self._count += 1
        return True

    def find_next_ns(self, now_ns: int) -> int | None:
        """When it may be done again; None: now."""
        if now_ns - self._second_began_ns >= NS_PER_S:
            self._second_began_ns, self._count = now_ns, 0
        return None if self._count < self._count_max else self._second_began_ns + NS_PER_S
