"""Report simulated steps of ranks through the agent's own report builder and codec."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.agent.steps.step_intervals import is_chosen
from rankscope.measure.codec import encode
from rankscope.measure.enqueues import Enqueue, Enqueues, choose, pack_enqueues
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello
from rankscope.measure.records import (
    AllocatorSample,
    CollectiveRecord,
    DeviceSample,
    GroupInfo,
    HostCopies,
    HostSample,
    Losses,
    NodeSample,
    PortSample,
    StepRecord,
    Synchronization,
    WindowBreakdown,
    WindowSynchronizations,
)
from tests.simulation.curriculum import Curriculum
from tests.simulation.engine import Call, Step
from tests.simulation.faults import Fault
from tests.simulation.program import HOST, KERNEL, READ
from tests.simulation.topology import DATA, Topology
from tests.simulation.unequal import VaryingSizes

RUN = "simulated"
OPERATORS = 1_000
BATCH_BYTES, HIDDEN_COPY_NS = 30_000_000, 3_000_000
"""What each rank copies from its host in a step, and for how long beside its kernels."""
BLOCKS = 40
"""Blocks of memory that the allocator requested from the driver at the start."""
HEALTHY_CLOCK_HERTZ = 1_980_000_000
PCIE_LANES = 16
SYMBOL_ERRORS_PER_STEP = 5
CPU_PRESSURE_NS_PER_STEP = 1_000_000
"""On a healthy machine, too, its tasks wait for a CPU now and then."""
LAUNCHING_SHARE = 0.5
"""Time that the host takes to launch a step's kernels, over theirs, which hide it where the host is ahead of them."""
BLOCKING_CALL = "cudaStreamSynchronize"
USUAL_LINE, FAULTY_LINE = "train.py:40 (main)", "loss.py:12 (weigh)"
"""Where every rank reads its loss at the end of a step, and where a rank with the fault waits in the midst of one."""
FULL_INTERVAL_STEPS, FULL_STEPS = 8, 2
"""Of so many steps one begins a full window, of so many steps."""


class Windows(NamedTuple):
    """Steps whose collectives are profiled: of each `distance` steps the first `length`, up to step `end`."""

    length: int = 1
    distance: int = 1
    end: int | None = None

    def see(self, step: int) -> bool:
        """Return whether this is one of them."""
        return step % self.distance < self.length and not self.have_ended(step)

    def have_ended(self, step: int) -> bool:
        """Return whether there are none from this step on."""
        return self.end is not None and step >= self.end


class _Seen(NamedTuple):
    """A step as this rank reports it; `faults` are its own, with their cost in ns."""

    number: int
    step: Step
    faults: Sequence[tuple[Fault, float]]


class DeviceTimes(NamedTuple):
    """What is measured on the devices between windows: phases and tail of one in `every` steps, a power of two (None:
    of none), and with `has_recorder` the collectives of all steps outside of windows. With `has_enqueues` torch does
    not time them, and the recorder has only when the hosts enqueued them.
    """

    every: int | None
    has_recorder: bool = False
    has_enqueues: bool = False


class SimulatedRank:
    """One rank. `clock_offset_ns` is what its clock is off by."""

    def __init__(
        self,
        rank: int,
        topology: Topology,
        groups: tuple[GroupInfo, ...],
        clock_offset_ns: int = 0,
        windows: Windows = Windows(),  # noqa: B008 - immutable
        *,
        model: str = "simulated",
        clock_hertz: int = HEALTHY_CLOCK_HERTZ,
        sizes: VaryingSizes | None = None,
        device_times: DeviceTimes | None = None,
        has_gpu: bool = True,
        curriculum: Curriculum | None = None,
    ) -> None:
        self._rank = rank
        self._windows = windows
        #: The step whose last data parallel collective it leaves out; its count is one lower from then on.
        self.skips_step: int | None = None
        self._model, self._clock_hertz, self._sizes = model, clock_hertz, sizes
        self._device_times, self._has_gpu = device_times, has_gpu
        self._curriculum = curriculum
        self._offset_ns = clock_offset_ns
        self._groups = {group.label: group for group in groups}
        self._label = {group.description: group.label for group in groups}
        self._builder = ReportBuilder()
        self._process_cpu_ns = self._core_wait_ns = 0
        self._before: list[_Seen] = []  # the last steps before the next report
        self._gc_pause_ns = self._retries = self._cpu_pressure_ns = self._symbol_errors = 0
        self._beside = frozenset(topology.ranks_on_node(rank // topology.ranks_per_node))
        self.identity = RankIdentity(
            run=RUN,
            rank=rank,
            local_rank=rank % topology.ranks_per_node,
            world_size=topology.world_size,
            node=topology.node_names[topology.node[rank]],
            restart_count=0,
            boot_id=f"simulated-{rank}",
            pid=1000 + rank,
        )

    def set_clock(self, offset_ns: int) -> None:
        """From now on its clock is off by so much."""
        self._offset_ns = offset_ns

    def read_clock(self, now_ns: int) -> int:
        """Return its clock's time."""
        return now_ns + self._offset_ns

    def make_hello(self, first_sequence: int = 1) -> Hello:
        """Return its Hello."""
        return Hello(
            identity=self.identity,
            first_sequence=first_sequence,
            host_ns=self._offset_ns,
            wall_ns=0,
            report_interval_ns=10**9,
        )

    def report_nothing(self, now_ns: int) -> bytes:
        """Return the frame of an interval without a step."""
        return encode(self._builder.build(Interval(groups=self._groups), self.read_clock(now_ns)))

    def report(
        self,
        first_step: int,
        steps: Sequence[Step],
        faults: Sequence[Sequence[tuple[Fault, float]]],
        losses: Losses = Losses(),  # noqa: B008 - immutable
    ) -> bytes:
        """Return the frame about these steps; `faults` are those of each step, with their cost for this rank in ns."""
        numbered = list(enumerate(steps, first_step))
        mine = [[(fault, ns) for fault, ns in present if self._rank in fault.ranks] for present in faults]
        seen = {number for number, _ in numbered if self._windows.see(number)}
        begins = sorted(number for number in seen if number - 1 not in seen)
        ends = sorted(number for number in seen if number + 1 not in seen)
        now_ns = steps[-1].lists.end_ns[self._rank] + self._offset_ns
        windows = self._find_full_windows([_Seen(*one, there) for one, there in zip(numbered, mine, strict=True)])
        is_recorded = self._device_times is not None and self._device_times.has_recorder
        timed = {number for number, _ in numbered if is_recorded and number not in seen}
        records = [self._record(number, step, there) for (number, step), there in zip(numbered, mine, strict=True)]
        interval = Interval(
            steps=records,
            collectives=[
                record
                for number, step in numbered
                if number in seen | timed
                for record in self._collectives(number, step, is_timed=number in timed)
            ],
            covered_steps=list(zip(begins, ends, strict=True)),
            timed_steps=[(number, number) for number in sorted(timed)],
            breakdowns=[self._break_down(one) for window in windows for one in window],
            synchronizations=[self._synchronize(window) for window in windows] if self._has_gpu else [],
            host=self._host_sample(now_ns, records, mine),
            devices=(self._device_sample(now_ns, steps[-1], mine[-1]),) if self._has_gpu else (),
            allocator=self._allocator_sample(now_ns, mine) if self._has_gpu else None,
            node=self._node_sample(now_ns, first_step, faults) if self.identity.local_rank == 0 else None,
            groups=self._groups,
            losses=losses,
            enqueues=self._find_enqueues(numbered, mine, seen),
        )
        return encode(self._builder.build(interval, now_ns))

    def _find_full_windows(self, steps: Sequence[_Seen]) -> list[list[_Seen]]:
        """Return the steps of each full window that ends in these. As of the agent's, none begins while one runs
        or ends.
        """
        known = [*self._before, *steps]
        self._before = known[1 - FULL_STEPS :]
        found = []
        for place in range(len(known) - FULL_STEPS + 1):
            window, begin = known[place : place + FULL_STEPS], known[place].number
            before = range(max(0, begin - FULL_STEPS), begin)
            is_begin = is_chosen(begin, FULL_INTERVAL_STEPS) and not any(
                is_chosen(step, FULL_INTERVAL_STEPS) for step in before
            )
            is_whole = window[-1].number == begin + FULL_STEPS - 1
            if is_begin and is_whole and not self._windows.have_ended(begin):
                found.append(window)
        return found

    def _find_enqueues(
        self, steps: Sequence[tuple[int, Step]], faults: Sequence[Sequence[tuple[Fault, float]]], seen: set[int]
    ) -> Enqueues | None:
        """Return when the host enqueued the collectives of steps outside of windows. It launches ahead of its device,
        which it waits for at the end of the step: so slow kernels do not make it late, all other work does.
        """
        if self._device_times is None or not self._device_times.has_enqueues:
            return None
        found = []
        for (number, step), there in zip(steps, faults, strict=True):
            taking_part = [] if number in seen else step.lists.calls[self._rank]
            slowed_ns = sum(ns for fault, ns in there if fault.effect.kind == KERNEL)
            host_ns = float(step.worked_ns[READ][self._rank] + step.worked_ns[HOST][self._rank])
            launching_ns = LAUNCHING_SHARE * max(0.0, float(step.worked_ns[KERNEL][self._rank]) - slowed_ns)
            for place, (index, call) in enumerate(taking_part):
                at_ns = step.lists.start_ns[self._rank] + round(host_ns + launching_ns * place / len(taking_part))
                label, sequence = self._label[call.dimension], number * len(step.calls) + index
                found.append(Enqueue(number, label, sequence, at_ns + self._offset_ns))
        return pack_enqueues(choose(found), [(number, number) for number, _ in steps if number not in seen])

    def _record(self, number: int, step: Step, faults: Sequence[tuple[Fault, float]]) -> StepRecord:
        rank, lists = self._rank, step.lists
        duration_ns = lists.duration_ns[rank]
        blocked_ns = sum(ns for fault, ns in faults if not fault.effect.burns_cpu)
        waits_ns = duration_ns - lists.worked_ns[rank]
        phases_ns = {name: values[rank] for name, values in lists.phases_ns.items()}
        every = None if self._device_times is None else self._device_times.every
        is_timed = every is not None and is_chosen(number, every)
        return StepRecord(
            step=number,
            start_host_ns=lists.start_ns[rank] + self._offset_ns,
            duration_ns=duration_ns,
            phases_ns=phases_ns,
            cpu_ns=max(0, duration_ns - waits_ns - round(blocked_ns)),
            batches=1,
            backwards=1,
            tokens=None if self._curriculum is None else self._curriculum.tokens_in(number),
            device_phases_ns=phases_ns if is_timed else None,
            device_tail_ns=lists.tail_ns[rank] if is_timed else None,
        )

    def _collectives(self, number: int, step: Step, *, is_timed: bool) -> list[CollectiveRecord]:
        rank = self._rank
        taking_part = step.lists.calls[rank]
        if number == self.skips_step:
            left_out = next(one for one in reversed(taking_part) if one[1].dimension == DATA)
            taking_part = [one for one in taking_part if one is not left_out]
        has_skipped, first_sequence = self._has_skipped(number), number * len(step.calls)
        times_ns = [call.times_of[rank] for _, call in taking_part]
        return [
            CollectiveRecord(
                step=number,
                group=self._label[call.dimension],
                op=call.op,
                start_host_ns=start_ns + self._offset_ns,
                duration_ns=duration_ns,
                sequence=first_sequence + index - (has_skipped and call.dimension == DATA),
                bytes=self._size_of(call, number),
                exposed_ns=None if is_timed else exposed_ns,
            )
            for (index, call), (start_ns, duration_ns, exposed_ns) in zip(taking_part, times_ns, strict=True)
        ]

    def _has_skipped(self, number: int) -> bool:
        return self.skips_step is not None and number > self.skips_step

    def _size_of(self, call: Call, number: int) -> int:
        if self._sizes is None:
            return call.size_bytes
        return self._sizes.size_bytes(call.size_bytes, call.dimension, self._rank, number)

    def _break_down(self, seen: _Seen) -> WindowBreakdown:
        """Return the step as the device saw it: what is neither kernels nor waiting for others is idle."""
        (number, step, faults), rank = seen, self._rank
        window_ns = int(step.duration_ns[rank])
        compute_ns = int(step.worked_ns[KERNEL][rank])
        idle_ns = min(
            window_ns - compute_ns,
            int(step.worked_ns[READ][rank] + step.worked_ns[HOST][rank]),
        )
        exposed_ns = window_ns - compute_ns - idle_ns
        hidden_ns = sum(
            int(call.end_ns[rank] - call.start_ns[rank] - call.exposed_ns[rank])
            for call in step.calls
            if call.takes_part[rank]
        )
        overlap_ns = min(compute_ns, hidden_ns)
        copy_ns = min(idle_ns, sum(int(ns) for fault, ns in faults if fault.effect.copies_slowly))
        more = 1 + sum(ns / compute_ns for fault, ns in faults if fault.effect.more_operators)
        return WindowBreakdown(
            first_step=number,
            step_count=1,
            window_ns=window_ns,
            compute_ns=compute_ns,
            communication_ns=exposed_ns + overlap_ns,
            overlap_ns=overlap_ns,
            exposed_communication_ns=exposed_ns,
            copy_ns=copy_ns,
            idle_ns=idle_ns - copy_ns,
            operator_count=round(OPERATORS * more),
            host_copies=HostCopies(
                count=2, duration_ns=copy_ns + HIDDEN_COPY_NS, exposed_ns=copy_ns, bytes=BATCH_BYTES
            ),
        )

    def _synchronize(self, window: Sequence[_Seen]) -> WindowSynchronizations:
        """Return how the host waited for its device in the steps of a window."""
        waits = [wait for one in window for wait in self._wait(self._break_down(one), one.faults)]
        kinds = [
            _sum_waits(same)
            for line in (USUAL_LINE, FAULTY_LINE)
            if (same := [one for one in waits if one.line == line])
        ]
        return WindowSynchronizations(
            first_step=window[0].number,
            step_count=len(window),
            call_ns={BLOCKING_CALL: sum(kind.waits_ns for kind in kinds)},
            idle_ns=sum(kind.idle_ns for kind in kinds),
            kinds=tuple(kinds),
        )

    def _wait(self, breakdown: WindowBreakdown, faults: Sequence[tuple[Fault, float]]) -> list[Synchronization]:
        """Return how the host waited for its device in one step.

        The host launches the kernels ahead of the device and waits for the rest of them where it reads its loss; what
        it does then leaves the device idle. A fault that waits moves it behind the device: so it waits longer by the
        idle time that follows, and at most by what it had been ahead. Collectives that run alone are no such waits.
        """
        slowed_ns = sum(ns for fault, ns in faults if fault.effect.kind == KERNEL)
        launching_ns = round(LAUNCHING_SHARE * max(0.0, breakdown.compute_ns - slowed_ns))
        behind_ns = min(round(sum(ns for fault, ns in faults if fault.effect.waits_for_device)), launching_ns)
        usual_ns = breakdown.compute_ns - launching_ns
        usual = _wait("aten::item", USUAL_LINE, usual_ns, min(usual_ns, breakdown.idle_ns - behind_ns))
        return [usual, _wait("aten::nonzero", FAULTY_LINE, behind_ns, behind_ns)] if behind_ns else [usual]

    def _host_sample(
        self, now_ns: int, records: Sequence[StepRecord], faults: Sequence[Sequence[tuple[Fault, float]]]
    ) -> HostSample:
        """Return the sample of the process, whose other threads compute only where a fault says so."""
        there = [one for of_step in faults for one in of_step]
        self._gc_pause_ns += round(sum(ns for fault, ns in there if fault.effect.pauses_collector))
        self._core_wait_ns += round(sum(ns for fault, ns in there if fault.effect.waits_for_core))
        self._process_cpu_ns += sum(record.cpu_ns or 0 for record in records)
        self._process_cpu_ns += round(sum(ns for fault, ns in there if fault.effect.other_threads))
        return HostSample(
            host_ns=now_ns, cpu_ns=self._process_cpu_ns, run_queue_wait_ns=self._core_wait_ns,
            gc_pause_ns=self._gc_pause_ns, gc_collections=0,
        )  # fmt: skip

    def _allocator_sample(self, now_ns: int, faults: Sequence[Sequence[tuple[Fault, float]]]) -> AllocatorSample:
        """Return the allocator's sample. If memory is short, each step needs one retry, which frees a block and
        requests it again.
        """
        self._retries += sum(any(fault.effect.retries and ns > 0 for fault, ns in there) for there in faults)
        asked = BLOCKS + self._retries
        return AllocatorSample(
            host_ns=now_ns, retries=self._retries, device_allocs=asked, device_frees=self._retries, ooms=0
        )

    def _node_sample(self, now_ns: int, first_step: int, faults: Sequence[Sequence[tuple[Fault, float]]]) -> NodeSample:
        """Return the sample of the machine: one network port, whose link to a rank beside may have errors, and for how
        long this rank has waited for a CPU.
        """
        for step, there in enumerate(faults, first_step):
            on_node = [(fault, ns) for fault, ns in there if not self._beside.isdisjoint(fault.ranks)]
            waited_ns = sum(ns for fault, ns in on_node if fault.effect.queues_for_cpu)
            self._cpu_pressure_ns += CPU_PRESSURE_NS_PER_STEP + round(waited_ns)
            has_errors = any(fault.effect.port_errors and fault.strength(step) > 0 for fault, _ in on_node)
            self._symbol_errors += SYMBOL_ERRORS_PER_STEP * has_errors
        port = PortSample(name="mlx5_0/1", is_active=True, symbol_errors=self._symbol_errors, link_downs=1)
        return NodeSample(host_ns=now_ns, ports=(port,), cpu_pressure_ns=self._cpu_pressure_ns, cpu_steal_ns=0)

    def _device_sample(self, now_ns: int, step: Step, faults: Sequence[tuple[Fault, float]]) -> DeviceSample:
        """Return the device's sample. Kernels slow down in proportion to the clock."""
        effects = [fault.effect for fault, ns in faults if ns > 0]
        slowed_ns = sum(ns for fault, ns in faults if fault.effect.slows_clock)
        clock_ratio = 1 - slowed_ns / max(slowed_ns + 1, float(step.worked_ns[KERNEL][self._rank]))
        xids = [effect.xid for effect in effects if effect.xid is not None]
        return DeviceSample(
            host_ns=now_ns,
            uuid=f"GPU-{self._rank}",
            model=self._model,
            sm_clock_hertz=round(self._clock_hertz * clock_ratio),
            throttle_reasons=tuple(effect.throttle_reason for effect in effects if effect.throttle_reason is not None),
            xid_count=len(xids),
            xid_last=xids[-1] if xids else None,
            pcie_link_width=4 if any(effect.narrows_pcie for effect in effects) else PCIE_LANES,
        )


def _wait(operator: str, line: str, waits_ns: int, idle_ns: int) -> Synchronization:
    return Synchronization(
        call=BLOCKING_CALL,
        operator=operator,
        line=line,
        count=1,
        waits_ns=waits_ns,
        longest_ns=waits_ns,
        idle_ns=idle_ns,
    )


def _sum_waits(waits: Sequence[Synchronization]) -> Synchronization:
    """Return waits of one kind, at least one, as one."""
    return replace(
        waits[0],
        count=len(waits),
        waits_ns=sum(one.waits_ns for one in waits),
        longest_ns=max(one.longest_ns for one in waits),
        idle_ns=sum(one.idle_ns for one in waits),
    )
