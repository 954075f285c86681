"""A step before it is told of: still running, or perhaps over."""

from dataclasses import dataclass, field

from rankscope.agent.probe.batches import UNTOLD, BatchSize, Told, add_sizes
from rankscope.measure.records import PHASES


@dataclass(slots=True, repr=False)
class OpenStep:
    """A step that is still running."""

    start_ns: int
    start_cpu_ns: int | None
    phases_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    batches: int = 0
    backwards: int = 0
    optimizers: set[int] = field(default_factory=set)
    loaders: set[int] = field(default_factory=set)
    looked_through: bool = False
    read: BatchSize | None = None
    said: BatchSize | None = None
    told: Told = UNTOLD

    def find_cpu_ns(self, end_cpu_ns: int | None) -> int | None:
        """Its CPU time, when the clock said that at its end; None: not known."""
        if self.start_cpu_ns is None or end_cpu_ns is None:
            return None
        return max(0, end_cpu_ns - self.start_cpu_ns)

    def join(self, later: "OpenStep") -> None:
        """Take in what was thought to be the next step."""
        for name, duration_ns in later.phases_ns.items():
            self.phases_ns[name] = self.phases_ns.get(name, 0) + duration_ns
        self.batches += later.batches
        self.backwards += later.backwards
        self.optimizers |= later.optimizers
        self.loaders |= later.loaders
        self.read = add_sizes(self.read, later.read)
        self.said = add_sizes(self.said, later.said)


@dataclass(slots=True, repr=False, eq=False)
class HeldStep:
    """A step that may have ended: the next optimizer step tells."""

    step: OpenStep
    end_ns: int
    end_cpu_ns: int | None
