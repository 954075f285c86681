"""List the runs that detection is scored on. A run's seed is its index here, so any one can be repeated alone."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tests.simulation.busy_matrix import busy_runs
from tests.simulation.clocks import CLOCKS
from tests.simulation.faults import EFFECTS, Fault
from tests.simulation.network import NETWORKS
from tests.simulation.noise import NOISES
from tests.simulation.scenarios import BEGIN, LAYOUTS, PATTERNS, SLOW_RANK, Layout, slow_rank
from tests.simulation.schedule_matrix import scheduled_runs
from tests.simulation.unequal_matrix import unequal_runs
from tests.simulation.world import Death, Scenario

RATIOS = (1.03, 1.1, 1.3, 3.0)
SURELY_SEEN = 1.1
"""From here on faults are to be found; below, what is possible is reported."""
SMALL = tuple(name for name, layout in LAYOUTS.items() if layout.topology.world_size <= 32)
"""Layouts in which every cause and noise is tried. The large ones need seconds a run: some causes only."""
PLAIN_CAUSES = ("gpu_compute", "host_cpu", "data_loading")
"""One for each of device, host and reading: where the patterns and places of faults are tried."""
LATER_CAUSES = (
    "pcie_downgrade", "cpu_pressure", "host_device_sync", "unseen_wait", "core_wait", "other_threads", "slow_copies",
)  # fmt: skip
"""Tried at the end of the matrix, since they came later and a run's seed is its index."""
UNSCORED = frozenset({"slow_copies"})
"""Not in the matrix yet, whose results are published: tried in test_stories.py, test_rules.py and test_patterns.py."""
HEALTHY_SEEDS = 2

ONE_RANK, NOISE, PATTERN, PLACE, TWO, RECOVERY, WORLD, HEALTHY, UNEQUAL, BUSY, SCHEDULE = (
    "one rank", "noise", "pattern", "place", "two at once", "recovery", "world", "healthy", "unequal", "busy",
    "schedule",
)  # fmt: skip


class Trial(NamedTuple):
    """Run of the matrix. `about` is the part of the matrix it belongs to, `what` its row there."""

    about: str
    what: str
    where: str
    noise: str
    scenario: Scenario

    @property
    def name(self) -> str:
        """Return what tells it from others."""
        return f"{self.about}; {self.what}; {self.where}"

    @property
    def ratio(self) -> float | None:
        """The size of its largest fault; None without one."""
        return max((fault.ratio for fault in self.scenario.faults), default=None)


class Entry(NamedTuple):
    """A trial without its seed; `others` are further fields of its scenario."""

    about: str
    what: str
    where: str
    noise: str
    faults: tuple[Fault, ...] = ()
    others: Mapping[str, Any] = {}


def trials() -> Iterator[Trial]:
    """Yield the whole matrix."""
    parts = (
        _one_rank, _noises, _patterns, _places, _two, _recoveries, _worlds, _large, _healthy, _machines, _waits,
        _unseen,
        _unequal, _busy, _schedules,
    )  # fmt: skip
    for seed, entry in enumerate(itertools.chain.from_iterable(part() for part in parts), 1):
        layout = LAYOUTS[entry.where]
        scenario = layout.scenario(*entry.faults, noise=entry.noise, seed=seed, steps=_steps_of(layout))
        yield Trial(entry.about, entry.what, entry.where, entry.noise, replace(scenario, **entry.others))


def _steps_of(layout: Layout) -> int:
    """Return the steps of a run. At 1,024 ranks a step needs 0.1 s to simulate, so 40 steps after the fault must
    suffice.
    """
    return BEGIN + (100 if layout.topology.world_size <= 256 else 40)


def _one_rank_causes() -> list[str]:
    return [cause for cause in EFFECTS if cause not in LATER_CAUSES]


def _one_rank() -> Iterator[Entry]:
    """Yield every cause at every size wherever every cause is tried."""
    for where, cause, ratio in itertools.product(SMALL, _one_rank_causes(), RATIOS):
        yield Entry(ONE_RANK, cause, where, "usual", (slow_rank(cause, ratio),))
    for cause, ratio in itertools.product(_one_rank_causes(), (1.1, 1.3)):
        yield Entry(ONE_RANK, cause, "fsdp 64", "usual", (slow_rank(cause, ratio),))


def _noises() -> Iterator[Entry]:
    for where, noise, ratio in itertools.product(SMALL, NOISES, (1.1, 1.3)):
        yield Entry(NOISE, noise, where, noise, (slow_rank("gpu_compute", ratio),))


def _patterns() -> Iterator[Entry]:
    layouts = ("fsdp 16", "tp 4 x dp 4", "pp 2 x dp 8")
    unsteady = [pattern for pattern in PATTERNS if pattern != "steady"]
    for where, pattern, cause, ratio in itertools.product(layouts, unsteady, PLAIN_CAUSES, RATIOS[1:]):
        # Slow periods every 24 steps are distinguishable from chance only after eight of them.
        faults = (slow_rank(cause, ratio, pattern),)
        yield Entry(PATTERN, pattern, where, "usual", faults, {"steps": BEGIN + 200})


def _places() -> Iterator[Entry]:
    for place, layouts in (
        ("node", ("ep 4, dp 32", "fsdp 64")),
        ("stage", ("unequal pp 4 x dp 4", "tp 2 x pp 2 x dp 8")),
        ("run", ("dp 8", "fsdp 16")),
    ):
        for where, cause, ratio in itertools.product(layouts, PLAIN_CAUSES, RATIOS[1:]):
            topology = LAYOUTS[where].topology
            ranks = {
                "node": topology.ranks_on_node(1),
                "stage": topology.ranks_in_stage(1),
                "run": tuple(range(topology.world_size)),
            }[place]
            yield Entry(PLACE, place, where, "usual", (slow_rank(cause, ratio, ranks=ranks),))


def _two() -> Iterator[Entry]:
    pairs = (("gpu_compute", "data_loading"), ("host_cpu", "gpu_thermal_throttle"), ("more_work", "garbage_collection"))
    for where, (one, other), ratio in itertools.product(("fsdp 16", "tp 4 x dp 4", "pp 2 x dp 8"), pairs, (1.1, 1.3)):
        yield Entry(
            TWO, f"{one}, {other}", where, "usual", (slow_rank(one, ratio), slow_rank(other, ratio, ranks=(6,)))
        )


def _recoveries() -> Iterator[Entry]:
    for where, ratio in itertools.product(SMALL, (1.3, 3.0)):
        fault = Fault(cause="gpu_compute", ranks=(SLOW_RANK,), ratio=ratio, begin=BEGIN, end=BEGIN + 40)
        yield Entry(RECOVERY, f"{ratio:g} x", where, "usual", (fault,))


def _worlds() -> Iterator[Entry]:
    """Yield runs with bad networks, wrong clocks and dead ranks, each healthy and with a slow rank beside."""
    wrongs: list[tuple[str, Mapping[str, Any]]] = [
        (f"network {name}", {"network": network}) for name, network in NETWORKS.items()
    ]
    wrongs += [(f"clocks {name}", {"clocks": clocks}) for name, clocks in CLOCKS.items()]
    slow = (slow_rank("gpu_compute", 1.3),)
    for where, (what, others) in itertools.product(("fsdp 16", "pp 2 x dp 8"), wrongs):
        yield Entry(WORLD, f"healthy, {what}", where, "usual", (), others)
        yield Entry(WORLD, f"1.3 x, {what}", where, "usual", slow, others)
    for where in SMALL:
        yield Entry(WORLD, "a rank dies", where, "usual", (), {"death": Death(rank=SLOW_RANK, step=BEGIN + 10)})


def _large() -> Iterator[Entry]:
    """Some of everything on many ranks, healthy ones first."""
    for where, noise in itertools.product(("tp 4 x pp 4 x dp 16", "fsdp 256", "dp 1024"), ("usual", "rough")):
        yield Entry(HEALTHY, noise, where, noise)
    for where, cause, ratio in itertools.product(("tp 4 x pp 4 x dp 16", "fsdp 256"), PLAIN_CAUSES, (1.1, 1.3)):
        yield Entry(ONE_RANK, cause, where, "usual", (slow_rank(cause, ratio),))
    for cause, ratio in (("gpu_compute", 1.1), ("data_loading", 1.3), ("host_cpu", 3.0)):
        yield Entry(ONE_RANK, cause, "dp 1024", "usual", (slow_rank(cause, ratio),))


def _healthy() -> Iterator[Entry]:
    for where, noise, _ in itertools.product(SMALL, NOISES, range(HEALTHY_SEEDS)):
        yield Entry(HEALTHY, noise, where, noise)
    for noise in NOISES:
        yield Entry(HEALTHY, noise, "fsdp 64", noise)


def _machines() -> Iterator[Entry]:
    """Yield the causes that show in samples of a PCIe link, which is one rank's, and of a machine."""
    for where, ratio in itertools.product(SMALL, RATIOS):
        yield Entry(ONE_RANK, "pcie_downgrade", where, "usual", (slow_rank("pcie_downgrade", ratio),))
    for where, ratio in itertools.product(("ep 4, dp 32", "fsdp 64"), RATIOS):
        ranks = LAYOUTS[where].topology.ranks_on_node(1)
        yield Entry(PLACE, "node", where, "usual", (slow_rank("cpu_pressure", ratio, ranks=ranks),))


def _waits() -> Iterator[Entry]:
    """Yield calls in which the host waits for its device. They cost at most what the host was ahead: no 3 times."""
    for where, ratio in itertools.product(SMALL, RATIOS[:3]):
        yield Entry(ONE_RANK, "host_device_sync", where, "usual", (slow_rank("host_device_sync", ratio),))


def _unseen() -> Iterator[Entry]:
    """Yield waits for what no report shows, and a link and a rank that are slow at once."""
    for where, ratio in itertools.product(SMALL, RATIOS):
        yield Entry(ONE_RANK, "unseen_wait", where, "usual", (slow_rank("unseen_wait", ratio),))
    for where, rank, ratio in itertools.product(SMALL, (SLOW_RANK, 2), (1.1, 1.3)):
        faults = (slow_rank("slow_link", 3.0), slow_rank("gpu_compute", ratio, ranks=(rank,)))
        yield Entry(TWO, "slow_link + gpu_compute", where, "usual", faults)


def _unequal() -> Iterator[Entry]:
    """Yield runs of unequal ranks, each with a layout of its own in place of the named one."""
    for one in unequal_runs():
        yield Entry(UNEQUAL, one.what, "fsdp 16", "usual", one.faults, one.fields)


def _busy() -> Iterator[Entry]:
    """Yield runs on machines that are busy with something else, each with a layout of its own."""
    for one in busy_runs():
        yield Entry(BUSY, one.what, "dp 8", "usual", one.faults, one.fields)


def _schedules() -> Iterator[Entry]:
    """Yield pipelines with other schedules, each with a layout of its own in place of the named one."""
    for one in scheduled_runs():
        fields = {"kind": one.layout.kind, "topology": one.layout.topology, "stage_shares": one.layout.stage_shares}
        yield Entry(SCHEDULE, one.what, "fsdp 16", "usual", one.faults, fields)
