"""The signals of a run: memory, start-up, unknown values. Steps take 100 ms."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Abstain
from rankscope.collector.detect.run_rules.rules import RULES
from rankscope.collector.detect.run_rules.signals import (
    INTERVALS_MIN,
    INTERVALS_READ,
    RANKS_SAMPLED_MAX,
    WINDOWS_MIN,
    WINDOWS_READ,
)
from rankscope.collector.detect.view import AllocatorCounts
from rankscope.collector.steps.step_series import StepSeries
from rankscope.measure.records import AllocatorSample
from tests.unit.collector.detect.run_views import (
    BUSY,
    CHURNING,
    RETRYING,
    RULE,
    STEADY,
    STEPS,
    Shares,
    counts_of,
    findings_in,
    job_of,
    kinds_in,
    unjudged_in,
    window_of,
    with_samples,
)
from tests.unit.collector.steps.step_series import UNKNOWN, series_of, view_of

# -- memory -----------------------------------------------------------------------------------------------------------


def test_repeated_allocator_retries_are_memory_pressure() -> None:
    retrying = {rank: counts_of(*RETRYING) for rank in (0, 1)}
    (finding,) = findings_in(job_of(BUSY, BUSY, allocators=retrying))
    assert (finding.kind, finding.severity) == ("memory_pressure", "warning")
    assert finding.why.startswith("cache emptied by torch 16 times")
    assert finding.evidence["retries"] == 16


def test_repeated_driver_allocation_is_memory_pressure() -> None:
    churning = {rank: counts_of(*CHURNING) for rank in (0, 1)}
    (finding,) = findings_in(job_of(BUSY, BUSY, allocators=churning))
    assert finding.headline.startswith("GPU memory allocated from the driver and freed again in training since step")


@pytest.mark.parametrize(
    ("why", "counts"),
    [
        ("nothing is asked of the driver", counts_of(*STEADY)),
        ("it happened once", counts_of(*[(0, 0)] * 4, *[(1, 5)] * 5)),
        ("the counts were reset", counts_of(*reversed(RETRYING))),
        ("it was while the run started", counts_of(*RETRYING, first_steps=STEPS - 90)),
        ("no steps were made meanwhile", counts_of(*RETRYING, apart=0)),
        ("it is too early to tell", counts_of(*RETRYING[:INTERVALS_MIN])),
        ("it was a while ago", counts_of(*RETRYING, *[(9, 0)] * INTERVALS_READ)),
        ("nothing is counted", [AllocatorCounts(STEPS + 10 * n, AllocatorSample(host_ns=0)) for n in range(9)]),
    ],
)
def test_memory_is_under_no_pressure(why: str, counts: list[AllocatorCounts]) -> None:
    assert findings_in(job_of(BUSY, BUSY, allocators={0: counts, 1: counts})) == [], why


def test_allocator_of_one_rank_is_no_finding_about_the_run() -> None:
    mixed = {0: counts_of(*RETRYING), 1: counts_of(*STEADY)}
    assert findings_in(job_of(BUSY, BUSY, allocators=mixed)) == []


# -- what is not known ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (STEPS, "32 steps are known, 64 are needed to judge the run as a whole"),
        (STEPS + 2, "34 steps are known, 64 are needed to judge the run as a whole"),
    ],
)
def test_first_steps_give_no_verdict_on_the_run(made: int, reason: str) -> None:
    idle: Shares = {"compute": 20}
    assert RULE.find(job_of(idle, idle, made=made), ()) == Abstain(reason)


@pytest.mark.parametrize("made", [STEPS + 3, 2 * STEPS - 1])
@pytest.mark.parametrize(("data_ms", "kinds"), [(21, ["data_bound"]), (19, [])])
def test_of_a_young_run_only_long_waits_for_loaders_are_known(made: int, data_ms: int, kinds: list[str]) -> None:
    view = job_of({"compute": 20}, {"compute": 20}, data_ms=data_ms, gpus=0, made=made)
    assert kinds_in(view) == kinds
    few = f"{made} steps are known, 64 are needed to judge the run as a whole"
    assert unjudged_in(view) == dict.fromkeys(RULES.keys() - set(kinds), few)


def test_run_without_steps_is_not_judged() -> None:
    nothing = np.empty((0, 2))
    series = StepSeries(np.empty(0, dtype=np.int64), (0, 1), nothing, nothing, nothing, {}, own_is_measured=True)
    found = RULE.find(view_of(series), ())
    assert found == Abstain("0 steps are known, 64 are needed to judge the run as a whole")


def test_run_without_step_times_is_not_judged() -> None:
    rows = [[UNKNOWN] * 2] * 64
    view = view_of(series_of(rows, step_ms=rows, first_step=40))
    assert RULE.find(view, ()) == Abstain("no rank's steps are known")


@pytest.mark.parametrize("windows", range(WINDOWS_MIN))
def test_few_windows_give_no_verdict_on_the_run(windows: int) -> None:
    idle: Shares = {"compute": 20}
    assert kinds_in(job_of(idle, idle, data_ms=50, windows=windows)) == []


def test_windows_of_the_first_steps_are_not_looked_at() -> None:
    idle: Shares = {"compute": 20}
    view = job_of(idle, idle)
    early = {rank: [window_of(STEPS - 1, idle)] * 3 for rank in (0, 1)}
    assert kinds_in(with_samples(view, view.samples._replace(breakdowns=early))) == []


def test_only_the_last_windows_are_looked_at() -> None:
    view = job_of(BUSY, BUSY)
    before = [window_of(40, {"compute": 20})] * 10
    now = [window_of(60 + n, BUSY) for n in range(WINDOWS_READ)]
    assert kinds_in(with_samples(view, view.samples._replace(breakdowns={0: before + now, 1: before + now}))) == []


def test_run_without_phases_is_not_data_bound() -> None:
    assert kinds_in(job_of(BUSY, BUSY, gpus=0, phases=False)) == []


def test_rank_without_steps_of_its_own_is_left_out() -> None:
    idle: Shares = {"compute": 20}
    view = job_of(idle, idle, idle)
    view.series.step_ns[:, 0] = UNKNOWN
    assert kinds_in(view) == ["host_bound"]


def test_large_run_is_sampled_at_an_odd_stride() -> None:
    # Four times as many ranks as are read: every fifth.
    idle: Shares = {"compute": 20}
    count = 4 * RANKS_SAMPLED_MAX
    assert kinds_in(job_of(*[idle if rank % 5 else BUSY for rank in range(count)])) == []
    assert kinds_in(job_of(*[BUSY if rank % 5 else idle for rank in range(count)])) == ["host_bound"]
