"""Keep how long the steps of a whole run were: medians of blocks of steps, from the first on, in bounded memory. Pure.

The table of steps has the last few hundred. Growth over thousands of steps is slower than the noise in it, and shows
only against blocks that have left it.
"""

from typing import Final, NamedTuple

import numpy as np

from rankscope.collector.invariants import require
from rankscope.collector.steps.step_series import Floats, Ints

BLOCK_STEPS: Final = 32
"""Steps of the shortest block: the median of so many is off by a quarter of the noise of a step."""
BLOCKS_MAX: Final = 128
"""Blocks kept; then each two become one. So 10^6 steps have blocks of 8,192 or 16,384."""


class Levels(NamedTuple):
    """The blocks of a run in order, shape (blocks,) each: the first step of each, the median of its steps in ns, and
    that of the tokens in them (NaN where not known). A block has about `block_steps` steps.
    """

    first_steps: Ints
    step_ns: Floats
    tokens: Floats
    block_steps: int


NO_LEVELS: Final = Levels(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0), BLOCK_STEPS)


class StepLevels:
    """Medians of blocks of steps, at most BLOCKS_MAX, which become longer as the run does."""

    def __init__(self) -> None:
        #: The last step that was added; -1 before any. Only grows.
        self.last_step = -1
        #: Parts of BLOCK_STEPS steps that make one block: a power of two.
        self._parts_per_block = 1
        #: (first step, median, median of tokens) of each block.
        self._blocks: list[tuple[int, float, float]] = []
        #: The same of the parts of the next block, fewer than `_parts_per_block`.
        self._parts: list[tuple[int, float, float]] = []
        #: (step, duration, tokens) of the next part, fewer than BLOCK_STEPS.
        self._steps: list[tuple[int, float, float]] = []

    def add(self, steps: Ints, step_ns: Floats, tokens: Floats) -> None:
        """Add the steps after the last one, in order; those whose duration is NaN are left out."""
        fresh = (steps > self.last_step) & ~np.isnan(step_ns)
        for one in zip(steps[fresh].tolist(), step_ns[fresh].tolist(), tokens[fresh].tolist(), strict=True):
            self.last_step = one[0]
            self._steps.append(one)
            if len(self._steps) == BLOCK_STEPS:
                self._parts.append(_join(self._steps))
                self._steps = []
            if len(self._parts) == self._parts_per_block:
                self._blocks.append(_join(self._parts))
                self._parts = []
            if len(self._blocks) == BLOCKS_MAX:
                self._blocks = [_join(self._blocks[first : first + 2]) for first in range(0, BLOCKS_MAX, 2)]
                self._parts_per_block *= 2

    def read(self) -> Levels:
        """Return the whole blocks."""
        if not self._blocks:
            return NO_LEVELS
        first_steps, step_ns, tokens = zip(*self._blocks, strict=True)
        block_steps = BLOCK_STEPS * self._parts_per_block
        return Levels(np.array(first_steps), np.array(step_ns), np.array(tokens), block_steps)

    def validate(self) -> None:
        """Raise InvariantError where an invariant does not hold."""
        firsts = [first for first, *_ in (*self._blocks, *self._parts, *self._steps)]
        require(firsts == sorted(set(firsts)), "blocks of steps are out of order")
        require(len(self._blocks) < BLOCKS_MAX, "too many blocks of steps")


def _join(parts: list[tuple[int, float, float]]) -> tuple[int, float, float]:
    """Return the first step of these parts, and the medians of their values."""
    (first, *_), *_ = parts
    return first, float(np.median([ns for _, ns, _ in parts])), float(np.median([tokens for *_, tokens in parts]))
