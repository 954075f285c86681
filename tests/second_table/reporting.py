"""Make of steps what agents report of them: every step's durations and phases, and of few steps anything more.

Which steps are profiled is decided by the agent's own plan (`agent/profiler/window_plan.py`) with the default settings
and budget, which steps are timed on the device by its own choice of steps. So on a CPU nearly always a light window of
2 s is on, as far as 0.25 % of the time pays for it, and its collectives are reported once it has ended; on a GPU two
whole steps in 20 s at most, and between them what torch's flight recorder times, where it does. Samples come every 2 s,
those of the machine every 10 s. Tables are packed for all ranks at once; `test_reporting.py` holds them to the agent's.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from rankscope.agent.governor import HEAD_START_NS, Allowance
from rankscope.agent.profiler.window_plan import WindowPlan
from rankscope.agent.steps.step_intervals import is_chosen
from rankscope.agent.steps.timing_plan import TimingPlan
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import (
    BACKWARD_CPU,
    COLLECTIVE_COLUMNS,
    DEVICE_PREFIX,
    DEVICE_TAIL,
    PHASE_PREFIX,
    PHASES,
    STEP_COLUMNS,
    AllocatorSample,
    Collectives,
    Compilations,
    CompiledFrame,
    DeviceSample,
    HostSample,
    Losses,
    NodeSample,
    PortSample,
    Synchronization,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.table import MISSING, Table
from rankscope.measure.units import NS_PER_S
from tests.second_table import disturbances as of
from tests.second_table.disturbances import Sign
from tests.second_table.layout import Floats, Ints, Layout
from tests.second_table.physics import OTHER, Call, Model, Step

RUN: Final = "second"
WARMUP_STEPS: Final = 4
OVERHEAD_RATIO: Final = 0.005
BASE_RATIO: Final = 0.001
"""Of the budget the hooks, reports and samples use a fifth."""
LIGHT_FIXED_NS, LIGHT_STEP_NS, LIGHT_EVENTS = 1_100_000, 60_000, 7.0
FULL_COST_NS: Final = 20_000_000
"""Two steps of a small model's operators: so full windows come every 20 s, as by default they may at most."""
DEVICE_REFERENCE_STEPS: Final = 64
"""Steps before the first window of a GPU, which lasts for one step and is discarded."""
EVENT_COST_NS: Final = 60_000
SAMPLE_NS, NODE_NS = 2 * NS_PER_S, 10 * NS_PER_S
CLOCK_HERTZ: Final = 1_755_000_000
OPERATORS: Final = 1_200
TRANSFERS: Final = ("send", "recv")
SYNC_CALL: Final = "cudaStreamSynchronize"
SYNC_LINE: Final = "train.py:61 (train)"
FRAME, GUARD = "train.py:24 (forward)", "tensor 'x' size mismatch at index 0. expected 4, actual 5"


class Sampling(NamedTuple):
    """What is measured beside every step. `times_collectives`: torch's flight recorder times those of NCCL; `windows`:
    whether there are any; `device_times`: whether phases are timed on GPUs; `tokens`: whether the batches' are known.
    """

    times_collectives: bool = True
    windows: bool = True
    device_times: bool = True
    tokens: bool = False


PRODUCTION: Final = Sampling()


class _Window(NamedTuple):
    full: bool
    first: int
    steps: list[Step]


class Agents:
    """The agents of all ranks. `report` is to be called with consecutive steps."""

    def __init__(self, layout: Layout, model: Model, sampling: Sampling, signs: Sequence[Sign], seed: int) -> None:
        self.layout, self.model, self._sampling, self._signs = layout, model, sampling, tuple(signs)
        ranks = layout.world
        random = np.random.default_rng((4, seed))
        self.offset = random.integers(0, 10**15, ranks)
        self.drift = random.uniform(-2e-5, 2e-5, ranks)
        self._plan = WindowPlan(
            warmup_steps=WARMUP_STEPS, collective_window_ns=2 * NS_PER_S, full_window_interval_ns=20 * NS_PER_S,
            full_window_steps=2, overhead_ratio_max=OVERHEAD_RATIO,
        )  # fmt: skip
        self._timing = TimingPlan(warmup_steps=WARMUP_STEPS, overhead_ratio_max=0.001)
        self._timing.learn_cost(EVENT_COST_NS)
        self._window: _Window | None = None
        self._spent_ns = 0
        self._sequence = 0
        self._sums: dict[str, Ints] = {}
        self._tables: dict[int, Collectives] = {}
        self._retries = np.zeros(ranks, dtype=np.int64)
        self._xids = np.zeros(ranks, dtype=np.int64)
        self._breakdown = np.zeros((6, ranks), dtype=np.int64)  # window, compute, communication, overlap, exposed, idle
        self._windows = 0
        self._sync = np.zeros(ranks, dtype=np.int64)
        self._device = np.zeros((3, ranks), dtype=np.int64)  # steps timed, their time, tails
        self._device_phases = np.zeros((5, ranks), dtype=np.int64)
        self._sampled_ns = self._node_ns = -(10**18)
        self.groups = layout.reported_groups("nccl" if model.on_gpu else "gloo")
        self._labels = self._find_labels()
        self.made = 0

    def identity(self, rank: int) -> RankIdentity:
        layout = self.layout
        return RankIdentity(
            run=RUN, rank=rank, local_rank=rank % layout.per_node, world_size=layout.world, node=layout.nodes[rank],
            restart_count=0, boot_id=f"second-{rank:06}", pid=1000 + rank,
        )  # fmt: skip

    def hello(self, rank: int, first_sequence: int, now_ns: int) -> Hello:
        return Hello(
            identity=self.identity(rank), first_sequence=first_sequence, host_ns=self.read_clock(rank, now_ns),
            wall_ns=now_ns, report_interval_ns=NS_PER_S,
        )  # fmt: skip

    def read_clock(self, rank: int, now_ns: int) -> int:
        return now_ns + int(self.offset[rank]) + round(float(self.drift[rank]) * now_ns)

    def report(self, steps: Sequence[Step], now_ns: int) -> list[Report]:
        """Return the next report of each rank: about these steps, numbered from the last one on, possibly none."""
        first, self._sequence = self.made, self._sequence + 1
        self.made += len(steps)
        windows = [window for place, step in enumerate(steps) for window in self._pass_step(first + place, step)]
        timed = self._timed(first, steps, windows)
        self._learn(first, steps, now_ns)
        tables = self._pack_steps(first, steps) if steps else None
        collectives = self._pack_collectives([*windows, *timed])
        seen = [(window.first, window.first + len(window.steps) - 1) for window in windows]
        breakdowns, waits = self._break_down(windows)
        is_due = now_ns - self._sampled_ns >= SAMPLE_NS
        is_node_due = now_ns - self._node_ns >= NODE_NS
        self._sampled_ns = now_ns if is_due else self._sampled_ns
        self._node_ns = now_ns if is_node_due else self._node_ns
        self._count_signs(first, len(steps))
        strengths = self._sign_strengths(self.made - 1)
        reports = []
        for rank in range(self.layout.world):
            host_ns = self.read_clock(rank, now_ns)
            gpu = is_due and self.model.on_gpu
            is_first = rank % self.layout.per_node == 0
            reports.append(
                Report(
                    sequence=self._sequence,
                    host_ns=host_ns,
                    steps=Table() if tables is None else tables[rank],
                    collectives=collectives[rank],
                    covered_steps=tuple(seen),
                    timed_steps=tuple((one.first, one.first + len(one.steps) - 1) for one in timed),
                    breakdowns=breakdowns[rank],
                    synchronizations=waits[rank],
                    host=self._host_sample(rank, host_ns) if is_due else None,
                    devices=(self._device_sample(rank, host_ns, strengths),) if gpu else (),
                    allocator=self._allocator_sample(rank, host_ns) if gpu else None,
                    node=self._node_sample(rank, host_ns) if is_node_due and is_first else None,
                    totals=self._totals(rank),
                    compilations=_find_compiled(first, steps, rank),
                    losses=Losses(steps_made=self.made, steps_buffered=0),
                    groups=self.groups[rank] if self._sequence == 1 else None,
                    overhead_ratio=BASE_RATIO,
                )
            )
        return reports

    # -- which steps are measured -------------------------------------------------------------------------------------

    def _pass_step(self, number: int, step: Step) -> Iterator[_Window]:
        """Yield the windows that end before this step, and take it into the one that begins or goes on."""
        if not self._sampling.windows:
            return
        plan, window = self._plan, self._window
        if window is not None and window.full:
            if len(window.steps) == max(1, plan.full_window_steps):
                yield from self._end(window)
                self._window = window = None
            else:
                window.steps.append(step)
                return
        if self._may_begin_full(number) and plan.begins_full(number):
            if window is not None:
                yield from self._end(window)
            plan.on_full()
            self._window = _Window(True, number, [step])
            return
        if window is not None and (not plan.is_light(number) or plan.begins_light(number)):
            yield from self._end(window)
            self._window = window = None
        if self.model.on_gpu:  # all communication is on the device
            return
        if window is not None:
            window.steps.append(step)
        elif plan.begins_light(number):
            self._window = _Window(False, number, [step])

    def _may_begin_full(self, number: int) -> bool:
        if not self.model.on_gpu or number > DEVICE_REFERENCE_STEPS:
            return True
        if number == DEVICE_REFERENCE_STEPS:  # the first one of a device, whatever the plan says
            self._pay_full()
        return False

    def _pay_full(self) -> None:
        self._plan.learn_full(FULL_COST_NS)
        self._spent_ns += FULL_COST_NS

    def _end(self, window: _Window) -> Iterator[_Window]:
        if window.full:
            self._pay_full()
        else:
            cost_ns = LIGHT_FIXED_NS + LIGHT_STEP_NS * len(window.steps)
            self._plan.learn_light(cost_ns, len(window.steps), LIGHT_EVENTS)
            self._spent_ns += cost_ns
        yield window

    def _learn(self, first: int, steps: Sequence[Step], now_ns: int) -> None:
        if steps:
            step_ns = round(float(np.median([(one.end - one.start).mean() for one in steps])))
            self._plan.learn_step(step_ns, first + len(steps) - 1)
            self._timing.learn_step(step_ns)
        left_ns = OVERHEAD_RATIO * (now_ns + HEAD_START_NS) - BASE_RATIO * now_ns - self._spent_ns
        self._plan.allow(Allowance(OVERHEAD_RATIO - BASE_RATIO, max(0, round(left_ns)), now_ns))

    def _timed(self, first: int, steps: Sequence[Step], ended: Sequence[_Window]) -> list[_Window]:
        """Return each step outside of windows whose collectives the flight recorder has timed."""
        if not (self.model.on_gpu and self._sampling.times_collectives):
            return []
        around = [*ended, *([] if self._window is None else [self._window])]
        inside = {id(step) for window in around for step in window.steps}
        return [_Window(False, first + place, [step]) for place, step in enumerate(steps) if id(step) not in inside]

    # -- tables -------------------------------------------------------------------------------------------------------

    def _pack_steps(self, first: int, steps: Sequence[Step]) -> list[Table]:
        ranks, count = self.layout.world, len(steps)
        starts = np.array([one.start for one in steps]).round().astype(np.int64)
        ends = np.array([one.end for one in steps]).round().astype(np.int64)
        durations = ends - starts
        phases = np.array([one.phases for one in steps]).round().astype(np.int64)  # (steps, 5, ranks)
        phases[:, OTHER] += durations - phases.sum(axis=1)
        hosts = starts + self.offset + (self.drift * starts).round().astype(np.int64)
        numbers = np.arange(first, first + count)
        cpu = np.array([one.cpu for one in steps]).round().astype(np.int64)
        known = np.array([is_chosen(int(number), 4) for number in numbers])
        reported_cpu = np.where(known[:, None] | (durations >= NS_PER_S * 2 // 5), np.minimum(cpu, durations), MISSING)
        tokens = np.array([one.tokens * 8192 for one in steps]).round().astype(np.int64)
        ones = np.ones((count, ranks), dtype=np.int64)
        columns = [
            np.broadcast_to(numbers[:, None], (count, ranks)), hosts, durations, reported_cpu, ones, ones, 8 * ones,
            tokens if self._sampling.tokens else np.full((count, ranks), MISSING), *phases.transpose(1, 0, 2),
        ]  # fmt: skip
        names = [*STEP_COLUMNS, *(PHASE_PREFIX + name for name in PHASES)]
        timed = np.array([self._timing.is_due(int(number)) for number in numbers])
        if self.model.on_gpu and self._sampling.device_times and timed.any():
            device = np.array([one.device_phases for one in steps]).round().astype(np.int64)
            tails = np.array([one.device_tail for one in steps]).round().astype(np.int64)
            self._device += np.array(
                [np.full(ranks, timed.sum()), device[timed].sum(axis=(0, 1)), tails[timed].sum(axis=0)]
            )
            self._device_phases += device[timed].sum(axis=0)
            shown = np.where(timed[:, None, None], device, MISSING)
            columns += [*shown.transpose(1, 0, 2), np.where(timed[:, None], tails, MISSING)]
            names += [*(DEVICE_PREFIX + name for name in PHASES), DEVICE_TAIL]
        if not self.model.on_gpu:
            columns.append(np.array([one.backward_cpu for one in steps]).round().astype(np.int64))
            names.append(BACKWARD_CPU)
        self._add_sums(durations, phases, cpu, tokens, steps)
        packed = np.ascontiguousarray(np.array(columns).transpose(2, 0, 1)).astype("<i8")
        return [Table(tuple(names), count, packed[rank].tobytes()) for rank in range(ranks)]

    def _add_sums(self, durations: Ints, phases: Ints, cpu: Ints, tokens: Ints, steps: Sequence[Step]) -> None:
        added = {
            "step": durations.sum(axis=0), "cpu": cpu.sum(axis=0), "tokens": tokens.sum(axis=0),
            "gc": np.sum([one.gc for one in steps], axis=0).round().astype(np.int64),
            "gc_count": np.sum([one.gc_count for one in steps], axis=0).astype(np.int64),
            "core": np.sum([one.core for one in steps], axis=0).round().astype(np.int64),
            **{name: phases[:, place].sum(axis=0) for place, name in enumerate(PHASES)},
        }  # fmt: skip
        for name, values in added.items():
            self._sums[name] = self._sums.get(name, 0) + values

    def _find_labels(self) -> tuple[Mapping[str, int], list[tuple[str, ...]]]:
        dimensions = list(self.layout.groups)
        members = {one: self.layout.members(one) for one in dimensions}
        labels = {
            one: [self.layout.label(one, row) for row in range(len(self.layout.groups[one]))] for one in dimensions
        }
        names = [tuple(labels[one][members[one][rank]] for one in dimensions) for rank in range(self.layout.world)]
        return {one: place for place, one in enumerate(dimensions)}, names

    def _pack_collectives(self, windows: Sequence[_Window]) -> list[Collectives]:
        """Return the collectives of windows of each rank."""
        ranks = self.layout.world
        if not windows:
            return [Collectives()] * ranks
        place_of, names = self._labels
        ops: dict[str, int] = {}
        rows: list[Ints | Floats] = []
        for window in windows:
            for place, step in enumerate(window.steps):
                rows += self._rows(window.first + place, step, ops, place_of, is_full=window.full)
        if not rows:
            return [Collectives()] * ranks
        table = np.array(rows)  # (rows, columns, ranks)
        starts = table[:, 3]
        has_part = starts != MISSING
        if has_part.all():
            packed = np.ascontiguousarray(table.transpose(2, 1, 0)).astype("<i8")
            tables = [Table(COLLECTIVE_COLUMNS, len(rows), packed[rank].tobytes()) for rank in range(ranks)]
        else:
            tables = []
            for rank in range(ranks):
                mine = np.ascontiguousarray(table[has_part[:, rank], :, rank].T).astype("<i8")
                tables.append(Table(COLLECTIVE_COLUMNS, mine.shape[1], mine.tobytes()))
        return [Collectives(names[rank], tuple(ops), tables[rank]) for rank in range(ranks)]

    def _rows(
        self, number: int, step: Step, ops: dict[str, int], place_of: Mapping[str, int], *, is_full: bool
    ) -> Iterator[Ints]:
        """Yield the collectives of a step as rows of the tables of all ranks."""
        numbered: dict[str, int] = {}
        on_device = is_full and self.model.on_gpu
        for call in step.calls:
            is_transfer = call.op in TRANSFERS
            if is_transfer and self.model.on_gpu and not is_full:  # torch's recorder does not time them
                continue
            sequence = MISSING
            if not is_transfer:
                index = numbered[call.dimension] = numbered.get(call.dimension, -1) + 1
                count = sum(one.dimension == call.dimension and one.op not in TRANSFERS for one in step.calls)
                sequence = number * count + index + 1
            kernels = step.kernels if on_device else None
            heads = (number, place_of[call.dimension], ops.setdefault(call.op, len(ops)))
            ended = step.backward_end if self.model.kind == "ddp" and not self.model.on_gpu else None
            yield self._row(heads, call, sequence, kernels, ended)

    def _row(
        self,
        heads: tuple[int, int, int],
        call: Call,
        sequence: int,
        kernels: Sequence[tuple[Floats, Floats]] | None,
        ended: Floats | None,
    ) -> Ints:
        """Return a collective as a row of the table of every rank; its start is MISSING where a rank has no part. Where
        no compute ran is known with the `kernels` of a GPU, and on a CPU by when the own work of a backward `ended`.
        """
        ranks = self.layout.world
        has_part = ~np.isnan(call.start)
        start, end = np.where(has_part, call.start, 0.0), np.where(has_part, call.end, 0.0)
        duration = (end - start).round().astype(np.int64)
        at = call.enqueued if self.model.on_gpu and kernels is None else start
        begun = at.round().astype(np.int64)
        begun = begun + self.offset + (self.drift * begun).round().astype(np.int64)
        exposed = np.full(ranks, MISSING)
        if kernels is not None:
            busy = sum((_overlap(start, end, *kernel) for kernel in kernels), np.zeros(ranks))
            exposed = np.maximum(0, duration - np.asarray(busy).round().astype(np.int64))
        if ended is not None:
            exposed = np.clip((end - ended).round().astype(np.int64), 0, duration)
        return np.array([
            *(np.full(ranks, head) for head in heads), np.where(has_part, begun, MISSING), duration,
            np.full(ranks, sequence), call.size.round().astype(np.int64), exposed,
        ])  # fmt: skip

    # -- what full windows show ---------------------------------------------------------------------------------------

    def _break_down(
        self, windows: Sequence[_Window]
    ) -> tuple[list[tuple[WindowBreakdown, ...]], list[tuple[WindowSynchronizations, ...]]]:
        ranks = self.layout.world
        breakdowns: list[list[WindowBreakdown]] = [[] for _ in range(ranks)]
        waits: list[list[WindowSynchronizations]] = [[] for _ in range(ranks)]
        for window in windows:
            if not window.full:
                continue
            waited = np.zeros(ranks, dtype=np.int64)
            for place, step in enumerate(window.steps):
                parts = _account(step, self.model.on_gpu)
                self._breakdown += parts
                waited += step.phases[OTHER].round().astype(np.int64)
                for rank in range(ranks):
                    whole, compute, communication, overlap, exposed, idle = (int(one[rank]) for one in parts)
                    breakdowns[rank].append(
                        WindowBreakdown(
                            first_step=window.first + place, step_count=1, window_ns=whole, compute_ns=compute,
                            communication_ns=communication, overlap_ns=overlap, exposed_communication_ns=exposed,
                            copy_ns=0, idle_ns=idle, operator_count=round(OPERATORS * float(step.operators[rank])),
                        )
                    )  # fmt: skip
            self._windows += len(window.steps)
            if self.model.on_gpu:
                self._sync += waited
                for rank in range(ranks):
                    waits[rank].append(_synchronize(window, int(waited[rank])))
        return [tuple(one) for one in breakdowns], [tuple(one) for one in waits]

    # -- samples ------------------------------------------------------------------------------------------------------

    def _host_sample(self, rank: int, host_ns: int) -> HostSample:
        sums, zero = self._sums, np.zeros(self.layout.world, dtype=np.int64)
        core_ns = int(sums.get("core", zero)[rank])
        cpu_ns = int(sums.get("cpu", zero)[rank])
        return HostSample(
            host_ns=host_ns, cpu_ns=round(1.1 * cpu_ns), resident_bytes=3 << 30, voluntary_switches=10 * self.made,
            involuntary_switches=self.made, major_faults=12, gc_pause_ns=int(sums.get("gc", zero)[rank]),
            gc_collections=int(sums.get("gc_count", zero)[rank]), run_queue_wait_ns=core_ns + cpu_ns // 500,
        )  # fmt: skip

    def _count_signs(self, first: int, count: int) -> None:
        for sign in self._signs:
            who = np.array(sign.ranks)
            if sign.kind == of.RETRIES:
                for number in range(first, first + count):
                    self._retries[who] += sign.when.strength(number, len(who), sign.seed) > 0
            elif sign.kind == of.XID and first <= sign.when.begin < first + count:
                self._xids[who] += 1

    def _sign_strengths(self, step: int) -> Mapping[str, Floats]:
        found: dict[str, Floats] = {}
        for sign in self._signs:
            values = found.setdefault(sign.kind, np.zeros(self.layout.world))
            values[np.array(sign.ranks)] += sign.when.strength(max(0, step), len(sign.ranks), sign.seed)
        return found

    def _device_sample(self, rank: int, host_ns: int, strengths: Mapping[str, Floats]) -> DeviceSample:
        def there(kind: str) -> float:
            return float(strengths[kind][rank]) if kind in strengths else 0.0

        hot, power = there(of.HOT), there(of.POWER)
        lower = 1 - 0.3 * min(1.0, hot + power + there(of.SLOW_CLOCK))
        reasons = [*(["sw_thermal_slowdown"] if hot else []), *(["sw_power_cap"] if power else [])]
        return DeviceSample(
            host_ns=host_ns, uuid=f"GPU-{rank:06}", model="second", utilization_ratio=0.95, memory_used_bytes=60 << 30,
            memory_total_bytes=80 << 30, power_watts=610.0, temperature_celsius=87.0 if hot else 64.0,
            sm_clock_hertz=round(CLOCK_HERTZ * lower), throttle_reasons=tuple(reasons), xid_count=int(self._xids[rank]),
            xid_last=63 if self._xids[rank] else None, ecc_corrected=0, ecc_uncorrected=0,
            remapped_rows_correctable=2 if there(of.REMAPPED) else 0, remapped_rows_uncorrectable=0,
            remapping_pending=False, remapping_failed=False, pcie_link_width=4 if there(of.NARROW) else 16,
            pcie_link_width_max=16, pcie_link_generation=5, pcie_link_generation_max=5,
        )  # fmt: skip

    def _allocator_sample(self, rank: int, host_ns: int) -> AllocatorSample:
        retries = int(self._retries[rank])
        return AllocatorSample(
            host_ns=host_ns, allocated_bytes=50 << 30, reserved_bytes=58 << 30, active_bytes=50 << 30, retries=retries,
            ooms=0, device_allocs=60 + retries, device_frees=retries,
        )  # fmt: skip

    def _node_sample(self, rank: int, host_ns: int) -> NodeSample:
        mates = slice(rank, rank + self.layout.per_node)
        waited = self._sums["core"][mates].max() if "core" in self._sums else 0
        port = PortSample(name="mlx5_0/1", is_active=True, rate_bits_per_s=400 * 10**9, symbol_errors=0, link_downs=1)
        return NodeSample(
            host_ns=host_ns, ports=(port,), cpu_pressure_ns=int(waited) + self.made * 10**6, cpu_steal_ns=0,
            memory_total_bytes=1 << 40, memory_available_bytes=1 << 39,
        )  # fmt: skip

    def _totals(self, rank: int) -> Totals:
        sums = self._sums
        if not sums:
            return Totals()
        whole, compute, communication, overlap, exposed, idle = (int(one[rank]) for one in self._breakdown)
        step_ns = int(sums["step"][rank])
        tokens = int(sums["tokens"][rank]) if self._sampling.tokens else None
        totals = Totals(
            steps=self.made, step_ns=step_ns, phases_ns={name: int(sums[name][rank]) for name in PHASES},
            batches=self.made, window_ns=whole, compute_ns=compute, communication_ns=communication, overlap_ns=overlap,
            exposed_communication_ns=exposed, idle_ns=idle, windows=self._windows, samples=8 * self.made,
            samples_step_ns=step_ns, tokens=tokens, tokens_step_ns=0 if tokens is None else step_ns,
            call_ns={SYNC_CALL: int(self._sync[rank])} if self._windows and self.model.on_gpu else {},
        )  # fmt: skip
        if not self._device[0, rank]:
            return totals
        timed, time_ns, tails_ns = (int(one[rank]) for one in self._device)
        phases = {name: int(self._device_phases[place, rank]) for place, name in enumerate(PHASES)}
        return replace(
            totals, device_steps=timed, device_step_ns=time_ns, device_phases_ns=phases, device_tail_steps=timed,
            device_tail_ns=tails_ns,
        )  # fmt: skip


def _find_compiled(first: int, steps: Sequence[Step], rank: int) -> Compilations:
    """Return what torch keeps of the frames that were compiled again in these steps."""
    spent = [(first + place, round(float(one.compiled[rank]))) for place, one in enumerate(steps)]
    frames = [
        CompiledFrame(step=step, frame=FRAME, compiled=1, recompiled=1, duration_ns=ns, reason=GUARD)
        for step, ns in spent
        if ns
    ]
    return Compilations(frames=tuple(frames))


def _overlap(start: Floats, end: Floats, other_start: Floats, other_end: Floats) -> Floats:
    """Return for how long two ranges overlap on each rank; 0 where one is not known."""
    return np.asarray(np.nan_to_num(np.maximum(0.0, np.minimum(end, other_end) - np.maximum(start, other_start))))


def _account(step: Step, on_gpu: bool) -> Ints:
    """Return window, compute, communication, overlap, exposed communication and idle time of a step, which add up."""
    begin = step.device_start if on_gpu else step.start
    window = (step.end - begin).round().astype(np.int64)
    compute = np.zeros(len(window))
    exposed, overlap = np.zeros(len(window)), np.zeros(len(window))
    for start, end in step.kernels:
        compute += _overlap(start, end, begin, step.end)
    for call in step.calls:
        busy = sum((_overlap(call.start, call.end, *kernel) for kernel in step.kernels), np.zeros(len(window)))
        overlap += busy
        exposed += np.nan_to_num(call.end - call.start) - busy
    computed = np.minimum(window, compute.round().astype(np.int64))
    alone = np.clip(exposed.round().astype(np.int64), 0, window - computed)
    both = np.minimum(computed, overlap.round().astype(np.int64))
    return np.array([window, computed, alone + both, both, alone, window - computed - alone])


def _synchronize(window: _Window, waited_ns: int) -> WindowSynchronizations:
    kind = Synchronization(
        call=SYNC_CALL, operator="aten::_local_scalar_dense", line=SYNC_LINE, count=len(window.steps),
        waits_ns=waited_ns, longest_ns=waited_ns // len(window.steps), idle_ns=0,
    )  # fmt: skip
    return WindowSynchronizations(
        first_step=window.first, step_count=len(window.steps), call_ns={SYNC_CALL: waited_ns}, kinds=(kind,)
    )
