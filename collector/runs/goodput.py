"""Account for the time of a run, and how much of it trained: goodput (docs/definitions.md section 4). Pure.

All time from the first rank's Hello to the end of the run is one of the following; before it come the steps that ranks
had kept for a collector that came later.

    startup        before the first step begins
    productive     in steps, less `slow`
    slow           in steps, lost to findings: step - ideal step, by the costliest one, at most the time in steps
    between_steps  evaluations, checkpoints, anything the training does between its steps
    stalled        from the last step before a detected stall to the first report of steps after it
    restart        from the last step of an attempt to the begin of the first step of the next one
    unreported     not known yet: since the end of the last step that was reported, and what may be a gap between steps
                   only because other reports of that time are still on their way

and goodput is productive / wall. A step that a restart repeats is productive each time: ranks count the steps of their
process, not those of the model, so work lost since the last checkpoint is not seen. Goodput is an upper bound of the
useful time.

Time is classified once, by the next report or detection pass. A collector that did not run, or could not be reached,
gets the reports of that time all at once, and the first of them has few of the steps: so time between steps is not
known as such until HOLD_NS after, and later reports may fill it. After that every part only grows, with two exceptions:
`unreported`, and `productive`, of which a loss that is found later is moved to `slow`. Times are of one clock, in
ns; one that goes back is replaced by the latest one.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from rankscope.collector.invariants import require
from rankscope.measure.units import NS_PER_S

Activity = Literal["startup", "steps", "stalled", "restart"]
"""State of a run: before its first step, in steps, stalled, or restarting."""

HOLD_NS: Final = 10 * NS_PER_S
"""Time in which the reports that have waited arrive: agents try to connect again every few seconds, and send what they
hold at once."""
LOST_STEPS_KEPT: Final = 8192
"""Twice the most steps that a run keeps (`steps_kept`); findings are about those only."""


class GoodputSnapshot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The time of a run so far by its use, in ns. The parts sum to `wall_ns` exactly."""

    wall_ns: int = 0
    productive_ns: int = 0
    slow_ns: int = 0
    startup_ns: int = 0
    between_steps_ns: int = 0
    stalled_ns: int = 0
    restart_ns: int = 0
    unreported_ns: int = 0

    @property
    def goodput_ratio(self) -> float | None:
        """Productive time over wall time, 0 to 1; None for a run that has only just begun.

        >>> GoodputSnapshot(wall_ns=100, productive_ns=80, startup_ns=20).goodput_ratio
        0.8
        """
        return self.productive_ns / self.wall_ns if self.wall_ns else None

    @property
    def steps_ns(self) -> int:
        """The time in steps, fast or slow."""
        return self.productive_ns + self.slow_ns


class Goodput:
    """Goodput account of one run, over all its attempts. Each call settles the time up to the one given. Time between
    steps is held for `hold_ns`, in which other reports may say that there were steps in it.
    """

    def __init__(self, hold_ns: int = HOLD_NS) -> None:
        self._hold_ns = hold_ns
        self._held_ns = self._held_since_ns = 0
        self._begin_ns: int | None = None
        self._hello_ns = 0
        self._settled_ns = 0
        self._doing: Activity = "startup"
        self._is_over = False
        self._steps_ns = self._lost_ns = self._between_ns = 0
        self._lost_of_step: dict[int, int] = {}
        self._owed_ns = 0
        self._idle_ns = {"startup": 0, "stalled": 0, "restart": 0}

    def begin(self, now_ns: int) -> None:
        """Start the account at the first rank's Hello; further calls change nothing."""
        if self._begin_ns is None:
            self._begin_ns = self._settled_ns = self._hello_ns = now_ns

    def add_steps(self, end_ns: int, steps_ns: int, reported_ns: int = 0) -> None:
        """Add `steps_ns` of steps that ended since the last call, the last of them at `end_ns`. `reported_ns` of them
        are reported one by one, so that what they lost is known: those that were before the first Hello, and so do not
        fit into the time since then, count, too.

        Steps that do not fit into the time since the last call were made in a gap before, if that is held; else the
        clocks of two reports disagree, and the difference is owed and settled from the next time between steps.
        """
        if self._is_over:
            return
        elapsed_ns = self._settle(end_ns)
        if self._doing == "stalled":
            self._idle_ns["stalled"] += elapsed_ns
            self._doing = "steps"
            return
        owed_ns = self._owed_ns + steps_ns
        if self._settled_ns - self._held_since_ns >= self._hold_ns:
            self._release()
        if not self._held_ns:
            self._held_since_ns = self._settled_ns
        worked_ns = min(owed_ns, self._held_ns + elapsed_ns)
        if self._begin_ns is not None and end_ns - self._hello_ns < self._hold_ns:
            before_ns = min(owed_ns - worked_ns, reported_ns)
            self._begin_ns -= before_ns
            self._steps_ns += before_ns
            owed_ns -= before_ns
        self._steps_ns += worked_ns
        if self._doing == "steps":
            self._held_ns += elapsed_ns - worked_ns
            self._owed_ns = owed_ns - worked_ns
            if not self._hold_ns:
                self._release()
        else:  # the first ones: what does not fit was before the run, as far as it is known here
            self._idle_ns[self._doing] += elapsed_ns - worked_ns
            self._doing = "steps"

    def mark_stalled(self, now_ns: int) -> None:
        """Count the time since the last step as stalled. Call it again and again while the run is stalled."""
        if not self._is_over:
            self._release()
            self._idle_ns["stalled"] += self._settle(now_ns)
            self._doing, self._owed_ns = "stalled", 0

    def restart(self, now_ns: int) -> None:
        """Begin a new attempt. The time of an attempt without any step was start-up."""
        self._release()
        self._idle_ns["startup" if self._doing == "startup" else "restart"] += self._settle(now_ns)
        self._doing, self._owed_ns, self._is_over = "restart", 0, False
        self._lost_of_step.clear()

    def end(self, now_ns: int) -> None:
        """End the account: every rank has ended. The time since the last step counts for the last activity."""
        if self._is_over:
            return
        self._release()
        elapsed_ns = self._settle(now_ns)
        if self._doing == "steps":
            self._between_ns += elapsed_ns
        else:
            self._idle_ns[self._doing] += elapsed_ns
        self._is_over = True

    def add_loss(self, steps: Sequence[int], lost_ns: Sequence[float]) -> None:
        """Add what a finding has cost each of these steps of the present attempt, which may be older ones. A step with
        several findings counts once, by the costliest.
        """
        for step, step_lost_ns in zip(steps, lost_ns, strict=True):
            known_ns = self._lost_of_step.get(step, 0)
            self._lost_of_step[step] = max(known_ns, round(step_lost_ns))
            self._lost_ns += self._lost_of_step[step] - known_ns
        if len(self._lost_of_step) > LOST_STEPS_KEPT:
            newest = sorted(self._lost_of_step)[-LOST_STEPS_KEPT // 2 :]
            self._lost_of_step = {step: self._lost_of_step[step] for step in newest}

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold; tests call it after events."""
        found = self.snapshot(self._settled_ns)
        parts = {name: getattr(found, name) for name in GoodputSnapshot.__struct_fields__ if name != "wall_ns"}
        require(sum(parts.values()) == found.wall_ns, f"the parts {parts} do not sum to the wall time {found.wall_ns}")
        require(min(parts.values()) >= 0, f"a part is negative: {parts}")
        require(self._owed_ns >= 0, "negative time is owed")
        require(self._held_ns >= 0, "negative time is held")
        require(len(self._lost_of_step) <= LOST_STEPS_KEPT, "too many lost steps are kept")

    def _release(self) -> None:
        """Count the time that is held as between steps."""
        self._between_ns += self._held_ns
        self._held_ns = 0

    def _settle(self, now_ns: int) -> int:
        """Return the time since the last settling, and settle it."""
        elapsed_ns = max(0, now_ns - self._settled_ns)
        self._settled_ns += elapsed_ns
        return elapsed_ns

    def snapshot(self, now_ns: int) -> GoodputSnapshot:
        """Return the account at this time."""
        if self._begin_ns is None:
            return GoodputSnapshot()
        since_ns = 0 if self._is_over else max(0, now_ns - self._settled_ns)
        slow_ns = min(self._lost_ns, self._steps_ns)
        return GoodputSnapshot(
            wall_ns=self._settled_ns + since_ns - self._begin_ns,
            productive_ns=self._steps_ns - slow_ns,
            slow_ns=slow_ns,
            startup_ns=self._idle_ns["startup"],
            between_steps_ns=self._between_ns,
            stalled_ns=self._idle_ns["stalled"],
            restart_ns=self._idle_ns["restart"],
            unreported_ns=since_ns + self._held_ns,
        )


class CarriedGoodput(Goodput):
    """Account of a run that was continued after its collector was restarted: the time before, and the time since."""

    def __init__(self) -> None:
        super().__init__()
        self._carried = GoodputSnapshot()

    def resume(self, carried: GoodputSnapshot, settled_ns: int, *, is_over: bool) -> None:
        """Continue an account that was settled up to `settled_ns`. The time between is settled by the next report."""
        wall_ns = carried.wall_ns - carried.unreported_ns
        self._carried = msgspec.structs.replace(carried, wall_ns=wall_ns, unreported_ns=0)
        self.begin(settled_ns)
        if carried.steps_ns:
            self.add_steps(settled_ns, 0)  # it is past its start-up
        if is_over:
            self.end(settled_ns)

    def snapshot(self, now_ns: int) -> GoodputSnapshot:
        """Return the whole account at this time."""
        since = super().snapshot(now_ns)
        names = GoodputSnapshot.__struct_fields__
        return GoodputSnapshot(**{name: getattr(self._carried, name) + getattr(since, name) for name in names})
