"""Compute the steps of a run: when every rank works, waits and communicates. All ranks at once, step after step.

A synchronizing operation begins on a rank when the rank has reached it and its communication stream is free, and ends
on all members when the last has begun and the data is moved. That is all the physics there is: the effect of a
straggler on the others follows from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankscope.measure.records import PHASES
from tests.simulation.program import Collective, Handover, Join, Operation, Program, Send, Work
from tests.simulation.topology import PIPELINE, Ints, Topology

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Conditions:
    """Conditions of one step. `work[kind]` are factors on each rank's work, `pause_ns` each rank's pause before the
    step (a checkpoint, a stall), `transfer` factors on each rank's data movement.
    """

    work: Mapping[str, Floats]
    pause_ns: Floats
    transfer: Floats


@dataclass
class Call:
    """One operation of a step; shape (ranks,), times on the true clock. While `exposed_ns` a rank did nothing else."""

    dimension: str
    op: str
    size_bytes: int
    takes_part: npt.NDArray[np.bool_]
    start_ns: Ints
    end_ns: Ints
    exposed_ns: Ints

    @cached_property
    def times_of(self) -> list[tuple[int, int, int]]:
        """Return start, duration and exposure of each rank, once the step is computed."""
        columns = (self.start_ns, self.end_ns - self.start_ns, self.exposed_ns)
        return list(zip(*(column.tolist() for column in columns), strict=True))


class StepLists(NamedTuple):
    """A computed step as lists with a value for each rank, in ns: arrays are slow to read value by value.
    `worked_ns` is a rank's work of all kinds.
    """

    start_ns: list[int]
    end_ns: list[int]
    duration_ns: list[int]
    worked_ns: list[int]
    tail_ns: list[int]
    phases_ns: dict[str, list[int]]
    calls: list[list[tuple[int, Call]]]
    """The operations that each rank takes part in, with their place among all."""


@dataclass
class Step:
    """One step of all ranks, shape (ranks,) each, and its operations in the order of their start. `tail_ns` is how long
    a rank waits for what was begun during backward.
    """

    start_ns: Ints
    end_ns: Ints
    phases_ns: dict[str, Ints]
    worked_ns: dict[str, Ints]
    tail_ns: Ints
    calls: list[Call] = field(default_factory=list)

    @property
    def duration_ns(self) -> Ints:
        """Return the duration of the step on each rank."""
        return self.end_ns - self.start_ns

    @cached_property
    def lists(self) -> StepLists:
        """Return it as lists, once it is computed."""
        calls: list[list[tuple[int, Call]]] = [[] for _ in self.start_ns]
        for index, call in enumerate(self.calls):
            for rank in np.flatnonzero(call.takes_part).tolist():
                calls[rank].append((index, call))
        return StepLists(
            start_ns=self.start_ns.tolist(),
            end_ns=self.end_ns.tolist(),
            duration_ns=self.duration_ns.tolist(),
            worked_ns=sum(self.worked_ns.values(), np.zeros_like(self.start_ns)).tolist(),
            tail_ns=self.tail_ns.tolist(),
            phases_ns={name: values.tolist() for name, values in self.phases_ns.items()},
            calls=calls,
        )

    @property
    def called_ns(self) -> Ints:
        """Return how long each rank was in operations that communicate."""
        total = np.zeros(len(self.start_ns), dtype=np.int64)
        return sum((np.where(call.takes_part, call.end_ns - call.start_ns, 0) for call in self.calls), total)


class Engine:
    """Runs a program on a topology."""

    def __init__(self, topology: Topology, program: Program) -> None:
        self._topology = topology
        self._program = program
        self._now_ns = np.zeros(topology.world_size, dtype=np.int64)
        self._stream_ns = self._now_ns.copy()
        self._sent_ns: dict[int, Ints] = {}
        self._received_ns = self._now_ns.copy()
        self._waits_ns: list[Ints] = []
        """Where all ranks were before and after every wait of this step, one after the other."""
        self._groups = [self._members(operation) for operation in program]
        self._everybody = np.arange(topology.world_size)

    def _members(self, operation: Operation) -> Ints:
        """Return the groups that participate in a collective, shape (groups, members)."""
        if not isinstance(operation, Collective):
            return np.empty((0, 0), dtype=np.int64)
        groups = self._topology.groups[operation.dimension]
        return groups[np.isin(groups, operation.ranks).all(axis=1)]

    def run_step(self, conditions: Conditions) -> Step:
        """Return the next step."""
        start_ns = self._now_ns.copy()
        empty = np.zeros(self._topology.world_size, dtype=np.int64)
        step = Step(start_ns, start_ns, {name: empty.copy() for name in PHASES}, {}, empty.copy())
        self._waits_ns = [start_ns, start_ns]
        self._spend(step, "other", self._everybody, conditions.pause_ns.astype(np.int64))
        for operation, groups in zip(self._program, self._groups, strict=True):
            match operation:
                case Work():
                    self._work(step, operation, conditions)
                case Collective():
                    self._collect(step, operation, groups, conditions)
                case Send():
                    self._sent_ns[operation.message] = self._now_ns[operation.senders].copy()
                case Handover():
                    self._hand_over(step, operation, conditions)
                case Join():
                    before_ns = self._now_ns.copy()
                    until_ns = np.maximum(self._stream_ns, self._received_ns)
                    self._wait_until(step, operation.phase, self._everybody, until_ns)
                    step.tail_ns += self._now_ns - before_ns
        step.end_ns = self._now_ns.copy()
        if step.calls:
            self._expose(step.calls)
        return step

    def _expose(self, calls: Sequence[Call]) -> None:
        """Set for how long of each call of a step its ranks only waited."""
        at_ns = np.array(self._waits_ns)
        times_ns = np.array([(call.start_ns, call.end_ns) for call in calls])
        # One after the other on one line of time, on which one look finds the sum of all waits before a time.
        first_ns = at_ns.min()
        place_ns = self._everybody * (max(at_ns.max(), times_ns.max()) - first_ns + 1) - first_ns
        line_ns = (at_ns + place_ns).T.reshape(-1, 2)
        waits_ns = line_ns[:, 1] - line_ns[:, 0]
        after_ns = waits_ns.cumsum()
        before_ns = np.column_stack((after_ns - waits_ns, after_ns))
        # Exact: between two of these times a rank waits all the time, or not at all.
        waited_ns = np.interp(np.maximum(times_ns, first_ns) + place_ns, line_ns.ravel(), before_ns.ravel())
        for call, (until_start, until_end) in zip(calls, waited_ns.astype(np.int64), strict=True):
            call.exposed_ns = until_end - until_start

    def _spend(self, step: Step, phase: str, ranks: Ints, ns: Ints) -> None:
        self._now_ns[ranks] += ns
        step.phases_ns[phase][ranks] += ns

    def _wait_until(self, step: Step, phase: str, ranks: Ints, until_ns: Ints) -> None:
        """These ranks do nothing but wait, and what communicates meanwhile is exposed."""
        self._waits_ns.append(self._now_ns.copy())
        from_ns = self._now_ns[ranks]
        self._spend(step, phase, ranks, np.maximum(until_ns, from_ns) - from_ns)
        self._waits_ns.append(self._now_ns.copy())

    def _work(self, step: Step, work: Work, conditions: Conditions) -> None:
        ns = (work.ns * conditions.work[work.kind][work.ranks]).astype(np.int64)
        self._spend(step, work.phase, work.ranks, ns)
        done = step.worked_ns.setdefault(work.kind, np.zeros(self._topology.world_size, dtype=np.int64))
        done[work.ranks] += ns

    def _collect(self, step: Step, collective: Collective, groups: Ints, conditions: Conditions) -> None:
        begin_ns = np.maximum(self._now_ns, self._stream_ns)[groups]
        transfer_ns = collective.transfer_ns * conditions.transfer[groups].max(axis=1)
        end_ns = np.repeat(begin_ns.max(axis=1) + transfer_ns.astype(np.int64), groups.shape[1])
        ranks = groups.ravel()
        what = (collective.dimension, collective.op, collective.size_bytes)
        self._note(step, what, ranks, begin_ns.ravel(), end_ns)
        self._stream_ns[ranks] = end_ns
        if not collective.is_async:
            self._wait_until(step, collective.phase, ranks, end_ns)

    def _hand_over(self, step: Step, handover: Handover, conditions: Conditions) -> None:
        """Transfer from sender to receiver: the sender continues at once, its stream is busy until the receiver has the
        data.
        """
        senders, receivers = handover.senders, handover.receivers
        if handover.message is None:
            sent_ns = np.maximum(self._now_ns[senders], self._stream_ns[senders])
            wanted_ns = np.maximum(self._now_ns[receivers], self._stream_ns[receivers])
        else:
            sent_ns, wanted_ns = self._sent_ns[handover.message], self._now_ns[receivers]
        factor = np.maximum(conditions.transfer[senders], conditions.transfer[receivers])
        end_ns = np.maximum(sent_ns, wanted_ns) + (handover.transfer_ns * factor).astype(np.int64)
        for op, ranks, begin_ns in (("send", senders, sent_ns), ("recv", receivers, wanted_ns)):
            self._note(step, (PIPELINE, op, handover.size_bytes), ranks, begin_ns, end_ns)
        if handover.message is None:
            self._stream_ns[senders] = self._stream_ns[receivers] = end_ns
        else:  # the sender may have waited for others since
            self._received_ns[senders] = np.maximum(self._received_ns[senders], end_ns)
        self._wait_until(step, handover.phase, receivers, end_ns)

    def _note(self, step: Step, what: tuple[str, str, int], ranks: Ints, begin_ns: Ints, end_ns: Ints) -> None:
        takes_part = np.zeros(self._topology.world_size, dtype=bool)
        start, end, exposed = np.zeros((3, self._topology.world_size), dtype=np.int64)
        takes_part[ranks], start[ranks], end[ranks] = True, begin_ns, end_ns
        step.calls.append(Call(*what, takes_part, start, end, exposed))
