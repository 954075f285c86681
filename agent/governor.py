"""Keeps the overhead of the agent under `overhead_ratio_max`: pure arithmetic on times, run once per report.

Budget
------
The agent may spend `overhead_ratio_max` of the time since its start plus HEAD_START_NS: at 0.005 the head start is
0.1 s, which pays for the first windows. The same limit holds over the last RECENT_NS, so that hours of cheap training
do not allow a costly period.

    base       CPU time of the parts that always run: hooks, the agent thread, samples
    windows    CPU time of profiler windows, of reading collectives between them, and of samples of lines on suspicion;
               they may spend what base leaves

Order of reduction
------------------
1. Windows run less often: they get the ratio that base leaves (`Allowance.windows_ratio`), and none begins that would
   overdraw the budget (`Allowance.budget_left_ns`).
2. Full windows are dropped when base uses FULL_WINDOWS_UP_TO of the budget; light windows get the rest.
3. Light windows are dropped when base uses all of it.
4. Reports are sent less often. 5. The GPU is sampled less often. 6. The process is sampled less often. Each of these
   steps is made while base exceeds the budget.

Step records and the rarer reports always stay. The use of base is computed over the time since the start and over the
last RECENT_NS, both without the head start, which is for windows only. At most one part is dropped per DROP_PAUSE_NS,
except that windows and the part after them go together: windows are not in base, so waiting would show nothing. Parts
are restored one by one, when base has fallen below `restore_below` and RESTORE_PAUSE_NS have passed; the pause doubles
each time the restored part has to be dropped again.

Without windows
---------------
With both kinds of windows switched off the target is a fifth of the budget (0.1 %), which one report per second alone
uses up. Then reports are sent less often after DROP_PAUSE_NS if base exceeds the target, and stay so. Samples are
dropped only when base exceeds the whole budget.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rankscope.measure.units import NS_PER_S

STEP_HOOKS = "step_hooks"
AGENT_THREAD = "agent_thread"
FULL_WINDOWS = "full_windows"
LIGHT_WINDOWS = "light_windows"
FREQUENT_REPORTS = "frequent_reports"
GPU_SAMPLES = "gpu_samples"
HOST_SAMPLES = "host_samples"
COLLECTIVE_TIMES = "collective_times"
LINE_SAMPLES = "line_samples"
WINDOWS = frozenset({FULL_WINDOWS, LIGHT_WINDOWS})
NOT_BASE = WINDOWS | {COLLECTIVE_TIMES, LINE_SAMPLES}

HEAD_START_NS = 20 * NS_PER_S
RECENT_NS = 300 * NS_PER_S
RECENT_EVERY_NS = 5 * NS_PER_S
"""Interval of the history of the budget: 61 entries for RECENT_NS."""
FULL_WINDOWS_UP_TO = 15 / 16
"""The remaining sixteenth of the budget would pay for a full window of 30 ms only every 4 minutes."""


class DropRule(NamedTuple):
    """A part that is dropped when base uses more than `above` of the budget, and restored below `restore_below`."""

    part: str
    above: float
    restore_below: float


DROP_ORDER = (
    DropRule(FULL_WINDOWS, FULL_WINDOWS_UP_TO, FULL_WINDOWS_UP_TO - 1 / 8),
    DropRule(LIGHT_WINDOWS, 1.0, 7 / 8),
    DropRule(FREQUENT_REPORTS, 1.0, 3 / 4),
    DropRule(GPU_SAMPLES, 1.0, 3 / 4),
    DropRule(HOST_SAMPLES, 1.0, 3 / 4),
)
"""Windows are not in base, so restoring them does not raise it. Frequent reports cost up to a quarter of the default
budget: with a smaller margin they would be restored only to be dropped again."""
DROP_ORDER_WITHOUT_WINDOWS = (DropRule(FREQUENT_REPORTS, 1 / 5, 0.0), *DROP_ORDER[3:])
DROP_PAUSE_NS = 30 * NS_PER_S
RESTORE_PAUSE_NS = 120 * NS_PER_S
RESTORE_PAUSE_NS_MAX = 3600 * NS_PER_S


class Allowance(NamedTuple):
    """The decision of the governor: the share of time for windows, the budget left `elapsed_ns` after the start (ns,
    negative when overdrawn), and the `dropped` parts.
    """

    windows_ratio: float
    budget_left_ns: int
    elapsed_ns: int
    dropped: frozenset[str] = frozenset()


class _Account(NamedTuple):
    """The CPU time spent up to a time: by the parts that always run, and by all."""

    elapsed_ns: int
    base_ns: int
    all_ns: int


class Governor:
    """Decides which parts run, from the CPU time of each so far; drops them in `order`. One per process."""

    def __init__(self, overhead_ratio_max: float, order: Sequence[DropRule] = DROP_ORDER) -> None:
        self._ratio_max = overhead_ratio_max
        self.order = order
        entries_max = RECENT_NS // RECENT_EVERY_NS + 1
        self._history: deque[_Account] = deque([_Account(0, 0, 0)], maxlen=entries_max)
        self._changed = _Account(0, 0, 0)
        self._restore_pause_ns = RESTORE_PAUSE_NS
        self._restored_ns: int | None = None
        self._level = 0
        self.changes = 0
        """Number of times that a part was dropped or restored."""

    @property
    def dropped(self) -> frozenset[str]:
        """The parts that are dropped now: the first ones in `order`."""
        return frozenset(dropping.part for dropping in self.order[: self._level])

    def decide(self, spent_ns: Mapping[str, int], elapsed_ns: int) -> Allowance:
        """Return what is allowed from now on, given each part's CPU time and the wall time since the start."""
        all_ns = sum(spent_ns.values())
        now = _Account(elapsed_ns, all_ns - sum(spent_ns.get(part, 0) for part in NOT_BASE), all_ns)
        horizons = (_Account(0, 0, 0), self._history[0])
        self._change(now, horizons)
        self._add_history(now)
        budget_left_ns = min(self._left_ns(now, since) for since in horizons)
        use = max(self._base_use(now, since, head_start_ns=HEAD_START_NS) for since in horizons)
        windows_ratio = self._ratio_max * max(0.0, 1 - use)
        return Allowance(windows_ratio, budget_left_ns, elapsed_ns, self.dropped)

    def _base_use(self, now: _Account, since: _Account, head_start_ns: int = 0) -> float:
        """Return the share of the budget that base has used since."""
        budget_ns = self._ratio_max * max(1, now.elapsed_ns - since.elapsed_ns + head_start_ns)
        return (now.base_ns - since.base_ns) / budget_ns

    def _present_use(self, now: _Account) -> float:
        """Return `_base_use` over the last DROP_PAUSE_NS or since the last change, whichever is shorter.

        The last drop may have sufficed already, which the long horizons show only later.
        """
        is_old = (entry for entry in reversed(self._history) if now.elapsed_ns - entry.elapsed_ns >= DROP_PAUSE_NS)
        since = next(is_old, self._changed)
        return self._base_use(now, max(self._changed, since, key=lambda entry: entry.elapsed_ns))

    def _add_history(self, now: _Account) -> None:
        if now.elapsed_ns - self._history[-1].elapsed_ns >= RECENT_EVERY_NS:
            self._history.append(now)
        while len(self._history) > 1 and now.elapsed_ns - self._history[1].elapsed_ns >= RECENT_NS:
            self._history.popleft()

    def _left_ns(self, now: _Account, since: _Account) -> int:
        budget_ns = self._ratio_max * (now.elapsed_ns - since.elapsed_ns + HEAD_START_NS)
        return int(budget_ns) - (now.all_ns - since.all_ns)

    def _change(self, now: _Account, horizons: tuple[_Account, ...]) -> None:
        pause_ns = now.elapsed_ns - self._changed.elapsed_ns
        if pause_ns < DROP_PAUSE_NS:
            return
        use = max(self._base_use(now, since) for since in horizons)
        level = self._level_for(min(use, self._present_use(now)))
        if level > self._level:
            self._note_flap(now)
            self._set_level(level, now)
        elif self._level and pause_ns >= self._restore_pause_ns and use < self.order[self._level - 1].restore_below:
            self._restored_ns = now.elapsed_ns
            self._set_level(self._level - 1, now)

    def _level_for(self, use: float) -> int:
        """Return the number of parts to drop while base uses that share of the budget."""
        level = self._level
        while level < len(self.order) and use > self.order[level].above:
            level += 1
            if self.order[level - 1].part not in WINDOWS:
                break
        return level

    def _note_flap(self, now: _Account) -> None:
        if self._restored_ns is not None:
            is_flapping = now.elapsed_ns - self._restored_ns < 2 * self._restore_pause_ns
            self._restore_pause_ns = (
                min(2 * self._restore_pause_ns, RESTORE_PAUSE_NS_MAX) if is_flapping else RESTORE_PAUSE_NS
            )
            self._restored_ns = None

    def _set_level(self, level: int, now: _Account) -> None:
        self.changes += abs(level - self._level)
        self._level = level
        self._changed = now
