"""Own times between profiler windows on CPUs, from the CPU time in backward."""

from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.collector.steps.host_own_times import KNOWN_MIN, fill_from_cpu, find_apart, find_late_begins
from rankscope.collector.steps.predicted_steps import MEASURED_MIN
from rankscope.collector.steps.step_series import Floats
from tests.unit.collector.steps.step_series import MS

APART_MS, CPU_MS, REST_MS = 8.0, 12.0, 1.0
UNKNOWN = np.nan


def fill_ms(
    measured_ms: Floats,
    step_ms: Floats,
    off_cpu_ms: Floats,
    loading_ms: Floats | float = 0.0,
    forward_ms: Floats | float = 0.0,
    *,
    all_meet: bool = True,
) -> Floats:
    phases_ns = {
        name: np.broadcast_to(MS * np.asarray(ms), step_ms.shape)
        for name, ms in (("data", loading_ms), ("forward", forward_ms))
    }
    late_ns = find_late_begins(np.arange(len(step_ms)), MS * step_ms)
    apart = find_apart(MS * step_ms, late_ns, MS * off_cpu_ms, phases_ns)
    return fill_from_cpu(MS * measured_ms, apart, all_meet=all_meet) / MS


def train(own_ms: Floats, unseen_ms: Floats | float = 0.0) -> tuple[Floats, Floats]:
    """Return the steps of ranks that wait for the last one in backward, and their time there without CPU. `own_ms`:
    shape (n, ranks); of it `unseen_ms` is in backward and not on a CPU.
    """
    step_ms = np.repeat(own_ms.max(axis=1, keepdims=True) + REST_MS, own_ms.shape[1], axis=1)
    return step_ms, step_ms - own_ms + unseen_ms


def as_usual(ranks: int = 2, steps: int = KNOWN_MIN) -> Floats:
    return np.full((steps, ranks), APART_MS + CPU_MS)


def test_own_time_of_every_step_is_known_without_a_window() -> None:
    own_ms = as_usual()
    own_ms[3, 1] += 60.0
    step_ms, off_cpu_ms = train(own_ms)
    assert fill_ms(np.full_like(own_ms, UNKNOWN), step_ms, off_cpu_ms).tolist() == own_ms.tolist()


@pytest.mark.parametrize(("steps", "is_known"), [(KNOWN_MIN - 1, False), (KNOWN_MIN, True)])
def test_few_steps_do_not_tell_the_usual_rest(steps: int, is_known: bool) -> None:
    own_ms = as_usual(steps=steps)
    filled = fill_ms(np.full_like(own_ms, UNKNOWN), *train(own_ms))
    assert bool(np.isfinite(filled).all()) is is_known


def test_step_with_a_stall_in_backward_is_not_known() -> None:
    own_ms, unseen_ms = as_usual(), np.zeros((KNOWN_MIN, 2))
    own_ms[5, 1] += 60.0
    unseen_ms[5, 1] = 60.0
    filled = fill_ms(np.full_like(own_ms, UNKNOWN), *train(own_ms, unseen_ms))
    assert np.isnan(filled).any(axis=1).tolist() == [step == 5 for step in range(KNOWN_MIN)]


def test_nothing_is_known_where_backward_always_has_another_wait() -> None:
    own_ms, unseen_ms = as_usual(), np.zeros((KNOWN_MIN, 2))
    own_ms[:, 1] += 60.0
    unseen_ms[:, 1] = 60.0
    assert np.isnan(fill_ms(np.full_like(own_ms, UNKNOWN), *train(own_ms, unseen_ms))).all()


def test_windows_show_what_a_rank_does_off_its_cpu_in_backward() -> None:
    # 3 ms of rank 1 in each step: little enough for the rest, but windows show them.
    own_ms, unseen_ms = as_usual(steps=12), np.zeros((12, 2))
    own_ms[:, 1] += 3.0
    unseen_ms[:, 1] = 3.0
    measured_ms = own_ms.copy()
    measured_ms[MEASURED_MIN:] = UNKNOWN
    assert fill_ms(measured_ms, *train(own_ms, unseen_ms)).tolist() == own_ms.tolist()


def test_busy_windows_do_not_undo_what_phases_tell() -> None:
    # While windows recorded, threads waited for cores in backward, as on a host that begins its work.
    own_ms = as_usual(steps=40)
    own_ms[20:, 1] += 60.0
    step_ms, off_cpu_ms = train(own_ms)
    measured_ms = np.full_like(own_ms, UNKNOWN)
    measured_ms[:12] = own_ms[:12] + 10.0
    step_ms[:12] += 10.0
    off_cpu_ms[:12] += 10.0
    assert fill_ms(measured_ms, step_ms, off_cpu_ms)[12:].tolist() == own_ms[12:].tolist()


@pytest.mark.parametrize(("slower_ms", "is_known"), [(40.0, True), (24.0, False)])
def test_windows_may_be_off_by_a_third_of_what_ranks_differ_by(slower_ms: float, is_known: bool) -> None:
    # In windows of its first steps rank 0 waits 10 ms elsewhere, and rank 1 is slow in all steps.
    own_ms = as_usual(steps=60)
    own_ms[:, 1] += slower_ms
    measured_ms = np.full_like(own_ms, UNKNOWN)
    measured_ms[:12] = own_ms[:12] - [10.0, 0.0]
    filled = fill_ms(measured_ms, *train(own_ms))[12:]
    assert filled.tolist() == own_ms[12:].tolist() if is_known else np.isnan(filled).all()


def test_rest_much_longer_than_in_windows_is_no_transfer() -> None:
    # A rank sleeps 40 ms in backward from step 12 on: which one is not known.
    own_ms, unseen_ms = as_usual(steps=60), np.zeros((60, 2))
    own_ms[12:, 1] += 40.0
    unseen_ms[12:, 1] = 40.0
    measured_ms = own_ms.copy()
    measured_ms[12:] = UNKNOWN
    assert np.isnan(fill_ms(measured_ms, *train(own_ms, unseen_ms))[12:]).all()


def test_agreeing_windows_allow_a_long_rest_and_partial_groups() -> None:
    own_ms = as_usual(steps=12)
    step_ms, off_cpu_ms = train(own_ms)
    step_ms, off_cpu_ms = step_ms + 20.0, off_cpu_ms + 20.0
    measured_ms = own_ms.copy()
    measured_ms[MEASURED_MIN:] = UNKNOWN
    assert fill_ms(measured_ms, step_ms, off_cpu_ms, all_meet=False).tolist() == own_ms.tolist()
    measured_ms[MEASURED_MIN - 1 :] = UNKNOWN
    assert np.isnan(fill_ms(measured_ms, step_ms, off_cpu_ms)[MEASURED_MIN - 1 :]).all()


def test_without_windows_all_ranks_must_meet_in_every_group() -> None:
    own_ms = as_usual()
    assert np.isnan(fill_ms(np.full_like(own_ms, UNKNOWN), *train(own_ms), all_meet=False)).all()


def test_step_that_a_rank_has_not_reported_is_not_known() -> None:
    own_ms = as_usual(steps=KNOWN_MIN + 1)
    step_ms, off_cpu_ms = train(own_ms)
    step_ms[2, 0] = UNKNOWN
    filled = fill_ms(np.full_like(own_ms, UNKNOWN), step_ms, off_cpu_ms)
    assert np.isnan(filled).any(axis=1).tolist() == [step == 2 for step in range(KNOWN_MIN + 1)]


def test_windows_take_precedence_where_they_measured() -> None:
    own_ms = as_usual()
    measured_ms = np.full_like(own_ms, UNKNOWN)
    measured_ms[4] = [20.5, 19.5]
    assert fill_ms(measured_ms, *train(own_ms))[4].tolist() == [20.5, 19.5]


def test_own_time_is_within_the_step() -> None:
    own_ms = as_usual()
    step_ms, off_cpu_ms = train(own_ms)
    off_cpu_ms[:, 0] = -5.0  # a clock that counts in ticks
    filled = fill_ms(np.full_like(own_ms, UNKNOWN), step_ms, off_cpu_ms)
    assert (filled[:, 0] == step_ms[:, 0]).all()


def test_wait_for_a_late_loader_in_forward_adds_no_own_time() -> None:
    # Rank 1 takes 60 ms more for its batch, and both others 60 ms more in forward: they are not in backward meanwhile.
    usual_ms, late_ms = as_usual(ranks=3, steps=12), np.zeros((12, 3))
    late_ms[4:, 1] = 60.0
    step_ms = usual_ms + REST_MS
    off_cpu_ms = step_ms - usual_ms
    step_ms[4:] += 60.0
    filled = fill_ms(np.full_like(usual_ms, UNKNOWN), step_ms, off_cpu_ms, late_ms, late_ms.max() - late_ms)
    assert filled.tolist() == (usual_ms + late_ms).tolist()


def test_loader_explains_no_more_than_it_was_late() -> None:
    # Rank 1's batch is 40 ms late, rank 0's forward 60 ms: rank 0 is the slow one, by the 20 ms that it is ahead.
    usual_ms, loading_ms, forward_ms = as_usual(), np.zeros((KNOWN_MIN, 2)), np.zeros((KNOWN_MIN, 2))
    own_ms = usual_ms.copy()
    own_ms[5] += [60.0, 40.0]
    loading_ms[5, 1] = 40.0
    forward_ms[5, 0] = 60.0
    step_ms, off_cpu_ms = train(own_ms)
    filled = fill_ms(np.full_like(own_ms, UNKNOWN), step_ms, off_cpu_ms, loading_ms, forward_ms)
    assert np.isnan(filled[5]).any()  # the step is longer than these own times say


def test_windows_say_where_a_rank_works_beside_a_late_loader() -> None:
    # Rank 0 works 60 ms more in forward while rank 1 loads: by windows both have 80 ms.
    own_ms, loading_ms, forward_ms = as_usual(steps=12) + 60.0, np.zeros((12, 2)), np.zeros((12, 2))
    loading_ms[:, 1] = 60.0
    forward_ms[:, 0] = 60.0
    step_ms, off_cpu_ms = train(own_ms)
    measured_ms = own_ms.copy()
    measured_ms[MEASURED_MIN:] = UNKNOWN
    filled = fill_ms(measured_ms, step_ms, off_cpu_ms, loading_ms, forward_ms)
    assert filled.tolist() == own_ms.tolist()


def test_last_windows_count_once_ranks_wait_elsewhere() -> None:
    # Up to step 20 ranks wait in backward. Then rank 1 is 60 ms late in `other`, for which rank 0 waits in forward.
    own_ms = as_usual(steps=40)
    step_ms, off_cpu_ms = train(own_ms)
    step_ms[20:] += 60.0
    own_ms[20:, 1] += 60.0
    measured_ms = own_ms.copy()
    measured_ms[20 + MEASURED_MIN :] = UNKNOWN
    assert np.isnan(fill_ms(measured_ms, step_ms, off_cpu_ms)[20 + MEASURED_MIN :]).all()


def stall_at_the_end(steps: int, stalled: Sequence[int], stall_ms: float = 400.0) -> tuple[Floats, Floats, Floats]:
    """Return own times, durations and time in forward of two ranks, the second of which sleeps at the end of some
    steps, for which the first waits in forward of the next one.
    """
    own_ms, forward_ms = as_usual(steps=steps), np.zeros((steps, 2))
    step_ms = own_ms + REST_MS
    for step in stalled:
        own_ms[step, 1] += stall_ms
        step_ms[step, 1] += stall_ms
        if step + 1 < steps:
            step_ms[step + 1, 0] += stall_ms
            forward_ms[step + 1, 0] += stall_ms
    return own_ms, step_ms, forward_ms


@pytest.mark.parametrize("stalled", [(20, 24, 28, 32), range(20, 40)], ids=["some steps", "every step"])
def test_wait_in_forward_for_a_stall_before_is_no_own_time(stalled: Sequence[int]) -> None:
    own_ms, step_ms, forward_ms = stall_at_the_end(40, stalled)
    unknown_ms, rest_ms = np.full_like(own_ms, UNKNOWN), np.full_like(own_ms, REST_MS)
    assert fill_ms(unknown_ms, step_ms, rest_ms, forward_ms=forward_ms).tolist() == own_ms.tolist()


def test_rank_that_was_not_early_has_worked_as_long_as_it_seems() -> None:
    # Rank 0 works 400 ms longer in the step before, too: it was not early, and did not wait.
    own_ms, step_ms, forward_ms = stall_at_the_end(40, (20,))
    own_ms[20, 0] += 400.0
    step_ms[20, 0] += 400.0
    own_ms[21, 0] += 400.0
    unknown_ms, rest_ms = np.full_like(own_ms, UNKNOWN), np.full_like(own_ms, REST_MS)
    assert fill_ms(unknown_ms, step_ms, rest_ms, forward_ms=forward_ms)[21].tolist() == own_ms[21].tolist()


def test_begins_are_not_compared_across_unknown_steps() -> None:
    own_ms, step_ms, forward_ms = stall_at_the_end(40, (20,))
    step_ms[15, 0] = UNKNOWN  # eight steps before one tell how ranks usually begin
    unknown_ms, rest_ms = np.full_like(own_ms, UNKNOWN), np.full_like(own_ms, REST_MS)
    filled = fill_ms(unknown_ms, step_ms, rest_ms, forward_ms=forward_ms)
    assert filled[21].tolist() == [own_ms[21, 0] + 400.0, own_ms[21, 1]]
