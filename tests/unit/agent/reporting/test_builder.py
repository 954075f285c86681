"""Tests of ReportBuilder: sequence numbers, totals, groups and the goodbye."""

import msgspec

from rankscope.agent.reporting.builder import Interval, ReportBuilder, ScriptEnd
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    CALLS_MAX,
    OTHER_CALLS,
    CollectiveRecord,
    Collectives,
    GroupInfo,
    HostSample,
    Losses,
    StepRecord,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)
from rankscope.measure.stalls import GroupStatus, Stall

WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1), backend="gloo")
PIPE = GroupInfo(label="pp/0", description="pp", ranks=(0,), backend="gloo")


def step(number: int, **phases_ns: int) -> StepRecord:
    duration_ns = sum(phases_ns.values())
    return StepRecord(step=number, start_host_ns=0, duration_ns=duration_ns, phases_ns=phases_ns, batches=2)


def breakdown(times: int = 1) -> WindowBreakdown:
    """100 ticks: 60 of compute, 20 of communication of which half is hidden, 5 of copies, 25 idle."""
    return WindowBreakdown(
        first_step=1,
        step_count=1,
        window_ns=100 * times,
        compute_ns=60 * times,
        communication_ns=20 * times,
        overlap_ns=10 * times,
        exposed_communication_ns=10 * times,
        copy_ns=5 * times,
        idle_ns=25 * times,
    )


def test_reports_and_goodbye_are_numbered_from_one() -> None:
    builder = ReportBuilder()
    numbers = [builder.build(Interval(), 0).sequence for _ in range(3)]
    assert numbers == [1, 2, 3]
    assert builder.build_goodbye(ScriptEnd("finished")).sequence == 4


def test_empty_interval_is_a_report() -> None:
    report = ReportBuilder().build(Interval(), now_host_ns=77)
    assert (report.host_ns, report.steps.row_count, report.collectives) == (77, 0, Collectives())
    assert (report.host, report.devices, report.overhead_ratio) == (None, (), None)


def test_totals_count_every_step_of_the_process() -> None:
    builder = ReportBuilder()
    builder.build(Interval(steps=[step(0, data=5, forward=10), step(1, data=1, forward=10)]), 0)
    report = builder.build(Interval(steps=[step(2, data=4, checkpoint=100)]), 0)
    assert report.steps.column("step").tolist() == [2]
    assert report.totals == Totals(
        steps=3,
        step_ns=15 + 11 + 104,
        phases_ns={"data": 10, "forward": 20, "checkpoint": 100},
        batches=3 * 2,
    )
    assert report.totals == builder.totals


def test_totals_count_device_timed_steps_separately() -> None:
    builder = ReportBuilder()
    timed = [
        msgspec.structs.replace(step(number, data=5, forward=10), device_phases_ns={"data": 1, "forward": 7})
        for number in (1, 3)
    ]
    builder.build(Interval(steps=[step(0, data=5), timed[0], step(2, data=5)]), 0)
    totals = builder.build(Interval(steps=[timed[1]]), 0).totals
    assert (totals.steps, totals.device_steps) == (4, 2)
    assert (totals.device_step_ns, totals.device_phases_ns) == (2 * 8, {"data": 2, "forward": 14})


def test_totals_count_steps_with_a_tail_separately() -> None:
    builder = ReportBuilder()
    timed = msgspec.structs.replace(step(0, data=5), device_phases_ns={"data": 9})
    tails = [msgspec.structs.replace(timed, device_tail_ns=tail_ns) for tail_ns in (4, 0, None)]
    builder.build(Interval(steps=[*tails, step(3, data=5)]), 0)
    totals = builder.build(Interval(steps=tails[:1]), 0).totals
    assert (totals.device_steps, totals.device_tail_steps, totals.device_tail_ns) == (4, 3, 4 + 0 + 4)


def test_totals_add_up_the_blocking_calls_of_all_windows() -> None:
    def waits(**call_ns: int) -> WindowSynchronizations:
        return WindowSynchronizations(first_step=3, step_count=2, call_ns=call_ns)

    builder = ReportBuilder()
    report = builder.build(Interval(synchronizations=[waits(cudaMemcpy=5), waits(cudaMemcpy=7, hipMemcpy=1)]), 0)
    assert report.synchronizations == (waits(cudaMemcpy=5), waits(cudaMemcpy=7, hipMemcpy=1))
    assert builder.build(Interval(), 0).totals.call_ns == {"cudaMemcpy": 12, "hipMemcpy": 1}


def test_totals_have_a_bounded_number_of_calls() -> None:
    calls = {f"cuda{number}": 1 for number in range(CALLS_MAX + 4)}
    window = WindowSynchronizations(first_step=3, step_count=2, call_ns=calls)
    call_ns = ReportBuilder().build(Interval(synchronizations=[window]), 0).totals.call_ns
    assert (len(call_ns), call_ns[OTHER_CALLS], call_ns["cuda0"]) == (CALLS_MAX + 1, 4, 1)


def test_totals_add_up_the_breakdowns_of_all_windows() -> None:
    builder = ReportBuilder()
    builder.build(Interval(breakdowns=[breakdown()]), 0)
    totals = builder.build(Interval(breakdowns=[breakdown(), breakdown(times=2)]), 0).totals
    assert (totals.windows, totals.window_ns, totals.compute_ns) == (3, 400, 240)
    assert (totals.communication_ns, totals.overlap_ns, totals.exposed_communication_ns) == (80, 40, 40)
    assert (totals.copy_ns, totals.idle_ns) == (20, 100)


def test_totals_that_went_out_do_not_change_afterwards() -> None:
    builder = ReportBuilder()
    first = builder.build(Interval(steps=[step(0, data=5)]), 0)
    builder.build(Interval(steps=[step(1, data=5)]), 0)
    assert (first.totals.steps, first.totals.phases_ns) == (1, {"data": 5})


def test_groups_are_in_a_report_only_when_they_have_changed() -> None:
    builder = ReportBuilder()
    sent = [
        builder.build(Interval(groups=groups), 0).groups
        for groups in ({}, {}, {"0": WORLD}, {"0": WORLD}, {"9": PIPE, "0": WORLD}, {"0": WORLD, "9": PIPE}, {})
    ]
    assert sent == [(), None, (WORLD,), None, (WORLD, PIPE), None, ()]


def test_large_group_is_reported_by_eight_ranks() -> None:
    """Of 20 members those at place 0, 20/8, 40/8 ...: 0, 2, 5, 7, 10, 12, 15, 17."""
    large = GroupInfo(label="large", description="dp", ranks=tuple(range(100, 120)), backend="nccl")
    small = GroupInfo(label="small", description="tp", ranks=tuple(range(100, 108)), backend="nccl")
    told = {
        rank: ReportBuilder(rank).build(Interval(groups={"0": large, "1": small}), 0).groups for rank in large.ranks
    }
    tellers = [rank for rank, groups in told.items() if groups is not None and large in groups]
    assert tellers == [100, 102, 105, 107, 110, 112, 115, 117]
    assert all(groups is not None and small in groups for groups in told.values())


def test_groups_are_reported_again_on_request() -> None:
    builder = ReportBuilder()
    builder.build(Interval(groups={"0": WORLD}), 0)
    builder.resend_groups()
    told = [builder.build(Interval(groups={"0": WORLD}), 0).groups for _ in range(2)]
    assert told == [(WORLD,), None]


def test_everything_of_the_interval_is_in_the_report() -> None:
    collective = CollectiveRecord(step=3, group="default_pg", op="all_reduce", start_host_ns=9, duration_ns=4)
    report = ReportBuilder().build(
        Interval(
            steps=[step(9, data=1)],
            collectives=[collective],
            covered_steps=[(3, 9)],
            timed_steps=[(10, 12)],
            breakdowns=[breakdown()],
            host=HostSample(host_ns=5),
            losses=Losses(steps_overwritten=7),
            overhead_ratio=0.25,
            progress=(GroupStatus(group="default_pg", enqueued=7),),
            stalled_since_host_ns=60,
            stall=Stall(number=1, since_host_ns=60, taken_host_ns=95, limit_ns=30),
        ),
        now_host_ns=100,
    )
    assert report.progress == (GroupStatus(group="default_pg", enqueued=7),)
    assert report.stall is not None
    assert (report.stalled_since_host_ns, report.stall.taken_host_ns) == (60, 95)
    assert (report.collectives.groups, report.collectives.ops) == (("default_pg",), ("all_reduce",))
    assert (report.covered_steps, report.breakdowns, report.host) == (((3, 9),), (breakdown(),), HostSample(host_ns=5))
    assert report.timed_steps == ((10, 12),)
    assert (report.losses.steps_overwritten, report.overhead_ratio) == (7, 0.25)


def test_steps_are_covered_once_their_records_are_reported() -> None:
    # Record 9 waits for its device times while the window in which it lay, and the one after it, are here already.
    builder = ReportBuilder()
    told = [
        builder.build(Interval(steps=[step(number, data=1) for number in numbers], covered_steps=covered), 0)
        for numbers, covered in (([7, 8], [(4, 6), (7, 9)]), ([], [(10, 11)]), ([9, 10], []), ([11], []), ([12], []))
    ]
    assert [report.covered_steps for report in told] == [((4, 6),), (), ((7, 9),), ((10, 11),), ()]


def test_a_report_comes_out_of_the_wire_as_it_went_in() -> None:
    steps = [step(0, data=5, forward=1, backward=1, optimizer=1, other=0)]
    report = ReportBuilder().build(Interval(steps=steps, groups={"0": WORLD}), 0)
    back = decode(encode(report))
    assert isinstance(back, Report)
    assert msgspec.msgpack.encode(back) == msgspec.msgpack.encode(report)


def test_goodbye_truncates_a_long_detail() -> None:
    goodbye = ReportBuilder().build_goodbye(
        ScriptEnd("failed", "ValueError: " + "x" * 5000, 1, "train.py:24 (" + "m" * 600)
    )
    assert (goodbye.reason, goodbye.exit_code, len(goodbye.detail)) == ("failed", 1, 1024)
    assert goodbye.line == "train.py:24 (" + "m" * 499
    assert decode(encode(goodbye)) == goodbye


def test_goodbye_with_a_file_name_that_is_not_utf8_can_be_sent() -> None:
    goodbye = ReportBuilder().build_goodbye(ScriptEnd("failed", "OSError: \udcff.bin", 1, "a\udcff.py:1 (main)"))
    assert (goodbye.detail, goodbye.line) == ("OSError: ?.bin", "a?.py:1 (main)")
    assert decode(encode(goodbye)) == goodbye


def test_samples_count_from_the_first_step_that_has_them() -> None:
    def known(number: int, samples: int | None, tokens: int | None) -> StepRecord:
        return msgspec.structs.replace(step(number, data=5, forward=10), samples=samples, tokens=tokens)

    builder = ReportBuilder()
    totals = builder.build(Interval(steps=[step(0, data=7)]), 0).totals
    assert (totals.samples, totals.tokens, totals.samples_step_ns) == (None, None, 0)
    builder.build(Interval(steps=[known(1, 8, None), known(2, 4, 256)]), 0)
    totals = builder.build(Interval(steps=[known(3, 0, None)]), 0).totals
    assert (totals.samples, totals.samples_step_ns) == (12, 3 * 15)
    assert (totals.tokens, totals.tokens_step_ns) == (256, 15)


def test_a_report_that_could_not_be_sent_leaves_no_gap() -> None:
    builder = ReportBuilder()
    builder.build(Interval(), 0)
    builder.build(Interval(), 0)  # is not sent
    builder.set_last_sequence(1)
    assert builder.build(Interval(), 0).sequence == 2
