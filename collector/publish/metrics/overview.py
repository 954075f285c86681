"""Summarize the ranks of every run by node in one pass, for the metrics of runs and nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rankscope.collector.publish.metrics.rank_columns import Number, is_live
from rankscope.collector.runs import ratios
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.measure.records import DeviceSample, NodeSample, WindowBreakdown


@dataclass(slots=True)
class NodeOverview:
    """The live ranks of a run on one node, their GPUs by UUID (several ranks may share one), and the last sample of the
    machine, of the lowest rank that has one.
    """

    ranks: int = 0
    slowdown_ratio: float | None = None
    gpus: dict[str, DeviceSample] = field(default_factory=dict)
    machine: NodeSample | None = None

    def add(self, rank: RankSnapshot) -> None:
        """Add a live rank."""
        self.ranks += 1
        slowdown_ratio = rank.slowdown_ratio
        if slowdown_ratio is not None and (self.slowdown_ratio is None or slowdown_ratio > self.slowdown_ratio):
            self.slowdown_ratio = slowdown_ratio
        for device in rank.devices:
            self.gpus[device.uuid] = device
        self.machine = self.machine or rank.node

    def read(self, value: Callable[[DeviceSample], Number]) -> list[float]:
        """Return the known values of the GPUs."""
        found = (value(gpu) for gpu in self.gpus.values())
        return [number for number in found if number is not None]


class RunOverview(NamedTuple):
    """A run with its live ranks, its nodes by name, and the sum of their last profiler windows; None without any."""

    run: RunSnapshot
    live: tuple[RankSnapshot, ...]
    nodes: Mapping[str, NodeOverview]
    window: WindowBreakdown | None


Overview = tuple[RunOverview, ...]


def build_overview(snapshot: Snapshot) -> Overview:
    """Summarize every run."""
    return tuple(_build_run(run) for run in snapshot.runs)


def _build_run(run: RunSnapshot) -> RunOverview:
    live: list[RankSnapshot] = []
    nodes: dict[str, NodeOverview] = {}
    for rank in run.ranks:
        if is_live(rank):
            live.append(rank)
            nodes.setdefault(rank.identity.node, NodeOverview()).add(rank)
    windows = tuple(rank.breakdown for rank in live if rank.breakdown is not None)
    return RunOverview(run, tuple(live), nodes, ratios.add_breakdowns(windows))
