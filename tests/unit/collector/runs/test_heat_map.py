"""The steps of a heat map: which, how many, and that they do not change with the run."""

from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.detect.view import RunView, Samples
from rankscope.collector.runs.heat_map import MARKS_MAX, HeatMapSteps
from rankscope.collector.steps.peer_groups import find_peer_groups
from rankscope.collector.steps.step_series import StepSeries
from tests.unit.collector.runs.run_stories import MS, Story


def picture_of(story: Story) -> HeatMapSteps:
    """Of a story that has been looked at."""
    assert story.run.heat_map_steps is not None
    return story.run.heat_map_steps


def look_at(
    own_ns: "np.typing.NDArray[np.float64]",
    before: HeatMapSteps | None = None,
    reported_wall_s: float | None = None,
    attempt: int = 0,
) -> HeatMapSteps:
    """The picture of ranks with these own times, shape (steps, ranks)."""
    steps, ranks = own_ns.shape
    numbers = tuple(range(ranks))
    series = StepSeries(np.arange(steps), numbers, own_ns, own_ns, own_ns, {}, own_is_measured=True)
    samples = Samples({}, {}, {})
    view = RunView(
        now_collector_ns=0,
        world_size=ranks,
        series=series,
        peer_groups=find_peer_groups(numbers, {}),
        nodes={},
        samples=samples,
    )
    return HeatMapSteps.of(attempt, view, before, reported_wall_s)


def test_excess_is_the_own_time_over_that_of_the_peers() -> None:
    # Three phases of 10 ms and a transfer of 5; rank 2 takes 40 ms for the first of them: 65 ms against 35.
    picture = picture_of(Story(4).join().train(20, data={2: 40.0}))
    assert picture.latest_step == 19
    assert np.exp(picture.excess[-1]).tolist() == pytest.approx([1.0, 1.0, 65 / 35, 1.0])
    assert picture.own_ns[-1].tolist() == [35 * MS, 35 * MS, 65 * MS, 35 * MS]


def test_heat_map_does_not_change_with_the_run() -> None:
    story = Story(4).join().train(80)
    picture = picture_of(story)
    before = [values.tobytes() for values in (picture.steps, picture.own_ns, picture.excess)]
    story.train(80, data={2: 400.0})
    assert before == [values.tobytes() for values in (picture.steps, picture.own_ns, picture.excess)]
    assert story.run.heat_map_steps is not picture


def test_unknown_step_is_left_out_but_is_the_latest() -> None:
    own_ns = np.full((8, 4), 100.0)
    own_ns[[2, 7]] = np.nan
    own_ns[5, 1] = np.nan
    picture = look_at(own_ns)
    assert picture.steps.tolist() == [0, 1, 3, 4, 5, 6]
    assert np.isnan(picture.excess[4]).tolist() == [False, True, False, False]
    assert picture.latest_step == 7


@pytest.mark.parametrize(("ranks", "steps"), [(2, 512), (8_192, 256), (16_384, 128)])
def test_heat_map_of_a_large_run_has_only_the_last_steps(ranks: int, steps: int) -> None:
    made = steps + 40
    picture = look_at(np.full((made, ranks), 100.0))
    assert picture.steps.tolist() == list(range(40, made))
    assert picture.excess.shape == picture.own_ns.shape == (steps, ranks)


def test_ranks_are_found_in_it_and_others_are_not() -> None:
    picture = picture_of(Story(4).join(0, 1, 3).tick())
    assert [picture.find_column(rank) for rank in range(5)] == [0, 1, None, 2, None]
    assert picture.find_columns((0, 3)).tolist() == [0, 2]


def test_heat_map_names_its_attempt() -> None:
    story = Story(4).join().train(20)
    story.restart().train(5)
    picture = picture_of(story)
    assert (picture.attempt, picture.latest_step) == (1, 4)


def test_no_heat_map_before_a_pass_or_without_steps() -> None:
    story = Story(4)
    assert story.run.heat_map_steps is None
    assert picture_of(story.join().tick()).latest_step is None


def of_steps(count: int, before: HeatMapSteps | None, wall_s: float | None, attempt: int = 0) -> HeatMapSteps:
    """The picture after so many steps of two equal ranks."""
    return look_at(np.full((count, 2), 100.0), before, wall_s, attempt)


def test_time_of_a_step_is_between_those_of_two_passes() -> None:
    # The passes have read steps 0 to 4 at 100 s and up to 8 at 108 s: 2 s a step between them. Before 4: not known.
    picture = of_steps(9, of_steps(5, None, 100.0), 108.0)
    assert picture.find_wall_s()[4:].tolist() == [100.0, 102.0, 104.0, 106.0, 108.0]
    assert np.isnan(picture.find_wall_s()[:4]).all()


def test_pass_without_a_new_step_moves_no_step_in_time() -> None:
    picture = of_steps(5, of_steps(5, None, 100.0), 150.0)
    assert picture.find_wall_s()[4] == 100.0


def test_time_of_steps_is_unknown_without_a_report() -> None:
    assert np.isnan(of_steps(5, None, None).find_wall_s()).all()
    assert len(of_steps(0, None, 100.0).find_wall_s()) == 0


def test_times_begin_anew_at_an_attempt_and_a_clock_set_back() -> None:
    first = of_steps(9, of_steps(5, None, 100.0), 108.0)
    assert of_steps(9, first, 200.0, attempt=1).marked_steps.tolist() == [8]
    assert of_steps(12, first, 50.0).marked_steps.tolist() == [11]


def test_marks_are_bounded() -> None:
    full = replace(of_steps(4, None, None), marked_steps=np.arange(-MARKS_MAX, 0), marked_wall_s=np.zeros(MARKS_MAX))
    assert of_steps(5, full, 1.0).marked_steps.tolist() == [*range(1 - MARKS_MAX, 0), 4]


def test_times_come_from_the_reports_of_a_run() -> None:
    times = picture_of(Story(4).join().train(20).train(20)).find_wall_s()
    known = times[~np.isnan(times)]
    assert len(known) > 10
    assert (np.diff(known) >= 0).all()
