"""A run whose invariants are checked after each event, tick and detection pass."""

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
