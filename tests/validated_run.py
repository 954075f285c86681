"""Runs whose invariants are checked: after each event, or where that takes too long, after each tick and pass."""

from rankscope.collector.detect.view import Detected
from rankscope.collector.runs.events import RunEffect, RunEvent
from rankscope.collector.runs.run import RunState


class ValidatedRun(RunState):
    """Validates itself after everything that changes it."""

    def apply(self, event: RunEvent | Detected) -> list[RunEffect]:
        """Apply it, and check all invariants."""
        effects = super().apply(event)
        self.validate()
        return effects

    def tick(self, now_collector_ns: int, now_wall_s: float) -> list[RunEffect]:
        """Tick, and check all invariants."""
        effects = super().tick(now_collector_ns, now_wall_s)
        self.validate()
        return effects


class RunValidatedByPass(ValidatedRun):
    """Validates itself after ticks and detection passes only: a check reads every rank, so that one after every report
    of 1,024 ranks takes nine tenths of a simulation's time.
    """

    def apply(self, event: RunEvent | Detected) -> list[RunEffect]:
        """Apply it, and check all invariants if it is a detection pass."""
        return super().apply(event) if isinstance(event, Detected) else RunState.apply(self, event)
