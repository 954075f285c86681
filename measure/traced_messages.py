"""Every message between two ranks in one rank's trace: to or from whom, its tag, from when and how long.

Whom a message went to is known from the arguments of NCCL's kernels, from the range that launched them
(`nccl:send 0->1`), or, with gloo, from the recorded inputs of `c10d::send` and `c10d::recv_` (record_shapes=True).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rankscope.measure.communication import POINT_TO_POINT_OPS, is_message_call
from rankscope.measure.kineto import NONE, Category, Ints
from rankscope.measure.nesting import OUTSIDE
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, find_communication_rows

_DIRECTION = re.compile(r"(\d+)\s*(?:->|<-)\s*(\d+)\s*$")
"""The rank's own number in the group and that of its peer, in the name of NCCL's range."""
_PEER, _TAG = 2, 3
"""Places in the recorded inputs of c10d::send and c10d::recv_: tensors, group, rank, tag."""


class TracedMessage(msgspec.Struct, frozen=True, array_like=True):
    """One operation of one rank: `send`, `recv`, or `send_recv` where one kernel does both. `peer` and `tag` are None
    when the trace does not have them; `is_by_number` says that the peer is the number of a group whose members the
    trace does not have, taken for that of the run since the rank's own agrees. Times are by the host's clock;
    `blocked_from_ns` is when the rank had nothing else left than to wait for its end; `step` is the number of the step
    that launched it.
    """

    op: str
    peer: int | None
    tag: int | None
    bytes: int | None
    step: int | None
    start_ns: int
    duration_ns: int
    blocked_from_ns: int
    is_by_number: bool = False

    @property
    def end_ns(self) -> int:
        """Return when it was over."""
        return self.start_ns + self.duration_ns


def find_messages(
    view: RankView, collectives: Sequence[Collective], base_ns: int, rank: int | None, groups: Sequence[Sequence[int]]
) -> dict[int, TracedMessage]:
    """Return the messages by their place among `collectives`, which are all communication of the trace.

    `rank` is the trace's own, `groups` are the members of the process groups that it is in.
    """
    places = [place for place, one in enumerate(collectives) if one.op in POINT_TO_POINT_OPS]
    if not places:
        return {}
    rows = find_communication_rows(view)[places]
    of_kernels = [collectives[place] for place in places]
    if view.has_device:
        addresses = [
            _address_of_kernel(view, row, one, rank) for row, one in zip(rows.tolist(), of_kernels, strict=True)
        ]
        launched_ns = _launch_starts(view, places)
        blocked_ns = view.events.start_ns[rows]
    else:
        addresses = _addresses_of_calls(view, rows, rank, groups)
        launched_ns = view.events.start_ns[rows]
        blocked_ns = _last_activity(view, rows)
    steps = view.find_step_numbers(launched_ns)
    return {
        place: TracedMessage(
            one.op, address.peer, address.tag, one.bytes, step, one.start_ns, one.duration_ns,
            int(blocked_from) + base_ns, address.is_by_number,
        )
        for place, one, address, step, blocked_from in zip(
            places, of_kernels, addresses, steps, blocked_ns.tolist(), strict=True
        )
    }  # fmt: skip


def _launch_starts(view: RankView, places: Sequence[int]) -> Ints:
    calls = view.launch[view.work.is_communication][list(places)]
    found: Ints = np.where(calls == NONE, NONE, view.events.start_ns[calls])
    return found


def _last_activity(view: RankView, rows: Ints) -> Ints:
    """Return for each range the end of the last operator that ended inside it on its thread, else its start."""
    events, found = view.events, view.events.start_ns[rows].copy()
    operators = view.trace.rows(Category.CPU_OP)
    for thread in np.unique(events.thread[rows]).tolist():
        mine = np.flatnonzero(events.thread[rows] == thread)
        ends_ns = np.sort(events.end_ns[operators[events.thread[operators] == thread]])
        last = np.searchsorted(ends_ns, events.end_ns[rows[mine]], side="left") - 1
        known = last >= 0
        found[mine[known]] = np.maximum(found[mine[known]], ends_ns[last[known]])
    return found


# -- to whom ----------------------------------------------------------------------------------------------------------


class _Address(NamedTuple):
    """To or from whom, with which tag; see TracedMessage."""

    peer: int | None = None
    tag: int | None = None
    is_by_number: bool = False


def _address_of_kernel(view: RankView, row: int, one: Collective, rank: int | None) -> _Address:
    """Return the peer of a kernel, and no tag: NCCL has none. Its arguments have the rank in the run, a range's name
    the numbers of both in the group. Without the members of the group these are taken for ranks of the run where the
    rank's own number is its rank.
    """
    arguments = view.trace.collectives.get(row)
    if arguments is not None and one.op in {"send", "recv"}:
        peer = arguments.destination if one.op == "send" else arguments.source
        if peer is not None:
            return _Address(peer if peer != rank else None)
    place = int(np.searchsorted(view.work.row, row))
    inside = int(view.launching_range[place])
    found = _DIRECTION.search(view.trace.name(inside)) if inside != NONE else None
    if found is None:
        return _Address()
    own, peer = map(int, found.groups())
    if one.ranks is not None:
        members = read_members(one.ranks)
        return _Address(_to_global(peer, rank, [members]) if members else None)
    is_believed = peer != own and rank in {own, None}
    return _Address(peer, is_by_number=True) if is_believed else _Address(is_by_number=True)


def _addresses_of_calls(
    view: RankView, rows: Ints, rank: int | None, groups: Sequence[Sequence[int]]
) -> list[_Address]:
    """Return the peer and the tag of each range, from the call around it."""
    operators = view.trace.rows(Category.CPU_OP)
    calls = view.trace.rows_named(operators, is_message_call)
    inside = view.host.nest_rows(calls).find_innermost(view.events.thread[rows], view.events.start_ns[rows])
    found = []
    for place in inside.tolist():
        inputs = view.trace.addresses.get(int(calls[place])) if place != OUTSIDE else None
        peer, tag = _read_address(inputs)
        named = _to_global(peer, rank, groups)
        found.append(_Address(named, tag, is_by_number=peer is not None and named in {peer, None}))
    return found


def _read_address(inputs: bytes | None) -> tuple[int | None, int | None]:
    try:
        values = msgspec.json.decode(inputs or b"[]")
        return int(values[_PEER]), int(values[_TAG])
    except (msgspec.DecodeError, ValueError, TypeError, IndexError, KeyError):
        return None, None


def read_members(text: str | None) -> Sequence[int]:
    """Return the ranks of a group from their list as text; empty when it is not there, or shortened.

    >>> read_members("[0, 4]"), read_members("[0, 1, ..., 63]"), read_members(None)
    ([0, 4], (), [])
    """
    try:
        members: Any = msgspec.json.decode(text or "[]")
    except msgspec.DecodeError:  # long lists are shortened
        return ()
    return members if isinstance(members, list) and all(type(one) is int for one in members) else ()


def _to_global(peer: int | None, rank: int | None, groups: Sequence[Sequence[int]]) -> int | None:
    """Return the rank in the run of a rank in its group; None when the groups leave it open, and for the rank itself.

    >>> _to_global(1, 0, [[0, 4]]), _to_global(1, 0, []), _to_global(1, 0, [[0, 4], [0, 1]]), _to_global(0, 0, [])
    (4, 1, None, None)
    """
    if peer is None or peer < 0:
        return None
    mine = [group for group in groups if rank in group]
    named = {group[peer] for group in mine if peer < len(group)} if mine else {peer}
    named.discard(rank if rank is not None else NONE)
    return named.pop() if len(named) == 1 else None


def forget_numbers(by_rank: Mapping[int, Mapping[int, TracedMessage]]) -> dict[int, dict[int, TracedMessage]]:
    """Return the messages of several ranks; if the number of one in its group is not its rank, those of all ranks that
    are known by such numbers alone have no peer.
    """
    is_denied = any(one.is_by_number and one.peer is None for found in by_rank.values() for one in found.values())
    return {
        rank: {
            place: msgspec.structs.replace(one, peer=None) if is_denied and one.is_by_number else one
            for place, one in found.items()
        }
        for rank, found in by_rank.items()
    }
