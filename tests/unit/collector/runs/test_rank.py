"""What is known of one life of one rank."""

from rankscope.collector.runs.last_report import ReportFields
from rankscope.collector.runs.liveness import GONE_NS_MIN
from rankscope.collector.runs.rank import BREAKDOWNS_KEPT, GC_PAUSES_KEPT, RankState
from rankscope.collector.runs.snapshot import RankSnapshot
from rankscope.measure.identity import RankIdentity
from rankscope.measure.messages import Goodbye, Hello, Report
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, Losses, Totals, WindowBreakdown
from rankscope.measure.units import CollectorNs

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
    rank.record_report(ReportFields.of(report), JOINED_NS + sequence, 1_800_000_000.0 + sequence)


def picture(rank: RankState) -> RankSnapshot:
    return rank.snapshot(CollectorNs(JOINED_NS))


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
    assert rank.last_seen_collector_ns == JOINED_NS + 2


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
    rank.liveness.mark_silent()
    assert not rank.is_live
    take(rank, 1)
    assert (rank.is_live, picture(rank).up, picture(rank).ended) == (True, True, None)


def test_rank_that_said_goodbye_does_not_come_back() -> None:
    rank = life()
    rank.liveness.record_goodbye(Goodbye(sequence=1, reason="failed", detail="ValueError", exit_code=1), 0)
    take(rank, 2)
    found = picture(rank)
    assert (found.up, found.ended, found.ended_detail, found.exit_code) == (False, "failed", "ValueError", 1)


def test_rank_that_was_killed_says_nothing_about_it() -> None:
    rank = life()
    rank.liveness.record_process_gone(now_collector_ns=1)
    rank.liveness.record_process_gone(now_collector_ns=1 + GONE_NS_MIN)
    found = picture(rank)
    assert (found.ended, found.ended_detail, found.exit_code) == ("killed", "", None)


# -- the clock --------------------------------------------------------------------------------------------------------


def test_clock_error_is_that_of_the_moment_of_the_picture() -> None:
    rank = life()
    rank.clock.add(sent_collector_ns=0, host_ns=70, received_collector_ns=100)
    # 50 for half the round trip, and 100 for a drift of 100 us a second over 1 ms.
    assert rank.snapshot(CollectorNs(100)).clock_error_ns == 50 + 1
    assert rank.snapshot(CollectorNs(1_000_000)).clock_error_ns == 150
