"""A run whose invariants are checked after its events."""

from typing import ClassVar

from rankscope.collector.detect.view import Detected
from rankscope.collector.runs.events import RunEffect, RunEvent
from rankscope.collector.runs.run import RunState


class ValidatedRun(RunState):
    """Validates itself after each event, tick and detection pass."""

    EVENTS_BETWEEN: ClassVar[int] = 1
    """Events from one validation to the next; ticks and detection passes are always validated."""

    _events = 0

    def apply(self, event: RunEvent | Detected) -> list[RunEffect]:
        """Apply it, and check all invariants."""
        effects = super().apply(event)
        self._events += 1
        if isinstance(event, Detected) or self._events % self.EVENTS_BETWEEN == 0:
            self.validate()
        return effects

    def tick(self, now_collector_ns: int, now_wall_s: float) -> list[RunEffect]:
        """Tick, and check all invariants."""
        effects = super().tick(now_collector_ns, now_wall_s)
        self.validate()
        return effects


class SampledRun(ValidatedRun):
    """Validates itself after each sixteenth event, for runs with very many."""

    EVENTS_BETWEEN = 16
