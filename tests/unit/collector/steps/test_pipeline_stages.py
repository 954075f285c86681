"""The stages of an announced pipeline, by numbers that can be added up in one's head: steps of 100 ms, 10 outside."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rankscope.collector.steps.least_waiting import STEPS_MIN
from rankscope.collector.steps.pipeline_stages import PipelineTimes, describe_pipeline, find_pipeline
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.records import PipelineSchedule

MS = 1e6
Waits = list[list[float]]


def series_of(waits_ms: Waits, outside_ms: float = 10.0) -> StepSeries:
    """Steps of 100 ms in which each rank waited so long for sends and receives, and for nothing else."""
    waits_ns = np.array(waits_ms) * MS
    steps_ns = np.full(waits_ns.shape, 100.0 * MS)
    nothing = np.full(waits_ns.shape, np.nan)
    return StepSeries(
        steps=np.arange(len(waits_ns)),
        ranks=tuple(range(waits_ns.shape[1])),
        step_ns=steps_ns,
        own_ns=steps_ns - waits_ns,
        cpu_ns=nothing,
        phases_ns={"data": np.zeros(waits_ns.shape), "optimizer": np.full(waits_ns.shape, outside_ms * MS)},
        own_is_measured=True,
        handover_ns=waits_ns,
    )


def announce(*stages: tuple[int, ...], name: str = "Schedule1F1B") -> dict[int, PipelineSchedule]:
    """A pipeline with two ranks and 4 microbatches: its own bubble is 1/5."""
    count = len({number for one in stages for number in one})
    return {
        rank: PipelineSchedule(name=name, stages=held, stage_count=count, ranks=2, microbatches=4)
        for rank, held in enumerate(stages)
    }


def measured(waits_ms: Waits, *stages: tuple[int, ...]) -> PipelineTimes:
    found = find_pipeline(series_of(waits_ms), announce(*stages))
    assert found is not None
    return found


def test_bubble_is_the_share_of_the_pipelines_time() -> None:
    found = measured([[36.0, 18.0]] * STEPS_MIN, (0,), (1,))
    # 100 ms without the 10 of the optimizer: 36 / 90 and 18 / 90.
    assert [one.bubble_ratio for one in found.stages] == pytest.approx([0.4, 0.2])
    assert [one.own_ns for one in found.stages] == pytest.approx([64 * MS, 82 * MS])
    assert found.pipeline_ns == pytest.approx(90 * MS)
    assert (found.steps, found.last_step) == (STEPS_MIN, STEPS_MIN - 1)


def test_longest_stage_sets_the_pace_and_an_even_split_is_less() -> None:
    found = measured([[36.0, 18.0]] * STEPS_MIN, (0,), (1,))
    assert found.pace == (1,)
    assert found.margin_ns == pytest.approx(18 * MS)
    # Own times 64 and 82, 10 of it outside: mean 63 within the pipeline; 10 + 63 / (1 - 1/5).
    assert found.even_step_ns == pytest.approx(88.75 * MS)


@pytest.mark.parametrize(
    "waits_ms",
    [[[20.0, 18.0]] * STEPS_MIN, [[36.0, 18.0], [18.0, 36.0]] * STEPS_MIN],
    ids=["by less than 5 % of a step", "now one, now the other"],
)
def test_no_stage_sets_the_pace_without_evidence(waits_ms: Waits) -> None:
    found = measured(waits_ms, (0,), (1,))
    assert (found.pace, found.margin_ns, found.even_step_ns) == (None, None, None)
    assert describe_pipeline(found)[1].startswith("no stage sets the pace")


def test_replicas_of_a_stage_count_as_one() -> None:
    # Ranks 0, 2, 4 hold stage 0; the middle one counts, so that the slow rank 4 is no slow stage.
    found = measured([[36.0, 18.0, 36.0, 18.0, 9.0, 18.0]] * STEPS_MIN, (0,), (1,), (0,), (1,), (0,), (1,))
    assert [(one.stages, one.ranks) for one in found.stages] == [((0,), (0, 2, 4)), ((1,), (1, 3, 5))]
    assert [one.bubble_ratio for one in found.stages] == pytest.approx([0.4, 0.2])
    assert found.pace == (1,)


def test_two_stages_of_a_rank_are_said_together() -> None:
    found = measured([[36.0, 18.0]] * STEPS_MIN, (0, 3), (1, 2))
    assert [one.stages for one in found.stages] == [(0, 3), (1, 2)]
    assert describe_pipeline(found)[1].startswith("stages 1, 2 set the pace: own time 82.0 ms per step")


def test_schedule_without_formula_has_bubbles_and_even_bound() -> None:
    found = find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN), announce((0, 3), (1, 2), name="ScheduleZBVZeroBubble"))
    assert found is not None
    assert (found.ideal_ratio, found.pace) == (None, (1, 2))
    assert found.even_step_ns == pytest.approx(73 * MS), "own times 64 and 82"
    assert describe_pipeline(found)[0].endswith("with equal stages not known: no formula for ScheduleZBVZeroBubble")


def test_zero_bubble_counts_on_equal_parts_and_says_so() -> None:
    announced = announce((0, 2), (1, 3), name="ScheduleInterleavedZeroBubble")
    found = find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN), announced)
    assert found is not None
    assert found.ideal_ratio == pytest.approx(1 / 25)  # 1 of 3 x 2 x 4 + 1 parts
    assert describe_pipeline(found)[0].endswith("4.0 % with equal stages, and forward and both backwards equally long")
    assert found.even_step_ns == pytest.approx(73 * MS), "whatever they last"


def test_unknown_microbatch_number_gives_no_ideal_and_says_so() -> None:
    named = announce((0,), (1,), name="forward_backward_pipelining_without_interleaving")
    announced = {rank: msgspec.structs.replace(one, microbatches=0) for rank, one in named.items()}
    found = find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN), announced)
    assert found is not None
    assert found.ideal_ratio is None
    assert describe_pipeline(found)[0] == (
        "forward_backward_pipelining_without_interleaving, 2 stages on 2 ranks: bubble 20.0-40.0 % of the pipeline's "
        "time, with equal stages not known: the number of microbatches is not announced"
    )


def test_nothing_is_said_where_no_pipeline_is_announced() -> None:
    assert find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN), {}) is None
    assert describe_pipeline(None) == []


def test_what_is_not_known_has_its_reason() -> None:
    full, few = series_of([[36.0, 18.0]] * STEPS_MIN), series_of([[36.0, 18.0]] * (STEPS_MIN - 1))
    unknown = series_of([[36.0, np.nan]] * STEPS_MIN)
    other = {
        **announce((0,), (1,)),
        1: PipelineSchedule(name="GPipe", stages=(1,), stage_count=2, ranks=2, microbatches=4),
    }
    said = {
        "1 of 2 ranks announce no pipeline": find_pipeline(full, announce((0,))),
        "the ranks announce different pipelines": find_pipeline(full, other),
        "no sends and receives have been measured yet": find_pipeline(
            replace(full, handover_ns=None), announce((0,), (1,))
        ),
        "the waiting of all ranks is known in 15 of the 16 steps needed": find_pipeline(few, announce((0,), (1,))),
        "the waiting of all ranks is known in 0 of the 16 steps needed": find_pipeline(unknown, announce((0,), (1,))),
    }
    for absent, found in said.items():
        assert found is not None
        assert (found.absent, found.stages) == (absent, ())
        assert describe_pipeline(found)[0].endswith(f"bubble not known: {absent}")


def test_bubble_is_at_most_the_pipelines_time() -> None:
    found = find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN, outside_ms=100.0), announce((0,), (1,)))
    assert found is not None
    assert [one.bubble_ratio for one in found.stages] == [0.0, 0.0], "no time to wait in"
    found = find_pipeline(series_of([[36.0, 18.0]] * STEPS_MIN, outside_ms=80.0), announce((0,), (1,)))
    assert found is not None
    assert [one.bubble_ratio for one in found.stages] == pytest.approx([1.0, 0.9])
