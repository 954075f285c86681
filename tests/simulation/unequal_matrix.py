"""List runs of unequal ranks for the score: each healthy, and with a slow rank from the first step on and later."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.faults import Fault
from tests.simulation.scenarios import BEGIN, SLOW_RANK
from tests.simulation.topology import EXPERT, Topology
from tests.simulation.unequal import Duty, Hardware, VaryingSizes

RATIOS = (1.1, 1.3)
BEGINS = (0, BEGIN)
SEEDS, HEALTHY_SEEDS = 2, 4
"""Each run is made with an even seed and with an odd one. Detectors are tuned on even ones; odd ones are held out."""
OLD_CLOCK_HERTZ = 1_700_000_000


class Unequal(NamedTuple):
    """A run of unequal ranks, its faults, and the fields of its scenario that are not those of a usual one."""

    what: str
    faults: tuple[Fault, ...]
    fields: Mapping[str, Any]


def _mixed(slower: int) -> dict[str, Any]:
    """32 ranks, of which the last `slower` have a GPU that takes 1.07 times as long."""
    ranks = tuple(range(32 - slower, 32))
    hardware = Hardware(model="older", ranks=ranks, ratio=1.07, clock_hertz=OLD_CLOCK_HERTZ)
    return {"kind": "fsdp", "topology": Topology.mesh(dp=32), "hardware": (hardware,)}


def _duties(*duties: Duty) -> dict[str, Any]:
    return {"kind": "fsdp", "topology": Topology.mesh(dp=8), "duties": duties, "steps": BEGIN + 100}


WORLDS: Mapping[str, Mapping[str, Any]] = {
    "a pair": {"kind": "fsdp", "topology": Topology.mesh(dp=16, pairs=((4, 5),))},
    "staggered pairs": {"kind": "dp", "topology": Topology.mesh(dp=8, pairs=((0, 1), (4, 5)))},
    "sizes of experts": {
        "kind": "ep", "topology": Topology.mesh(dp=16, ep=4),
        "sizes": VaryingSizes(dimensions=(EXPERT,), deviation=0.2),
    },
    "pp 6 x dp 2": {"kind": "pp", "topology": Topology.mesh(pp=6, dp=2)},
    "pp 3 x dp 3": {"kind": "pp", "topology": Topology.mesh(pp=3, dp=3)},
    "8 of 32 older GPUs": _mixed(8),
    "16 of 32 older GPUs": _mixed(16),
    "logging": _duties(Duty(rank=0, every=10, ratio=0.4)),
    "logging and evaluating": _duties(Duty(rank=0, every=10, ratio=0.4), Duty(rank=0, every=25, ratio=3)),
    "saving": _duties(Duty(rank=0, every=20, ratio=3)),
}  # fmt: skip


def unequal_runs() -> Iterator[Unequal]:
    """Yield every world: healthy ones first."""
    for what, fields in WORLDS.items():
        for _ in range(HEALTHY_SEEDS):
            yield Unequal(f"{what}, healthy", (), fields)
        for ratio, begin, _ in itertools.product(RATIOS, BEGINS, range(SEEDS)):
            fault = Fault(cause="gpu_compute", ranks=(SLOW_RANK,), ratio=ratio, begin=begin)
            yield Unequal(f"{what}, {ratio:g} x from step {begin}", (fault,), fields)
