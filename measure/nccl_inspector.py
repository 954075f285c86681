"""Describe what the dumps of NCCL's Inspector plugin say about a rank (docs/definitions.md section 6).

The dumps hold operations that have completed, and no others: the last one of a rank says what it had completed, not
what it had entered.
"""

from typing import Annotated

import msgspec

from rankscope.measure.bounds import Name, ShortName, Some
from rankscope.measure.identity import Count


class InspectorBandwidth(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """The `count` operations `op` (NCCL's name, `AllReduce`) that were read since the reading before, and the median of
    their bus bandwidths, as the plugin computes it: by the kernel's time on this rank, waiting for later ranks
    included.
    """

    op: ShortName
    count: Count
    bus_bandwidth_bytes_per_s: float


class InspectorCommunicator(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One communicator of a rank. `id` is NCCL's hash of it, the same on all members, `name` is empty where NCCL has
    none, `size` its number of ranks.

    `last_op` is the last collective that the rank completed in it, `last_sequence` NCCL's number of that, which counts
    the calls of this operation in this communicator from 0; `last_bytes` is what the rank passed to it. Empty and None:
    not known, also where lines after it could not be read.
    """

    id: ShortName
    name: Name = ""
    size: Count | None = None
    last_op: ShortName = ""
    last_sequence: Count | None = None
    last_bytes: Count | None = None
    bandwidths: Annotated[tuple[InspectorBandwidth, ...], Some] = ()
