"""Parses JSON dumps of torch's flight recorder. Pure: the agent reads them in the process, the sidecar from outside.

`pg_status` has the last collective of each group by the group's number; `entries` (absent if there are none) every
collective still in the recorder's ring. With gloo the state of an entry stays "scheduled", `retired` marks completion,
`last_started_collective` is always -1, and `last_completed_collective` may stay behind: the two threads of a group
write it in any order.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rankscope.measure.communication import input_bytes
from rankscope.measure.stalls import GroupStatus, PendingCollective
from rankscope.measure.units import NS_PER_MS

PENDING_MAX: Final = 64
GROUPS_MAX: Final = 128
SIZES_MAX: Final = 8
"""Largest number of shapes kept of one collective: a coalesced one may have hundreds of inputs."""
TEXT_LENGTH_MAX: Final = 160
GLOO: Final = "gloo:"


class Pending(NamedTuple):
    """The oldest pending collectives, oldest first; `left_out` is the number of those above PENDING_MAX."""

    collectives: tuple[PendingCollective, ...]
    left_out: int


def find_names(dumps: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Return torch's name of each process group by its number, as far as the entries contain it."""
    return {
        int(entry["pg_id"]): str(entry["process_group"][0])
        for dump in dumps
        for entry in dump.get("entries", ())
        if entry.get("process_group")
    }


def find_completed(dumps: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return by the group's number the last collective over gloo up to which none is open by the entries."""
    done: dict[int, int] = {}
    first_open: dict[int, int] = {}
    for dump in dumps:
        for entry in dump.get("entries", ()):
            if entry.get("is_p2p") or not str(entry.get("profiling_name", "")).startswith(GLOO):
                continue  # what NCCL has retired may have timed out
            number, sequence = int(entry["pg_id"]), int(entry["collective_seq_id"])
            if _is_pending(entry):
                first_open[number] = min(sequence, first_open.get(number, sequence))
            else:
                done[number] = max(sequence, done.get(number, sequence))
    return {number: min(last, first_open.get(number, last + 1) - 1) for number, last in done.items()}


def to_statuses(
    dumps: Iterable[Mapping[str, Any]], labels: Mapping[int, str], completed: Mapping[int, int] | None = None
) -> tuple[GroupStatus, ...]:
    """Return the progress of each group, named by its number if the label is unknown.

    If a group is in two dumps the more advanced status counts. `completed` are the last collectives that are known to
    have completed, by number (`find_completed`).
    """
    furthest: dict[int, GroupStatus] = {}
    for dump in dumps:
        for text, status in dump.get("pg_status", {}).items():
            number = int(text)
            enqueued, last = (
                _sequence(status, "last_enqueued_collective"),
                _sequence(status, "last_completed_collective"),
            )
            by_entries = (completed or {}).get(number)
            if by_entries is not None and (last or 0) < by_entries <= (enqueued or 0):
                last = by_entries
            found = GroupStatus(
                group=labels.get(number, f"#{number}"),
                enqueued=enqueued,
                started=_sequence(status, "last_started_collective"),
                completed=last,
            )
            before = furthest.get(number)
            if before is None or (found.enqueued or -1) > (before.enqueued or -1):
                furthest[number] = found
    return tuple(furthest[number] for number in sorted(furthest)[:GROUPS_MAX])


def find_pending(dumps: Iterable[Mapping[str, Any]], labels: Mapping[int, str], now_wall_ns: int) -> Pending:
    """Return the collectives that were enqueued and have not completed."""
    found: dict[tuple[int, int, int], PendingCollective] = {}
    for dump in dumps:
        for entry in dump.get("entries", ()):
            if _is_pending(entry):
                key = (int(entry.get("time_created_ns", 0)), int(entry["pg_id"]), int(entry["record_id"]))
                found[key] = _to_pending(entry, labels, now_wall_ns)
    kept = [found[key] for key in sorted(found)[:PENDING_MAX]]
    return Pending(tuple(kept), len(found) - len(kept))


def _is_pending(entry: Mapping[str, Any]) -> bool:
    return not entry.get("retired", False) and entry.get("state") != "completed"


def _to_pending(entry: Mapping[str, Any], labels: Mapping[int, str], now_wall_ns: int) -> PendingCollective:
    number = int(entry["pg_id"])
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    timeout_ms = entry.get("timeout_ms")
    return PendingCollective(
        group=labels.get(number, f"#{number}"),
        op=str(entry.get("profiling_name", "")).rpartition(":")[2][:TEXT_LENGTH_MAX],
        sequence=int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]),
        age_ns=max(0, now_wall_ns - int(entry.get("time_created_ns", now_wall_ns))),
        bytes=input_bytes(dtypes, sizes),
        sizes=tuple(tuple(int(length) for length in shape) for shape in sizes[:SIZES_MAX]),
        dtypes=tuple(str(name)[:TEXT_LENGTH_MAX] for name in dtypes[:SIZES_MAX]),
        state=str(entry.get("state", ""))[:TEXT_LENGTH_MAX],
        timeout_ns=int(timeout_ms) * NS_PER_MS if timeout_ms else None,
    )


def _sequence(status: Mapping[str, Any], field: str) -> int | None:
    number = int(status.get(field, -1))
    return number if number >= 0 else None
