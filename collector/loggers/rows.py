"""Make one row of numbers of a run's nodes and ranks, as Weights & Biases and MLflow take them. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final

from rankscope.collector.top.snapshot_fetch import FetchedRank, Gpu
from rankscope.measure.units import NS_PER_S

PREFIX: Final = "rankscope"
NODES_MAX: Final = 256
"""Nodes in a row: of larger runs those with the highest slowdown."""
NAME_LENGTH_MAX: Final = 100

_Read = Callable[[FetchedRank], float | None]
_Join = Callable[[Sequence[float]], float]


def _to_s(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_S


def _of_gpu(read: Callable[[Gpu], float | None]) -> _Read:
    return lambda rank: None if rank.gpu is None else read(rank.gpu)


NUMBERS: Final[Mapping[str, tuple[_Read, _Join]]] = {
    "step_s": (lambda rank: _to_s(rank.step_ns_median), fmean),
    "own_s": (lambda rank: _to_s(rank.own_ns_median), fmean),
    "caused_wait_s": (lambda rank: _to_s(rank.wait_caused_ns_median), sum),
    "slowdown_ratio": (lambda rank: rank.slowdown_ratio, max),
    "data_s": (lambda rank: _to_s(rank.phases_ns_median.get("data")), fmean),
    "mfu_ratio": (lambda rank: rank.mfu_ratio, fmean),
    "gpu_utilization_ratio": (_of_gpu(lambda gpu: gpu.utilization_ratio), fmean),
    "gpu_memory_used_bytes": (_of_gpu(lambda gpu: gpu.memory_used_bytes), max),
    "gpu_power_watts": (_of_gpu(lambda gpu: gpu.power_watts), sum),
    "gpu_temperature_celsius": (_of_gpu(lambda gpu: gpu.temperature_celsius), max),
}
"""By name how a rank has it, and how that of a node is made of its ranks'."""


def build_row(ranks: Sequence[FetchedRank], ranks_max: int) -> dict[str, float]:
    """Return the numbers of the live ranks by `rankscope/rank/RANK/NAME`, of at most `ranks_max`, and of their nodes by
    `rankscope/node/NODE/NAME`; of more than that those with the highest slowdown now. What is not known is left out.

    >>> build_row([FetchedRank(rank=3, node="a", slowdown_ratio=1.5)], 8)["rankscope/node/a/slowdown_ratio"]
    1.5
    """
    live = [rank for rank in ranks if rank.up and rank.ended is None]
    by_node: dict[str, list[FetchedRank]] = {}
    for rank in ranks:
        by_node.setdefault(rank.node, []).append(rank)
    row = {}
    for rank in sorted(_choose_slowest(live, ranks_max), key=lambda one: one.rank):
        for name, value in _read_rank(rank).items():
            row[f"{PREFIX}/rank/{rank.rank}/{name}"] = value
    nodes = sorted(by_node, key=lambda node: -max((one.slowdown_ratio or 0.0 for one in by_node[node]), default=0.0))
    for node in sorted(nodes[:NODES_MAX]):
        begin = f"{PREFIX}/node/{name_node(node)}"
        of_node = [one for one in by_node[node] if one.up and one.ended is None]
        row[f"{begin}/ranks_up"] = float(len(of_node))
        for name, (read, join) in NUMBERS.items():
            known = [found for one in of_node if (found := read(one)) is not None]
            if known:
                row[f"{begin}/{name}"] = float(join(known))
    return row


def find_step(ranks: Iterable[FetchedRank]) -> int:
    """Return the last step that any rank has made; 0 before any."""
    return max((rank.last_step for rank in ranks if rank.last_step is not None), default=0)


def name_node(node: str) -> str:
    """Return the name of a node with the characters that both loggers take.

    >>> name_node("gpu-1.cluster"), name_node("a/b:c")
    ('gpu-1.cluster', 'a_b_c')
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "_", node)[:NAME_LENGTH_MAX] or "_"


def _read_rank(rank: FetchedRank) -> dict[str, float]:
    values = {name: read(rank) for name, (read, _) in NUMBERS.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def _choose_slowest(ranks: Sequence[FetchedRank], count_max: int) -> Sequence[FetchedRank]:
    return sorted(ranks, key=lambda rank: (-(rank.slowdown_ratio or 0.0), rank.rank))[:count_max]
