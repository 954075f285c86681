"""Define runs whose ranks are not equal though nothing is wrong: duties of a rank, two models of GPU, varying sizes.

A run with pairs, whose ranks have one small collective more than the others, is made by `Topology.mesh(pairs=...)`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.simulation.engine import Conditions, Floats
from tests.simulation.program import HOST, KERNEL, READ

KINDS = (READ, HOST, KERNEL)
DUTY_JITTER = 0.05
"""Standard deviation of the log of the time that a duty takes."""


@dataclass(frozen=True, kw_only=True)
class Duty:
    """Work of its own that a rank does before every `every`-th step: a log line, a checkpoint. It takes `ratio` times
    the work of a step.
    """

    rank: int
    every: int
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Ranks with a GPU of another `model`, on which the whole work of a step takes `ratio` times as long."""

    model: str
    ranks: tuple[int, ...]
    ratio: float
    clock_hertz: int


@dataclass(frozen=True, kw_only=True)
class VaryingSizes:
    """Collectives of these dimensions move other bytes in every step and on every rank, as with sequences of other
    lengths: the standard deviation of the log is `deviation`.
    """

    dimensions: tuple[str, ...]
    deviation: float

    def size_bytes(self, size_bytes: int, dimension: str, rank: int, step: int) -> int:
        """Return the bytes of a rank's collective of one dimension in one step."""
        if dimension not in self.dimensions:
            return size_bytes
        drawn = np.random.default_rng((rank, step)).normal(0.0, self.deviation)
        return round(size_bytes * float(np.exp(drawn)))


def apply_duties(conditions: Conditions, duties: Sequence[Duty], step: int, work_ns: int) -> Conditions:
    """Return the conditions with the duties in them."""
    pause_ns = conditions.pause_ns.copy()
    for number, duty in enumerate(duties):
        if step and step % duty.every == 0:
            jitter = np.random.default_rng((number, step)).normal(0.0, DUTY_JITTER)
            pause_ns[duty.rank] += work_ns * duty.ratio * np.exp(jitter)
    return replace(conditions, pause_ns=pause_ns)


def apply_hardware(conditions: Conditions, hardware: Sequence[Hardware], base_ns: dict[str, Floats]) -> Conditions:
    """Return the conditions with slower kernels on the other GPUs."""
    work = {kind: factor.copy() for kind, factor in conditions.work.items()}
    for one in hardware:
        ranks = np.array(one.ranks)
        whole_ns = sum(base_ns[kind][ranks] for kind in KINDS)
        work[KERNEL][ranks] *= 1 + (one.ratio - 1) * whole_ns / base_ns[KERNEL][ranks]
    return replace(conditions, work=work)
