"""Reads torch's flight recorder in this process: the progress of each process group, and pending collectives.

The status alone costs 4 us and touches no device. A full dump costs 15 to 30 us per entry with the GIL held (2,000
entries by default), and with NCCL it queries CUDA events, which is not allowed while a CUDA graph is being captured.
So full dumps are made only once per stall, and a few times per process to learn the names of groups.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from rankscope.agent.captures.flight_dump import Pending, find_completed, find_names, find_pending, to_statuses
from rankscope.agent.late_imports import LATE_IMPORTS
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.records import GroupInfo
from rankscope.measure.stalls import GroupStatus, PendingCollective

NCCL_DUMP: Final = "_dump_nccl_trace_json"
DUMPS: Final = ("_dump_fr_trace_json", NCCL_DUMP)
"""The recorder of backends on the host, and that of NCCL, which is separate in older releases."""
NAME_DUMPS_MAX: Final = 8
"""Largest number of full dumps to learn names. Groups are made at the start, when the recorder is nearly empty."""

Dump = Callable[..., Any]


class FlightRecorder:
    """The flight recorder of this process, with groups under the labels that all ranks share.

    `find_groups` returns the process groups by torch's name; `dumps` are torch's functions, by name.
    """

    def __init__(
        self,
        find_groups: Callable[[], Mapping[str, GroupInfo]],
        captures: GraphCaptures,
        dumps: Mapping[str, Dump] | None = None,
    ) -> None:
        self._find_groups = find_groups
        self._captures = captures
        self._dumps = dict(_find_dumps() if dumps is None else dumps)
        self._names: dict[int, str] = {}
        self._name_dumps_left = NAME_DUMPS_MAX
        self._completed: dict[int, int] = {}
        """By the group's number the last collective that has completed by the last full dump."""

    @property
    def is_available(self) -> bool:
        """True if this torch has a readable flight recorder."""
        return bool(self._dumps)

    def read_progress(self) -> tuple[GroupStatus, ...]:
        """Return the progress of each group; empty before the first collective."""
        dumps = [msgspec.json.decode(dump(includeCollectives=False)) for dump in self._dumps.values()]
        numbers = {int(number) for dump in dumps for number in dump.get("pg_status", {})}
        return to_statuses(dumps, self._find_labels(numbers), self._completed) if numbers else ()

    def read_pending(self, now_wall_ns: int, absent: dict[str, str]) -> Pending:
        """Return the pending collectives; add the reason to `absent` if they cannot be read."""
        if not self._dumps:
            absent["pending"] = "this torch has no flight recorder that can be read"
        dumps = self._read_all(absent)
        self._names.update(find_names(dumps))
        self._completed.update(find_completed(dumps))
        return find_pending(dumps, self._to_labels(set(self._names)), now_wall_ns)

    def find_transfer(self, own_rank: int, age_ns: int) -> PendingCollective | None:
        """Return the send or receive that the main thread has been blocked in for `age_ns`, also where the backend
        records none; None if it is in none.
        """
        with LATE_IMPORTS:
            from rankscope.agent.captures.blocked_transfer import find_blocked_transfer  # noqa: PLC0415 - few ranks stall

        return find_blocked_transfer(self._find_groups(), own_rank, age_ns)

    def _read_all(self, absent: dict[str, str]) -> list[dict[str, Any]]:
        dumps = []
        for name, dump in self._dumps.items():
            read = functools.partial(dump, includeCollectives=True)
            text = self._captures.run_between(read) if name == NCCL_DUMP else read()
            if text is None:
                absent["pending"] = "a CUDA graph is being captured"
            else:
                dumps.append(msgspec.json.decode(text))
        return dumps

    def _find_labels(self, numbers: set[int]) -> dict[int, str]:
        # One number may be that of any of several groups: of these only one may have communicated so far.
        is_ambiguous = max(len(numbers), len(self._find_groups())) > 1
        if is_ambiguous and not numbers <= self._names.keys() and self._name_dumps_left > 0:
            self._name_dumps_left -= 1
            self._names.update(find_names(self._read_all({})))
        return self._to_labels(numbers)

    def _to_labels(self, numbers: set[int]) -> dict[int, str]:
        groups = self._find_groups()
        if len(numbers) == 1 and len(groups) == 1:
            return dict.fromkeys(numbers, next(iter(groups.values())).label)
        return {
            number: groups[name].label for number, name in self._names.items() if number in numbers and name in groups
        }


def _find_dumps() -> dict[str, Dump]:
    try:
        from torch._C import _distributed_c10d as c10d  # noqa: PLC0415 - the user's torch
    except ImportError:
        return {}
    return {name: getattr(c10d, name) for name in DUMPS if hasattr(c10d, name)}
