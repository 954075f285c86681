"""Long steps and their owners, by hand: three ranks, steps of 20 ms, of which 6 in forward and 10 in backward."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from rankscope.collector.steps.long_steps import (
    EVERYBODY,
    LARGEST_MAX,
    RECENT_MAX,
    SIDE_STEPS,
    UNKNOWN,
    LongSteps,
    RareLongStep,
)
from rankscope.collector.steps.quiet_places import QuietPlaces
from rankscope.collector.steps.step_aggregates import PATIENCE_STEPS
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.stalls import MOVES, WAITS_FOR_RANKS, WORKS, QuietPlace

USUAL_MS = {"data": 1.0, "forward": 6.0, "backward": 10.0, "optimizer": 2.0, "other": 1.0}
LONG = 20


class Job:
    """Steps of three ranks in ms; a test makes phases of single steps longer."""

    def __init__(self, steps: int = 2 * LONG, ranks: int = 3) -> None:
        self.phases = {name: np.full((steps, ranks), ms) for name, ms in USUAL_MS.items()}
        self.cpu = np.full((steps, ranks), np.nan)

    def add(self, phase: str, rank: int, ms: float, step: int = LONG) -> "Job":
        self.phases.setdefault(phase, np.zeros_like(self.cpu))[step, rank] += ms
        return self

    def series(self, first_step: int = 3) -> StepSeries:
        step = np.sum(list(self.phases.values()), axis=0)
        steps = np.arange(first_step, first_step + len(step))
        return StepSeries(
            steps, tuple(range(step.shape[1])), step, np.full_like(step, np.nan), self.cpu, self.phases,
            own_is_measured=True,
        )  # fmt: skip


def seen_in(job: Job) -> tuple[RareLongStep, ...]:
    long_steps = LongSteps()
    long_steps.add(job.series(first_step=0))
    long_steps.validate()
    return long_steps.read().steps


def owner_in(job: Job) -> tuple[int, str]:
    (found,) = seen_in(job)
    return found.owner, found.part


def test_rank_that_others_wait_for_in_backward_is_the_owner() -> None:
    job = Job().add("forward", 1, 200).add("backward", 0, 200).add("backward", 2, 200)
    job.cpu[LONG, 1] = 7.0
    (found,) = seen_in(job)
    # 20 steps of 20 ms came before; 200 of 220 ms are in forward.
    assert found == RareLongStep(LONG, 1, "forward", 200.0, 200.0, 400.0, 20.0, cpu_ns=7.0)


def test_rank_awaited_in_the_next_step_is_the_owner_once() -> None:
    job = Job().add("other", 2, 300).add("backward", 0, 300, LONG + 1).add("backward", 1, 300, LONG + 1)
    assert owner_in(job) == (2, "other")


def test_loader_of_one_rank_makes_others_wait_in_forward() -> None:
    assert owner_in(Job().add("data", 0, 90).add("forward", 1, 90).add("forward", 2, 90)) == (0, "data")


def test_own_phase_comes_before_the_others() -> None:
    job = Job().add("checkpoint", 0, 90).add("backward", 1, 90).add("backward", 2, 90)
    assert owner_in(job) == (0, "checkpoint")


def test_slow_writer_of_a_distributed_save_is_the_owner() -> None:
    job = Job().add("checkpoint", 0, 90).add("checkpoint_wait", 1, 90)
    assert owner_in(job) == (0, "checkpoint")
    assert owner_in(job.add("other", 1, 90)) == (UNKNOWN, "")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_nobody_owns_a_step_in_which_all_hold_the_phase(phase: str) -> None:
    assert owner_in(Job().add(phase, 0, 90).add(phase, 1, 90).add(phase, 2, 90)) == (UNKNOWN, "")


def test_rank_that_alone_is_long_in_backward_is_no_owner() -> None:
    assert owner_in(Job().add("backward", 1, 90)) == (UNKNOWN, "")


def seen_with(job: Job, places: Mapping[int, QuietPlace]) -> RareLongStep:
    long_steps, quiet = LongSteps(), QuietPlaces()
    for rank, place in places.items():
        quiet.add(rank, (place,))
    long_steps.add(job.series(first_step=0), quiet)
    long_steps.validate()
    (found,) = long_steps.read().steps
    return found


SLEEPS = QuietPlace(LONG, WORKS, "train.py:52 (main)", "time.sleep")
WAITS = QuietPlace(LONG, WAITS_FOR_RANKS)


@pytest.mark.parametrize("phase", ["forward", "other"])
def test_step_in_which_all_hold_the_phase_is_of_the_rank_that_was_seen_to_work(phase: str) -> None:
    job = Job().add(phase, 0, 90).add(phase, 1, 90).add(phase, 2, 90)
    job.cpu[LONG, 1] = 7.0
    found = seen_with(job, {0: WAITS, 1: SLEEPS, 2: WAITS})
    assert found == RareLongStep(
        LONG, 1, phase, 90.0, 90.0, 400.0, 20.0, 7.0, "train.py:52 (main)", "time.sleep", is_seen=True
    )


@pytest.mark.parametrize("third", [QuietPlace(LONG), QuietPlace(LONG, MOVES), QuietPlace(LONG + 1, WAITS_FOR_RANKS)])
def test_nobody_is_waited_for_where_not_all_others_are_seen_to_wait(third: QuietPlace) -> None:
    job = Job().add("other", 0, 90).add("other", 1, 90).add("other", 2, 90)
    assert seen_with(job, {0: SLEEPS, 1: WAITS, 2: third}).owner == EVERYBODY


def test_rank_that_moves_on_owns_the_step_in_which_all_others_wait() -> None:
    job = Job().add("other", 0, 90).add("other", 1, 90).add("other", 2, 90)
    found = seen_with(job, {0: WAITS, 1: WAITS, 2: QuietPlace(LONG, MOVES)})
    assert (found.owner, found.part, found.line) == (2, "other", "")
    assert seen_with(job, {0: WAITS, 1: WAITS}).owner == EVERYBODY


def test_rank_that_waited_owns_no_step() -> None:
    job = Job().add("forward", 1, 200).add("backward", 0, 200).add("backward", 2, 200)
    assert seen_with(job, {1: WAITS}).owner == UNKNOWN
    assert seen_with(job, {1: WAITS, 0: SLEEPS}).owner == UNKNOWN
    assert seen_with(job, {1: WAITS, 0: SLEEPS, 2: WAITS}).owner == 0


def test_line_of_an_owner_is_told_where_it_was_seen_to_work() -> None:
    job = Job().add("data", 0, 90).add("forward", 1, 90).add("forward", 2, 90)
    assert seen_with(job, {0: SLEEPS}).line == "train.py:52 (main)"
    assert seen_with(job, {0: QuietPlace(LONG, "", "train.py:52 (main)"), 1: SLEEPS}).line == ""


def test_evaluation_of_all_ranks_is_everybodys() -> None:
    assert owner_in(Job().add("other", 0, 90).add("other", 1, 95).add("other", 2, 90)) == (EVERYBODY, "other")


def test_excess_spread_over_all_phases_is_nobodys() -> None:
    job = Job()
    for name in USUAL_MS:
        job.add(name, 1, 20)
    assert owner_in(job) == (UNKNOWN, "")


def test_a_single_rank_has_nobody_to_compare_with() -> None:
    assert [(one.owner, one.part, one.owned_ns) for one in seen_in(Job(ranks=1).add("forward", 0, 90))] == [
        (UNKNOWN, "forward", 0.0)
    ]
    assert seen_with(Job(ranks=1).add("forward", 0, 90), {0: SLEEPS}).line == "train.py:52 (main)"


def test_line_of_one_rank_stands_for_all_that_do_the_same() -> None:
    job = Job().add("other", 0, 90).add("other", 1, 95).add("other", 2, 90)
    found = seen_with(job, {1: SLEEPS, 2: SLEEPS})
    assert (found.owner, found.line, found.call) == (EVERYBODY, "train.py:52 (main)", "time.sleep")


def test_a_lasting_change_is_no_long_step() -> None:
    job = Job()
    job.phases["forward"][LONG:] += 100
    assert seen_in(job) == ()


def test_an_excess_of_less_than_half_a_step_is_none() -> None:
    assert seen_in(Job().add("forward", 1, 9.0)) == ()
    assert len(seen_in(Job().add("forward", 1, 10.0))) == 1


def test_a_step_with_few_others_is_not_judged() -> None:
    long_steps = LongSteps()
    long_steps.add(Job(10).add("forward", 1, 90, 5).series(), is_last=True)
    assert long_steps.read() == ((), 10 * 20 + 90, 3)


def test_noise_makes_no_long_step() -> None:
    job = Job()
    job.phases["forward"][::2] += 10.0  # steps of 20 and 30 ms: 5 ms are their median deviation from 25 or 30
    assert seen_in(job.add("forward", 1, 20.0)) == ()


def test_step_waits_for_those_after_it_until_the_run_is_over() -> None:
    job, long_steps = Job(LONG + SIDE_STEPS).add("forward", 1, 90), LongSteps()
    long_steps.add(job.series(first_step=0))
    assert long_steps.read().steps == ()
    assert long_steps.last_step == LONG - 1
    long_steps.add(job.series(first_step=0), is_last=True)
    assert [one.step for one in long_steps.read().steps] == [LONG]
    assert long_steps.read().total_ns == (LONG + SIDE_STEPS) * 20 + 90


def test_a_step_that_a_rank_lacks_waits_for_it_for_a_while() -> None:
    job, long_steps = Job(LONG + 1 + PATIENCE_STEPS).add("forward", 1, 90), LongSteps()
    job.phases["forward"][LONG, 2] = np.nan
    series = job.series(first_step=0)
    long_steps.add(series)
    # The one that is lacking may be the one that the others wait for.
    assert [(one.step, one.owner) for one in long_steps.read().steps] == [(LONG, UNKNOWN)]


def test_rank_long_in_an_unreported_phase_may_have_come_first() -> None:
    job, long_steps = Job(ranks=2).add("data", 0, 90).add("forward", 1, 90), LongSteps()
    series = job.series(first_step=0)
    job.phases["data"][:, 0] = np.nan
    long_steps.add(series)
    assert [one.owner for one in long_steps.read().steps] == [UNKNOWN]


def test_one_of_many_ranks_may_be_lacking() -> None:
    job = Job(LONG + 1 + PATIENCE_STEPS, ranks=10).add("forward", 1, 90)
    job.phases["forward"][LONG, 2] = np.nan
    assert owner_in(job) == (1, "forward")


@pytest.mark.parametrize("phase", ["backward", "other"])
def test_rank_ahead_after_the_last_step_waits_and_is_no_owner(phase: str) -> None:
    # With FSDP rank 1 waits in forward for what rank 0 did at the end of the step before.
    job = Job(ranks=2).add(phase, 0, 300).add("forward", 1, 300, LONG + 1)
    assert {one.owner for one in seen_in(job)} <= {UNKNOWN, 0}


def test_first_step_that_is_known_has_no_owner() -> None:
    assert owner_in(Job().add("forward", 1, 90, 0)) == (UNKNOWN, "")


def test_step_after_one_that_is_lacking_has_no_owner() -> None:
    job, long_steps = Job().add("forward", 1, 90), LongSteps()
    series = job.series(first_step=0)
    series.steps[:LONG] -= 1
    long_steps.add(series)
    assert [one.owner for one in long_steps.read().steps] == [UNKNOWN]


@pytest.mark.parametrize("phase", ["other", "evaluation"])
def test_phase_of_unknown_place_on_another_rank_may_come_first(phase: str) -> None:
    # Rank 0 evaluates before its forward, and rank 1 waits for its buffers in forward.
    assert owner_in(Job(ranks=2).add(phase, 0, 90).add("forward", 1, 90)) == (UNKNOWN, "")
    assert owner_in(Job(ranks=2).add(phase, 0, 90).add("optimizer", 1, 90)) == (UNKNOWN, "")


@pytest.mark.parametrize(
    ("usual_ms", "held_ms", "owner"),
    [
        (10.0, (200.0, 200.0), (1, "forward")),  # both wait there, as for their devices in each step
        (1.0, (200.0, 200.0), (UNKNOWN, "")),  # they usually do nothing there
        (10.0, (200.0, 150.0), (UNKNOWN, "")),  # not for the same rank
        (10.0, (200.0, 0.0), (UNKNOWN, "")),
    ],
)
def test_ranks_awaiting_devices_in_other_wait_for_the_owner(
    usual_ms: float, held_ms: tuple[float, float], owner: tuple[int, str]
) -> None:
    job = Job().add("forward", 1, 200).add("other", 0, held_ms[0]).add("other", 2, held_ms[1])
    job.phases["other"] += usual_ms - USUAL_MS["other"]
    assert owner_in(job) == owner


@pytest.mark.parametrize(("own_ms", "owner"), [((20, 220, 20), (1, "backward")), ((20, 220, 190), (UNKNOWN, ""))])
def test_owner_is_the_rank_of_longer_own_time_where_known(own_ms: tuple[float, ...], owner: tuple[int, str]) -> None:
    job = Job().add("backward", 0, 200).add("backward", 1, 200).add("backward", 2, 200)
    series = job.series(first_step=0)
    own_ns = np.full_like(series.step_ns, 19.0)
    own_ns[LONG] = own_ms
    long_steps = LongSteps()
    long_steps.add(replace(series, own_ns=own_ns))
    (found,) = long_steps.read().steps
    assert (found.owner, found.part) == owner


def test_ranks_all_long_where_they_await_devices_do_the_same() -> None:
    job = Job().add("other", 0, 200).add("other", 1, 200).add("other", 2, 200)
    job.phases["other"] += 9.0
    assert owner_in(job) == (EVERYBODY, "other")


def test_phase_of_the_user_is_owned_where_surely_the_others_wait() -> None:
    assert owner_in(Job(ranks=2).add("save", 0, 90)) == (0, "save")
    assert owner_in(Job(ranks=2).add("save", 0, 90).add("backward", 1, 90)) == (UNKNOWN, "")


def test_stage_waiting_in_forward_for_its_previous_is_no_owner() -> None:
    job, long_steps = Job().add("forward", 1, 90).add("backward", 0, 90), LongSteps()
    series = job.series(first_step=0)
    long_steps.add(replace(series, handover_ns=np.zeros_like(series.step_ns)))
    assert [one.owner for one in long_steps.read().steps] == [UNKNOWN]


def test_time_of_steps_counts_each_wait_once_and_unseen_steps() -> None:
    job, long_steps = Job().add("other", 2, 300).add("backward", 0, 300, LONG + 1), LongSteps()
    long_steps.add(job.series(first_step=0), is_last=True)
    assert long_steps.read().total_ns == 2 * LONG * 20 + 300
    long_steps.add(Job().series(first_step=2 * LONG + 5), is_last=True)
    assert long_steps.read().total_ns == (4 * LONG + 5) * 20 + 300


def test_cells_that_are_lacking_around_a_step_do_not_count() -> None:
    job = Job(LONG + 2 * PATIENCE_STEPS).add("forward", 1, 90).add("backward", 0, 90).add("backward", 2, 90)
    job.phases["forward"][LONG - 3 : LONG, 2] = np.nan
    assert owner_in(job) == (1, "forward")


def test_the_latest_and_the_longest_are_kept() -> None:
    long_steps = LongSteps()
    count = RECENT_MAX + LARGEST_MAX + 2
    for number in range(count):
        first = number * 2 * LONG
        ms = 500.0 if number == 1 else 100.0 + number / 100
        long_steps.add(Job().add("forward", 1, ms).series(first), is_last=True)
    long_steps.validate()
    kept = [one.step for one in long_steps.read().steps]
    assert len(kept) == RECENT_MAX + LARGEST_MAX
    assert kept[0] == 2 * LONG + LONG  # the longest; the first and the third, the shortest ones, are not kept
    assert kept[1] == 3 * 2 * LONG + LONG


def test_of_many_ranks_few_long_steps_are_looked_at_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.collector.steps.long_steps.CELLS_MAX", 4)
    job = Job(3 * LONG)
    for step in (LONG, LONG + 5):
        job.add("forward", 1, 90, step)
    assert [one.step for one in seen_in(job)] == [LONG]
