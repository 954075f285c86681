"""Which faults come when, from a seed: the same seed gives the same plan. Pure."""

import random
from typing import Final, NamedTuple

COLLECTOR_KILLED: Final = "collector killed"
COLLECTOR_STOPPED: Final = "collector stopped"
RUN_RESTARTED: Final = "node killed, its run restarted"
RUN_RESTARTED_UNHEARD: Final = "node killed and its run restarted while the collector is stopped"
NODE_STOPPED: Final = "node stopped"
CONNECTIONS_CUT: Final = "connections of a node cut"
BAD_PEERS: Final = "bad peers"
SLOW_SCRAPERS: Final = "slow scrapers"
DISK_FULL: Final = "disk of the store full"

KINDS: Final = (
    COLLECTOR_KILLED, COLLECTOR_STOPPED, RUN_RESTARTED, RUN_RESTARTED_UNHEARD, NODE_STOPPED, CONNECTIONS_CUT,
    BAD_PEERS, SLOW_SCRAPERS, DISK_FULL,
)  # fmt: skip

KILLS_UNTIL: Final = 0.6
"""Part of the time in which the collector is killed: the last one lives long enough that its memory can be judged."""

DURATION_S_MIN: Final = 1.0
PAUSE_S: Final = (0.25, 0.75)
"""Between the end of a fault and the next one, in parts of the longest fault."""


class Shape(NamedTuple):
    """So many runs of so many nodes of so many ranks."""

    runs: int
    nodes_per_run: int
    ranks_per_node: int

    @property
    def ranks_per_run(self) -> int:
        """The world of one run."""
        return self.nodes_per_run * self.ranks_per_node

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.runs * self.ranks_per_run


class PlannedFault(NamedTuple):
    """A fault that begins so long after the first, not before the one before is over, and lasts so long."""

    at_s: float
    kind: str
    run: int
    node: int
    duration_s: float


def shape_of(ranks: int) -> Shape:
    """How ranks are spread: several runs, because a restart concerns all ranks of a run and no other.

    >>> shape_of(1024), shape_of(32)
    (Shape(runs=8, nodes_per_run=4, ranks_per_node=32), Shape(runs=2, nodes_per_run=2, ranks_per_node=8))
    """
    runs, nodes = (8, 4) if ranks >= 1024 else (4, 4) if ranks >= 128 else (2, 2)
    if ranks % (runs * nodes):
        raise ValueError(f"{ranks} ranks do not fill {runs} runs of {nodes} nodes; give a multiple of {runs * nodes}")
    return Shape(runs, nodes, ranks // (runs * nodes))


def plan(seed: int, seconds: float, shape: Shape, duration_s_max: float) -> tuple[PlannedFault, ...]:
    """Faults for so long: first each kind once, in some order, then any of them."""
    chance = random.Random(seed)
    kinds = chance.sample(KINDS, len(KINDS))
    faults: list[PlannedFault] = []
    at_s = 0.0
    while True:
        may_kill = at_s < KILLS_UNTIL * seconds
        kind = kinds.pop() if kinds else chance.choice(KINDS)
        duration_s = chance.uniform(DURATION_S_MIN, duration_s_max)
        fault = PlannedFault(
            at_s, kind, chance.randrange(shape.runs), chance.randrange(shape.nodes_per_run), duration_s
        )
        if at_s + duration_s > seconds:
            return tuple(faults)
        if kind != COLLECTOR_KILLED or may_kill:
            faults.append(fault)
            at_s += duration_s + chance.uniform(*PAUSE_S) * duration_s_max
