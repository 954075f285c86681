"""What an exported measure is, and the labels and ranges that many of them share. `catalog.py` has the measures."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Kind = Literal["counter", "gauge", "info"]

Range = tuple[float | None, float | None]
"""Smallest and largest valid value; None: no limit."""


class Measure(msgspec.Struct, frozen=True):
    """One exported measure. `unit` is empty for what is counted, `source` names where the numbers come from."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    formula: str
    source: str
    valid_range: Range

    @property
    def series_per_rank_max(self) -> int:
        """Most series that one rank has of it; 0 for what does not grow with every rank.

        >>> from rankscope.measure.catalog import CATALOG
        >>> {m.name: m.series_per_rank_max for m in CATALOG if m.name in {"rankscope_rank_up", "rankscope_straggler"}}
        {'rankscope_rank_up': 1, 'rankscope_straggler': 0}
        """
        return SERIES_PER_RANK_MAX.get(self.labels, 0)

    @property
    def is_per_rank(self) -> bool:
        """Whether every rank has series of it. Findings and the worst ranks name a rank too, but only so many."""
        return self.series_per_rank_max > 0


NOT_NEGATIVE: Final[Range] = (0, None)
RATIO: Final[Range] = (0, 1)
ONE: Final[Range] = (1, 1)

RUN: Final = ("run",)
RANK: Final = ("run", "rank")
CAUSE: Final = ("run", "rank", "cause")
FINDING: Final = ("run", "kind", "scope", "subject", "rank", "node", "cause")
NODE: Final = ("run", "node")
WORST: Final = ("run", "node", "rank")
"""Of the worst ranks only; of every rank the labels begin with those of RANK."""
WORST_RANKS: Final = 10
"""Ranks told of as the worst ones of a run: as many as anybody looks at."""
COLLECTIVE: Final = ("run", "rank", "group", "op")
DEVICE: Final = ("run", "rank", "node", "gpu")
DEVICE_DIRECTION: Final = (*DEVICE, "direction")
"""Direction tx: out of the GPU, rx: into it."""
DEVICE_KIND: Final = (*DEVICE, "kind")
RANK_INFO: Final = (
    "run", "rank", "node", "local_rank", "gpu", "gpu_model", "pid", "agent_version", "torch_version",
)  # fmt: skip
RANK_END_INFO: Final = ("run", "rank", "reason", "exit_code", "signal")

GPUS_PER_RANK_MAX: Final = 8
"""GPUs of one rank on the page: it has one, and a process that drives a whole machine has eight."""
COLLECTIVE_KINDS_MAX: Final = 64
"""Kinds of collective (group, op) of one rank on the page: a rank of a 5-dimensional mesh has about 20."""
PHASE_NAMES_MAX: Final = 32
"""Names of phases of one rank on the page: the five of every step and what its users add."""
PART_NAMES_MAX: Final = 32
"""Parts of the agent of one rank on the page: there are fewer than 20."""
REASONS_MAX: Final = 8
"""Reasons of one loss of one rank on the page: there are three."""

SERIES_PER_RANK_MAX: Final[Mapping[tuple[str, ...], int]] = {
    RANK: 1,
    RANK_INFO: 1,
    RANK_END_INFO: 1,
    (*RANK, "phase"): PHASE_NAMES_MAX,
    (*RANK, "part"): PART_NAMES_MAX,
    (*RANK, "reason"): REASONS_MAX,
    (*RANK, "kind"): 2,
    COLLECTIVE: COLLECTIVE_KINDS_MAX,
    DEVICE: GPUS_PER_RANK_MAX,
    DEVICE_DIRECTION: 2 * GPUS_PER_RANK_MAX,
    DEVICE_KIND: 2 * GPUS_PER_RANK_MAX,
}
"""The labels of the measures of which every rank has series, and how many of one measure it may have at most. What a
report brings beyond that is left out and counted: reports come from other machines, and a page must stay affordable."""
