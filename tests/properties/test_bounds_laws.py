"""The laws of what may be told: no loss above the step it is of, no share above the whole, no time below 0, whatever is
measured.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.collector.config import CollectorConfig
from rankscope.collector.detect.detectors import build_detectors, detect
from rankscope.collector.detect.statistics.excess import find_excess_ns, find_peers_ns
from rankscope.collector.detect.stragglers.host_times import share_of_time
from rankscope.collector.detect.stragglers.recurring_stalls import STALLS
from rankscope.collector.detect.view import RunView, Samples, TimeCount
from rankscope.collector.runs.findings import RunFindings
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.units import ns_to_s
from tests.unit.collector.steps.step_series import MS, view_of

DETECTORS = build_detectors(CollectorConfig(detect_steps=16))
MADE = 96


@st.composite
def jobs(draw: st.DrawFn) -> RunView:
    """Draw a job whose own times are noisy, slow on a rank now and then, and in some cells such as cannot be: none,
    below 0, above the step, not known.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    ranks = draw(st.integers(2, 6))
    own_ns = 30 * MS * np.exp(random.normal(0.0, draw(st.sampled_from([0.01, 0.3])), (MADE, ranks)))
    own_ns[draw(st.integers(0, MADE)) :: draw(st.integers(1, 9)), draw(st.integers(0, ranks - 1))] *= 4
    step_ns = np.repeat(own_ns.max(axis=1, keepdims=True), ranks, axis=1)
    for value in (0.0, -7.0 * MS, 90 * MS, np.nan):
        own_ns[random.random(own_ns.shape) < draw(st.sampled_from([0.0, 0.02]))] = value
    counts = {rank: [TimeCount(step, round(30 * step * MS * rank)) for step in (40, 90)] for rank in range(ranks)}
    passed_ms = draw(st.sampled_from([180, 400, 9_000]))  # a step, the time in which the job stood included
    clock = {rank: [TimeCount(step, passed_ms * step * MS) for step in (40, 90)] for rank in range(ranks)}
    series = StepSeries(
        np.arange(MADE), tuple(range(ranks)), step_ns, own_ns, 0.5 * own_ns,
        {"data": 0.1 * step_ns, "forward": 0.4 * step_ns}, own_is_measured=True,
    )  # fmt: skip
    return view_of(series, samples=Samples({}, {}, {}, core_waits=counts, process_cpu=counts, host_clock=clock))


@settings(deadline=None)
@given(jobs())
def test_no_finding_loses_more_than_its_step_or_is_impossible(view: RunView) -> None:
    for result in detect(view, DETECTORS).results:
        for candidate in result.candidates:
            assert candidate.finding.find_impossible() == ""
            if candidate.lost_ns is not None:
                known = ~np.isnan(candidate.lost_ns)
                assert (candidate.lost_ns[known] >= 0).all()
                assert (candidate.lost_ns[known] <= view.longest_ns[known] * (1 + 1e-9)).all()


@settings(deadline=None)
@given(jobs())
def test_findings_have_cost_no_more_than_the_steps_of_all_ranks(view: RunView) -> None:
    findings = RunFindings("run", 10)
    findings.apply(detect(view, DETECTORS))
    whole_s = ns_to_s(float(np.nansum(view.longest_ns))) * len(view.series.ranks)
    assert all(0 <= one.lost_rank_seconds <= whole_s * (1 + 1e-9) for one in findings.lost)


@settings(deadline=None)
@given(jobs())
def test_slowness_of_some_steps_states_what_it_was_charged(view: RunView) -> None:
    findings = RunFindings("run", 10)
    findings.apply(detect(view, DETECTORS))
    for one in findings.open_findings:
        if one.pattern != "intermittent" or one.run_slowdown_ratio is None or STALLS in one.evidence:
            continue
        took_ns = view.longest_ns[view.series.steps >= (one.since_step or 0)].sum()
        lost_s = (1 - 1 / one.run_slowdown_ratio) * ns_to_s(float(took_ns)) * len(view.series.ranks)
        assert 0 <= lost_s == pytest.approx(one.lost_rank_seconds, rel=1e-6, abs=1e-6)


@given(st.floats(-1e9, 1e12), st.floats(1.0, 1e12))
def test_excess_as_a_time_is_the_difference_of_what_was_compared(mine_ns: float, theirs_ns: float) -> None:
    compared_ns = max(mine_ns, 1.0)
    excess, own_ns = np.array([np.log(compared_ns / theirs_ns)]), np.array([mine_ns])
    np.testing.assert_allclose(find_excess_ns(excess, own_ns), compared_ns - theirs_ns, rtol=1e-9, atol=1.0)
    np.testing.assert_allclose(find_peers_ns(excess, own_ns), theirs_ns, rtol=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000), st.integers(0, 1000)), max_size=20))
def test_time_of_one_thread_is_at_most_all_of_the_time(grown: list[tuple[int, int, int]]) -> None:
    """Between two samples some steps end, and a thread waits for a part of the time, or for all of it."""
    steps = counted = passed = 0
    counts, clock = [], []
    for more_steps, waited, worked in grown:
        steps, counted, passed = steps + more_steps, counted + waited, passed + waited + worked
        counts.append(TimeCount(steps, counted))
        clock.append(TimeCount(steps, passed))
    share = share_of_time(counts, clock, 0)
    assert share is None or 0 <= share <= 1
