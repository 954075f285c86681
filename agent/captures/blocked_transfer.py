"""Finds the send or receive that the main thread is blocked in, from its frames: gloo records none.

Every wait for one has the frame of our wrapper (`steps/host_transfers.py`), which knows the transfer: one begun by
`isend`, `irecv` or `batch_isend_irecv` too. Without it `torch.distributed.send` and `recv` have the peer and the group
in their arguments.
"""

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from rankscope.agent.captures.stacks import find_main_frame, read_frames
from rankscope.agent.steps.host_transfers import Transfer
from rankscope.measure.own_files import is_own_file
from rankscope.measure.records import GroupInfo
from rankscope.measure.stalls import UNRECORDED_SEQUENCE, PendingCollective

_FILE: Final = "torch/distributed/distributed_c10d.py"
_PEERS: Final = {"send": ("dst", "group_dst"), "recv": ("src", "group_src")}
"""By function the argument with the peer's rank in the world, and that with its place in the group."""
_DEPTH_MAX: Final = 8
"""The frame is one of the innermost: the function itself, a wrapper around it."""
_OUR_WAIT: Final = "wait_for_transfer"


def find_blocked_transfer(
    groups: Mapping[str, GroupInfo],
    own_rank: int,
    age_ns: int,
    read_frames: Callable[[], Mapping[int, FrameType]] = read_frames,
) -> PendingCollective | None:
    """Return the transfer that the main thread has been blocked in for `age_ns`, named as NCCL's recorder would; None
    if it is in none, or in one of an unknown group. `groups` are by torch's name.
    """
    frame = find_main_frame(read_frames())
    for _ in range(_DEPTH_MAX):
        if frame is None:
            return None
        function = frame.f_code.co_name
        if function == _OUR_WAIT and is_own_file(frame.f_code.co_filename):
            noted = frame.f_locals.get("transfer")  # absent while it waits for something else
            return None if noted is None else _describe_noted(Transfer(*noted), groups, own_rank, age_ns)
        if function in _PEERS and frame.f_code.co_filename.endswith(_FILE):
            return _describe_transfer(function, frame.f_locals, groups, own_rank, age_ns)
        frame = frame.f_back
    return None


def _describe_noted(
    noted: Transfer, groups: Mapping[str, GroupInfo], own_rank: int, age_ns: int
) -> PendingCollective | None:
    group = groups.get(noted.group)
    function = "send" if noted.op == "send" else "recv"
    return None if group is None else _name_transfer(function, group, own_rank, noted.peer, age_ns)


def _describe_transfer(
    function: str, arguments: Mapping[str, Any], groups: Mapping[str, GroupInfo], own_rank: int, age_ns: int
) -> PendingCollective | None:
    """Return the call of a function with these arguments, named `recv 1<-0` by places in the group."""
    group = groups.get(_find_group_name(arguments.get("group")))
    if group is None:
        return None
    rank, place = (arguments.get(name) for name in _PEERS[function])
    if place is None and rank in group.ranks:
        place = group.ranks.index(rank)
    return _name_transfer(function, group, own_rank, place, age_ns)


def _name_transfer(
    function: str, group: GroupInfo, own_rank: int, place: int | None, age_ns: int
) -> PendingCollective | None:
    if own_rank not in group.ranks:
        return None
    arrow = "->" if function == "send" else "<-"
    ends = "anysource" if place is None else f"{group.ranks.index(own_rank)}{arrow}{place}"
    return PendingCollective(
        group=group.label, op=f"{function} {ends}", sequence=UNRECORDED_SEQUENCE, age_ns=age_ns, state="blocked"
    )


def _find_group_name(group: Any) -> str:
    """Return torch's name of the group, the default one for None; empty where it is not known."""
    if group is None:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        group = getattr(getattr(c10d, "_world", None), "default_pg", None)
    return str(getattr(group, "group_name", ""))
