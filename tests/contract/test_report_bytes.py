"""Check the largest size of a report in bytes: the figures of docs/cost.md, as arithmetic.

Every number in the reports below is as large as it can be in a frame, every name as long as it ever is in a run.
"""

import pytest

from rankscope.agent.reporting.builder import Interval, ReportBuilder
from rankscope.measure.codec import encode
from rankscope.measure.records import (
    PHASES,
    AgentCost,
    CollectiveRecord,
    DeviceSample,
    GroupInfo,
    HostCopies,
    HostSample,
    InterfaceSample,
    Losses,
    NodeSample,
    PortSample,
    StepRecord,
    WindowBreakdown,
)

LARGE = 2**50
"""Number that needs 9 bytes, the most a number can; a thousand of them together still do."""
OWN_PHASES_MAX = 16
"""The default of `phases_max`."""

STEP_BYTES = 8 * (8 + len(PHASES))
"""Bytes of a step: a column of 8 bytes for each of: step, start, duration, CPU time, batches, backwards, samples,
tokens, and the phases. 8 more for each phase of the user's own."""
COLLECTIVE_BYTES = 8 * 8
BREAKDOWN_BYTES = 9 * (10 + 9) + 2  # nine are of copies from the host
COVERED_BYTES = 9 * 2 + 1
DEVICE_BYTES = 1_000
NODE_BYTES, PORT_BYTES, INTERFACE_BYTES = 400, 150, 50
FIXED_BYTES = 3_000
"""Bytes of the fixed part: names of columns, totals, losses, cost, host sample: every number at its largest, 16 user
phases."""


def step(number: int, own_phases: int = 0) -> StepRecord:
    phases = [*PHASES, *(f"phase-of-the-user-{index:02}" for index in range(own_phases))]
    return StepRecord(
        step=LARGE - number,
        start_host_ns=LARGE,
        duration_ns=LARGE,
        phases_ns=dict.fromkeys(phases, LARGE),
        cpu_ns=LARGE,
        batches=LARGE,
        backwards=LARGE,
    )


def collective(number: int) -> CollectiveRecord:
    return CollectiveRecord(
        step=LARGE, group="mesh_tp/0,1,2,3,4,5,6,7", op="reduce_scatter", start_host_ns=LARGE - number,
        duration_ns=LARGE, sequence=LARGE, bytes=LARGE,
    )  # fmt: skip


def breakdown() -> WindowBreakdown:
    return WindowBreakdown(
        first_step=LARGE, step_count=LARGE, window_ns=LARGE, compute_ns=LARGE, communication_ns=LARGE,
        overlap_ns=LARGE, exposed_communication_ns=LARGE, copy_ns=LARGE, idle_ns=LARGE, operator_count=LARGE,
        host_copies=HostCopies(**dict.fromkeys(HostCopies.__struct_fields__, LARGE)),
    )  # fmt: skip


def device() -> DeviceSample:
    fields = dict.fromkeys(DeviceSample.__struct_fields__, LARGE)
    texts = {"uuid": "GPU-01234567-89ab-cdef-0123-456789abcdef", "model": "NVIDIA H200 NVL 141GB HBM3e"}
    reasons = tuple(f"hw_thermal_slowdown_{index}" for index in range(9))
    absent = dict.fromkeys((f"memory_total_bytes_{index}" for index in range(6)), "this driver is too old for it: 535")
    return DeviceSample(**{**fields, **texts, "throttle_reasons": reasons, "absent": absent})  # type: ignore[arg-type]


def host() -> HostSample:
    fields = dict.fromkeys(HostSample.__struct_fields__, LARGE)
    absent = {"block_io_wait_ns": "kernel.task_delayacct was 0 when training began; with 1 the kernel counts it"}
    return HostSample(**{**fields, "absent": absent})  # type: ignore[arg-type]


def build(*, steps: int = 0, collectives: int = 0, breakdowns: int = 0, devices: int = 0, own_phases: int = 16) -> int:
    """Return the bytes of a report's frame with these numbers of each part."""
    interval = Interval(
        steps=[step(number, own_phases) for number in range(steps)],
        collectives=[collective(number) for number in range(collectives)],
        covered_steps=[(LARGE, LARGE)] * breakdowns,
        timed_steps=[(LARGE, LARGE)] * breakdowns,
        breakdowns=[breakdown()] * breakdowns,
        host=host(),
        devices=tuple(device() for _ in range(devices)),
        losses=Losses(
            steps_overwritten=LARGE, steps_dropped_in_reports=LARGE, reports_dropped=LARGE,
            windows_skipped=dict.fromkeys(("events_max", "collectives_unplaced", "user_profiler", "backlog"), LARGE),
            errors=dict.fromkeys(("step_hooks", "windows", "agent_thread", "device", "groups", "stop"), LARGE),
        ),
        overhead_ratio=0.5,
        cost=AgentCost(
            part_ns={f"agent_part_number_{part}": LARGE for part in range(12)},
            dropped={f"agent_part_number_{part}": True for part in range(12)},
            full_stretch_ratio=0.5, light_stretch_ratio=0.5, changes=LARGE, attached_ratio=0.5, detached_ratio=0.5,
            window_effect="reference", timing_ratio=0.5, timing_effect="reference",
        ),
    )  # fmt: skip
    return len(encode(ReportBuilder().build(interval, LARGE)))


def test_report_size_is_fixed_part_plus_size_of_each_item() -> None:
    steps, collectives, breakdowns, devices = 100, 2_000, 32, 1
    bound = (
        FIXED_BYTES
        + steps * (STEP_BYTES + 8 * OWN_PHASES_MAX)
        + collectives * COLLECTIVE_BYTES
        + breakdowns * (BREAKDOWN_BYTES + 2 * COVERED_BYTES)
        + devices * DEVICE_BYTES
    )
    assert build(steps=steps, collectives=collectives, breakdowns=breakdowns, devices=devices) <= bound


@pytest.mark.parametrize(
    ("one_more", "bytes_each"),
    [("steps", STEP_BYTES + 8 * OWN_PHASES_MAX), ("collectives", COLLECTIVE_BYTES), ("devices", DEVICE_BYTES)],
)
def test_one_thing_more_takes_no_more_than_its_share(one_more: str, bytes_each: int) -> None:
    assert build(**{one_more: 1_000}) - build(**{one_more: 500}) <= 500 * bytes_each + 16  # lengths need up to 5 bytes


def test_a_report_of_nothing_new_is_the_fixed_part() -> None:
    assert build() <= FIXED_BYTES


def test_process_groups_of_a_report_cost_names_and_ranks() -> None:
    group = GroupInfo(label="default_pg", description="default_pg", ranks=tuple(range(1024)), backend="nccl")
    frame = encode(ReportBuilder().build(Interval(groups={"0": group}), LARGE))
    assert len(frame) <= FIXED_BYTES + 3 * 1024 + 64  # a rank below 65,536 needs 3 bytes


def test_sample_of_the_machine_costs_its_ports_and_interfaces() -> None:
    counts = {**dict.fromkeys(PortSample.__struct_fields__, LARGE), "name": "mlx5_bond_0/1", "is_active": True}
    ports = (PortSample(**counts),) * 16  # type: ignore[arg-type]
    interfaces = (InterfaceSample(name="enp195s0f0np0", bytes=LARGE, errors=LARGE, drops=LARGE),) * 8
    node = NodeSample(
        host_ns=LARGE, ports=ports, ports_left_out=LARGE, interfaces=interfaces, interfaces_left_out=LARGE,
        tcp_segments_sent=LARGE, tcp_segments_retransmitted=LARGE, cpu_pressure_ns=LARGE, group_cpu_pressure_ns=LARGE,
        cpu_steal_ns=LARGE, memory_total_bytes=LARGE, memory_available_bytes=LARGE,
        absent=dict.fromkeys((f"adaptive_retransmissions{n}" for n in range(7)), "missing"),
    )  # fmt: skip
    more = len(encode(ReportBuilder().build(Interval(node=node), LARGE))) - build_empty()
    assert more <= NODE_BYTES + 16 * PORT_BYTES + 8 * INTERFACE_BYTES


def build_empty() -> int:
    return len(encode(ReportBuilder().build(Interval(), LARGE)))
