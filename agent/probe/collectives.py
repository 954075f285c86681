"""What torch.distributed knows without being asked twice: how far each process group is, and who is in it."""

import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from rankscope.measure.identity import group_label
from rankscope.measure.records import GroupInfo


class FlightEntry(NamedTuple):
    """One entry of torch's flight recorder."""

    group_number: int
    sequence: int
    op: str
    created_wall_ns: int


class GroupProgress:
    """Reads torch's flight recorder. The status alone costs 4 us; the entries 15 to 30 us each, with the GIL held.

    `groups` are the process groups as they were when one was first seen at work: a short job has destroyed them again
    before the agent thread asks.
    """

    def __init__(self, world_size: int = 1) -> None:
        self._world_size = world_size
        self._seen: frozenset[int] = frozenset()
        self.groups: dict[str, GroupInfo] = {}
        try:
            from torch._C import _distributed_c10d as c10d  # noqa: PLC0415

            self._dump: Any = getattr(c10d, "_dump_fr_trace_json", None)
        except ImportError:
            self._dump = None

    @property
    def is_available(self) -> bool:
        """Whether this torch has a flight recorder that can be read this way."""
        return self._dump is not None

    def read_enqueued(self) -> dict[int, int]:
        """The sequence number of the last collective enqueued in each process group, by torch's group number."""
        if self._dump is None:
            return {}
        status = json.loads(self._dump(includeCollectives=False)).get("pg_status", {})
        enqueued = {int(number): int(group["last_enqueued_collective"]) for number, group in status.items()}
        if not self._seen.issuperset(enqueued):
            self._seen |= frozenset(enqueued)
            self.groups = {**self.groups, **read_groups(self._world_size)}
        return enqueued

    def read_entries(self) -> tuple[list[FlightEntry], dict[int, tuple[str, str]]]:
        """Every collective still in the recorder, oldest first, and (name, description) of each group by number."""
        if self._dump is None:
            return [], {}
        dump = json.loads(self._dump(includeCollectives=True))
        entries, names = [], {}
        for entry in sorted(dump.get("entries", ()), key=lambda found: int(found["record_id"])):
            number = int(entry["pg_id"])
            names[number] = (str(entry["process_group"][0]), str(entry["process_group"][1]))
            if not entry["is_p2p"]:
                op = str(entry["profiling_name"]).rpartition(":")[2]
                sequence, created_ns = int(entry["collective_seq_id"]), int(entry["time_created_ns"])
                entries.append(FlightEntry(number, sequence, op, created_ns))
        return entries, names


def read_groups(world_size: int) -> dict[str, GroupInfo]:
    """The process groups this rank is a member of, by torch's own name. Empty before init_process_group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is None or c10d is None:
        return {}
    found: dict[str, GroupInfo] = {}
    for group in list(world.pg_map):
        ranks = tuple(sorted(int(rank) for rank in c10d.get_process_group_ranks(group)))
        description = str(getattr(group, "group_desc", "")) or "group"
        backend = str(world.pg_map[group][0])
        label = group_label(description, ranks, world_size)
        found[str(group.group_name)] = GroupInfo(label=label, description=description, ranks=ranks, backend=backend)
    return found


def count_enqueued(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Per group number the first and last sequence enqueued in between, groups without any left out.

    >>> count_enqueued({0: 10, 1: 4}, {0: 14, 1: 4, 2: 1})
    {0: (11, 14), 2: (1, 1)}
    """
    return {number: (before.get(number, 0) + 1, last) for number, last in after.items() if last > before.get(number, 0)}
