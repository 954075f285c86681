"""What the data movement of each process group takes (docs/definitions.md section 3)."""

from collections.abc import Mapping
from typing import NamedTuple

from rankscope.collector.detect.series import Floats


class GroupTransfers(NamedTuple):
    """By process group, of its matched synchronising collectives, summed over each step of a series: shape (n,), NaN
    where a step is not known.

    `ns` is the transfer time, `size_bytes` what was moved, `bus_bytes` the same times the bus factor of its operation
    (`bus_bytes` over transfer is the bus bandwidth; a barrier moves nothing), `exposed_ns` how much of the transfer was
    exposed on the member on which the least was.
    """

    ns: Mapping[str, Floats] = {}
    size_bytes: Mapping[str, Floats] = {}
    bus_bytes: Mapping[str, Floats] = {}
    exposed_ns: Mapping[str, Floats] = {}
