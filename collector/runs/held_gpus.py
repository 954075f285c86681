"""Sum up who holds the GPUs of all nodes with a relay, and list those that are held and do nothing. Pure.

    free           nobody has memory of it, and no job has got it
    watched        a rank whose reports pass the relay of its node names it
    watched_idle   the same, and for `idle_after_s` neither a step of that rank ended nor did any reading find a kernel
    in_use         somebody else holds it; a kernel ran within `idle_after_s`, or it is held for less
    idle           somebody else holds it, and for `idle_after_s` no reading found a kernel
    unknown        somebody else holds it, and its utilization cannot be read

So a rank that hangs or is between steps does not make its GPU `idle`: its run is watched, and has findings of its own.
Ranks that report past the relay are not known here.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rankscope.measure.held_gpus import GpuHolder, HeldGpu, NodeGpus
from rankscope.measure.units import NS_PER_S, ns_to_s

FREE: Final = "free"
WATCHED: Final = "watched"
WATCHED_IDLE: Final = "watched_idle"
IN_USE: Final = "in_use"
IDLE: Final = "idle"
UNKNOWN: Final = "unknown"
STATES: Final = (FREE, WATCHED, WATCHED_IDLE, IN_USE, IDLE, UNKNOWN)

TOLD_NS_MAX: Final = 75 * NS_PER_S
"""Age of a reading from which the GPUs of a node are not known: five readings."""
SUMMARY_NS: Final = 5 * NS_PER_S
"""Least time between two summaries: of 16,384 GPUs one takes some 30 ms."""
OWNERS_MAX: Final = 64
"""Users and jobs that are told apart; the others are summed up as OTHERS."""
OTHERS: Final = "(others)"
LISTED_MAX: Final = 256
REASONS_MAX: Final = 8


class IdleOwner(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The idle GPUs of one user and job; both empty where they are not known. `longest_s` is for how long the longest
    of them has been idle.
    """

    user: str
    job: str
    gpus: int
    longest_s: float


class ListedGpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A GPU that is held and does nothing: `idle` or `watched_idle`.

    `held_s` is for how long it has had its present users and jobs, `idle_s` for how long no reading has found a kernel
    on it. `user`, `job`, `program` and `pid` are of the process with most memory of it, of `processes`; empty and 0
    where none is visible. `run` and `rank` are of the rank that is watched on it, `step_age_s` for how long none of its
    steps has ended; empty and None for an idle one.
    """

    node: str
    index: int
    uuid: str
    model: str
    state: str
    held_s: float
    idle_s: float
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    user: str
    job: str
    program: str
    pid: int
    processes: int
    run: str
    rank: int | None
    step_age_s: float | None


class HeldGpus(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The GPUs of the nodes whose relays tell of them. `states` counts them by state, `owners` are those of the idle
    ones, most GPUs first. `listed` are those that are `idle` or `watched_idle`, longest first; `listed_left_out` more
    are not listed. `unread` counts the nodes whose GPUs cannot be read, by reason.
    """

    nodes: int
    idle_after_s: float
    states: Mapping[str, int] = {}
    owners: tuple[IdleOwner, ...] = ()
    listed: tuple[ListedGpu, ...] = ()
    listed_left_out: int = 0
    unread: Mapping[str, int] = {}

    @property
    def gpus(self) -> int:
        """How many GPUs are known."""
        return sum(self.states.values())


def find_state(gpu: HeldGpu, idle_after_ns: int) -> str:
    """Return the state of a GPU, one of STATES."""
    has_been_idle = gpu.idle_ns is not None and gpu.idle_ns >= idle_after_ns
    if gpu.rank is not None:
        has_no_step = gpu.step_age_ns is not None and gpu.step_age_ns >= idle_after_ns
        return WATCHED_IDLE if has_been_idle and has_no_step else WATCHED
    if gpu.held_ns is None:
        return FREE
    if gpu.idle_ns is None:
        return UNKNOWN
    return IDLE if has_been_idle else IN_USE


NOBODY_KNOWN: Final = GpuHolder(pid=0)


def find_owner(gpu: HeldGpu) -> GpuHolder:
    """Return who holds a GPU: of its processes whose user is known that with most memory of it, else any, else
    NOBODY_KNOWN.
    """
    return max(gpu.holders, key=lambda one: (bool(one.user), one.memory_bytes or 0), default=NOBODY_KNOWN)


class GpuSummary:
    """The summary of what the relays have told, made again at most every SUMMARY_NS. For one thread."""

    def __init__(self, idle_after_s: float) -> None:
        self._idle_after_s = idle_after_s
        self._seen: dict[bytes, tuple[NodeGpus, int]] = {}
        self._summary: HeldGpus | None = None
        self._due_ns: int | None = None

    def update(self, told: Mapping[bytes, NodeGpus], now_ns: int) -> HeldGpus | None:
        """Return the summary of the last reading of each relay; None where none has told of any in TOLD_NS_MAX."""
        if self._due_ns is not None and now_ns < self._due_ns:
            return self._summary
        self._due_ns = now_ns + SUMMARY_NS
        seen = {}
        for relay, read in told.items():
            before = self._seen.get(relay)
            seen[relay] = before if before is not None and before[0] is read else (read, now_ns)
        self._seen = seen
        newest_first = sorted(seen.values(), key=lambda one: -one[1])
        present = [read for read, at_ns in newest_first if now_ns - at_ns < TOLD_NS_MAX]
        self._summary = summarize(present, self._idle_after_s) if present else None
        return self._summary


def summarize(nodes: Iterable[NodeGpus], idle_after_s: float) -> HeldGpus:
    """Return the summary of these readings, one a relay. Of a GPU of which several tell the first counts."""
    idle_after_ns = round(idle_after_s * NS_PER_S)
    states = dict.fromkeys(STATES, 0)
    unread: dict[str, int] = {}
    listed: list[ListedGpu] = []
    names: set[str] = set()
    uuids: set[str] = set()
    for node in nodes:
        names.add(node.node)
        if node.unread:
            reason = node.unread if node.unread in unread or len(unread) < REASONS_MAX else OTHERS
            unread[reason] = unread.get(reason, 0) + 1
        for gpu in node.gpus:
            if gpu.uuid in uuids:
                continue
            uuids.add(gpu.uuid)
            state = find_state(gpu, idle_after_ns)
            states[state] += 1
            if state in {IDLE, WATCHED_IDLE}:
                listed.append(_list(node.node, state, gpu))
    listed.sort(key=lambda one: (one.state != IDLE, -one.idle_s, one.node, one.index))
    return HeldGpus(
        nodes=len(names),
        idle_after_s=idle_after_s,
        states=states,
        owners=_list_owners(one for one in listed if one.state == IDLE),
        listed=tuple(listed[:LISTED_MAX]),
        listed_left_out=max(0, len(listed) - LISTED_MAX),
        unread=unread,
    )


def _list(node: str, state: str, gpu: HeldGpu) -> ListedGpu:
    owner = find_owner(gpu)
    return ListedGpu(
        node=node, index=gpu.index, uuid=gpu.uuid, model=gpu.model, state=state,
        held_s=ns_to_s(gpu.held_ns or 0), idle_s=ns_to_s(gpu.idle_ns or 0),
        memory_used_bytes=gpu.memory_used_bytes, memory_total_bytes=gpu.memory_total_bytes,
        user=owner.user, job=owner.job, program=owner.program, pid=owner.pid,
        processes=sum(holder.pid != 0 for holder in gpu.holders) + gpu.holders_left_out,
        run=gpu.run, rank=gpu.rank, step_age_s=None if gpu.step_age_ns is None else ns_to_s(gpu.step_age_ns),
    )  # fmt: skip


def _list_owners(idle: Iterable[ListedGpu]) -> tuple[IdleOwner, ...]:
    """Return the owners of idle GPUs, at most OWNERS_MAX and one for all others."""
    idle_s: dict[tuple[str, str], list[float]] = {}
    for gpu in idle:
        idle_s.setdefault((gpu.user, gpu.job), []).append(gpu.idle_s)
    ordered = sorted(idle_s.items(), key=lambda one: (-len(one[1]), -max(one[1]), one[0]))
    others_s = [age_s for _, ages_s in ordered[OWNERS_MAX:] for age_s in ages_s]
    named = [
        IdleOwner(user=user, job=job, gpus=len(ages_s), longest_s=max(ages_s))
        for (user, job), ages_s in ordered[:OWNERS_MAX]
    ]
    if others_s:
        named.append(IdleOwner(user=OTHERS, job=OTHERS, gpus=len(others_s), longest_s=max(others_s)))
    return tuple(named)
