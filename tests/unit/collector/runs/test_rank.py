"""The state of one rank process, and what is read of its last report."""

import msgspec
import pytest

from rankscope.collector.runs.clock_alignment import Clocks
from rankscope.collector.runs.events import ClockSampled, EndSeen, GoodbyeAdmitted, ProcessGone
from rankscope.collector.runs.liveness import GONE_NS_MIN
from rankscope.collector.runs.rank import FRAME_BYTES_KEPT, RankState
from rankscope.collector.runs.ratio_basis import NO_WINDOW, FirstSeen
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.sample_rings import RankSamples
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.collector.steps.rank_medians import NO_MEDIANS
from rankscope.measure.codec import encode
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.model_flops import FlopSum, StepFlops
from rankscope.measure.node_messages import RankEnded
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    DeviceSample,
    GroupInfo,
    HostSample,
    InterfaceSample,
    Losses,
    NodeSample,
    PortSample,
    StepRecord,
    Synchronization,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
    steps_to_table,
)
from rankscope.measure.stalls import GroupStatus
from rankscope.measure.table import Table

JOINED_NS = 1_000
CLOCKS = Clocks(JOINED_NS, 1_800_000_009.0)
GROUP = "default_pg"


def joined(first_sequence: int = 1) -> RankState:
    identity = RankIdentity(
        run="a", rank=3, local_rank=1, world_size=4, node="n0", restart_count=0, boot_id="boot-of-3", pid=7
    )
    hello = Hello(
        identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=0,
        agent_version="0.1.0", torch_version="2.13.0",
    )  # fmt: skip
    return RankState.begin(hello, JOINED_NS)


def report_to(rank: RankState, sequence: int, **measured: object) -> RankState:
    """Return the state after a report."""
    return after(rank, Report(sequence=sequence, host_ns=0, **measured))  # type: ignore[arg-type]


def after(rank: RankState, report: Report, frame: bytes = b"") -> RankState:
    """Return the state after a report, which came as `frame`."""
    at = report.sequence
    return rank.record_report(ReportFields.of(report, frame), None, JOINED_NS + at, 1_800_000_000.0 + at)


def snapshot_of(rank: RankState, now_ns: int = JOINED_NS) -> RankSnapshot:
    return rank.build(now_ns, NO_MEDIANS, ())


# -- reports ----------------------------------------------------------------------------------------------------------


def test_new_rank_is_up_and_has_no_measurements() -> None:
    found = snapshot_of(joined(first_sequence=5))
    assert (found.up, found.ended, found.torch_version, found.agent_version) == (True, None, "2.13.0", "0.1.0")
    assert (found.reports_admitted, found.report_gaps, found.first_sequence, found.last_sequence) == (0, 0, 5, 4)
    unknown = (found.last_report_wall_s, found.last_step, found.breakdown, found.host, found.overhead_ratio)
    assert unknown == (None,) * 5
    assert (found.devices, found.collectives, found.clock_error_ns) == ((), (), None)


def test_snapshot_has_the_totals_of_the_last_report() -> None:
    rank = joined()
    gpu = DeviceSample(host_ns=1, uuid="GPU-1")
    rank = report_to(
        rank, 1, totals=Totals(steps=1), host=HostSample(host_ns=1, cpu_ns=5), devices=(gpu,), overhead_ratio=0.01
    )
    rank = report_to(rank, 2, totals=Totals(steps=9), losses=Losses(reports_dropped=3), overhead_ratio=0.02)
    found = snapshot_of(rank)
    assert (found.totals.steps, found.losses.reports_dropped, found.overhead_ratio) == (9, 3, 0.02)
    assert found.last_report_wall_s == 1_800_000_002.0
    assert rank.last_seen_collector_ns == JOINED_NS + 2


def test_samples_are_kept_until_the_next_ones() -> None:
    rank = joined()
    gpu, host = DeviceSample(host_ns=1, uuid="GPU-1"), HostSample(host_ns=1, cpu_ns=5)
    allocator = AllocatorSample(host_ns=1, reserved_bytes=9)
    rank = report_to(rank, 1, host=host, devices=(gpu,), allocator=allocator)
    rank = report_to(rank, 2)
    found = snapshot_of(rank)
    assert (found.host, found.devices, found.allocator) == (host, (gpu,), allocator)


def test_numbers_left_out_are_gaps() -> None:
    rank = joined(first_sequence=10)
    for sequence in (10, 11, 15):
        rank = report_to(rank, sequence)
    found = snapshot_of(rank)
    assert (found.reports_admitted, found.report_gaps, found.last_sequence) == (3, 3, 15)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_silent_rank_is_back_with_its_next_report() -> None:
    rank = joined()
    rank = msgspec.structs.replace(rank, liveness=rank.liveness.mark_silent())
    assert not rank.is_live
    rank = report_to(rank, 1)
    assert (rank.is_live, snapshot_of(rank).up, snapshot_of(rank).ended) == (True, True, None)


def test_rank_that_has_ended_is_not_up_after_a_report() -> None:
    rank = joined()
    goodbye = Goodbye(sequence=1, reason="failed", detail="ValueError", exit_code=1)
    rank = rank.apply(GoodbyeAdmitted("boot-of-3", goodbye, 0))
    rank = report_to(rank, 2)
    found = snapshot_of(rank)
    assert (found.up, found.ended, found.ended_detail, found.exit_code) == (False, "failed", "ValueError", 1)


def test_rank_that_is_gone_has_no_detail_and_no_exit_code() -> None:
    rank = joined()
    for now_ns in (1, 1 + GONE_NS_MIN):
        rank = rank.apply(ProcessGone("boot-of-3", now_ns))
    found = snapshot_of(rank)
    assert (found.ended, found.ended_detail, found.exit_code) == ("exit_unknown", "", None)


# -- the clock --------------------------------------------------------------------------------------------------------


def test_clock_error_is_that_at_the_time_of_the_snapshot() -> None:
    rank = joined()
    rank = rank.apply(ClockSampled("boot-of-3", sent_collector_ns=0, host_ns=70, received_collector_ns=100))
    # 50 for half the round trip, and 100 for a drift of 100 us a second over 1 ms.
    assert snapshot_of(rank, 100).clock_error_ns == 50 + 1
    assert snapshot_of(rank, 1_000_000).clock_error_ns == 150


# -- its last report ---------------------------------------------------------------------------------------------------

TOTALS = Totals(steps=7, step_ns=700, phases_ns={"data": 5}, samples=None, tokens=2**62)
LOSSES = Losses(steps_overwritten=1, errors={"probe": 2}, steps_made=8)
COST = AgentCost(part_ns={"step_hooks": 3}, dropped={"full_windows": True}, full_stretch_ratio=1.5)
HOST = HostSample(host_ns=9, cpu_ns=8, gc_pause_ns=None)
GPU = DeviceSample(host_ns=9, uuid="GPU-1", power_watts=0.1, throttle_reasons=("sw_power_cap",), absent={"xid": "no"})
ALLOCATOR = AllocatorSample(host_ns=9, allocated_bytes=2**40, absent={"retries": "no"})
NODE = NodeSample(host_ns=9, ports=(PortSample(name="mlx5_0/1", symbol_errors=3),), cpu_steal_ns=0)
WHOLE = Report(
    sequence=1, host_ns=9, totals=TOTALS, losses=LOSSES, cost=COST, overhead_ratio=0.004, host=HOST, devices=(GPU, GPU),
    allocator=ALLOCATOR, node=NODE,
)  # fmt: skip


def counted_of(rank: RankState) -> tuple[object, ...]:
    last = rank.last_report
    return last.totals, last.losses, last.overhead_ratio, last.cost


def samples_of(rank: RankState) -> tuple[object, ...]:
    return rank.host, rank.devices, snapshot_of(rank).allocator, snapshot_of(rank).node


def test_before_any_report_nothing_is_known() -> None:
    assert counted_of(joined()) == (Totals(), Losses(), None, AgentCost())
    assert samples_of(joined()) == (None, (), None, None)


@pytest.mark.parametrize("steps", [1, 200])
def test_last_report_is_read_as_it_was_sent(steps: int) -> None:
    """Whether the frame is kept, or too large for that."""
    records = [StepRecord(step=step, start_host_ns=1, duration_ns=2, phases_ns={"data": 1}) for step in range(steps)]
    report = msgspec.structs.replace(WHOLE, steps=steps_to_table(records))
    assert (len(encode(report)) > FRAME_BYTES_KEPT) == (steps > 1)
    latest = after(joined(), report)
    assert counted_of(latest) == (TOTALS, LOSSES, 0.004, COST)
    assert samples_of(latest) == (HOST, (GPU, GPU), ALLOCATOR, NODE)
    assert len(latest.frame) <= FRAME_BYTES_KEPT


def test_samples_stay_and_counts_are_of_the_last_report() -> None:
    latest = after(after(joined(), WHOLE), Report(sequence=2, host_ns=10, totals=Totals(steps=9)))
    assert counted_of(latest) == (Totals(steps=9), Losses(), None, AgentCost())
    assert samples_of(latest) == (HOST, (GPU, GPU), ALLOCATOR, NODE)
    newer = msgspec.structs.replace(HOST, host_ns=11)
    newest = after(latest, Report(sequence=3, host_ns=11, host=newer))
    assert samples_of(newest) == (newer, (GPU, GPU), ALLOCATOR, NODE)


def test_samples_are_read_of_full_and_of_short_frames() -> None:
    """Of a frame with everything in it, and of one whose sender knows only the first fields."""
    steps = steps_to_table([StepRecord(step=3, start_host_ns=1, duration_ns=2, phases_ns={"data": 1})])
    group = GroupInfo(label="g", description="g", ranks=(0,), backend="b")
    full = msgspec.structs.replace(
        WHOLE, steps=steps, covered_steps=((1, 2),), groups=(group,),
        progress=(GroupStatus(group="g", enqueued=4),), stalled_since_host_ns=5,
    )  # fmt: skip
    latest = after(joined(), full)
    assert (latest.last_report.totals, *samples_of(latest)) == (TOTALS, HOST, (GPU, GPU), ALLOCATOR, NODE)
    short = encode(Report(sequence=1, host_ns=0))[:7] + msgspec.msgpack.encode([1, 0])
    latest = after(joined(), Report(sequence=1, host_ns=0), short)
    assert (latest.last_report.totals, *samples_of(latest)) == (Totals(), None, (), None, None)


def machine_of(ports: int) -> NodeSample:
    counts = dict.fromkeys(PortSample.__struct_fields__, 2**62) | {"is_active": True}
    return NodeSample(
        host_ns=2**62,
        ports=tuple(PortSample(**counts | {"name": f"mlx5_bond_{n}/1"}) for n in range(ports)),  # type: ignore[arg-type]
        interfaces=tuple(InterfaceSample(name=f"enp195s0f{n}np0", bytes=2**62, errors=1, drops=1) for n in range(8)),
    )


def test_sample_of_a_large_machine_is_kept_beside_the_frame() -> None:
    """What an agent reports at most, 16 ports and 8 interfaces, is kept; more than fits is not known."""
    report = msgspec.structs.replace(WHOLE, node=machine_of(16), covered_steps=((1, 2),) * 500)
    latest = after(joined(), report)
    latest.validate()
    assert samples_of(latest) == (HOST, (GPU, GPU), ALLOCATOR, machine_of(16))
    assert snapshot_of(after(latest, Report(sequence=2, host_ns=10))).node == machine_of(16)
    newer = after(latest, msgspec.structs.replace(WHOLE, sequence=2, node=machine_of(64)))
    newer.validate()
    assert samples_of(newer) == (HOST, (GPU, GPU), ALLOCATOR, None)


def test_frame_is_kept_and_not_copied() -> None:
    frame = encode(WHOLE)
    assert after(joined(), WHOLE, frame).frame is frame


def test_report_does_not_change_the_state_before() -> None:
    kept = after(joined(), WHOLE)
    after(kept, Report(sequence=2, host_ns=10))
    assert kept.last_report.totals == TOTALS


def test_saved_rank_is_restored_with_its_last_report() -> None:
    saved = after(joined(), WHOLE).save(CLOCKS)
    latest = RankState.restore(saved, CLOCKS)
    assert counted_of(latest) == (TOTALS, LOSSES, None, AgentCost())
    assert samples_of(latest) == (None, (GPU, GPU), None, None)
    assert latest.save(CLOCKS) == saved


def test_encoded_state_is_the_same_state() -> None:
    rank = after(joined(), WHOLE).record_steps(ReportFields.of(WHOLE), late=1, last_step=7)
    rank = report_to(rank, 2, stalled_since_host_ns=3, progress=(GroupStatus(group="g", enqueued=4),))
    rank = rank.apply(ClockSampled("boot-of-3", sent_collector_ns=0, host_ns=70, received_collector_ns=100))
    rank = rank.apply(GoodbyeAdmitted("boot-of-3", Goodbye(sequence=3, reason="failed", exit_code=1), 9))
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(rank), type=RankState)
    assert decoded == rank
    assert snapshot_of(decoded) == snapshot_of(rank)


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_state_can_be_encoded_whatever_numbers_a_rank_sends(number: int) -> None:
    window = WindowBreakdown(
        first_step=number, step_count=number, window_ns=number, compute_ns=number, communication_ns=number,
        overlap_ns=number, exposed_communication_ns=number, copy_ns=number, idle_ns=number, operator_count=number,
    )  # fmt: skip
    kind = Synchronization(call="c", count=number, waits_ns=number, longest_ns=number, idle_ns=number)
    waits = WindowSynchronizations(
        first_step=number, step_count=number, call_ns={"c": number}, idle_ns=number, kinds=(kind,)
    )
    samples, rank = RankSamples(), RankState.restore(joined().save(CLOCKS), CLOCKS)
    rank = rank.apply(ClockSampled("boot-of-3", sent_collector_ns=0, host_ns=-number // 4, received_collector_ns=100))
    losses = Losses(steps_made=number, steps_buffered=number, steps_overwritten=number, reports_dropped=number)
    for sequence in (1, 2):
        report = Report(
            sequence=sequence,
            host_ns=number,
            breakdowns=(window,),
            totals=Totals(steps=number),
            losses=losses,
            synchronizations=(waits,),
        )
        fields = ReportFields.of(report)
        samples.record(fields)
        rank = rank.record_report(fields, samples.breakdowns.sum, JOINED_NS, 0.0).record_steps(fields, 0, 7)
        rank = msgspec.structs.replace(rank, synchronizations=samples.synchronizations.sum)
    seen = RankEnded(sequence=1, identity=rank.identity, host_ns=number, wall_ns=number, reason="killed")
    rank = rank.apply(EndSeen("boot-of-3", seen, JOINED_NS))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(rank), type=RankState) == rank


def test_ratios_end_in_snapshots_with_the_windows() -> None:
    """Windows of the steps 10 and 20 come; at the third report the agent has dropped them, after step 39."""
    rank, samples = joined(), RankSamples()
    dropped = AgentCost(dropped={"full_windows": True}, attached_ratio=0.29, window_effect="ended")
    known, found = [], snapshot_of(rank)
    for sequence, (step, windows, cost) in enumerate(
        ((19, (window_at(10),), AgentCost()), (29, (window_at(20),), AgentCost()), (39, (), dropped)), start=1
    ):
        report = Report(
            sequence=sequence, host_ns=sequence * 10**9, breakdowns=windows, cost=cost, steps=table_to(step)
        )
        fields = ReportFields.of(report)
        samples.record(fields)
        rank = rank.record_report(fields, samples.breakdowns.sum, JOINED_NS, 0.0).record_steps(fields, 0, step)
        found = snapshot_of(rank)
        known.append((found.breakdown is not None, found.ratio_basis.steps, found.ratio_basis.of_steps))
        summary = rank.summarize(NO_MEDIANS)
        assert (summary.breakdown, summary.ratio_basis) == (found.breakdown, found.ratio_basis)
        assert (rank.absent_ratios, found.cost) == (found.ratio_basis.absent, summary.cost)
    assert known == [(True, 1, 10), (True, 2, 20), (False, 2, 30)]
    assert found.ratio_basis.absent == (
        "full windows ended after step 20 because steps took 29 % longer than before the first window"
    )
    assert (found.ratio_basis.age_steps, found.ratio_basis.age_s) == (19, 1.0)


def report_windows(rank: RankState, samples: RankSamples, sequence: int, last_step: int, *steps: int) -> RankState:
    """Return the state after a report after `sequence` seconds, with steps up to `last_step` and windows of `steps`."""
    windows = tuple(window_at(step) for step in steps)
    report = Report(sequence=sequence, host_ns=sequence * 10**9, breakdowns=windows, steps=table_to(last_step))
    fields = ReportFields.of(report)
    samples.record(fields)
    return rank.record_report(fields, samples.breakdowns.sum, JOINED_NS, 0.0).record_steps(fields, 0, last_step)


def test_first_distance_of_a_new_rank_is_from_its_begin() -> None:
    times = report_windows(joined(), RankSamples(), 1, 29, 20).window_times
    assert times is not None
    assert (times.steps, times.ns) == (20 - -1, 10**9)


@pytest.mark.parametrize("is_restored", [True, False])
def test_distances_after_collector_restart_start_at_first_report(is_restored: bool) -> None:
    """The rank has reported for 100 s, up to step 5,000, to an earlier collector, which saved that or did not. This one
    sees steps up to 5,099, then windows of the steps 5,120 and 5,220, 10 s apart; the next one does not come.
    """
    rank, samples = joined(first_sequence=101), RankSamples()
    if is_restored:
        before = report_windows(joined(), RankSamples(), 100, 5_000, 4_900)
        rank = RankState.restore(before.save(CLOCKS), CLOCKS)
        assert (rank.breakdown, rank.window_times, snapshot_of(rank).ratio_basis) == (None, None, NO_WINDOW)
    rank = report_windows(rank, samples, 101, 5_099)
    rank = report_windows(rank, samples, 105, 5_139, 5_120)
    times = rank.window_times
    assert times is not None
    assert (times.interval_steps, times.interval_ns) == (5_120 - 5_099, 4 * 10**9)
    rank = report_windows(rank, samples, 115, 5_239, 5_220)
    assert rank.absent_ratios is None
    assert report_windows(rank, samples, 175, 5_720).absent_ratios is None  # 60 s and 500 steps
    assert report_windows(rank, samples, 176, 5_721).absent_ratios is not None


def test_report_without_steps_is_a_beginning_too() -> None:
    rank = after(joined(first_sequence=7), Report(sequence=7, host_ns=9))
    assert rank.first_seen == FirstSeen(-1, 9)


def window_at(step: int) -> WindowBreakdown:
    return WindowBreakdown(
        first_step=step, step_count=1, window_ns=10, compute_ns=6, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=4,
    )  # fmt: skip


def table_to(step: int) -> Table:
    return steps_to_table([StepRecord(step=step, start_host_ns=0, duration_ns=10, phases_ns={})])


def test_flops_are_those_of_the_last_report_after_a_restart_too() -> None:
    flops = StepFlops(model=FlopSum(6e15, 10, 20_000), source="declared", peak_flops_per_s=1e15)
    rank = report_to(report_to(joined(), 1), 2, flops=flops)
    assert rank.build(JOINED_NS, NO_MEDIANS, ()).flops == flops
    restored = RankState.restore(rank.save(CLOCKS), CLOCKS)
    assert restored.summarize(NO_MEDIANS).flops == flops
