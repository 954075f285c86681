"""Every communication in one rank's trace: which group, operation, sequence, size and type, from when and how long."""

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np

from rankscope.measure import communication
from rankscope.measure.communication import ALL_TO_ALL
from rankscope.measure.kineto import NONE, CollectiveArguments, Ints
from rankscope.measure.rank_view import RankView

GROUP_UNKNOWN = "unknown"
UNNAMED = "?"
ALL_TO_ALL_NAMES = frozenset({"all_to_all", "all_to_allv"})
"""Names that torch gives its all-to-alls in the arguments of kernels."""


class Collective(msgspec.Struct, frozen=True, array_like=True):
    """One communication of one rank. `sequence` is the backend's own number and `group_name` torch's own name of the
    group, if they are in the trace; `start_ns` is by the host's clock. The last three are of an all-to-all on a device:
    what the rank sent, what it received, and what it sent to each member of the group, where its splits were read.
    """

    group: str
    group_size: int | None
    ranks: str | None
    op: str
    dtype: str | None
    bytes: int | None
    sequence: int | None
    start_ns: int
    duration_ns: int
    group_name: str | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    sent_to_bytes: tuple[int, ...] | None = None


def find_communication_rows(view: RankView) -> Ints:
    """Return the rows of what communicates, by start: kernels on a device, ranges of the backend on a CPU."""
    return view.work.row[view.work.is_communication] if view.has_device else view.host.communication_rows


def find_collectives(view: RankView, base_ns: int = 0, only_group_size: int | None = None) -> list[Collective]:
    """Return every communication of the trace, in the order of `find_communication_rows`.

    The trace's times count from `base_ns` by the host's clock. `only_group_size` is the size of the run's one process
    group, None if it has more or that is not known: gloo's ranges do not name their group.
    """
    if not view.has_device:
        rows = find_communication_rows(view).tolist()
        return [_of_host_range(view, row, base_ns, only_group_size) for row in rows]
    places = np.flatnonzero(view.work.is_communication).tolist()
    found = [_of_kernel(view, place, base_ns) for place in places]
    if only_group_size is None:
        return found
    return [
        one if one.group_size is not None else msgspec.structs.replace(one, group_size=only_group_size) for one in found
    ]


def complete_groups(found: list[Collective]) -> list[Collective]:
    """Return the collectives of one trace, each in a group of its own name as far as the others show it."""
    return _name_apart(_fill_only_group(found))


def _name_apart(found: list[Collective]) -> list[Collective]:
    """Return the collectives, with torch's own name in the group where groups have the same members and description:
    one of them may be a collective ahead of the other.
    """
    names: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for one in found:
        if one.group_name is not None:
            names[one.group, one.ranks].add(one.group_name)
    ambiguous = {group for group, of_group in names.items() if len(of_group) > 1}
    return [
        msgspec.structs.replace(one, group=f"{one.group} ({one.group_name})")
        if (one.group, one.ranks) in ambiguous and one.group_name is not None
        else one
        for one in found
    ]


def _fill_only_group(found: list[Collective]) -> list[Collective]:
    """Return the collectives, those without a group in the only group that the others are in: a kernel without
    arguments would otherwise shift all that follow it against those of other ranks.
    """
    groups = {(one.group, one.group_size, one.ranks, one.group_name) for one in found if one.group != GROUP_UNKNOWN}
    if len(groups) != 1:
        return found
    ((group, size, ranks, name),) = groups
    return [
        msgspec.structs.replace(one, group=group, group_size=size, ranks=ranks, group_name=name)
        if one.group == GROUP_UNKNOWN and one.op not in communication.POINT_TO_POINT_OPS
        else one
        for one in found
    ]


def _of_kernel(view: RankView, place: int, base_ns: int) -> Collective:
    row = int(view.work.row[place])
    arguments = view.trace.collectives.get(row)
    inside = int(view.launching_range[place])
    name = view.trace.name(row)
    if arguments is not None:
        op: str | None = communication.find_operation(arguments.op)
    elif inside != NONE:
        op = communication.find_operation(view.trace.name(inside))
    else:
        op = communication.find_operation_of_kernel(name)
    events = view.events
    return Collective(
        group=_group_of(arguments) if arguments is not None else GROUP_UNKNOWN,
        group_size=arguments.group_size if arguments is not None else None,
        ranks=arguments.group_ranks if arguments is not None else None,
        op=op or UNNAMED,
        dtype=arguments.dtype if arguments is not None else None,
        bytes=_bytes_of(arguments) if arguments is not None else find_shape_bytes(view, inside),
        sequence=arguments.sequence if arguments is not None else None,
        start_ns=int(events.start_ns[row]) + base_ns,
        duration_ns=int(events.duration_ns[row]),
        group_name=arguments.group_name if arguments is not None else None,
        **(_find_traffic(arguments) if arguments is not None and op == ALL_TO_ALL else {}),
    )


def _find_traffic(arguments: CollectiveArguments) -> dict[str, Any]:
    """Return the fields of an all-to-all: the elements that went in were sent, those that came out received."""
    size = communication.item_bytes(arguments.dtype) if arguments.dtype is not None else None
    sent, received = (
        count * size if count is not None and size is not None else None
        for count in (arguments.in_elements, arguments.out_elements)
    )
    return {
        "sent_bytes": sent,
        "received_bytes": received,
        "sent_to_bytes": share_by_split(sent, arguments.in_split),
    }


def share_by_split(total_bytes: int | None, split: str | None) -> tuple[int, ...] | None:
    """Return the bytes of each member from the rows that each has of the whole; None where they are not known: torch
    writes no splits where they are equal, and cuts those of more than 30 members.

    >>> share_by_split(48, "[2, 0, 4]"), share_by_split(48, "[2, 0, ...]"), share_by_split(48, "[]")
    ((16, 0, 32), None, None)
    """
    try:
        rows = msgspec.json.decode(split or "", type=list[int])
    except msgspec.DecodeError:
        return None
    whole = sum(rows)
    if total_bytes is None or whole <= 0 or min(rows) < 0 or total_bytes % whole:
        return None
    return tuple(total_bytes // whole * count for count in rows)


def _group_of(arguments: CollectiveArguments) -> str:
    return arguments.group_description or arguments.group_name or GROUP_UNKNOWN


def _bytes_of(arguments: CollectiveArguments) -> int | None:
    """As nccl-tests counts: of gathers and scatters the full, gathered size is the larger of the two."""
    elements = [count for count in (arguments.in_elements, arguments.out_elements) if count is not None]
    size = communication.item_bytes(arguments.dtype) if arguments.dtype is not None else None
    return max(elements) * size if elements and size is not None else None


def find_shape_bytes(view: RankView, row: int) -> int | None:
    """Return the bytes of the inputs of an operator or range; None where their shapes are not in the trace."""
    shapes = view.trace.shapes.get(row)
    if shapes is None:
        return None
    try:
        return communication.input_bytes(msgspec.json.decode(shapes[0]), msgspec.json.decode(shapes[1]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _of_host_range(view: RankView, row: int, base_ns: int, only_group_size: int | None) -> Collective:
    op = communication.find_operation(view.trace.name(row))
    size = find_shape_bytes(view, row)
    if op == "all_gather" and size is not None:
        size = size * only_group_size if only_group_size is not None else None
    return Collective(
        group="default_pg" if only_group_size is not None else GROUP_UNKNOWN,
        group_size=only_group_size,
        ranks=None,
        op=op,
        dtype=None,
        bytes=size,
        sequence=None,
        start_ns=int(view.events.start_ns[row]) + base_ns,
        duration_ns=int(view.events.duration_ns[row]),
    )
