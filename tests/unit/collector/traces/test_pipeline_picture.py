"""Pictures of pipelines: forward, backward and bubble of one step, against schedules of known truth."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rankscope.collector.reports.pipeline_drawing import sum_by_kind
from rankscope.collector.reports.trace_page import render_page
from rankscope.collector.traces import analyze
from rankscope.collector.traces.pipeline import Chain
from rankscope.collector.traces.pipeline_picture import LANES_MAX, StageStep, divide_step, draw_pipeline
from rankscope.collector.traces.report import PipelinePicture, PipelineReport
from rankscope.measure.intervals import EMPTY, Intervals
from rankscope.measure.traced_messages import TracedMessage
from tests.pipelines import BACKWARD_US, FORWARD_US, MOVE_US, Job, write_traces
from tests.unit.collector.reports.test_trace_page import report_of

CHAIN = Chain((0, 1, 2), is_ring=False)


def send(peer: int, start_ns: int) -> TracedMessage:
    return TracedMessage("send", peer, None, 8, 0, start_ns, 1, start_ns)


def recv(peer: int, end_ns: int) -> TracedMessage:
    return TracedMessage("recv", peer, None, 8, 0, end_ns - 1, 1, end_ns - 1)


def divide(
    rank: int, *messages: TracedMessage, bubble: Intervals = EMPTY, backward: Intervals = EMPTY
) -> list[tuple[str, int, int]]:
    """Kind, start and length of each piece of a step of 100 ns."""
    step = StageStep(1_000, 1_100, messages, bubble, backward)
    return [(one.kind, one.start_ns, one.length_ns) for one in divide_step(step, CHAIN, rank)]


def test_middle_stage_works_as_its_messages_say() -> None:
    found = divide(1, recv(0, 1_010), send(2, 1_030), recv(2, 1_040), send(0, 1_080))
    assert found == [
        ("other", 0, 10), ("forward", 10, 20), ("other", 30, 10), ("backward", 40, 40), ("other", 80, 20),
    ]  # fmt: skip


def test_bubble_goes_before_what_the_messages_say() -> None:
    found = divide(1, recv(0, 1_010), send(2, 1_030), bubble=np.array([[990, 1_008], [1_020, 1_025]]))
    assert found == [
        ("bubble", 0, 8), ("other", 8, 2), ("forward", 10, 10), ("bubble", 20, 5), ("forward", 25, 5),
        ("other", 30, 70),
    ]  # fmt: skip


def test_last_stage_does_both_between_two_messages() -> None:
    assert divide(2, recv(1, 1_000), send(1, 1_100)) == [("either", 0, 100)]


def test_ranges_of_autograd_part_forward_from_backward() -> None:
    # On the last stage the forward comes first, on the first stage the backward of an earlier microbatch.
    ranges = np.array([[1_040, 1_050], [1_060, 1_100]])
    assert divide(2, recv(1, 1_000), send(1, 1_100), backward=ranges) == [("forward", 0, 40), ("backward", 40, 60)]
    ranges = np.array([[1_000, 1_070]])
    assert divide(0, recv(1, 1_000), send(1, 1_100), backward=ranges) == [("backward", 0, 70), ("forward", 70, 30)]


def test_optimizer_after_the_last_backward_is_other() -> None:
    found = divide(0, send(1, 1_000), recv(1, 1_020), backward=np.array([[1_020, 1_070]]))
    assert found == [("other", 0, 20), ("backward", 20, 50), ("other", 70, 30)]


def test_messages_beyond_the_step_are_at_its_edges() -> None:
    assert divide(0, send(1, 900), send(1, 1_200)) == [("forward", 0, 100)]


# -- made pipelines ---------------------------------------------------------------------------------------------------


def picture_of(folder: Path, job: Job, backend: str = "gloo") -> tuple[PipelineReport, PipelinePicture]:
    write_traces(folder, job, backend=backend)
    across = analyze(str(folder)).cross_rank
    assert across is not None
    assert across.pipeline is not None
    assert across.pipeline.picture is not None
    return across.pipeline, across.pipeline.picture


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("schedule", ["1F1B", "interleaved", "zero_bubble"])
def test_pieces_sum_to_the_step_and_to_the_table(tmp_path: Path, schedule: str, backend: str) -> None:
    staged, picture = picture_of(tmp_path, Job(schedule, 4, 8, slow={2: 1.6}, steps=1), backend)
    assert (picture.step, picture.is_aligned, picture.rank_count) == (0, True, 4)
    for stage, lane in zip(staged.stages, picture.lanes, strict=True):
        sums_ns = sum_by_kind(lane)
        assert sum(sums_ns.values()) == lane.window_ns
        assert sums_ns["bubble"] == stage.bubble_ns
        ends = [one.start_ns + one.length_ns for one in lane.segments]
        assert all(end == one.start_ns for end, (_, one) in zip(ends, pairwise(lane.segments), strict=False))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_stages_work_as_long_as_their_schedule_says(tmp_path: Path, backend: str) -> None:
    _, picture = picture_of(tmp_path, Job("1F1B", 4, 8, slow={2: 1.5}), backend)
    us = [sum_by_kind(lane) for lane in picture.lanes]
    # The two stages in the middle do one direction between two messages. Sending takes up to 30 us more each.
    moves_ns = 8 * 2 * MOVE_US * 1_000
    for stage, factor in ((1, 1.0), (2, 1.5)):
        assert us[stage]["forward"] == pytest.approx(8 * FORWARD_US * 1_000 * factor, abs=moves_ns)
        assert us[stage]["backward"] == pytest.approx(8 * BACKWARD_US * 1_000 * factor, abs=moves_ns)
    # The last stage does both for each microbatch.
    assert us[3]["either"] == pytest.approx(8 * (FORWARD_US + BACKWARD_US) * 1_000, abs=moves_ns)


def test_replicas_of_a_stage_lie_beside_each_other(tmp_path: Path) -> None:
    _, picture = picture_of(tmp_path, Job("1F1B", 2, 4, replicas=2))
    assert [(lane.stage, lane.rank) for lane in picture.lanes] == [(0, 0), (0, 2), (1, 1), (1, 3)]


def steps_of(count: int) -> tuple[list[Chain], Mapping[int, Mapping[int, StageStep]]]:
    chains = [Chain((rank, rank + 1), is_ring=False) for rank in range(0, count, 2)]
    step = StageStep(50, 150, [], EMPTY, EMPTY)
    return chains, {rank: {1: step, 2: step._replace(end_ns=160)} for rank in range(count)}


def test_slowest_step_is_drawn_and_lanes_are_bounded() -> None:
    found = draw_pipeline(*steps_of(40), dict.fromkeys(range(40), 0))
    assert found is not None
    assert (found.step, len(found.lanes), found.rank_count) == (2, LANES_MAX, 40)


def test_whole_pipelines_are_drawn_where_not_all_fit() -> None:
    chains = [Chain(tuple(range(first, first + 12)), is_ring=False) for first in (0, 12, 24)]
    step = StageStep(0, 100, [], EMPTY, EMPTY)
    found = draw_pipeline(chains, {rank: {1: step} for rank in range(36)}, None)
    assert found is not None
    # Two of three pipelines of 12 stages fit into 32 lines.
    assert {lane.rank for lane in found.lanes} == set(range(24))
    assert [lane.stage for lane in found.lanes[:4]] == [0, 0, 1, 1]


def test_ranks_begin_together_without_a_common_clock() -> None:
    chains, steps = steps_of(2)
    apart, alone = draw_pipeline(chains, steps, {0: 0, 1: -30}), draw_pipeline(chains, steps, None)
    assert apart is not None
    assert alone is not None
    assert [lane.start_ns for lane in apart.lanes] == [0, 30]
    assert ([lane.start_ns for lane in alone.lanes], alone.is_aligned) == ([0, 0], False)


def test_stages_without_a_common_step_have_no_picture() -> None:
    chains, steps = steps_of(2)
    assert draw_pipeline(chains, {0: steps[0], 1: {}}, None) is None


# -- the page ---------------------------------------------------------------------------------------------------------


def test_page_draws_the_pieces_with_their_figures(tmp_path: Path) -> None:
    write_traces(tmp_path, Job("1F1B", 4, 8))
    page = render_page(analyze(str(tmp_path)))
    assert page.count('aria-label="stage ') == 4
    assert "Step 0, the slowest that all stages have." in page
    assert "<title>forward or backward 6." in page


def test_page_of_other_runs_has_no_picture() -> None:
    assert 'id="stages"' not in render_page(report_of())
