"""How long the collector has not read while messages may have waited. Pure: the time is an argument.

What a look, a page or the store keeps Python's lock for, the thread that receives cannot read: agents and sockets hold
what comes meanwhile, so nothing is lost, but all of it is later. The thread tells when it reads and when there was
nothing to be read; any thread may ask.
"""

from typing import Final

from rankscope.measure.units import NS_PER_S

WINDOW_NS: Final = 30 * NS_PER_S


class ReadPauses:
    """The longest pause of this window and of the one before: of the last 30 to 60 s."""

    def __init__(self, now_ns: int) -> None:
        self._since_ns = now_ns
        """No message that has not been read has waited for longer than since then."""
        self._window_ends_ns = now_ns + WINDOW_NS
        self._longest_ns = self._before_ns = 0

    @property
    def longest_ns(self) -> int:
        """0 before anything has been read."""
        return max(self._longest_ns, self._before_ns)

    def note_idle(self, now_ns: int) -> None:
        """Up to now nothing waits."""
        self._since_ns = now_ns

    def note_read(self, now_ns: int) -> None:
        """A message has been read."""
        pause_ns, self._since_ns = now_ns - self._since_ns, now_ns
        self._longest_ns = max(self._longest_ns, pause_ns)

    def roll(self, now_ns: int) -> None:
        """To be called now and then: begin another window when this one is over."""
        if now_ns >= self._window_ends_ns:
            is_next = now_ns < self._window_ends_ns + WINDOW_NS
            self._before_ns, self._longest_ns = (self._longest_ns if is_next else 0), 0
            self._window_ends_ns = now_ns + WINDOW_NS
