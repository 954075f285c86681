"""Steps whose waiting is known, where the windows that tell it are further apart than the steps that are kept."""

import random

import numpy as np
import pytest

from rankscope.collector.steps.measured_steps import STAND_IN_NS, STAND_IN_STEPS, WindowDistance
from rankscope.collector.steps.step_series import StepSeries
from rankscope.collector.steps.step_table import StepTable, find_ring_steps
from rankscope.measure.records import steps_to_table
from rankscope.measure.units import NS_PER_MS
from tests.unit.collector.steps.one_rank import add_steps, mark_complete
from tests.unit.collector.steps.test_step_table import GROUP, STEP_NS, reduce_all, step_of

RANKS = (0, 1)
KEPT = 8
WAITED_NS = 30
PHASES_NS = {"data": 1, "forward": 2, "backward": 40, "optimizer": 3, "other": 4}
COMPUTING_NS = 1 + 2 + 3 + 4


def window_of(measured_min: int, kept: int = KEPT, ring_steps: int = 0) -> StepTable:
    window = StepTable(kept, len(RANKS), measured_min, ring_steps=ring_steps)
    window.set_group_size(GROUP, len(RANKS))
    return window


def make(window: StepTable, *steps: int, duration_ns: int = STEP_NS) -> None:
    for rank in RANKS:
        records = [step_of(step, duration_ns - rank, cpu_ns=step, phases_ns=PHASES_NS) for step in steps]
        add_steps(window, rank, steps_to_table(records))


def measure(window: StepTable, *steps: int) -> None:
    """Rank 0 waits in each of these steps."""
    for step in steps:
        for rank in RANKS:
            reduce_all(window, rank, 1 + WAITED_NS * (rank == 0), step)
            mark_complete(window, rank, step, step)
    window.match_collectives()


def read(window: StepTable) -> StepSeries:
    return window.series(RANKS, skip_steps=0)


def measured_steps(window: StepTable) -> list[int]:
    series = read(window)
    return [int(step) for step in series.steps[~np.isnan(series.own_ns).any(axis=1)]]


def test_measured_step_is_whole_after_it_has_left_the_steps_kept() -> None:
    window = window_of(2)
    make(window, 0, 1)
    measure(window, 0)
    make(window, *range(2, 20))
    series = read(window)
    assert (series.steps.tolist(), series.earlier_count) == ([0, *range(12, 20)], 1)
    assert series.step_ns[0].tolist() == [STEP_NS, STEP_NS - 1]
    assert series.own_ns[0].tolist() == [STEP_NS - WAITED_NS, STEP_NS - 1]
    assert np.isnan(series.own_ns[1:]).all()
    assert series.cpu_ns[0].tolist() == [0, 0]
    assert {name: cells[0].tolist() for name, cells in series.phases_ns.items()} == {
        name: [value, value] for name, value in PHASES_NS.items()
    }
    assert series.wait_caused_ns is not None
    assert series.wait_caused_ns[0].tolist() == [0, WAITED_NS]
    assert window.transfers(skip_steps=0).ns[GROUP][0] == 1


def test_only_as_many_measured_steps_are_kept_as_needed() -> None:
    window = window_of(3)
    make(window, *range(8))
    measure(window, 1, 2, 4, 6)
    make(window, 8, 9)  # 0 and 1 have left, and three are there still
    assert read(window).earlier_count == 0
    make(window, 10, 11, 12)
    assert (measured_steps(window), read(window).earlier_count) == ([2, 4, 6], 2)
    measure(window, 12)
    make(window, 13)
    assert (measured_steps(window), read(window).earlier_count) == ([4, 6, 12], 1)


def test_saved_ones_go_when_enough_have_been_measured_since() -> None:
    window = window_of(2)
    make(window, 0, 1)
    measure(window, 0, 1)
    make(window, *range(2, 30))
    assert measured_steps(window) == [0, 1]
    measure(window, 28, 29)
    make(window, 30)
    assert (measured_steps(window), read(window).earlier_count) == ([28, 29], 0)
    assert list(window.transfers(skip_steps=0).ns[GROUP][-3:-1]) == [1, 1]


def test_steps_that_were_not_measured_of_all_leave() -> None:
    window = window_of(2)
    make(window, *range(8))
    mark_complete(window, 0, 0, 7)
    make(window, *range(8, 20))
    assert read(window).steps.tolist() == list(range(12, 20))


def test_phase_of_the_user_that_comes_later_took_no_time_before() -> None:
    window = window_of(2)
    make(window, 0)
    measure(window, 0)
    make(window, *range(1, 20))
    add_steps(window, 0, steps_to_table([step_of(20, phases_ns={"mine": 5})]))
    mine = read(window).phases_ns["mine"][:]
    assert (mine[:-1] == 0.0).all()
    assert mine[-1, 0] == 5


def test_whole_series_has_the_ring_steps_before_the_judged_ones() -> None:
    window = window_of(2, ring_steps=16)
    make(window, *range(30))
    assert read(window).steps.tolist() == list(range(22, 30))
    whole = window.series(RANKS, skip_steps=0, is_whole=True)
    assert (whole.steps.tolist(), whole.earlier_count) == (list(range(14, 30)), 0)
    assert whole.step_ns[:, 0].tolist() == [STEP_NS] * 16


def test_no_step_is_late_while_the_ring_holds_it() -> None:
    # A report of 1,000 steps of one rank, and then the same of the other.
    assert find_ring_steps(256, 2) == 4096
    window = window_of(2, 256, find_ring_steps(256, 2))
    for rank in RANKS:
        late = add_steps(window, rank, steps_to_table([step_of(step) for step in range(1000)]))
        assert late == 0
    assert not np.isnan(window.series(RANKS, skip_steps=0, is_whole=True).step_ns).any()


@pytest.mark.parametrize(("ranks", "steps"), [(1, 4096), (8, 2048), (64, 256), (1024, 256)])
def test_ring_of_many_ranks_is_as_long_as_what_is_judged(ranks: int, steps: int) -> None:
    assert find_ring_steps(256, ranks) == steps


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ring_steps", [0, 24])
def test_saved_steps_are_those_of_a_plain_list(seed: int, ring_steps: int) -> None:
    chance = random.Random(seed)
    kept, measured_min = chance.randint(2, 12), chance.randint(1, 6)
    window = window_of(measured_min, kept, ring_steps)
    measured: list[int] = []
    saved: list[int] = []
    step = 0
    for _ in range(200):
        step += chance.choice((1, 1, 1, 1, 1, 2, kept + 1))
        make(window, step)
        left = [one for one in measured if one <= step - kept]
        measured = [one for one in measured if one > step - kept]
        # A slot is taken by the step that comes to it: of steps left out the ones before them stay a while longer.
        saved += left
        series = read(window)
        there = [int(one) for one in series.steps[~np.isnan(series.own_ns).any(axis=1)]]
        assert there[len(there) - len(measured) :] == measured
        assert set(there) <= set(saved + measured)
        assert len(there) >= min(measured_min, len(saved) + len(measured))
        assert there == sorted(there)
        assert (series.own_ns[~np.isnan(series.own_ns).any(axis=1)] == [STEP_NS - WAITED_NS, STEP_NS - 1]).all()
        if chance.random() < chance.choice((0.1, 0.9)):
            measure(window, step)
            measured.append(step)


# -- when phases stand in ---------------------------------------------------------------------------------------------


def test_phases_stand_in_a_minute_after_the_last_window() -> None:
    step_ns = 100 * NS_PER_MS
    last = STAND_IN_NS // step_ns
    window = window_of(2)
    make(window, 0, duration_ns=step_ns)
    measure(window, 0)
    make(window, *range(1, last + 1), duration_ns=step_ns)
    assert read(window).own_is_measured
    make(window, last + 1, duration_ns=step_ns)
    series = read(window)
    assert not series.own_is_measured
    assert (series.own_ns == COMPUTING_NS).all()
    measure(window, last + 1)
    assert read(window).own_is_measured


@pytest.mark.parametrize(("distance", "is_measured"), [(300, True), (299, False)])
def test_windows_come_again_within_twice_the_longest_distance(distance: int, is_measured: bool) -> None:
    window = window_of(2)
    make(window, 0, duration_ns=STAND_IN_NS)
    measure(window, 0)
    make(window, distance, duration_ns=STAND_IN_NS)
    measure(window, distance)
    make(window, distance + 600, duration_ns=STAND_IN_NS)
    assert read(window).own_is_measured is is_measured


def test_long_steps_wait_for_all_kept_steps() -> None:
    window = window_of(2)
    make(window, 0, duration_ns=2 * STAND_IN_NS)
    measure(window, 0)
    make(window, *range(1, KEPT + 1), duration_ns=2 * STAND_IN_NS)
    assert read(window).own_is_measured
    make(window, KEPT + 1, duration_ns=2 * STAND_IN_NS)
    assert not read(window).own_is_measured


def test_phases_stand_in_where_one_rank_never_has_a_window() -> None:
    window = window_of(2)
    step_ns = STAND_IN_NS // STAND_IN_STEPS
    make(window, *range(8), duration_ns=step_ns)
    mark_complete(window, 0, 4, 7)
    make(window, *range(8, STAND_IN_STEPS + 1), duration_ns=step_ns)
    assert read(window).own_is_measured
    make(window, STAND_IN_STEPS + 1, duration_ns=step_ns)
    assert not read(window).own_is_measured


def test_run_joined_midway_waits_for_its_first_window() -> None:
    window = window_of(2)
    make(window, 100_000)
    assert read(window).own_is_measured
    make(window, 100_000 + STAND_IN_STEPS)
    assert not read(window).own_is_measured


def test_distance_is_between_measured_steps_in_any_order() -> None:
    distance = WindowDistance()
    assert distance.steps_behind(5) == 0
    distance.start_at(3)
    distance.start_at(4)
    assert distance.steps_behind(5) == 2
    distance.record_measured(10, 12)
    distance.record_measured(32, 34)
    distance.record_measured(20, 21)
    assert (distance.longest, distance.steps_behind(40)) == (20, 6)
