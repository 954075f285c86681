"""How far apart the steps are whose waiting is known: profiler windows come as often as their cost allows."""


class WindowDistance:
    """Of one attempt. `is_watched`: whether any rank has had a window. `longest`: the most steps from one measured step
    to the next so far.
    """

    def __init__(self) -> None:
        self.is_watched = False
        self.longest = 0
        self._first_step: int | None = None
        self._last_measured: int | None = None

    def begin(self, step: int) -> None:
        """That step has been reported; the first one told is where looking begins."""
        if self._first_step is None:
            self._first_step = step

    def take(self, first_step: int, last_step: int) -> None:
        """From the first to the last of these steps waiting is known; ranks tell of them in any order."""
        if self._last_measured is not None:
            self.longest = max(self.longest, first_step - self._last_measured)
            last_step = max(last_step, self._last_measured)
        self._last_measured = last_step

    def steps_behind(self, latest_step: int) -> int:
        """How many steps ago waiting was known; where it never was, how many are known at all."""
        since = self._last_measured if self._last_measured is not None else self._first_step
        return 0 if since is None else latest_step - since
