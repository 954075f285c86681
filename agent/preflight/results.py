"""What one rank measured in a pre-flight, and what was concluded from all ranks; it goes through the store as JSON."""

from typing import Literal

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one check, one for each part of its time, in the check's unit; or the reason why there are none."""

    values: tuple[float, ...] = ()
    absent: str = ""


class PairRates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of the exchanges of one pair of nodes, measured at node `node`, in GB/s each way."""

    node: str
    other: str
    values: tuple[float, ...]


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a node's wall clock is ahead of that of rank 0's node, and the largest error of that, in s."""

    node: str
    offset_s: float
    error_s: float


class RankResults(msgspec.Struct, kw_only=True):
    """What one rank measured. `checks` has the values by the name of the check.

    `device` is the model of the GPU or CPU: only ranks with the same one are compared. `cpu_share` is the CPU time of
    the matrix products over their time, by thread (0 to 1); None on a GPU. `faults` are facts that need no comparison.
    """

    rank: int
    local_rank: int
    node: str
    kind: str
    device: str
    checks: dict[str, Measured] = {}
    pairs: list[PairRates] = []
    clocks: list[ClockOffset] = []
    faults: list[str] = []
    notes: list[str] = []
    cpu_share: float | None = None


class Slow(msgspec.Struct, frozen=True, kw_only=True):
    """A check in which a rank, a node or the link to `other` was slow: rates in the check's unit.

    `against` is the median of `peers` others (peer ranks, nodes or links; earlier pre-flights where `is_past`).
    `ratio` is own / against, `deviations` the distance in standard deviations of the noise.
    """

    check: str
    node: str
    rank: int | None
    own: float
    against: float
    peers: int
    ratio: float
    deviations: float
    is_past: bool = False
    other: str = ""


class NamedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is named, and why: one sentence for each reason."""

    node: str
    reasons: tuple[str, ...]


Status = Literal["none_named", "named", "not_judged", "incomplete"]

EXIT_STATUS: dict[Status, int] = {"none_named": 0, "named": 1, "not_judged": 3, "incomplete": 3}
"""Exit status of every rank. 2 is wrong usage, as in argparse."""


class PreflightReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a pre-flight concluded; `--json-file` writes it, with the values of every rank. `past` says of how many
    nodes there were enough earlier pre-flights, and where; empty where none were asked for.
    """

    format: int = 1
    wall_s: float
    took_s: float
    status: Status
    sentence: str
    ranks: int
    nodes: tuple[str, ...]
    named: tuple[NamedNode, ...] = ()
    links: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    not_compared: dict[str, str] = {}
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    slow: tuple[Slow, ...] = ()
    past: str = ""
    results: tuple[RankResults, ...] = ()
