"""Define what an exported metric is: its name, help, labels, range and reader; and the labels and ranges many share.

Each metric is one row of a table beside its readers: `rank_metrics.py`, `run_metrics.py`, `node_metrics.py`,
`device_metrics.py`, `fabric_metrics.py`, `agent_metrics.py` and `collector_metrics.py`. `catalog.py` joins the tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from rankscope.collector.publish.metrics.overview import Overview
from rankscope.collector.publish.metrics.rank_columns import Labels, Number, RankColumns
from rankscope.collector.runs.snapshot import Snapshot
from rankscope.collector.valid_answers import Range
from rankscope.measure.records import CALLS_MAX

Kind = Literal["counter", "gauge", "histogram", "info"]

Value = tuple[Labels, Number]
"""Values of a metric's labels, in their order, and its value; None: unknown."""


class OfSnapshot(NamedTuple):
    """A reader of a metric of runs, findings or the collector."""

    read: Callable[[Snapshot], Iterable[Value]]


class OfOverview(NamedTuple):
    """A reader of a metric of a run's ranks together, of nodes or of the worst ranks."""

    read: Callable[[Overview], Iterable[Value]]


class OfPage(NamedTuple):
    """A reader of a metric of the page itself, from the page's name, the series dropped from it, and those left out
    because their values cannot be.
    """

    read: Callable[[str, int, int], Iterable[Value]]


class Buckets(NamedTuple):
    """A histogram: the largest value of each class but the last, in its unit, how many values were at most that, how
    many there were, and their sum.
    """

    bounds: Sequence[float]
    at_most: Sequence[int]
    total: int
    sum: float


class OfHistogram(NamedTuple):
    """A reader of the histograms of runs: by the values of their labels."""

    read: Callable[[Snapshot], Iterable[tuple[Labels, Buckets]]]


Reader = RankColumns | OfSnapshot | OfHistogram | OfOverview | OfPage
"""A reader of a metric; RankColumns for one of which every rank has series."""


class Measure(msgspec.Struct, frozen=True):
    """One exported metric. `unit` is empty for plain counts; `source` names where the values come from."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    formula: str
    source: str
    valid_range: Range
    read: Reader

    @property
    def series_per_rank_max(self) -> int:
        """Most series of one rank; 0 for a metric that not every rank has.

        >>> from rankscope.collector.publish.metrics.catalog import CATALOG
        >>> {m.name: m.series_per_rank_max for m in CATALOG if m.name in {"rankscope_rank_up", "rankscope_straggler"}}
        {'rankscope_rank_up': 1, 'rankscope_straggler': 0}
        """
        return SERIES_PER_RANK_MAX.get(self.labels, 0)

    @property
    def rows_per_rank_max(self) -> int:
        """Most rows of one rank in each column of a metric of every rank; 1 for one that is read otherwise."""
        return max(1, self.series_per_rank_max // len(self.read.values)) if isinstance(self.read, RankColumns) else 1

    @property
    def is_per_rank(self) -> bool:
        """Return whether every rank has series of it. Metrics of findings and of the worst ranks are not per rank."""
        return self.series_per_rank_max > 0


def split_histogram(
    measure: Measure, histograms: Iterable[tuple[Labels, Buckets]]
) -> tuple[tuple[Measure, Sequence[Value]], ...]:
    """Return the series of a histogram as Prometheus has them: three of them, which count up; that of the classes
    has the label `le`.
    """
    found = list(histograms)
    classes = [
        ((*labels, le), at_most)
        for labels, one in found
        for le, at_most in zip((*map(str, map(float, one.bounds)), "+Inf"), (*one.at_most, one.total), strict=True)
    ]
    replace, name = msgspec.structs.replace, measure.name
    return (
        (replace(measure, name=f"{name}_bucket", unit="", labels=(*measure.labels, "le")), classes),
        (replace(measure, name=f"{name}_sum"), [(labels, one.sum) for labels, one in found]),
        (replace(measure, name=f"{name}_count", unit=""), [(labels, one.total) for labels, one in found]),
    )


NOT_NEGATIVE: Final[Range] = (0, None)
RATIO: Final[Range] = (0, 1)
ONE: Final[Range] = (1, 1)

RUN: Final = ("run",)
RANK: Final = ("run", "rank")
CAUSE: Final = ("run", "rank", "cause")
FINDING: Final = ("run", "kind", "scope", "subject", "rank", "node", "cause")
NODE: Final = ("run", "node")
OWNER: Final = ("user", "batch_job")
"""Not `job`: Prometheus has a label of that name for what it scrapes."""
WORST: Final = ("run", "node", "rank")
"""Labels of the metrics of the worst ranks. Those of metrics of every rank begin with RANK."""
WORST_RANKS: Final = 10
"""Worst ranks of a run that are exported."""
COLLECTIVE: Final = ("run", "rank", "group", "op")
NCCL_KIND: Final = ("run", "rank", "communicator", "op")
DEVICE: Final = ("run", "rank", "node", "gpu")
DEVICE_DIRECTION: Final = (*DEVICE, "direction")
"""Direction: tx out of the GPU, rx into it."""
DEVICE_KIND: Final = (*DEVICE, "kind")
PORT: Final = ("run", "rank", "node", "port")
PORT_DIRECTION: Final = (*PORT, "direction")
PORT_KIND: Final = (*PORT, "kind")
INTERFACE_KIND: Final = ("run", "rank", "node", "interface", "kind")
RANK_INFO: Final = (
    "run", "rank", "node", "local_rank", "gpu", "gpu_model", "pid", "agent_version", "torch_version",
    "slurm_job_id", "user", "k8s_namespace", "k8s_pod",
)  # fmt: skip
RANK_END_INFO: Final = ("run", "rank", "reason", "exit_code", "signal")

GPUS_PER_RANK_MAX: Final = 8
"""GPUs of one rank on the page: usually one; eight for a process that drives a whole machine."""
PORTS_PER_RANK_MAX: Final = 16
INTERFACES_PER_RANK_MAX: Final = 8
"""Ports and interfaces on the page of the rank that reads those of its node: as many as its agent reports."""
COLLECTIVE_KINDS_MAX: Final = 64
"""Pairs (group, op), and (communicator, op), of one rank on the page: a rank of a 5-dimensional mesh has about 20."""
PHASE_NAMES_MAX: Final = 32
"""Phases of one rank on the page: the five of every step and those the user adds."""
PART_NAMES_MAX: Final = 32
"""Parts of the agent of one rank on the page; there are fewer than 20."""
CALL_NAMES_MAX: Final = CALLS_MAX + 1
"""Blocking calls of one rank on the page, with the sum of those beyond: an agent has no more."""
REASONS_MAX: Final = 8
"""Reasons of one loss of one rank on the page; there are three."""

SERIES_PER_RANK_MAX: Final[Mapping[tuple[str, ...], int]] = {
    RANK: 1,
    RANK_INFO: 1,
    RANK_END_INFO: 1,
    (*RANK, "phase"): PHASE_NAMES_MAX,
    (*RANK, "part"): PART_NAMES_MAX,
    (*RANK, "reason"): REASONS_MAX,
    (*RANK, "call"): CALL_NAMES_MAX,
    (*RANK, "kind"): 2,
    (*RANK, "state"): 3,
    (*RANK, "memory"): 2,
    COLLECTIVE: COLLECTIVE_KINDS_MAX,
    NCCL_KIND: COLLECTIVE_KINDS_MAX,
    DEVICE: GPUS_PER_RANK_MAX,
    DEVICE_DIRECTION: 2 * GPUS_PER_RANK_MAX,
    DEVICE_KIND: 2 * GPUS_PER_RANK_MAX,
    PORT: PORTS_PER_RANK_MAX,
    PORT_DIRECTION: 2 * PORTS_PER_RANK_MAX,
    PORT_KIND: 4 * PORTS_PER_RANK_MAX,
    INTERFACE_KIND: 2 * INTERFACES_PER_RANK_MAX,
}
"""Most series of one rank and metric, by the labels of the metric. More are dropped and counted: reports come
from other machines, and a page must stay affordable."""
