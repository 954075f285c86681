"""Read the process groups of torch.distributed: their members, and their progress from the flight recorder."""

import itertools
import sys
import weakref
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rankscope.agent.profiler.group_names import find_dimension, shorten_description
from rankscope.agent.profiler.nccl_timing import is_timing, may_read
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.communication import is_on_host
from rankscope.measure.identity import group_label
from rankscope.measure.records import GroupInfo

GLOO: Final = "gloo"
UNDEFINED: Final = "undefined"
"""What torch notes as the backend, or the description, of a group that was made without one."""
DESCRIPTION_LENGTH_MAX: Final = 128
"""Characters of a process group's description that are kept."""


class FlightEntry(NamedTuple):
    """One entry of torch's flight recorder. `thread` is the one that enqueued it, as `threading.get_ident` gives it,
    None if torch does not say; `thread_name` is the system's.
    """

    group_number: int
    sequence: int
    op: str
    created_wall_ns: int
    thread: int | None = None
    thread_name: str = ""


DEVICE_NUMBERS_FROM = 1 << 32
"""Added to the group numbers of the recorder of NCCL: each recorder counts its groups from 0."""
UNRECORDED_NUMBERS_FROM = 1 << 31
"""Added to the numbers of groups that are in no recorder."""


class GroupProgress:
    """Read torch's flight recorders. The status alone costs 4 us and no CUDA call; the entries cost 15 to 30 us each,
    with the GIL held, and query the events of unfinished collectives: never while a graph is being captured.

    NCCL has a recorder of its own up to torch 2.13 and shares one with the other backends later: then both functions
    return the same entries, which count once. Where collectives of the host are not recorded, as in older versions,
    the sequence numbers of its groups are read instead, without the operations. `groups` are the process groups as of
    the first collective: a short run destroys them before the agent thread reads them.
    """

    def __init__(
        self, world_size: int = 1, captures: GraphCaptures | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._may_read = environment is not None and may_read(environment)
        self.is_timed = environment is not None and is_timing(environment)
        """Whether torch is to time the collectives of NCCL."""
        self._process_groups = ProcessGroups(world_size)
        self._captures = captures or GraphCaptures()
        self._seen: frozenset[int] = frozenset()
        self.groups: dict[str, GroupInfo] = {}
        self._dump: Any = None
        self._dump_of_nccl: Any = None
        try:
            from torch._C import _distributed_c10d as c10d  # noqa: PLC0415
        except ImportError:
            return
        self._dump = getattr(c10d, "_dump_fr_trace_json", None)
        self._dump_of_nccl = getattr(c10d, "_dump_nccl_trace_json", None)

    @property
    def is_available(self) -> bool:
        """Whether this torch has a flight recorder that can be read this way."""
        return self._dump is not None or self._dump_of_nccl is not None

    @property
    def communicates_on_host(self) -> bool:
        """Whether a process group that is in use communicates on the host only."""
        return any(is_on_host(group.backend) for group in self.groups.values())

    @property
    def has_gloo(self) -> bool:
        """Whether a process group that is in use, or one that the script has, may communicate on the CPU."""
        groups = self.groups or self.find_groups()
        return any(is_on_host(group.backend) or GLOO in group.backend for group in groups.values())

    @property
    def records_devices(self) -> bool:
        """Whether the flight recorder has the collectives of devices, and may be read: those of NCCL, with durations if
        torch is to time them; otherwise only where there are others to compare with. After a capture it does not have
        all of them: those in CUDA graphs are in profiler windows only.
        """
        if not self._may_read or self._captures.begun:
            return False
        groups = self.groups or self.find_groups()  # the former are found by windows, of which there may be none
        return any(is_nccl(one.backend) and (self.is_timed or len(one.ranks) > 1) for one in groups.values())

    def read_enqueued(self) -> dict[int, int]:
        """Return the sequence number of the last collective enqueued in each process group, by torch's group number."""
        enqueued = _read_status(self._dump) or self._process_groups.count_on_host()
        of_nccl = _read_status(self._dump_of_nccl)
        if of_nccl != enqueued:
            enqueued.update((DEVICE_NUMBERS_FROM + number, last) for number, last in of_nccl.items())
        if not self._seen.issuperset(enqueued):
            self._seen |= frozenset(enqueued)
            self.groups = self.find_groups()
        return enqueued

    def find_groups(self) -> dict[str, GroupInfo]:
        """Return the process groups by torch's name: the present ones, and those that were in use and are destroyed."""
        return {**self.groups, **self._process_groups.read()}

    def find_nccl(self) -> list[Any]:
        """Return torch's objects of the present process groups that communicate by NCCL."""
        return self._process_groups.find_nccl()

    def allow_reading(self) -> None:
        """Let the collectives of devices be read from now on: torch times them since."""
        self._may_read = self.is_timed = True

    def read_entries(self) -> tuple[list[FlightEntry], dict[int, tuple[str, str]]]:
        """Return every collective still in the recorders (no point-to-point operations), oldest first in each, and
        (name, description) of each group by number. The recorders are not read while a graph is being captured.
        """
        entries, names = self._captures.run_between(self._read_entries) or ([], {})
        return entries, {**self._process_groups.unrecorded, **names}

    def _read_entries(self) -> tuple[list[FlightEntry], dict[int, tuple[str, str]]]:
        entries: list[FlightEntry] = []
        names: dict[int, tuple[str, str]] = {}
        seen: set[tuple[object, ...]] = set()
        for dump, from_number in ((self._dump, 0), (self._dump_of_nccl, DEVICE_NUMBERS_FROM)):
            found = msgspec.json.decode(dump(includeCollectives=True)).get("entries", ()) if dump is not None else ()
            for entry in sorted(found, key=lambda one: int(one["record_id"])):
                name, description = map(str, entry["process_group"])
                identity = (name, description, entry["record_id"], entry["time_created_ns"])
                if identity in seen:
                    continue
                seen.add(identity)
                number = from_number + int(entry["pg_id"])
                names[number] = (name, description)
                if not entry["is_p2p"]:
                    entries.append(_to_flight_entry(number, entry))
        return entries, names

    def dump_devices(self) -> str | None:
        """Return the recorder's entries with the collectives of devices, as JSON; None without a recorder, and while a
        graph is being captured. The GIL is held meanwhile: `sidecar/recorder_reader.py` is the way without it.
        """
        dump = self._dump_of_nccl or self._dump
        return None if dump is None else self._captures.run_between(lambda: str(dump(includeCollectives=True)))


def _read_status(dump: Any) -> dict[int, int]:
    status = msgspec.json.decode(dump(includeCollectives=False)).get("pg_status", {}) if dump is not None else {}
    return {int(number): int(group["last_enqueued_collective"]) for number, group in status.items()}


def _to_flight_entry(number: int, entry: Mapping[str, Any]) -> FlightEntry:
    op = str(entry["profiling_name"]).rpartition(":")[2]
    thread, name = entry.get("thread_id"), str(entry.get("thread_name", ""))
    sequence, created_wall_ns = int(entry["collective_seq_id"]), int(entry["time_created_ns"])
    return FlightEntry(number, sequence, op, created_wall_ns, int(thread) if thread else None, name)


def is_nccl(backend: str) -> bool:
    """Return whether a group uses NCCL (or RCCL, which torch calls so). `backend` is as below."""
    return any(part.rpartition(":")[2] == "nccl" for part in backend.split(","))


class ProcessGroups:
    """The process groups of this rank. Each is described once, since sorting and naming 16,384 members takes 1 to 2 ms.
    May be used from any thread: a group that the training thread is just creating or destroying is left out.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._numbers: dict[str, int] = {}
        self.unrecorded: dict[int, tuple[str, str]] = {}
        """The name and description of each group counted here, by its number."""
        self._described: dict[int, tuple[weakref.ref[Any], GroupInfo]] = {}
        """By the address of torch's object. An address may be reused, hence the reference, which is weak so that it
        keeps no destroyed group alive."""

    def read(self) -> dict[str, GroupInfo]:
        """Return the present groups by torch's name. Empty before init_process_group."""
        return {str(group.group_name): described for group, described in self._find()}

    def find_nccl(self) -> list[Any]:
        """Return torch's objects of the present groups that communicate by NCCL."""
        return [group for group, described in self._find() if is_nccl(described.backend)]

    def count_on_host(self) -> dict[int, int]:
        """Return how many operations were enqueued in each group that communicates on the host only, by a number of
        ours. Groups never used are left out.
        """
        counts = {}
        for group, described in self._find():
            count = _count_enqueued_of(group) if is_on_host(described.backend) else 0
            if count:
                name = str(group.group_name)
                number = self._numbers.setdefault(name, UNRECORDED_NUMBERS_FROM + len(self._numbers))
                self.unrecorded[number] = name, described.description
                counts[number] = count
        return counts

    def _find(self) -> list[tuple[Any, GroupInfo]]:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        world = getattr(c10d, "_world", None)
        if world is None or c10d is None:
            return []
        known, found, labels = {}, [], set[str]()
        for group in list(world.pg_map):
            described = self._described.get(id(group))
            if described is None or described[0]() is not group or _is_named_since(group, described[1]):
                try:
                    described = weakref.ref(group), _distinguish(self._describe(group, c10d, world), labels)
                except KeyError:  # torch adds its members after the group itself, and may have removed it meanwhile
                    continue
            known[id(group)] = described
            labels.add(described[1].label)
            found.append((group, described[1]))
        self._described = known
        return found

    def _describe(self, group: Any, c10d: Any, world: Any) -> GroupInfo:
        ranks = tuple(sorted(int(rank) for rank in c10d.get_process_group_ranks(group)))
        description = str(getattr(group, "group_desc", ""))[:DESCRIPTION_LENGTH_MAX] or "group"
        name = find_dimension(group) if description == UNDEFINED else ""
        label = group_label(name or shorten_description(description), ranks, self._world_size)
        return GroupInfo(label=label, description=description, ranks=ranks, backend=_find_backend(group, world))


def _is_named_since(group: Any, described: GroupInfo) -> bool:
    """Return whether a group that had neither description nor name has a name by now."""
    return described.label.startswith(UNDEFINED) and find_dimension(group) != ""


def _find_backend(group: Any, world: Any) -> str:
    """Return the backend of a group; where the script has named none, those that torch has chosen by device."""
    named = str(world.pg_map[group][0])
    return named if named != UNDEFINED else str(world.pg_backend_config.get(group, named))


def _distinguish(group: GroupInfo, taken: Collection[str]) -> GroupInfo:
    """Return the group under a label that no earlier one has. Groups of the same members and description are made in
    the same order on all members, so the second is `LABEL#2` on each.
    """
    numbers = itertools.count(2)
    label = group.label
    while label in taken:
        label = f"{group.label}#{next(numbers)}"
    return msgspec.structs.replace(group, label=label)


def has_peers() -> bool:
    """Return whether this process is in a process group with others. Imports nothing; may be called on any thread."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    return world is not None and any(group.size() > 1 for group in list(world.pg_map))


def _count_enqueued_of(group: Any) -> int:
    try:
        return int(group._get_sequence_number_for_group())
    except RuntimeError:  # a backend without sequence numbers
        return 0


def count_enqueued(before: Mapping[int, int], after: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return the first and last sequence enqueued in between by group number; groups without any are left out.

    >>> count_enqueued({0: 10, 1: 4}, {0: 14, 1: 4, 2: 1})
    {0: (11, 14), 2: (1, 1)}
    """
    return {number: (before.get(number, 0) + 1, last) for number, last in after.items() if last > before.get(number, 0)}
