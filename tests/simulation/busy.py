"""Define machines that are busy with something else: the training threads of their ranks wait for CPU cores.

That is no fault of any rank, and all ranks of such a machine are held up alike in the mean, though not in each step.
"""

from dataclasses import dataclass, replace

import numpy as np

from tests.simulation.engine import Conditions, Floats
from tests.simulation.faults import Fault
from tests.simulation.program import HOST
from tests.simulation.topology import Topology

CORRELATION = 0.8
"""Of how busy a machine is, from one step to the next."""


@dataclass(frozen=True, kw_only=True)
class Busy:
    """Ranks on every machine wait for a core for `share` of a step's work in the mean. `deviation` is the standard
    deviation of the log of that wait, for the machine as a whole, and once more for each rank. With a
    `rank_correlation` from step to step some ranks are held up longer than others for a while.
    """

    share: float
    deviation: float = 0.5
    rank_correlation: float = 0.0


class BusyMachines:
    """Draws how long each rank is held up in step after step."""

    def __init__(self, busy: Busy, topology: Topology, work_ns: int, seed: int) -> None:
        self._busy = busy
        self._topology = topology
        self._work_ns = work_ns
        self._random = np.random.default_rng((seed, topology.world_size))
        self._machines = np.zeros(int(topology.node[-1]) + 1)
        self._ranks = self._random.normal(0.0, busy.deviation, topology.world_size)
        self._fault = Fault(cause="core_wait", ranks=tuple(range(topology.world_size)), ratio=1 + busy.share, begin=0)

    def draw(self) -> tuple[Fault, Floats]:
        """Return how long each rank waits for a core in the next step, shape (ranks,) in ns, as the ranks see it."""
        deviation = self._busy.deviation
        self._machines = self._follow(self._machines, CORRELATION)
        self._ranks = self._follow(self._ranks, self._busy.rank_correlation)
        logs = self._machines[self._topology.node] + self._ranks
        # The mean of the exponential of a normal distribution is above that of its middle.
        held_up_ns: Floats = self._busy.share * self._work_ns * np.exp(logs - deviation**2)
        return self._fault, held_up_ns

    def _follow(self, before: Floats, correlation: float) -> Floats:
        """Return what follows in the next step, with the same deviation."""
        fresh = self._random.normal(0.0, self._busy.deviation, len(before))
        return np.asarray(correlation * before + np.sqrt(1 - correlation**2) * fresh)


def hold_up(conditions: Conditions, held_up_ns: Floats, base_ns: dict[str, Floats]) -> Conditions:
    """Return the conditions with a host that takes longer by these waits."""
    return replace(conditions, work={**conditions.work, HOST: conditions.work[HOST] + held_up_ns / base_ns[HOST]})
