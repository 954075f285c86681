"""List runs on busy machines for the score: healthy ones, and those with a fault beside or because of it.

Each row is made with GPUs and on CPUs, and with an even seed and an odd one. Detectors are tuned on even ones; odd ones
are held out.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tests.simulation.busy import Busy
from tests.simulation.faults import Fault
from tests.simulation.scenarios import BEGIN, SLOW_RANK
from tests.simulation.topology import Topology

ONE_MACHINE: Mapping[str, Any] = {"kind": "dp", "topology": Topology.mesh(dp=8), "steps": BEGIN + 80}
TWO_MACHINES: Mapping[str, Any] = {"kind": "fsdp", "topology": Topology.mesh(dp=16), "steps": BEGIN + 80}
THREE_MACHINES: Mapping[str, Any] = {"kind": "fsdp", "topology": Topology.mesh(dp=24), "steps": BEGIN + 80}
RATIOS = (1.1, 1.3)
SEEDS, HEALTHY_SEEDS = 2, 4
SHARES = {"little": 0.05, "much": 0.3}
"""How long ranks wait for cores on busy machines, in steps."""
ONE_RANK = ("core_wait", "other_threads", "unseen_wait", "host_cpu")
ALL_RANKS = ("core_wait", "other_threads", "unseen_wait", "host_cpu")


class BusyRun(NamedTuple):
    """A run, its faults, and the fields of its scenario that are not those of a usual one."""

    what: str
    faults: tuple[Fault, ...]
    fields: Mapping[str, Any]


def busy_runs() -> Iterator[BusyRun]:
    """Yield all runs with GPUs and on CPUs, those without a fault first."""
    for on_cpus in (False, True):
        where = "on CPUs" if on_cpus else "with GPUs"
        rows = itertools.chain(_healthy(), _one_rank(), _beside(), _machine(), _run())
        for what, faults, fields in rows:
            yield BusyRun(f"{what}, {where}", faults, {**fields, "on_cpus": on_cpus})


def _healthy() -> Iterator[BusyRun]:
    for fields, (how, share), _ in itertools.product((ONE_MACHINE, TWO_MACHINES), SHARES.items(), range(HEALTHY_SEEDS)):
        yield BusyRun(f"{how} held up, healthy", (), {**fields, "busy": Busy(share=share)})
    for fields, _ in itertools.product((ONE_MACHINE, TWO_MACHINES), range(HEALTHY_SEEDS)):
        uneven = Busy(share=0.15, rank_correlation=0.97)
        yield BusyRun("held up unevenly for a while, healthy", (), {**fields, "busy": uneven})


def _one_rank() -> Iterator[BusyRun]:
    """Yield one rank that waits, among idle machines."""
    for cause, ratio, _ in itertools.product(ONE_RANK, RATIOS, range(SEEDS)):
        yield BusyRun(f"{cause} of a rank", (_fault(cause, (SLOW_RANK,), ratio),), ONE_MACHINE)


def _beside() -> Iterator[BusyRun]:
    """Yield a rank that computes longer on machines that hold all ranks up."""
    for (how, share), _ in itertools.product(SHARES.items(), range(SEEDS)):
        fields = {**TWO_MACHINES, "busy": Busy(share=share)}
        yield BusyRun(f"{how} held up, host_cpu of a rank", (_fault("host_cpu", (SLOW_RANK,), 1.3),), fields)


def _machine() -> Iterator[BusyRun]:
    """Yield a machine of three that is busy. One of two holds half of all ranks, and which half is usual is open."""
    ranks = THREE_MACHINES["topology"].ranks_on_node(1)
    for ratio, _ in itertools.product(RATIOS, range(SEEDS)):
        yield BusyRun("core_wait of a machine", (_fault("core_wait", ranks, ratio),), THREE_MACHINES)


def _run() -> Iterator[BusyRun]:
    """Yield a run all of whose ranks become slower."""
    for cause, _ in itertools.product(ALL_RANKS, range(SEEDS)):
        yield BusyRun(f"{cause} of all", (_fault(cause, tuple(range(8)), 1.3),), ONE_MACHINE)


def _fault(cause: str, ranks: tuple[int, ...], ratio: float) -> Fault:
    return Fault(cause=cause, ranks=ranks, ratio=ratio, begin=BEGIN)
