"""Simulate hangs: the ranks' counters and recorders after one of them has stopped participating.

Every rank goes through the collectives of a step in order: point to point between pipeline stages, all-reduces of the
tensor parallel group, gradients over the data parallel group, a norm over all. With `runs_ahead` the host enqueues a
whole step and waits for the device at its end, as with NCCL; the device works in order. Without, each call waits for
its end, as with gloo, which does not record sends and receives either: the one that a rank is blocked in is known from
its stack.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from rankscope.collector.detect.hang_state import RankHangState
from rankscope.measure.identity import RankIdentity
from rankscope.measure.nccl_ras import RasCommunicator, RasRank
from rankscope.measure.node_messages import RankUnresponsive, RasAnswered
from rankscope.measure.stalls import (
    UNRECORDED_SEQUENCE,
    GroupStatus,
    PendingCollective,
    StackFrame,
    Stall,
    StallSamples,
    ThreadStack,
)
from rankscope.measure.units import s_to_ns
from tests.simulation.topology import DATA, PIPELINE, TENSOR, WORLD, Topology

MICRO_BATCHES = 2
STALLED_NS = s_to_ns(40)
LIMIT_NS = s_to_ns(30)
STOPPED_BEFORE_NS = s_to_ns(41)
STANDS = StallSamples(count=15, span_ns=s_to_ns(15), changes=0, cpu_ns=s_to_ns(0.1))
SPINS = replace(STANDS, cpu_ns=s_to_ns(15))
"""Of a thread that computes, and of one that waits for its device."""
SAMPLES = {"moves": replace(STANDS, changes=1), "computes": SPINS}
NO_ANSWER = {"pending": "the worker server did not answer"}
HOWS = ("stuck", "frozen", "stopped", "dead", "silent", "reads", "moves", "computes")
"""Ways to hang: stopped at a line of its script; holding its interpreter; its process stopped; killed; agent silent;
waiting for data. Ways to keep others waiting at work: with a stack that moves, with CPU time that grows."""


class Call(NamedTuple):
    """One call of a rank: a collective of a group, or one end of a transfer (`peer` is a rank)."""

    group: str
    op: str
    peer: int | None = None


class Fault(NamedTuple):
    """Fault in which rank `rank` does not make its call number `at`.

    A silent one last reported `unheard` calls before, and a stopped one in the middle of the call before those. One
    that `swaps` makes it after the next one instead, one that `skips` never, and goes on.
    """

    rank: int
    at: int
    how: str
    unheard: int = 0


@dataclass
class Progress:
    """Progress of one rank: `entered` calls have been made, `done` of them have completed."""

    calls: Sequence[Call]
    stops_at: int
    entered: int = 0
    done: int = 0


@dataclass
class Hang:
    """Run in which one rank stops, carried on until no rank can move."""

    topology: Topology
    fault: Fault
    steps: int = 2
    runs_ahead: bool = False
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ranks: list[Progress] = field(default_factory=list)

    def __post_init__(self) -> None:
        own = self.topology.describe_groups()
        self.groups = {group.label: group.ranks for groups in own for group in groups}
        for rank in range(self.topology.world_size):
            labels = {group.description: group.label for group in own[rank]}
            step = self._build_step(rank, labels)
            self.ranks.append(Progress(step * self.steps, len(step) * self.steps))
        self.step_length = [len(one.calls) // self.steps for one in self.ranks]
        at, stopped = self.fault.at, self.ranks[self.fault.rank]
        if self.fault.how == "skips":
            # In its place is a call of a group of its own: all steps keep their length.
            self.groups["own"] = (self.fault.rank,)
            stopped.calls = [*stopped.calls[:at], Call("own", "barrier"), *stopped.calls[at + 1 :]]
        elif self.fault.how == "swaps":
            calls = list(stopped.calls)
            calls[at], calls[at + 1] = calls[at + 1], calls[at]
            stopped.calls = calls
        else:
            stopped.stops_at = min(at, stopped.stops_at)
        self._run()

    def _build_step(self, rank: int, labels: dict[str, str]) -> list[Call]:
        stage, calls = int(self.topology.stage[rank]), list[Call]()
        line = self.groups.get(labels.get(PIPELINE, ""), (rank,))
        before = line[stage - 1] if stage > 0 else None
        after = line[stage + 1] if stage + 1 < len(line) else None
        for source, target in [(before, after)] * MICRO_BATCHES + [(after, before)] * MICRO_BATCHES:
            if source is not None:
                calls.append(Call(labels[PIPELINE], "recv", source))
            if TENSOR in labels:
                calls += [Call(labels[TENSOR], "all_reduce")] * 2
            if target is not None:
                calls.append(Call(labels[PIPELINE], "send", target))
        if DATA in labels:
            calls += [Call(labels[DATA], "reduce_scatter"), Call(labels[DATA], "all_gather")]
        return [*calls, Call(labels[WORLD], "all_reduce")]

    def _run(self) -> None:
        moved = True
        while moved:
            moves = [self._enter(rank) | self._complete(rank) for rank in range(len(self.ranks))]
            moved = any(moves)

    def _enter(self, rank: int) -> bool:
        one = self.ranks[rank]
        length = self.step_length[rank]
        may_enter = one.done // length == one.entered // length if self.runs_ahead else one.done == one.entered
        if one.entered == one.stops_at or not may_enter:
            return False
        one.entered += 1
        return True

    def _complete(self, rank: int) -> bool:
        one = self.ranks[rank]
        if one.done == one.entered or not self._is_matched(rank, one.calls[one.done]):
            return False
        one.done += 1
        return True

    def _is_matched(self, rank: int, call: Call) -> bool:
        """Return whether every member has entered this call and, on the device, completed what comes before."""
        if call.peer is not None:
            other = "send" if call.op == "recv" else "recv"
            return self._reached(call.peer, Call(call.group, other, rank)) > self._done(rank, call)
        return all(self._reached(member, call) > self._done(rank, call) for member in self.groups[call.group])

    def _reached(self, rank: int, call: Call) -> int:
        """Return how many calls of this kind the rank's device has reached."""
        one = self.ranks[rank]
        return self._count(one.calls[: min(one.done + 1, one.entered)], call)

    def _done(self, rank: int, call: Call) -> int:
        one = self.ranks[rank]
        return self._count(one.calls[: one.done], call)

    @staticmethod
    def _count(calls: Sequence[Call], wanted: Call) -> int:
        if wanted.peer is None:
            return sum(call.group == wanted.group and call.peer is None for call in calls)
        return sum(call == wanted for call in calls)

    # -- what is heard of it ------------------------------------------------------------------------------------------

    def hang_states(self) -> dict[int, RankHangState]:
        """Return what the collector knows of each rank."""
        return {rank: self._standing(rank) for rank in range(len(self.ranks))}

    def ask_ras(self) -> RasAnswered:
        """Return what NCCL's RAS service says: it counts collectives launched, and misses a process that is dead."""
        found = [self._ask_communicator(label, members) for label, members in sorted(self.groups.items())]
        return RasAnswered(
            sequence=1,
            identity=_identity_of(0),
            host_ns=STALLED_NS,
            stalled_since_host_ns=0,
            communicators_total=len(found),
            communicators=tuple(one for one in found if one.ranks),
            timeouts=0,
            is_own=True,
        )

    def _ask_communicator(self, label: str, members: Sequence[int]) -> RasCommunicator:
        lost = {self.fault.rank} if self.fault.how == "dead" else set[int]()
        counts = {rank: self._count_launched(rank, label) for rank in members if rank not in lost}
        ranks = [
            RasRank(communicator_rank=place, state="dead", rank=rank)
            for place, rank in enumerate(members)
            if rank in lost
        ]
        for op in sorted({op for one in counts.values() for op in one}):
            most = max(one[op] for one in counts.values())
            ranks += [
                RasRank(
                    communicator_rank=members.index(rank), state="behind", rank=rank, op=op, launched=one[op],
                    furthest=most,
                )
                for rank, one in counts.items()
                if one[op] < most
            ]  # fmt: skip
        return RasCommunicator(name=label, size=len(members), ranks=tuple(ranks))

    def _count_launched(self, rank: int, label: str) -> Counter[str]:
        one = self.ranks[rank]
        return Counter(call.op for call in one.calls[: one.entered] if call.group == label and call.peer is None)

    def _standing(self, rank: int) -> RankHangState:
        if rank != self.fault.rank or self.fault.how in {"swaps", "skips"}:
            return self._stalled(rank, "collective")
        match self.fault.how:
            case "dead":
                return RankHangState(
                    ended="killed",
                    ended_collector_ns=-STOPPED_BEFORE_NS,
                    failed_collector_ns=-STOPPED_BEFORE_NS,
                    progress=self._progress(rank, self.ranks[rank].entered),
                )
            case "silent":
                heard = max(0, self.ranks[rank].entered - self.fault.unheard)
                return RankHangState(ended="silent", is_stalled=False, progress=self._progress(rank, heard))
            case "frozen":
                return self._frozen(rank)
            case "stopped":
                return self._stopped(rank)
            case how:
                return self._stalled(rank, "data" if how == "reads" else "other", SAMPLES.get(how, STANDS))

    def _stalled(self, rank: int, activity: str, samples: StallSamples = SPINS) -> RankHangState:
        one = self.ranks[rank]
        frames = (StackFrame("/home/me/train.py", 100 + rank, "train"),)
        stall = Stall(
            number=1,
            since_host_ns=0,
            taken_host_ns=STALLED_NS,
            limit_ns=LIMIT_NS,
            activity=activity,
            stacks=(ThreadStack(name="MainThread", frames=frames),),
            pending=self._pending(rank),
            samples=samples,
        )
        return RankHangState(
            is_stalled=True,
            stalled_ns=STALLED_NS,
            last_step=one.done // self.step_length[rank] - 1,
            progress=self._progress(rank, one.entered),
            stall=stall,
        )

    def _frozen(self, rank: int) -> RankHangState:
        return RankHangState(is_stalled=True, stalled_ns=STALLED_NS, unresponsive=self._seen(rank))

    def _seen(self, rank: int) -> RankUnresponsive:
        return RankUnresponsive(
            sequence=1,
            identity=_identity_of(rank),
            host_ns=STALLED_NS,
            since_host_ns=0,
            state="S",
            progress=self._progress(rank, self.ranks[rank].entered),
            pending=self._pending(rank),
        )

    def _stopped(self, rank: int) -> RankHangState:
        """Return a rank whose last report fell into a call, with `unheard` of 0 into the one that the others are in."""
        one, heard = self.ranks[rank], self.ranks[rank].entered + 1 - self.fault.unheard
        reported = self._progress(rank, heard, min(one.done, heard - 1))
        found = replace(self._seen(rank), state="T", progress=(), pending=(), absent=NO_ANSWER)
        return RankHangState(is_stalled=True, stalled_ns=STALLED_NS, unresponsive=found, progress=reported)

    def _pending(self, rank: int) -> tuple[PendingCollective, ...]:
        one = self.ranks[rank]
        found, numbers = [], Counter[tuple[str, bool]]()
        for number, call in enumerate(one.calls[: one.entered]):
            numbers[call.group, call.peer is None] += 1
            if number < one.done:
                continue
            is_recorded = self.runs_ahead or call.peer is None
            sequence = numbers[call.group, call.peer is None] if is_recorded else UNRECORDED_SEQUENCE
            found.append(
                PendingCollective(
                    group=call.group, op=self._name(rank, call), sequence=sequence, age_ns=STALLED_NS, bytes=4_096
                )
            )
        return tuple(found)

    def _name(self, rank: int, call: Call) -> str:
        if call.peer is None:
            return call.op
        members = self.groups[call.group]
        return f"{call.op} {members.index(rank)}{'->' if call.op == 'send' else '<-'}{members.index(call.peer)}"

    def _progress(self, rank: int, entered: int, done: int | None = None) -> tuple[GroupStatus, ...]:
        one = self.ranks[rank]
        completed = min(entered, one.done) if done is None else done
        recorded = [call for call in one.calls[:entered] if self.runs_ahead or call.peer is None]
        done_calls = [call for call in one.calls[:completed] if self.runs_ahead or call.peer is None]
        return tuple(
            GroupStatus(
                group=group,
                enqueued=sum(call.group == group for call in recorded) or None,
                completed=sum(call.group == group for call in done_calls) or None,
            )
            for group, members in self.groups.items()
            if rank in members
        )


def _identity_of(rank: int) -> RankIdentity:
    return RankIdentity(
        run="sim", rank=rank, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="boot-of-it", pid=1
    )


def draw_fault(random: np.random.Generator, topology: Topology, calls: int, how: str) -> Fault:
    """Return a fault somewhere in the first `calls` calls."""
    return Fault(
        rank=int(random.integers(topology.world_size)),
        at=int(random.integers(1, calls)),
        how=how,
        unheard=int(random.integers(3)),
    )
