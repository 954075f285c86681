"""What is known of one life of one rank."""

from typing import Any

import pytest

from rankscope.collector.detect.waits import KindWaits
from rankscope.collector.state.rank import BREAKDOWNS_KEPT, GC_PAUSES_KEPT, KINDS_MAX, RankState
from rankscope.collector.state.snapshot import CollectiveTotals, RankSnapshot
from rankscope.collector.state.vitals import GONE_NS_MIN
from rankscope.measure.communication import bus_factor
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, Losses, Totals, WindowBreakdown
from rankscope.measure.units import JobNs

JOINED_NS = 1_000
GROUP = "default_pg"


def life(first_sequence: int = 1) -> RankState:
    identity = RankIdentity(
        run="a", rank=3, local_rank=1, world_size=4, node="n0", restart_count=0, boot_id="boot-of-3", pid=7
    )
    hello = Hello(
        identity=identity, first_sequence=first_sequence, host_ns=0, wall_ns=0, report_interval_ns=0,
        agent_version="0.1.0", torch_version="2.13.0",
    )  # fmt: skip
    return RankState(hello, JOINED_NS)


def take(rank: RankState, sequence: int, **measured: object) -> None:
    report = Report(sequence=sequence, host_ns=0, **measured)  # type: ignore[arg-type]
    rank.take(report, JOINED_NS + sequence, 1_800_000_000.0 + sequence)


def picture(rank: RankState, **group_sizes: int) -> RankSnapshot:
    return rank.snapshot(JobNs(JOINED_NS), group_sizes)


def window_at(step: int) -> WindowBreakdown:
    """10 ns of compute."""
    return WindowBreakdown(
        first_step=step, step_count=1, window_ns=10, compute_ns=10, communication_ns=0, overlap_ns=0,
        exposed_communication_ns=0, copy_ns=0, idle_ns=0,
    )  # fmt: skip


# -- reports ----------------------------------------------------------------------------------------------------------


def test_new_life_is_up_and_knows_nothing_yet() -> None:
    found = picture(life(first_sequence=5))
    assert (found.up, found.ended, found.torch_version, found.agent_version) == (True, None, "2.13.0", "0.1.0")
    assert (found.reports_admitted, found.report_gaps, found.first_sequence, found.last_sequence) == (0, 0, 5, 4)
    unknown = (found.last_report_wall_s, found.last_step, found.breakdown, found.host, found.overhead_ratio)
    assert unknown == (None,) * 5
    assert (found.devices, found.collectives, found.clock_error_ns) == ((), (), None)


def test_report_brings_the_latest_of_everything() -> None:
    rank = life()
    gpu = DeviceSample(host_ns=1, uuid="GPU-1")
    take(rank, 1, totals=Totals(steps=1), host=HostSample(host_ns=1, cpu_ns=5), devices=(gpu,), overhead_ratio=0.01)
    take(rank, 2, totals=Totals(steps=9), losses=Losses(reports_dropped=3), overhead_ratio=0.02)
    found = picture(rank)
    assert (found.totals.steps, found.losses.reports_dropped, found.overhead_ratio) == (9, 3, 0.02)
    assert found.last_report_wall_s == 1_800_000_002.0
    assert rank.last_seen_job_ns == JOINED_NS + 2


def test_samples_stay_until_the_next_ones_come() -> None:
    rank = life()
    gpu, host = DeviceSample(host_ns=1, uuid="GPU-1"), HostSample(host_ns=1, cpu_ns=5)
    allocator = AllocatorSample(host_ns=1, reserved_bytes=9)
    take(rank, 1, host=host, devices=(gpu,), allocator=allocator)
    take(rank, 2)
    found = picture(rank)
    assert (found.host, found.devices, found.allocator) == (host, (gpu,), allocator)


def test_numbers_left_out_are_gaps() -> None:
    rank = life(first_sequence=10)
    for sequence in (10, 11, 15):
        take(rank, sequence)
    found = picture(rank)
    assert (found.reports_admitted, found.report_gaps, found.last_sequence) == (3, 3, 15)


def test_last_windows_are_added_up() -> None:
    rank = life()
    for step in range(BREAKDOWNS_KEPT + 5):
        take(rank, step + 1, breakdowns=(window_at(step),))
    found = picture(rank).breakdown
    assert found is not None
    assert (found.first_step, found.step_count, found.window_ns) == (5, BREAKDOWNS_KEPT, 10 * BREAKDOWNS_KEPT)


def test_pauses_are_kept_with_the_steps_made_by_then() -> None:
    rank = life()
    take(rank, 1, totals=Totals(steps=4), host=HostSample(host_ns=1, gc_pause_ns=700))
    take(rank, 2, totals=Totals(steps=6), host=HostSample(host_ns=2))
    take(rank, 3, totals=Totals(steps=8))
    assert [tuple(sample) for sample in rank.gc_pauses] == [(4, 700)]
    for sequence in range(4, 4 + GC_PAUSES_KEPT):
        take(rank, sequence, totals=Totals(steps=sequence), host=HostSample(host_ns=3, gc_pause_ns=sequence))
    assert (len(rank.gc_pauses), rank.gc_pauses[0].pause_ns) == (GC_PAUSES_KEPT, 4)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_silent_rank_is_back_with_its_next_report() -> None:
    rank = life()
    rank.vitals.fall_silent()
    assert not rank.is_live
    take(rank, 1)
    assert (rank.is_live, picture(rank).up, picture(rank).ended) == (True, True, None)


def test_rank_that_said_goodbye_does_not_come_back() -> None:
    rank = life()
    rank.vitals.take_goodbye(Goodbye(sequence=1, reason="failed", detail="ValueError", exit_code=1), 0)
    take(rank, 2)
    found = picture(rank)
    assert (found.up, found.ended, found.ended_detail, found.exit_code) == (False, "failed", "ValueError", 1)


def test_rank_that_was_killed_says_nothing_about_it() -> None:
    rank = life()
    rank.vitals.lose_process(now_job_ns=1)
    rank.vitals.lose_process(now_job_ns=1 + GONE_NS_MIN)
    found = picture(rank)
    assert (found.ended, found.ended_detail, found.exit_code) == ("killed", "", None)


# -- collectives ------------------------------------------------------------------------------------------------------


def kind_of(op: str = "all_reduce", **changed: Any) -> KindWaits:
    """Two calls of 30 ns each, matched: 10 ns of waiting and 20 ns of transfer each, 1,000 bytes each."""
    fields: dict[str, Any] = {
        "calls": 2, "duration_ns": 60, "size_bytes": 2_000, "matched": 2, "wait_ns": 20, "transfer_ns": 40,
        "matched_bytes": 2_000, "exposed_transfer_ns": 40,
    }  # fmt: skip
    return KindWaits(rank=3, group=GROUP, op=op, **(fields | changed))


UNMATCHED: dict[str, Any] = {"matched": 0, "wait_ns": 0, "transfer_ns": 0, "matched_bytes": 0, "exposed_transfer_ns": 0}
UNSIZED: dict[str, Any] = {"size_bytes": None, "matched_bytes": 0}


def totals_of(*kinds: KindWaits, size: int = 4) -> CollectiveTotals:
    rank = life()
    for kind in kinds:
        rank.add_kind(kind)
    (found,) = picture(rank, **{GROUP: size}).collectives
    return found


def test_collectives_of_a_kind_are_counted_up() -> None:
    totals = totals_of(kind_of(), kind_of())
    assert totals.bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * 1.5)
    assert totals == CollectiveTotals(
        group=GROUP, op="all_reduce", count=4, duration_ns=120, bytes=4_000, matched=4, wait_ns=40, transfer_ns=80,
        bus_bandwidth_bytes_per_s=totals.bus_bandwidth_bytes_per_s,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("op", "factor"),
    [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4)],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 4) == factor
    assert totals_of(kind_of(op)).bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * factor)


@pytest.mark.parametrize("op", ["broadcast", "reduce", "barrier", "send"])
def test_operation_without_a_factor_has_no_bus_bandwidth(op: str) -> None:
    assert totals_of(kind_of(op)).bus_bandwidth_bytes_per_s is None


@pytest.mark.parametrize("size", [0, 1])
def test_group_of_one_or_of_unknown_size_has_no_bus_bandwidth(size: int) -> None:
    assert totals_of(kind_of(), size=size).bus_bandwidth_bytes_per_s is None


def test_bus_bandwidth_is_that_of_the_last_matched_and_sized_calls() -> None:
    unmatched, unsized, instant = kind_of(**UNMATCHED), kind_of(**UNSIZED), kind_of(transfer_ns=0)
    assert totals_of(unmatched).bus_bandwidth_bytes_per_s is None
    found = totals_of(kind_of(transfer_ns=80), kind_of(), unmatched, unsized, instant)
    assert found.bus_bandwidth_bytes_per_s == pytest.approx(2_000 / 40e-9 * 1.5)


def test_without_a_match_waiting_and_transfer_are_not_known() -> None:
    found = totals_of(kind_of(**UNMATCHED))
    assert (found.count, found.matched, found.wait_ns, found.transfer_ns) == (2, 0, None, None)


def test_matched_without_waiting_has_waited_zero() -> None:
    assert totals_of(kind_of(wait_ns=0)).wait_ns == 0


def test_sizes_that_no_window_told_are_not_known() -> None:
    assert totals_of(kind_of(**UNSIZED)).bytes is None
    assert totals_of(kind_of(**UNSIZED), kind_of()).bytes == 2_000


def test_barrier_moves_zero_bytes_and_that_is_known() -> None:
    assert totals_of(kind_of("barrier", size_bytes=0, matched_bytes=0)).bytes == 0


def test_kinds_stand_in_order_and_beyond_the_limit_are_left_out() -> None:
    rank = life()
    for number in reversed(range(KINDS_MAX)):
        rank.add_kind(kind_of(f"op{number:02}"))
    rank.add_kind(kind_of("one_too_many"))
    rank.add_kind(kind_of("op00"))
    found = picture(rank).collectives
    assert [kind.op for kind in found] == [f"op{number:02}" for number in range(KINDS_MAX)]
    assert found[0].count == 4


# -- the clock --------------------------------------------------------------------------------------------------------


def test_clock_error_is_that_of_the_moment_of_the_picture() -> None:
    rank = life()
    rank.clock.add(sent_job_ns=0, host_ns=70, received_job_ns=100)
    # 50 for half the round trip, and 100 for a drift of 100 us a second over 1 ms.
    assert rank.snapshot(JobNs(100), {}).clock_error_ns == 50
    assert rank.snapshot(JobNs(1_000_000), {}).clock_error_ns == 150
