"""Describe what NCCL's RAS service says about the communicators of a job (docs/definitions.md section 6).

A *communicator rank* is the number of a member within its communicator, which need not be its number in the run. What
is listed is bounded by its producer, and what was left out is counted.
"""

from typing import Annotated, Final

import msgspec

from rankscope.measure.bounds import Name, Some
from rankscope.measure.identity import Count, RankNumber

DEAD: Final = "dead"
MISSING: Final = "missing"
NOT_MEMBER: Final = "not_member"
FAILED: Final = "failed"
BEHIND: Final = "behind"
RAS_STATES: Final = (DEAD, MISSING, NOT_MEMBER, FAILED, BEHIND)
"""States of a listed rank: its process is considered dead (no contact for a minute); it gave no data in time; its
process answered, but not as a member of this communicator; it reported an error; it had launched fewer operations of a
kind than another rank."""


class RasRank(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A rank of a communicator about which RAS says something, one of RAS_STATES.

    `host` is the address that NCCL has of its machine, `pid` its process id there; empty and None where RAS does not
    say. `rank` is its number in the run, None where that is not known for sure. Of a rank that is behind, `launched` is
    the number of operations `op` that it had launched, `furthest` that of the rank which had launched most; `op` is
    empty where NCCL counts all kinds together (2.24, 2.25).
    """

    communicator_rank: Count
    state: Name
    host: Name = ""
    pid: Count | None = None
    rank: RankNumber | None = None
    op: Name = ""
    launched: Count | None = None
    furthest: Count | None = None
    error: Name = ""


class RasCommunicator(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """A communicator with listed ranks, the worst state first. `name` is NCCL's hash of it, `size` its number of ranks;
    None: not told. `ranks_left_out` are in one of the states too, and not listed.
    """

    name: Name
    size: Count | None = None
    ranks: Annotated[tuple[RasRank, ...], Some] = ()
    ranks_left_out: Count = 0
