"""The picture of the last steps: what it shows, and that it stays as it was taken."""

import numpy as np
import pytest

from tests.unit.collector.job_stories import MS, Story


def test_excess_is_the_own_time_over_that_of_the_twins() -> None:
    # Three phases of 10 ms each; rank 2 takes 40 ms for the first of them: 60 ms of own work against 30.
    story = Story(4).join().train(20, data={2: 40.0})
    picture = story.job.step_picture
    assert picture is not None
    assert picture.latest_step == 19
    assert np.exp(picture.excess[-1]).tolist() == pytest.approx([1.0, 1.0, 2.0, 1.0], rel=0.2)
    assert picture.series.step_ns[-1].tolist() == [65 * MS] * 4


def test_picture_that_was_taken_does_not_change_with_the_run() -> None:
    story = Story(4).join().train(80)
    picture = story.job.step_picture
    assert picture is not None
    before = [values.copy() for values in (picture.steps, picture.series.step_ns, picture.series.self_ns)]
    story.train(80, data={2: 400.0})
    after = (picture.steps, picture.series.step_ns, picture.series.self_ns)
    assert all(np.array_equal(one, other, equal_nan=True) for one, other in zip(before, after, strict=True))
    assert story.job.step_picture is not picture


def test_picture_tells_the_attempts_of_a_run_apart() -> None:
    story = Story(4).join().train(20)
    story.restart().train(5)
    picture = story.job.step_picture
    assert picture is not None
    assert (picture.attempt, picture.latest_step) == (1, 4)


def test_run_nobody_has_looked_at_has_no_picture_and_a_run_without_steps_no_latest_step() -> None:
    story = Story(4)
    assert story.job.step_picture is None
    story.join().tick()
    picture = story.job.step_picture
    assert picture is not None
    assert picture.latest_step is None
