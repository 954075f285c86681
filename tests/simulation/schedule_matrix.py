"""List runs of pipelines with the schedules of `schedules.py` for the score: healthy, a slow rank, a slow stage."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.simulation.faults import Fault
from tests.simulation.scenarios import UNEQUAL_STAGES, Layout, slow_rank
from tests.simulation.topology import Topology

SEEDS = 2
"""Each run is made with an even seed and with an odd one. Detectors are tuned on even ones; odd ones are held out."""
STAGE = 1
SCHEDULED: Mapping[str, Layout] = {
    "1F1B pp 4 x dp 4": Layout("1f1b", Topology.mesh(pp=4, dp=4)),
    "1F1B pp 4 x dp 2": Layout("1f1b", Topology.mesh(pp=4, dp=2)),
    "1F1B tp 2 x pp 2 x dp 4": Layout("1f1b", Topology.mesh(tp=2, pp=2, dp=4)),
    "unequal 1F1B pp 4 x dp 4": Layout("1f1b", Topology.mesh(pp=4, dp=4), UNEQUAL_STAGES),
    "interleaved pp 4 x dp 4": Layout("interleaved", Topology.mesh(pp=4, dp=4)),
    "interleaved pp 4 x dp 2": Layout("interleaved", Topology.mesh(pp=4, dp=2)),
    "unequal interleaved pp 4 x dp 4": Layout("interleaved", Topology.mesh(pp=4, dp=4), UNEQUAL_STAGES),
}
ZERO_BUBBLE: Mapping[str, Layout] = {
    "ZB-H1 pp 4 x dp 4": Layout("zero_bubble", Topology.mesh(pp=4, dp=4)),
    "ZB-H1 pp 4 x dp 2": Layout("zero_bubble", Topology.mesh(pp=4, dp=2)),
    "ZB-H1 tp 2 x pp 2 x dp 4": Layout("zero_bubble", Topology.mesh(tp=2, pp=2, dp=4)),
    "unequal ZB-H1 pp 4 x dp 4": Layout("zero_bubble", Topology.mesh(pp=4, dp=4), UNEQUAL_STAGES),
}
"""Tried after the others, since they came later and a run's seed is its place in the matrix."""


class Scheduled(NamedTuple):
    """A run of a pipeline, and its faults."""

    what: str
    layout: Layout
    faults: tuple[Fault, ...]


def scheduled_runs() -> Iterator[Scheduled]:
    """Yield every layout: healthy ones first."""
    for name, layout in SCHEDULED.items():
        yield from _runs_of(name, layout, (1.3,))
    for name, layout in ZERO_BUBBLE.items():
        yield from _runs_of(name, layout, (1.1, 1.3))


def _runs_of(name: str, layout: Layout, stage_ratios: Sequence[float]) -> Iterator[Scheduled]:
    """Yield the runs of one layout; `stage_ratios` are how slow a whole stage is."""
    stage = layout.topology.ranks_in_stage(STAGE)
    for what, faults in (
        ("healthy", ()),
        ("a rank, 1.1 x", (slow_rank("gpu_compute", 1.1),)),
        ("a rank, 1.3 x", (slow_rank("gpu_compute", 1.3),)),
        ("a rank, 1.3 x from step 0", (Fault(cause="gpu_compute", ranks=(5,), ratio=1.3, begin=0),)),
        *((f"a stage, {ratio:g} x", (slow_rank("gpu_compute", ratio, ranks=stage),)) for ratio in stage_ratios),
    ):
        for _ in range(SEEDS):
            yield Scheduled(f"{name}, {what}", layout, faults)
