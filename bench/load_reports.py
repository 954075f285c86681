"""The reports of a large synchronous job, made so cheaply that their maker is not what a load test measures.

A step a second on every rank, with jitter of its own; the step lasts until the slowest is done. Each report is one
step, a sample of the process and one of the GPU. Every WINDOW_REPORTS reports a profiler window tells the collectives
of the last two steps, as the agent's windows on a GPU do at its defaults.

What a rank's records say besides its times is the same in every VARIANTS-th rank: the production ReportBuilder builds
that part. The columns of the steps and collectives of all ranks are made at once and cut into one block a rank.
"""

from collections.abc import Mapping
from time import monotonic_ns, time_ns
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.collector.ingest.acknowledgements import REPORTS_MAX
from rankscope.measure.identity import RankIdentity, group_label
from rankscope.measure.messages import Hello, Report
from rankscope.measure.records import (
    COLLECTIVE_COLUMNS,
    PHASES,
    AgentCost,
    Collectives,
    DeviceSample,
    GroupInfo,
    HostSample,
    Losses,
    StepRecord,
    WindowBreakdown,
    steps_to_table,
)
from rankscope.measure.table import Table
from rankscope.measure.units import NS_PER_MS, NS_PER_S

RUN: Final = "load"
WORLD_GROUP: Final = "default_pg"
RANKS_PER_NODE: Final = 8
VARIANTS: Final = 64
WINDOW_REPORTS: Final = 20
WINDOW_STEPS: Final = 2
CALLS: Final = 8
"""Collectives of a step: by turns one of the node's group and one of all ranks."""

PERIOD_NS: Final = NS_PER_S
HELD_MAX: Final = REPORTS_MAX + 2
"""Reports that a rank holds while all is well: acknowledgements come for several at a time."""
WORK_NS: Final = 900 * NS_PER_MS
TRANSFER_NS: Final = 2 * NS_PER_MS
JITTER: Final = 0.01
SLOW_RANK: Final = 5
SLOWNESS: Final = 1.3
"""Detection is to have something to find, and what it finds is checked."""

SHARES: Final[Mapping[str, float]] = {"data": 0.02, "forward": 0.3, "optimizer": 0.08, "other": 0.02}
"""Of a rank's own work; what is left, and the waiting, is its backward."""

Ints = npt.NDArray[np.int64]


class _Cycle(NamedTuple):
    """Report `number` of every own rank: the builder's part by variant, and the blocks of all ranks in a row."""

    number: int
    templates: tuple[Report, ...]
    steps: bytes
    step_bytes: int
    collectives: bytes
    collective_bytes: int


class JobReports:
    """The reports of the ranks `own` of a job of `world_size`. Numbers are asked for in order, each of every rank
    before the next.
    """

    def __init__(self, world_size: int, own: range) -> None:
        self._world_size = world_size
        self._own = own
        self._builders = tuple(ReportBuilder() for _ in range(VARIANTS))
        self._names = steps_to_table([_step_record(0, 0)]).names
        everybody = tuple(range(world_size))
        self._world = GroupInfo(label=WORLD_GROUP, description=WORLD_GROUP, ranks=everybody, backend="nccl")
        self._cycle: _Cycle | None = None
        self._durations: dict[int, tuple[Ints, Ints]] = {}
        self._node_groups: dict[int, GroupInfo] = {}

    def build(self, rank: int, number: int, host_ns: int) -> Report:
        """Report `number`, counted from 1, of one of the own ranks."""
        if self._cycle is None or self._cycle.number != number:
            self._cycle = self._make_cycle(number, host_ns)
        cycle, place = self._cycle, rank - self._own.start
        steps = cycle.steps[place * cycle.step_bytes : (place + 1) * cycle.step_bytes]
        template = cycle.templates[rank % VARIANTS]
        changes: dict[str, object] = {"host_ns": host_ns, "steps": Table(self._names, 1, steps)}
        if cycle.collectives:
            block = cycle.collectives[place * cycle.collective_bytes : (place + 1) * cycle.collective_bytes]
            changes["collectives"] = Collectives(
                (WORLD_GROUP, self._node_group(rank).label),
                ("all_gather", "all_reduce"),
                Table(COLLECTIVE_COLUMNS, CALLS * WINDOW_STEPS, block),
            )
        if number == 1:
            changes["groups"] = self._tell_groups(rank, host_ns)
        return msgspec.structs.replace(template, **changes)

    def _tell_groups(self, rank: int, host_ns: int) -> tuple[GroupInfo, ...] | None:
        groups = {"0": self._world, "1": self._node_group(rank)}
        return ReportBuilder(rank).build(Interval(groups=groups), host_ns).groups

    def _node_group(self, rank: int) -> GroupInfo:
        first = rank - rank % RANKS_PER_NODE
        if first not in self._node_groups:
            members = tuple(range(first, min(first + RANKS_PER_NODE, self._world_size)))
            label = group_label("mesh_tp", members, self._world_size)
            self._node_groups[first] = GroupInfo(label=label, description="mesh_tp", ranks=members, backend="nccl")
        return self._node_groups[first]

    def _make_cycle(self, number: int, host_ns: int) -> _Cycle:
        step = number - 1
        is_window = number % WINDOW_REPORTS == 0
        steps = self._step_columns(step, host_ns)
        collectives = self._collective_columns(range(step - WINDOW_STEPS + 1, step + 1), host_ns) if is_window else None
        return _Cycle(
            number=number,
            templates=tuple(
                builder.build(_build_interval(variant, step, host_ns, is_window=is_window), host_ns)
                for variant, builder in enumerate(self._builders)
            ),
            steps=steps.tobytes(),
            step_bytes=steps[0].nbytes,
            collectives=b"" if collectives is None else collectives.tobytes(),
            collective_bytes=0 if collectives is None else collectives[0].nbytes,
        )

    def _step_columns(self, step: int, host_ns: int) -> Ints:
        """The steps table of every own rank, shape (ranks, columns, 1)."""
        work_ns, waiting_ns = self._find_work(step)
        duration_ns = work_ns + waiting_ns + CALLS * TRANSFER_NS
        columns: dict[str, Ints | int] = {
            f"phase:{name}": (share * work_ns).astype(np.int64) for name, share in SHARES.items()
        }
        columns["phase:backward"] = duration_ns - sum(columns.values())
        columns |= {
            "step": step, "start_host_ns": host_ns - duration_ns, "duration_ns": duration_ns, "cpu_ns": work_ns // 2,
            "batches": 1, "backwards": 1, "samples": 8, "tokens": 8192,
        }  # fmt: skip
        found = np.empty((len(self._own), len(self._names), 1), dtype="<i8")
        for place, name in enumerate(self._names):
            found[:, place, 0] = columns[name]
        return found

    def _collective_columns(self, steps: range, host_ns: int) -> Ints:
        """The collectives of those steps of every own rank, shape (ranks, columns, calls of all steps)."""
        found = np.empty((len(self._own), len(COLLECTIVE_COLUMNS), CALLS * len(steps)), dtype="<i8")
        column = {name: found[:, place, :] for place, name in enumerate(COLLECTIVE_COLUMNS)}
        for order, step in enumerate(steps):
            work_ns, waiting_ns = self._find_work(step)
            for call in range(CALLS):
                row, is_of_all = order * CALLS + call, call % 2
                wait_ns = waiting_ns * 2 // CALLS if is_of_all else 0
                column["step"][:, row] = step
                column["group"][:, row] = 1 - is_of_all
                column["op"][:, row] = is_of_all
                column["start_host_ns"][:, row] = (
                    host_ns + (order - len(steps)) * PERIOD_NS + (call + 1) * work_ns // CALLS
                )
                column["duration_ns"][:, row] = wait_ns + TRANSFER_NS
                column["sequence"][:, row] = step * CALLS + call
                column["bytes"][:, row] = 2**27
                column["exposed_ns"][:, row] = wait_ns + TRANSFER_NS
        return found

    def _find_work(self, step: int) -> tuple[Ints, Ints]:
        """Own work of each own rank in a step, and what it then waits for the slowest of all, in ns."""
        if step not in self._durations:
            random = np.random.default_rng(step)
            work_ns = WORK_NS * np.exp(random.normal(0.0, JITTER, self._world_size))
            work_ns[SLOW_RANK % self._world_size] *= SLOWNESS
            all_ns = work_ns.astype(np.int64)
            mine_ns = all_ns[self._own.start : self._own.stop]
            self._durations = {kept: found for kept, found in self._durations.items() if kept > step - WINDOW_STEPS}
            self._durations[step] = mine_ns, int(all_ns.max()) - mine_ns
        return self._durations[step]


def build_hello(run: str, rank: int, world_size: int, boot_id: str, first_sequence: int = 1) -> Hello:
    """What a rank says first."""
    identity = RankIdentity(
        run=run, rank=rank, local_rank=rank % RANKS_PER_NODE, world_size=world_size, restart_count=0,
        node=f"node{rank // RANKS_PER_NODE:04}", boot_id=boot_id, pid=1 + rank,
    )  # fmt: skip
    return Hello(
        identity=identity, first_sequence=first_sequence, host_ns=monotonic_ns(), wall_ns=time_ns(),
        report_interval_ns=PERIOD_NS, agent_version="0.1.0", python_version="3.11", torch_version="2.13.0",
    )  # fmt: skip


def _step_record(step: int, variant: int) -> StepRecord:
    phases_ns = dict.fromkeys(PHASES, (WORK_NS + variant * NS_PER_MS) // len(PHASES))
    return StepRecord(
        step=step, start_host_ns=0, duration_ns=sum(phases_ns.values()), phases_ns=phases_ns, cpu_ns=WORK_NS // 2,
        batches=1, backwards=1, samples=8, tokens=8192,
    )  # fmt: skip


def _build_interval(variant: int, step: int, host_ns: int, *, is_window: bool) -> Interval:
    """What every report has besides the times of the rank's own steps."""
    covered = ((step - WINDOW_STEPS + 1, step),) if is_window else ()
    return Interval(
        steps=[_step_record(step, variant)],
        covered_steps=covered,
        breakdowns=[_build_breakdown(first, variant) for first, _ in covered],
        host=HostSample(
            host_ns=host_ns, cpu_ns=step * NS_PER_S + variant, resident_bytes=2**33 + variant,
            voluntary_switches=step * 9, involuntary_switches=step, major_faults=0,
            gc_pause_ns=step * NS_PER_MS + variant, gc_collections=step,
        ),
        devices=(_build_device(host_ns, step, variant),),
        losses=Losses(steps_made=step + 1, steps_buffered=0),
        overhead_ratio=0.002,
        cost=AgentCost(
            part_ns={"step_hooks": step * 10**5, "agent_thread": step * 10**6, "gpu_samples": step * 10**5},
            dropped={"light_windows": False, "full_windows": False},
        ),
    )  # fmt: skip


def _build_breakdown(first_step: int, variant: int) -> WindowBreakdown:
    compute_ns = WINDOW_STEPS * WORK_NS - variant * NS_PER_MS
    window_ns = WINDOW_STEPS * PERIOD_NS
    return WindowBreakdown(
        first_step=first_step, step_count=WINDOW_STEPS, window_ns=window_ns, compute_ns=compute_ns,
        communication_ns=window_ns - compute_ns, overlap_ns=0, exposed_communication_ns=window_ns - compute_ns,
        copy_ns=0, idle_ns=0, operator_count=1000,
    )  # fmt: skip


def _build_device(host_ns: int, step: int, variant: int) -> DeviceSample:
    return DeviceSample(
        host_ns=host_ns, uuid=f"GPU-01234567-89ab-cdef-0123-{variant:012}", model="NVIDIA H200",
        utilization_ratio=0.97, memory_used_bytes=100 * 2**30 + variant, memory_total_bytes=141 * 2**30,
        power_watts=600.0 + variant, temperature_celsius=60.0 + variant % 8, sm_clock_hertz=1_980_000_000,
        throttle_reasons=(), memory_clock_hertz=3_201_000_000, power_limit_watts=700.0,
        nvlink_tx_bytes=step * 10**9, nvlink_rx_bytes=step * 10**9, pcie_tx_bytes=step * 10**7,
        pcie_rx_bytes=step * 10**7, ecc_corrected=0, ecc_uncorrected=0, remapped_rows_correctable=0,
        remapped_rows_uncorrectable=0, remapping_pending=False, remapping_failed=False, xid_count=0,
    )  # fmt: skip
