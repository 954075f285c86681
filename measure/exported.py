"""What an exported measure is, and the labels and ranges that many of them share. `catalog.py` has the measures."""

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


NOT_NEGATIVE: Final[Range] = (0, None)
RATIO: Final[Range] = (0, 1)
ONE: Final[Range] = (1, 1)

RUN: Final = ("run",)
RANK: Final = ("run", "rank")
CAUSE: Final = ("run", "rank", "cause")
FINDING: Final = ("run", "kind", "scope", "subject", "rank", "node", "cause")
COLLECTIVE: Final = ("run", "rank", "group", "op")
DEVICE: Final = ("run", "rank", "node", "gpu")
DEVICE_DIRECTION: Final = (*DEVICE, "direction")
"""Direction tx: out of the GPU, rx: into it."""
DEVICE_KIND: Final = (*DEVICE, "kind")
RANK_INFO: Final = (
    "run", "rank", "node", "local_rank", "gpu", "gpu_model", "pid", "agent_version", "torch_version",
)  # fmt: skip
