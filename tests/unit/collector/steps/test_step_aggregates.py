"""Which steps go into the history, when, and as what."""

import numpy as np

from rankscope.collector.runs.saved_runs import collect_finished_steps
from rankscope.collector.steps.step_aggregates import NS_MAX, PATIENCE_STEPS, StepAggregate, aggregate_steps
from rankscope.measure.records import StepRecord
from tests.unit.collector.runs.run_stories import MS, Story

NAN = float("nan")


def numbers(lines: list[StepAggregate]) -> list[int]:
    return [line.step for line in lines]


def test_step_is_finished_once_every_rank_has_reported_it() -> None:
    story = Story(2).join().train(3)
    assert numbers(collect_finished_steps(story.run, 7.0)) == [0, 1, 2]
    assert collect_finished_steps(story.run, 8.0) == []
    assert numbers(collect_finished_steps(story.train(2).run, 9.0)) == [3, 4]


def test_a_line_says_the_median_the_longest_and_who_had_it() -> None:
    durations = np.array([[10.0, 30.0, 20.0, 40.0], [5.0, 5.0, NAN, 7.0]])
    phases = {"data": np.array([[1.0, 2.0, 3.0, 4.0], [NAN, NAN, NAN, NAN]])}
    first, second = aggregate_steps(1, 9.5, np.array([4, 5]), durations, phases)
    assert first == StepAggregate(
        attempt=1, step=4, wall_s=9.5, ranks=4, median_ns=25, longest_ns=40, slowest_rank=3,
        phases_ns={"data": 2},
    )  # fmt: skip
    assert (second.ranks, second.median_ns, second.longest_ns, second.slowest_rank) == (3, 5, 7, 3)
    assert second.phases_ns == {}


def test_time_beyond_the_store_is_clipped() -> None:
    """The largest integer of 64 bits, as a float, is one more than that."""
    (line,) = aggregate_steps(0, 0.0, np.array([1]), np.array([[float(2**63 - 1)]]), {})
    assert (line.median_ns, line.longest_ns) == (NS_MAX, NS_MAX)


def test_a_step_that_nobody_reported_has_no_line() -> None:
    durations = np.array([[NAN, NAN], [3.0, 4.0]])
    assert numbers(aggregate_steps(0, 0.0, np.array([1, 2]), durations, {})) == [2]
    assert aggregate_steps(0, 0.0, np.array([1]), durations[:1], {}) == []


def only(story: Story, rank: int, steps: range) -> None:
    """One rank reports steps that the others do not."""
    records = [StepRecord(step=step, start_host_ns=0, duration_ns=MS, phases_ns={"other": MS}) for step in steps]
    story.report(rank, records, [])
    story.tick()


def test_a_rank_that_lags_is_waited_for_and_then_left_out() -> None:
    story = Story(2).join().train(3)
    collect_finished_steps(story.run, 0.0)
    only(story, 0, range(3, 3 + PATIENCE_STEPS))
    assert collect_finished_steps(story.run, 0.0) == []
    only(story, 0, range(3 + PATIENCE_STEPS, 5 + PATIENCE_STEPS))
    lines = collect_finished_steps(story.run, 0.0)
    assert (numbers(lines), [line.ranks for line in lines]) == ([3, 4], [1, 1])


def test_at_the_end_of_a_run_nothing_is_waited_for() -> None:
    story = Story(2).join().train(3)
    only(story, 0, range(3, 6))
    story.say_goodbye(0).say_goodbye(1).tick()
    assert numbers(collect_finished_steps(story.run, 0.0)) == [0, 1, 2, 3, 4, 5]


def test_an_attempt_counts_its_steps_anew() -> None:
    story = Story(2).join().train(2)
    collect_finished_steps(story.run, 0.0)
    lines = collect_finished_steps(story.restart(counted=False).train(2).run, 0.0)
    assert [(line.attempt, line.step) for line in lines] == [(1, 0), (1, 1)]
