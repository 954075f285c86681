"""Define what slows ranks, when, and what a monitor can see of it, as three separate things.

A disturbance costs time (`Cost`); a sign shows something (`Sign`). Neither needs the other: an Xid of last week costs
nothing, and a disk that hangs shows nothing. `When` is shared by both.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tests.second_table.layout import Floats

LOADER: Final = "loader"  # the training thread waits for its batch
BUSY: Final = "busy"  # the training thread computes longer on a core
ASLEEP: Final = "asleep"  # the training thread is off the CPU
CORE: Final = "core"  # the training thread is ready to run and has no core
GC: Final = "gc"  # Python's garbage collector stops the training thread
KERNEL: Final = "kernel"  # the work of forward and backward takes longer on the device (on a CPU: by computing)
SAVE: Final = "save"  # the training thread writes a file after its optimizer step, hardly computing
COMPILE: Final = "compile"  # the training thread compiles in forward
LINK: Final = "link"  # the collectives of the ranks' groups move their data more slowly
WORK: Final = "work"  # more tokens: forward and backward do more of the same
PARTS: Final = (LOADER, BUSY, ASLEEP, CORE, GC, KERNEL, SAVE, COMPILE, LINK, WORK)


@dataclass(frozen=True, kw_only=True)
class When:
    """Steps at which something is there, from `begin` up to `end`.

    With `every` each rank has it once in so many steps, at a place of its own if `apart`, else all at the same one;
    with `chance` at random. `bouts` are its only ranges. `turns`: the ranks take turns of so many steps each, 0 no
    turns; `dice`: one of the ranks at random in each step. Over `ramp` steps it grows from nothing to all.
    """

    begin: int = 0
    end: int | None = None
    every: int = 1
    apart: bool = False
    chance: float | None = None
    bouts: tuple[tuple[int, int], ...] = ()
    ramp: int = 0
    turns: int = 0
    dice: bool = False

    def strength(self, step: int, ranks: int, seed: int) -> Floats:
        """Return how much of it each of so many ranks has in a step, 0 to 1."""
        none = np.zeros(ranks)
        if step < self.begin or (self.end is not None and step >= self.end):
            return none
        if self.bouts and not any(first <= step < last for first, last in self.bouts):
            return none
        since = step - self.begin
        there = np.ones(ranks)
        if self.turns:
            there = (np.arange(ranks) == since // self.turns % ranks).astype(float)
        elif self.dice:
            there = (np.arange(ranks) == _draw(seed, step).integers(ranks)).astype(float)
        elif self.chance is not None:
            there = (_draw(seed, step).random(ranks) < self.chance).astype(float)
        elif self.every > 1:
            place = _draw(seed, -1).integers(0, self.every, ranks) if self.apart else np.zeros(ranks, dtype=np.int64)
            there = np.equal(since % self.every, place).astype(float)
        return there * (min(1.0, (since + 1) / self.ramp) if self.ramp else 1.0)


def _draw(seed: int, step: int) -> np.random.Generator:
    return np.random.default_rng((7, seed, step + 1))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Something that costs these ranks time in a `part`: `ms` each time, or `share` of that part of a healthy step (of
    a link: of its transfers). `dimension` is that of a slow link.
    """

    part: str
    ranks: tuple[int, ...]
    when: When = field(default_factory=When)
    ms: float = 0.0
    share: float = 0.0
    dimension: str = ""
    operators: bool = False
    """Whether more work shows as more operators."""
    seed: int = 0


XID: Final = "xid"
NARROW: Final = "narrow"  # the PCIe link has 4 lanes of 16
REMAPPED: Final = "remapped"
RETRIES: Final = "retries"  # the allocator asks the driver again in each step
SLOW_CLOCK: Final = "slow_clock"
HOT: Final = "hot"  # a thermal reason to throttle, with a lower clock
POWER: Final = "power"  # the reason is the power cap


@dataclass(frozen=True, kw_only=True)
class Sign:
    """What samples of these ranks show while it is there. It costs nothing."""

    kind: str
    ranks: tuple[int, ...]
    when: When = field(default_factory=When)
    seed: int = 0
