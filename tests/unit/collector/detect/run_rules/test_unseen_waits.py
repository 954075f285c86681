"""Shares of the step in waits that are not seen, worked out by hand. Steps of 100 ms."""

import pytest

from rankscope.collector.detect.run_rules.explained import find_unseen_share
from rankscope.collector.detect.run_rules.regressions import OF_UNSEEN, UNSEEN, RunSlowdown
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, Samples
from rankscope.measure.records import DeviceSample
from tests.unit.collector.steps.step_series import UNKNOWN, Rows, series_of, view_of

ALL = [[100.0] * 3] * 4


def share(cpu_ms: Rows, own_ms: Rows = ALL, data_ms: Rows | None = None, from_step: int = 0) -> float | None:
    phases_ms = {} if data_ms is None else {"data": data_ms}
    view = view_of(series_of(own_ms, step_ms=ALL, cpu_ms=cpu_ms, phases_ms=phases_ms))
    return find_unseen_share(view, from_step)


def test_time_off_the_cpu_without_data_and_known_waits_is_unseen() -> None:
    # Of 100 ms 20 are known waits, 30 CPU and 10 data: 40 are left. The others have 50 and 10.
    own_ms, cpu_ms = [[80.0, 80.0, 100.0]] * 4, [[30.0, 20.0, 80.0]] * 4
    assert share(cpu_ms, own_ms, data_ms=[[10.0] * 3] * 4) == pytest.approx(0.4)


def test_of_two_ranks_the_lower_share_counts() -> None:
    view = view_of(series_of([[100.0, 100.0]], cpu_ms=[[20.0, 90.0]]))
    assert find_unseen_share(view, 0) == pytest.approx(0.1)


def test_only_steps_from_the_given_one_count() -> None:
    cpu_ms = [[90.0] * 3] * 2 + [[30.0] * 3] * 2
    assert share(cpu_ms, from_step=2) == pytest.approx(0.7)


def test_cpu_time_beyond_the_own_time_leaves_nothing_unseen() -> None:
    assert share([[120.0] * 3] * 4) == 0.0


def test_what_is_not_known_is_no_share() -> None:
    assert share([[UNKNOWN] * 3] * 4) is None
    assert share([[30.0, UNKNOWN, UNKNOWN]] * 4) == pytest.approx(0.7)
    series = series_of(ALL, cpu_ms=ALL, own_is_measured=False)
    assert find_unseen_share(view_of(series), 0) is None


def test_training_thread_of_a_gpu_waits_for_it() -> None:
    samples = Samples({}, {}, {1: (DeviceSample(host_ns=0, uuid="GPU-1"),)})
    view = view_of(series_of(ALL, cpu_ms=[[30.0] * 3] * 4), samples=samples)
    assert find_unseen_share(view, 0) is None


@pytest.mark.parametrize(("cpu_ms", "is_known"), [(75.1, True), (75.0, False)])
def test_no_rank_is_acquitted_while_most_of_the_step_is_unseen(cpu_ms: float, is_known: bool) -> None:
    # The steps rise from 100 to 150 ms; half of those is 75. Half of what is added is CPU time.
    own_ms = [[100.0] * 3] * 60 + [[150.0] * 3] * 60
    view = view_of(series_of(own_ms, cpu_ms=[[50.0] * 3] * 60 + [[cpu_ms] * 3] * 60))
    found = RunSlowdown(Thresholds()).find(view, ())
    assert isinstance(found, list)
    (candidate,) = found
    assert isinstance(candidate, Candidate)
    assert ("no single rank to blame" in candidate.finding.also) is is_known
    assert (UNSEEN.words in candidate.finding.also) is not is_known
    assert candidate.finding.details == {"blame": "nobody" if is_known else "not known"}


def test_no_rank_is_acquitted_of_a_slowdown_of_unseen_waiting() -> None:
    # 50 ms are added, and no CPU time; of the whole step 110 of 150 ms are CPU time.
    own_ms = [[115.0] * 3] * 60 + [[165.0] * 3] * 60
    view = view_of(series_of(own_ms, cpu_ms=[[110.0] * 3] * 120))
    (candidate,) = RunSlowdown(Thresholds()).find(view, ())  # type: ignore[misc]
    found = candidate.finding
    assert (found.cause, found.details["blame"]) == ("unseen_wait", "not known")
    assert OF_UNSEEN.words in found.also
