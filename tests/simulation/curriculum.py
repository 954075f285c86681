"""Define runs whose batches grow on purpose: every rank has more tokens in a step, and as much more work."""

from dataclasses import dataclass, replace

from tests.simulation.engine import Conditions

TOKENS = 4096
"""Tokens of each rank in a step, before they grow."""


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Batches of `ratio` times as many tokens from step `begin` on. They grow to that over `grow_steps` steps, in
    `stages` equal jumps: at once by default.
    """

    ratio: float
    begin: int
    grow_steps: int = 0
    stages: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be: ratio at or below 0, a begin or a growth before step 0, no stage."""
        if self.ratio <= 0 or self.begin < 0 or self.grow_steps < 0 or self.stages < 1:
            raise ValueError(f"{self} is no curriculum: ratio above 0, begin and grow_steps from 0, stages from 1")

    def tokens_in(self, step: int) -> int:
        """Return the tokens of each rank in a step.

        >>> twice = Curriculum(ratio=2, begin=10, grow_steps=100, stages=4)
        >>> [twice.tokens_in(step) for step in (9, 10, 34, 35, 85, 1000)]
        [4096, 5120, 5120, 6144, 8192, 8192]
        """
        if step < self.begin:
            return TOKENS
        grown = 1 + (step - self.begin) * self.stages // self.grow_steps if self.grow_steps else self.stages
        return round(TOKENS * (1 + (self.ratio - 1) * min(grown, self.stages) / self.stages))

    def growth(self, step: int) -> float:
        """Return how many times as much work as at the start every rank has in a step."""
        return self.tokens_in(step) / TOKENS

    def apply(self, conditions: Conditions, step: int) -> Conditions:
        """Return the conditions with the work of so many tokens, that of faults included."""
        growth = self.growth(step)
        return replace(conditions, work={kind: factor * growth for kind, factor in conditions.work.items()})
