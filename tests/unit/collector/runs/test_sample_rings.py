"""The last few samples of a rank: what is kept is what came in, and the sum of windows is theirs."""

import msgspec
import pytest

from rankscope.collector.detect.machine_growth import NodeCounts
from rankscope.collector.detect.view import AllocatorCounts, TimeCount
from rankscope.collector.runs.report_fields import ReportFields
from rankscope.collector.runs.sample_rings import (
    BREAKDOWNS_KEPT,
    GC_PAUSES_KEPT,
    HOST_TIMES_KEPT,
    NODE_COUNTS_KEPT,
    BreakdownRing,
    PackedRing,
    RankSamples,
    TimeRing,
)
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    AgentCost,
    AllocatorSample,
    HostSample,
    NodeSample,
    Totals,
    WindowBreakdown,
    WindowSynchronizations,
)


def window_of(**changed: int | None) -> WindowBreakdown:
    """100 ns: 60 of compute and 30 of communication of which 10 were at once, 5 of copies, 15 of nothing."""
    fields: dict[str, int | None] = {
        "first_step": 7, "step_count": 1, "window_ns": 100, "compute_ns": 60, "communication_ns": 30, "overlap_ns": 10,
        "exposed_communication_ns": 20, "copy_ns": 5, "idle_ns": 15, "operator_count": 40,
    }  # fmt: skip
    return WindowBreakdown(**{**fields, **changed})  # type: ignore[arg-type]


def ring_of(*windows: WindowBreakdown, kept: int = 32) -> BreakdownRing:
    ring = BreakdownRing(kept)
    for window in windows:
        ring.append(window)
    return ring


# -- windows ----------------------------------------------------------------------------------------------------------


def test_windows_add_up_to_one_whose_parts_still_sum_to_it() -> None:
    long = window_of(
        first_step=20, step_count=3, window_ns=300, compute_ns=100, communication_ns=100, overlap_ns=50,
        exposed_communication_ns=50, copy_ns=0, idle_ns=150, operator_count=80,
    )  # fmt: skip
    assert ring_of(window_of(), long).sum == window_of(
        step_count=4, window_ns=400, compute_ns=160, communication_ns=130, overlap_ns=60,
        exposed_communication_ns=70, copy_ns=5, idle_ns=165, operator_count=120,
    )  # fmt: skip


def test_operators_are_counted_only_when_every_window_did() -> None:
    added = ring_of(window_of(), window_of(operator_count=None)).sum
    assert added is not None
    assert added.operator_count is None


def test_one_window_is_itself_and_none_is_none() -> None:
    assert ring_of(window_of()).sum == window_of()
    assert ring_of().sum is None


def test_a_window_that_has_gone_is_in_the_sum_no_more() -> None:
    """Of three the last two are kept: 1 + 4 steps, and operators of both."""
    windows = (window_of(operator_count=None), window_of(first_step=8), window_of(first_step=9, step_count=4))
    ring = ring_of(*windows, kept=2)
    assert list(ring) == list(windows[1:])
    assert ring.sum == window_of(
        first_step=8, step_count=5, window_ns=200, compute_ns=120, communication_ns=60, overlap_ns=20,
        exposed_communication_ns=40, copy_ns=10, idle_ns=30, operator_count=80,
    )  # fmt: skip


# -- packed samples, and pauses ---------------------------------------------------------------------------------------


def test_packed_samples_come_back_in_their_order() -> None:
    samples = [AllocatorCounts(step, AllocatorSample(host_ns=step, retries=step or None)) for step in range(5)]
    ring = PackedRing(msgspec.msgpack.Decoder(AllocatorCounts), kept=3)
    for sample in samples:
        ring.append(sample)
    assert (len(ring), list(ring), ring[0], ring[-1], list(ring[1:])) == (
        3,
        samples[2:],
        samples[2],
        samples[4],
        samples[3:],
    )


def test_the_first_samples_of_a_ring_that_keeps_them_stay() -> None:
    ring = PackedRing(msgspec.msgpack.Decoder(AllocatorCounts), kept=3, first=1)
    for step in range(5):
        ring.append(AllocatorCounts(step, AllocatorSample(host_ns=step)))
    assert [one.steps for one in ring] == [0, 3, 4]


def test_the_last_pauses_are_kept_however_many_there_were() -> None:
    ring = TimeRing(kept=10)
    for step in range(1, 60):
        ring.append(step, 5 * step)
        first = max(1, step - 9)
        assert list(ring) == [TimeCount(one, 5 * one) for one in range(first, step + 1)]


def test_pauses_are_a_sequence_like_any_other() -> None:
    ring = TimeRing(kept=10)
    for step in (1, 2, 3):
        ring.append(step, step)
    assert (list(ring[1:]), ring[-3], next(reversed(ring))) == ([TimeCount(2, 2), TimeCount(3, 3)], (1, 1), (3, 3))
    with pytest.raises(IndexError):
        ring[3]


@pytest.mark.parametrize("pause_ns", [1, 2**31 - 1, 2**31, 2**50])
def test_pauses_of_any_length_are_kept_to_the_nanosecond(pause_ns: int) -> None:
    ring = TimeRing(kept=10)
    made = [TimeCount(step, step * pause_ns) for step in range(1, 100)]
    for steps, so_far_ns in made:
        ring.append(steps, so_far_ns)
    assert list(ring) == made[-10:]


def test_long_pause_is_kept_to_the_nanosecond() -> None:
    ring = TimeRing(kept=3)
    for steps, so_far_ns in ((1, 5), (2, 2**40), (3, 2**40 + 1)):
        ring.append(steps, so_far_ns)
    assert list(ring) == [(1, 5), (2, 2**40), (3, 2**40 + 1)]


# -- all samples of a rank --------------------------------------------------------------------------------------------


def record(samples: RankSamples, **measured: object) -> None:
    report = Report(sequence=1, host_ns=0, **measured)  # type: ignore[arg-type]
    samples.record(ReportFields.of(report))


def test_last_breakdowns_of_a_rank_are_summed() -> None:
    samples = RankSamples()
    for step in range(BREAKDOWNS_KEPT + 5):
        record(samples, breakdowns=(window_of(first_step=step),))
    found = samples.breakdowns.sum
    assert found is not None
    assert (found.first_step, found.step_count, found.window_ns) == (5, BREAKDOWNS_KEPT, 100 * BREAKDOWNS_KEPT)


def test_breakdowns_of_the_last_capture_on_demand_count_alone() -> None:
    samples, cost = RankSamples(), AgentCost(window_effect="on_demand")
    waits = [WindowSynchronizations(first_step=step, step_count=2, idle_ns=step) for step in (5, 90)]
    record(
        samples, breakdowns=(window_of(first_step=5), window_of(first_step=6)), synchronizations=waits[:1], cost=cost
    )
    record(samples, breakdowns=(window_of(first_step=90),), cost=cost)
    record(samples, breakdowns=(window_of(first_step=91),), synchronizations=waits[1:], cost=cost)
    assert [window.first_step for window in samples.breakdowns] == [90, 91]
    assert samples.breakdowns.sum is not None
    assert (samples.breakdowns.sum.first_step, samples.breakdowns.sum.step_count) == (90, 2)
    assert [one.first_step for one in samples.synchronizations] == [90]


def test_pauses_are_kept_with_the_steps_reported_by_then() -> None:
    samples = RankSamples()
    record(samples, totals=Totals(steps=4), host=HostSample(host_ns=1, gc_pause_ns=700))
    record(samples, totals=Totals(steps=6), host=HostSample(host_ns=2))
    record(samples, totals=Totals(steps=8))
    assert [tuple(sample) for sample in samples.gc_pauses] == [(4, 700)]
    for steps in range(4, 4 + GC_PAUSES_KEPT):
        record(samples, totals=Totals(steps=steps), host=HostSample(host_ns=steps, gc_pause_ns=steps))
    assert (len(samples.gc_pauses), samples.gc_pauses[0].counted_ns) == (GC_PAUSES_KEPT, 4)


def test_times_of_a_host_sample_are_kept_once() -> None:
    samples = RankSamples()
    for steps, host_ns in ((4, 10), (5, 10), (6, 20)):  # the second report has the sample of the first
        host = HostSample(host_ns=host_ns, cpu_ns=900 + host_ns, run_queue_wait_ns=host_ns, gc_pause_ns=7)
        record(samples, totals=Totals(steps=steps), host=host)
    assert [tuple(one) for one in samples.process_cpu] == [(4, 910), (6, 920)]
    assert [tuple(one) for one in samples.core_waits] == [(4, 10), (6, 20)]
    assert [tuple(sample) for sample in samples.gc_pauses] == [(4, 7), (6, 7)]


def test_a_sample_of_the_allocator_is_kept_once() -> None:
    samples = RankSamples()
    for steps, host_ns in ((4, 10), (5, 10), (6, 20)):
        record(samples, totals=Totals(steps=steps), allocator=AllocatorSample(host_ns=host_ns, retries=1))
    assert [counts.steps for counts in samples.allocators] == [4, 6]


def test_times_that_a_host_sample_lacks_are_not_kept() -> None:
    samples = RankSamples()
    record(samples, totals=Totals(steps=4), host=HostSample(host_ns=1, cpu_ns=5))
    record(samples, totals=Totals(steps=5), host=HostSample(host_ns=2, run_queue_wait_ns=6))
    assert (list(samples.process_cpu), list(samples.core_waits)) == ([TimeCount(4, 5)], [TimeCount(5, 6)])


def test_last_times_of_the_host_are_kept() -> None:
    samples = RankSamples()
    for steps in range(3 * HOST_TIMES_KEPT):
        record(samples, totals=Totals(steps=steps), host=HostSample(host_ns=steps, cpu_ns=steps, run_queue_wait_ns=0))
    samples.validate()
    last = range(2 * HOST_TIMES_KEPT, 3 * HOST_TIMES_KEPT)
    assert [one.steps for one in samples.process_cpu] == list(last)


def test_last_samples_of_the_machine_are_kept_with_their_steps() -> None:
    samples = RankSamples()
    record(samples, totals=Totals(steps=3))
    for steps in range(NODE_COUNTS_KEPT + 2):
        record(samples, totals=Totals(steps=steps), node=NodeSample(host_ns=steps, cpu_steal_ns=5))
    samples.validate()
    assert len(samples.machines) == NODE_COUNTS_KEPT
    assert samples.machines[0] == NodeCounts(2, NodeSample(host_ns=2, cpu_steal_ns=5))
