"""Each step in bins: what is drawn sums to what the tables say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import Breakdown, RankReport, StepTimeline, Timeline
from rankscope.collector.traces.windows import BINS_OF_A_STEP_MAX, STEP_BINS_MAX, draw_timeline, draw_timelines
from rankscope.measure.rank_view import RankView
from tests.pipelines import Job, write_traces
from tests.unit.measure.written_traces import event, kernel, read_events

TRACES = Path(__file__).parents[3] / "traces"
RECORDED = (
    "a100_nccl_2ranks_r0.json.gz",
    "v100dgxs_resnet50_workers0_a.json.gz",
    "v100_dlrm_8ranks_r0.json.gz",
    "gloo-2.13/ddp_2r_clean",
)


@pytest.fixture(scope="module", params=RECORDED)
def ranks(request: pytest.FixtureRequest) -> list[RankReport]:
    path: str = request.param
    return analyze(str(TRACES / path)).ranks


def steps_of(rank: RankReport) -> Iterator[tuple[Breakdown, StepTimeline]]:
    """The steps as in the tables by which ranks are compared, with their timelines."""
    by_device = all(step.on_device is not None for step in rank.steps)
    for step, timeline in zip(rank.steps, rank.step_timelines, strict=True):
        found = step.on_device if by_device and step.on_device is not None else step
        assert (timeline.step, timeline.start_ns) == (step.step, found.start_ns)
        yield found, timeline


def sums_of(timeline: Timeline) -> tuple[int, ...]:
    return tuple(map(sum, (timeline.compute, timeline.overlap, timeline.communication, timeline.copy)))


def in_table(found: Breakdown) -> tuple[int, ...]:
    return found.compute_ns - found.overlap_ns, found.overlap_ns, found.exposed_communication_ns, found.copy_ns


def test_bins_of_a_step_sum_to_its_row(ranks: list[RankReport]) -> None:
    steps = [one for rank in ranks for one in steps_of(rank)]
    assert steps
    for found, timeline in steps:
        assert (sums_of(timeline), timeline.window_ns) == (in_table(found), found.window_ns)
        assert sum(timeline.host) <= found.idle_ns


def test_bins_of_a_trace_sum_to_its_row(ranks: list[RankReport]) -> None:
    for rank in ranks:
        assert rank.timeline is not None
        assert (sums_of(rank.timeline), rank.timeline.window_ns) == (in_table(rank), rank.window_ns)


def test_host_is_shown_where_no_device_works() -> None:
    # Operators from 0 to 15 and from 22 to 30 us, a kernel from 10 to 25: the host alone until 10, and from 25 on.
    events = event("cpu_op", "a", 0, 15), event("cpu_op", "b", 22, 8), kernel("k", 10, 15), kernel("k", 40, 1)
    timeline = draw_timeline(RankView(read_events(*events)), bins=31)
    assert timeline is not None
    # The window begins with the first kernel: us 15 to 20 of it.
    assert (timeline.start_ns, timeline.host) == (10_000, [0] * 15 + [1_000] * 5 + [0] * 11)


def test_many_steps_share_a_bounded_number_of_bins() -> None:
    steps = [event("user_annotation", f"ProfilerStep#{number}", 10 * number, 10) for number in range(100)]
    _, drawn = draw_timelines(RankView(read_events(*steps, event("cpu_op", "a", 0, 999))))
    assert len(drawn) == 100
    assert {len(one.compute) for one in drawn} == {STEP_BINS_MAX // 100}
    assert BINS_OF_A_STEP_MAX == 200


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_waiting_is_part_of_exposed_communication(tmp_path: Path, backend: str) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 8, slow={2: 1.6}), backend=backend)
    steps = [step for rank in analyze(str(tmp_path)).ranks for step in rank.steps]
    assert len(steps) == 12
    assert all(0 < (one.waiting_ns or 0) <= one.exposed_communication_ns for one in steps)


def test_waiting_of_a_rank_alone_is_not_known() -> None:
    (rank,) = analyze(str(TRACES / "a100_nccl_2ranks_r0.json.gz")).ranks
    assert {step.waiting_ns for step in rank.steps} == {None}
