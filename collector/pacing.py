"""Space repeated work so that it uses a bounded share of a core."""

from typing import Final

from rankscope.measure.units import NS_PER_S

RENDERING_DEFER_NS_MAX: Final = NS_PER_S
"""Longest deferral of a detection pass for a page that is being rendered."""
SNAPSHOT_DEFER_NS_MAX: Final = 4 * NS_PER_S
"""Longest deferral of a detection pass for a snapshot that is expected while it would run."""


class DetectionSchedule:
    """When detection passes run: at most `share` of a core, `period_ns` between two ticks. The time is an argument.

    A pass over 16,384 ranks takes 0.3 to 0.9 s, in which events and snapshot requests wait. A pass that is due is
    therefore deferred, for a bounded time, while a page is being rendered or a snapshot is about to be requested.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._limiter = CpuShareLimiter(share, period_ns)
        self._lasted_ns = 0
        self._deferred_since_ns: int | None = None

    def decide(self, now_ns: int, *, is_rendering: bool, next_request_ns: int | None) -> bool:
        """Return whether to run a pass now; a pass that is due and does not run is deferred from then on.

        `next_request_ns` is when the next snapshot request is expected, None where that is not known.
        """
        if not self._limiter.is_due(now_ns):
            return False
        would_delay = next_request_ns is not None and 0 <= next_request_ns - now_ns < self._lasted_ns
        if not is_rendering and not would_delay:
            return True
        if self._deferred_since_ns is None:
            self._deferred_since_ns = now_ns
        return now_ns - self._deferred_since_ns >= (SNAPSHOT_DEFER_NS_MAX if would_delay else RENDERING_DEFER_NS_MAX)

    @property
    def is_deferred(self) -> bool:
        """Whether a pass was due and did not run: it need not wait for the next tick."""
        return self._deferred_since_ns is not None

    def record(self, began_ns: int, ended_ns: int, cpu_ns: int) -> None:
        """Record a pass and its CPU time."""
        self._limiter.record(began_ns, cpu_ns)
        self._lasted_ns = ended_ns - began_ns
        self._deferred_since_ns = None


class CpuShareLimiter:
    """Spaces repeated work so that it uses at most `share` of a core. Work below that share of `period_ns`, the time
    between two opportunities, is never delayed. The time is an argument.
    """

    def __init__(self, share: float, period_ns: int) -> None:
        self._share = share
        self._free_ns = round(share * period_ns)
        self._due_ns: int | None = None

    def is_due(self, now_ns: int) -> bool:
        """Whether the work may be done again."""
        return self._due_ns is None or now_ns >= self._due_ns

    def record(self, began_ns: int, took_ns: int) -> None:
        """Record work that began at `began_ns` and took `took_ns`.

        >>> limiter = CpuShareLimiter(0.05, period_ns=1000)
        >>> limiter.record(began_ns=0, took_ns=50), limiter.is_due(1)
        (None, True)
        >>> limiter.record(began_ns=0, took_ns=100), limiter.is_due(1999), limiter.is_due(2000)
        (None, False, True)
        """
        self._due_ns = began_ns + round(took_ns / self._share) if took_ns > self._free_ns else None
