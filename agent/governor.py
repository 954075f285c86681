"""Keeps what the agent costs under `overhead_ratio_max`: pure arithmetic on times, driven once a report.

The account
-----------
The agent may spend `overhead_ratio_max` of the time since it started, and of HEAD_START_NS more, as if the job had been
running that long already: 0.1 s at 0.005, which is what the first windows of a young job are paid from. The same is
asked of the last RECENT_NS, so that hours of cheap training do not excuse a costly present.

    own time of parts that always run (hooks, the agent thread, samples)     `base`
    own time of the profiler windows                                         what they may take is what base leaves

What gives way, in this order
-----------------------------
1. Windows come less often: they get the ratio that base leaves (`Allowance.windows_ratio`), and none begins that the
   account cannot pay (`Allowance.budget_left_ns`).
2. Full windows are dropped when base takes FULL_WINDOWS_UP_TO of the budget: what is left is the light ones'.
3. Light windows are dropped when base takes all of it.
4. Reports come less often, 5. the GPU, 6. the process is sampled less often, each when base is above the budget still.

Steps and their phases stay, every one of them, and rarer reports: they are the floor. What base takes is asked of the
time since the start and of the last RECENT_NS, without the head start, which is for windows: with it steps of 10 ms
would be above the budget for minutes before anything gave way. Something is dropped at most once in DROP_PAUSE_NS, one
part, or the windows and the part after them at once: they are not in base, so nothing would be learnt by waiting. Each
comes back alone, when base has fallen as far below that as DROP_ORDER says, after BACK_PAUSE_NS, and twice that each
time it had to be dropped again.

Without windows
---------------
Where neither kind of window is taken, the agent is to cost a fifth of the budget: 0.1 %. A report a second is as much
by itself, and has little to tell then. So reports come less often from DROP_PAUSE_NS on where base takes more than
that, and for good, since they are what it takes. Samples are dropped for the whole budget only.
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
WINDOWS = frozenset({FULL_WINDOWS, LIGHT_WINDOWS})

HEAD_START_NS = 20 * NS_PER_S
RECENT_NS = 300 * NS_PER_S
RECENT_EVERY_NS = 5 * NS_PER_S
"""How often the account is written down: 61 entries for RECENT_NS."""
FULL_WINDOWS_UP_TO = 15 / 16
"""Less than a sixteenth of the budget would give a full window of 30 ms (two steps of 3,000 operators) every 4 minutes
at half the share."""


class DropRule(NamedTuple):
    """A part that can be dropped: it is when base takes more than `above` of the budget, and comes back when base takes
    less than `restore_below`.
    """

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
"""Windows are not in base, so to have them back does not raise it. A report a second is up to a quarter of the default
budget more than one in four seconds: with a margin of less it would come back only to be dropped again."""
DROP_ORDER_WITHOUT_WINDOWS = (DropRule(FREQUENT_REPORTS, 1 / 5, 0.0), *DROP_ORDER[3:])
DROP_PAUSE_NS = 30 * NS_PER_S
BACK_PAUSE_NS = 120 * NS_PER_S
BACK_PAUSE_NS_MAX = 3600 * NS_PER_S


class Allowance(NamedTuple):
    """What the windows may spend from now on: the share of the time, and what the account holds at this moment (ns,
    negative when it is overdrawn), `elapsed_ns` after the start. `dropped` are the parts to do without.
    """

    windows_ratio: float
    budget_left_ns: int
    elapsed_ns: int
    dropped: frozenset[str] = frozenset()


class _Account(NamedTuple):
    """What had been spent by a time: by the parts that always run, and by all."""

    elapsed_ns: int
    base_ns: int
    all_ns: int


class Governor:
    """Decides what runs, from the own time of each part so far; parts are dropped in that `order`. One per process."""

    def __init__(self, overhead_ratio_max: float, order: Sequence[DropRule] = DROP_ORDER) -> None:
        self._ratio_max = overhead_ratio_max
        self.order = order
        entries_max = RECENT_NS // RECENT_EVERY_NS + 1
        self._history: deque[_Account] = deque([_Account(0, 0, 0)], maxlen=entries_max)
        self._changed = _Account(0, 0, 0)
        self._back_pause_ns = BACK_PAUSE_NS
        self._came_back_ns: int | None = None
        self._level = 0
        self.changes = 0
        """How often a part was dropped or came back."""

    @property
    def dropped(self) -> frozenset[str]:
        """The parts that are dropped now: the first ones of the order."""
        return frozenset(dropping.part for dropping in self.order[: self._level])

    def decide(self, spent_ns: Mapping[str, int], elapsed_ns: int) -> Allowance:
        """What is allowed from now on. `spent_ns` is each part's own time since the start, `elapsed_ns` the wall
        time since then.
        """
        all_ns = sum(spent_ns.values())
        now = _Account(elapsed_ns, all_ns - sum(spent_ns.get(part, 0) for part in WINDOWS), all_ns)
        horizons = (_Account(0, 0, 0), self._history[0])
        self._change(now, horizons)
        self._write_down(now)
        budget_left_ns = min(self._left_ns(now, since) for since in horizons)
        use = max(self._base_use(now, since, head_start_ns=HEAD_START_NS) for since in horizons)
        windows_ratio = self._ratio_max * max(0.0, 1 - use)
        return Allowance(windows_ratio, budget_left_ns, elapsed_ns, self.dropped)

    def _base_use(self, now: _Account, since: _Account, head_start_ns: int = 0) -> float:
        """The share of the budget that base has taken since."""
        budget_ns = self._ratio_max * max(1, now.elapsed_ns - since.elapsed_ns + head_start_ns)
        return (now.base_ns - since.base_ns) / budget_ns

    def _present_use(self, now: _Account) -> float:
        """As `_base_use`, over the last DROP_PAUSE_NS or since the last change: what was dropped last may have been
        enough already, which the long horizons see late.
        """
        is_old = (entry for entry in reversed(self._history) if now.elapsed_ns - entry.elapsed_ns >= DROP_PAUSE_NS)
        since = next(is_old, self._changed)
        return self._base_use(now, max(self._changed, since, key=lambda entry: entry.elapsed_ns))

    def _write_down(self, now: _Account) -> None:
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
        elif self._level and pause_ns >= self._back_pause_ns and use < self.order[self._level - 1].restore_below:
            self._came_back_ns = now.elapsed_ns
            self._set_level(self._level - 1, now)

    def _level_for(self, use: float) -> int:
        """How many parts to do without while base takes that share of the budget."""
        level = self._level
        while level < len(self.order) and use > self.order[level].above:
            level += 1
            if self.order[level - 1].part not in WINDOWS:
                break
        return level

    def _note_flap(self, now: _Account) -> None:
        if self._came_back_ns is not None:
            relapsed = now.elapsed_ns - self._came_back_ns < 2 * self._back_pause_ns
            self._back_pause_ns = min(2 * self._back_pause_ns, BACK_PAUSE_NS_MAX) if relapsed else BACK_PAUSE_NS
            self._came_back_ns = None

    def _set_level(self, level: int, now: _Account) -> None:
        self.changes += abs(level - self._level)
        self._level = level
        self._changed = now
