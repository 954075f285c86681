"""The ratios of a run, and what windows have done to its steps, as sentences."""

from typing import Any

import msgspec
import pytest

from rankscope.collector.reports.status_text import render_one_rank, render_status
from rankscope.collector.runs.ratio_basis import RatioBasis
from rankscope.collector.runs.run_ratios import RunRatios, describe_absence, describe_run_ratios, find_run_ratios
from rankscope.collector.runs.run_status import build_status
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot, Snapshot
from rankscope.collector.runs.window_effect import describe_timing_effect, describe_window_effect, read_windows
from rankscope.measure.bounds import NUMBER_MAX
from rankscope.measure.records import AgentCost, WindowBreakdown
from tests.unit.collector.runs.run_snapshots import rank_of

ENDED_20 = "full windows ended on 1 of 1 ranks: between windows, steps took 20 % longer than before the first window"
ENDED_WHY = "full windows ended after step 201 because steps took 29 % longer than before the first window"
ENDED = RatioBasis(steps=4, of_steps=400, share=0.01, age_steps=900, age_s=90.0, absent=ENDED_WHY)


def measured(rank: int, compute_ns: int, steps: int, age_steps: int, **known: Any) -> RankSnapshot:
    """A rank with windows of 100 ns a step, of which it computes in `compute_ns`, out of 100 steps."""
    window = WindowBreakdown(
        first_step=10, step_count=steps, window_ns=100 * steps, compute_ns=compute_ns * steps, communication_ns=0,
        overlap_ns=0, exposed_communication_ns=0, copy_ns=0, idle_ns=(100 - compute_ns) * steps,
    )  # fmt: skip
    basis = RatioBasis(
        steps=steps, of_steps=100, share=steps / 100, age_steps=age_steps, age_s=age_steps / 10, absent=None
    )
    return rank_of(rank, breakdown=window, ratio_basis=basis, **known)


def slowed(rank: int, attached: float | None, detached: float | None = None, state: str = "ended") -> RankSnapshot:
    return rank_of(rank, cost=AgentCost(attached_ratio=attached, detached_ratio=detached, window_effect=state))


# -- ratios ------------------------------------------------------------------------------------------------------------


def test_run_adds_up_the_windows_of_its_ranks() -> None:
    found = find_run_ratios([measured(0, 90, 2, age_steps=20), measured(1, 60, 4, age_steps=50)])
    assert found.ratios["compute"] == (2 * 90 + 4 * 60) / (6 * 100)
    assert (found.steps, found.of_steps, found.share) == (6, 200, 0.03)
    assert (found.ranks, found.of_ranks, found.absent) == (2, 2, None)


def test_age_of_a_run_is_that_of_its_oldest_newest_window() -> None:
    found = find_run_ratios([measured(0, 90, 2, age_steps=20), measured(1, 60, 4, age_steps=50)])
    assert (found.age_steps, found.age_s) == (50, 5.0)


def test_ranks_without_present_windows_do_not_count() -> None:
    found = find_run_ratios([measured(0, 90, 2, age_steps=20), rank_of(1, ratio_basis=ENDED)])
    assert (found.ratios["compute"], found.ranks, found.of_ranks, found.steps) == (0.9, 1, 2, 2)
    assert found.absent == f"1 of 2 ranks has no ratios; rank 1: {ENDED_WHY}"


def test_run_whose_windows_have_ended_has_no_ratios() -> None:
    found = find_run_ratios([rank_of(rank, ratio_basis=ENDED) for rank in range(8)])
    assert found == RunRatios(of_ranks=8, absent=ENDED_WHY)


def test_ended_ranks_count_only_once_no_rank_is_up() -> None:
    ended = [measured(rank, 90, 2, age_steps=20, up=False, ended="finished") for rank in (0, 1)]
    assert find_run_ratios([*ended, measured(2, 50, 2, age_steps=1)]).ratios["compute"] == 0.5
    assert find_run_ratios(ended).ratios["compute"] == 0.9


def test_a_reason_comes_before_a_window_not_seen_yet() -> None:
    why = f"all 2 ranks have none, for different reasons; rank 1: {ENDED_WHY}"
    assert describe_absence([(0, RatioBasis()), (1, ENDED)]) == why
    assert describe_absence([(0, RatioBasis()), (1, RatioBasis())]) == "this collector has seen no full window"
    assert describe_absence([]) is None


def test_ratios_of_some_ranks_come_with_the_reason_of_others() -> None:
    text = describe_run_ratios(find_run_ratios([measured(0, 90, 2, age_steps=20), rank_of(1, ratio_basis=ENDED)]))
    known = (
        "compute 90 %, exposed communication 0 %, idle 10 %, from 2 of 100 steps; at the last report the newest window "
        "was 20 steps (2 s) old"
    )
    assert text == f"{known}; 1 of 2 ranks has no ratios; rank 1: {ENDED_WHY}"


def test_run_without_ranks_has_no_sentence() -> None:
    found = find_run_ratios([])
    assert found == RunRatios()
    assert describe_run_ratios(found) == ""
    assert describe_run_ratios(RunRatios(absent=None)) == ""


def test_run_whose_windows_lasted_no_time_says_so() -> None:
    empty = rank_of(0, ratio_basis=RatioBasis(steps=2, of_steps=9, age_steps=1, age_s=1.0, absent="it is empty"))
    assert describe_run_ratios(find_run_ratios([empty])) == "no ratios: it is empty"


def test_steps_of_many_ranks_are_capped_at_what_can_be_encoded() -> None:
    basis = RatioBasis(steps=NUMBER_MAX, of_steps=NUMBER_MAX, share=1.0, age_steps=1, age_s=1.0, absent=None)
    ranks = [msgspec.structs.replace(measured(rank, 90, 2, age_steps=20), ratio_basis=basis) for rank in (0, 1)]
    found = find_run_ratios(ranks)
    assert (found.steps, found.of_steps, found.share) == (NUMBER_MAX, NUMBER_MAX, 1.0)


def test_two_states_of_one_rank_are_both_counted() -> None:
    twice = [(3, ENDED), (3, RatioBasis(absent=None)), (3, RatioBasis(absent="old"))]
    assert describe_absence(twice) == f"2 of 3 ranks have no ratios; rank 3: {ENDED_WHY}"


# -- what windows have done to the steps -------------------------------------------------------------------------------


def test_windows_that_ended_are_told_with_what_detaching_did() -> None:
    ranks = [slowed(rank, 0.27 + rank / 100, 0.004) for rank in range(5)]
    assert describe_window_effect(ranks) == (
        "full windows ended on 5 of 5 ranks: between windows, steps took 29 % longer than before the first window; "
        "after CUPTI was detached, 0.4 % longer"
    )


def test_ranks_that_did_not_detach_are_not_counted_as_if() -> None:
    ranks = [slowed(0, 0.2), slowed(1, 0.2, 0.0), slowed(2, None, state="reference")]
    assert describe_window_effect(ranks) == (
        "full windows ended on 2 of 3 ranks: between windows, steps took 20 % longer than before the first window; "
        "after CUPTI was detached on 1 of these ranks, as long as before"
    )


@pytest.mark.parametrize(
    ("state", "now", "past"),
    [
        ("ended", "ended", "ended"),
        ("kept", "continue", "continued"),
        ("attached", "are still being compared", "were still being compared"),
        ("", "ran (outcome not reported)", "ran (outcome not reported)"),
    ],
)
def test_windows_are_told_with_their_effect_now_or_in_the_past(state: str, now: str, past: str) -> None:
    rank = slowed(0, 0.004, state=state)
    over = msgspec.structs.replace(rank, up=False, ended="finished")
    steps = "on 1 of 1 ranks: between windows, steps took 0.4 % longer than before the first window"
    assert describe_window_effect([rank]) == f"full windows {now} {steps}"
    assert describe_window_effect([over]) == f"full windows {past} {steps}"


def test_windows_that_are_paused_do_not_continue() -> None:
    cost = AgentCost(attached_ratio=0.004, window_effect="kept", dropped={"full_windows": True})
    paused, kept = rank_of(0, cost=cost), slowed(1, 0.0, state="kept")
    assert describe_window_effect([paused, kept]) == (
        "full windows are paused on 1 of 2 ranks: between windows, steps took 0.4 % longer than before the first "
        "window; full windows continue on 1 of 2 ranks: between windows, steps took as long as before the first window"
    )


def test_effect_is_of_the_ranks_that_are_up() -> None:
    gone = msgspec.structs.replace(slowed(0, 0.5), up=False, ended="failed")
    text = describe_window_effect([gone, slowed(1, 0.2)])
    assert text == ENDED_20


@pytest.mark.parametrize("change", [float("nan"), float("inf"), -2.0, 1e9])
def test_effect_that_cannot_be_is_not_told(change: float) -> None:
    assert describe_window_effect([slowed(0, change)]) is None
    text = describe_window_effect([slowed(0, 0.2, change)])
    assert text == ENDED_20


def test_nothing_is_said_where_nothing_was_measured() -> None:
    assert describe_window_effect([rank_of(0), slowed(1, None, state="reference")]) is None


# -- what torch's timing of collectives has done -----------------------------------------------------------------------


def timed(rank: int, state: str, ratio: float | None = None) -> RankSnapshot:
    return rank_of(rank, cost=AgentCost(timing_ratio=ratio, timing_effect=state))


@pytest.mark.parametrize(
    ("state", "follows"),
    [
        ("slower", "RANKSCOPE_NCCL_TIMING=off leaves the timing out of the next run"),
        ("kept", "which does not count as a slowdown"),
        ("compared", "but the comparison goes on"),
    ],
)
def test_timing_is_said_with_its_change_and_what_follows(state: str, follows: str) -> None:
    ranks = [timed(rank, state, 0.07 + rank / 100) for rank in range(3)]
    said = f"timed on 3 of 3 ranks: since then steps took 8.0 % longer than before, {follows}"
    assert describe_timing_effect(ranks) == f"NCCL's collectives are {said}"
    over = [msgspec.structs.replace(rank, up=False, ended="finished") for rank in ranks]
    assert describe_timing_effect(over) == f"NCCL's collectives were {said}"


def test_ranks_with_different_outcomes_are_counted_apart() -> None:
    ranks = [timed(0, "kept", 0.0), timed(1, "unknown"), timed(2, "absent"), timed(3, "")]
    assert describe_timing_effect(ranks) == (
        "NCCL's collectives are timed on 1 of 4 ranks: since then steps took as long as before, which does not count "
        "as a slowdown; NCCL's collectives are timed on 1 of 4 ranks: whether steps became longer is not known, the "
        "log of a rank says why; NCCL's collectives are not timed on 1 of 4 ranks: the log of a rank says why"
    )


@pytest.mark.parametrize(
    "rank",
    [rank_of(0), timed(0, "waiting"), timed(0, "reference"), timed(0, "compared"), timed(0, "kept", float("nan"))],
)
def test_nothing_is_said_of_timing_before_a_comparison(rank: RankSnapshot) -> None:
    assert describe_timing_effect([rank]) is None


# -- status ------------------------------------------------------------------------------------------------------------


def test_status_says_why_there_are_no_ratios_and_window_costs() -> None:
    rank = msgspec.structs.replace(slowed(0, 0.29, 0.004), ratio_basis=ENDED)
    run = RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=(rank,))
    lines = render_status(build_status(run, 1)).splitlines()
    assert f"  full windows: no ratios: {ENDED_WHY}" in lines
    assert any(line.startswith("  full windows ended on 1 of 1 ranks") for line in lines)
    assert f"  ratios: {ENDED_WHY}" in render_one_rank(run, rank, None).splitlines()


def test_status_of_a_run_without_windows_says_nothing_about_them() -> None:
    run = RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=(rank_of(0),))
    assert not any("windows" in line for line in render_status(build_status(run, 1)).splitlines())
    assert "ratios:" not in render_one_rank(run, rank_of(0), None)


def test_status_of_a_rank_says_what_its_ratios_stand_on() -> None:
    rank = measured(0, 90, 2, age_steps=20)
    run = RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=(rank,))
    expected = "  ratios: from 2 of 100 steps; at the last report the newest window was 20 steps (2 s) old"
    assert expected in render_one_rank(run, rank, None)


def test_windows_of_a_run_are_read_once_for_each_snapshot() -> None:
    run = RunSnapshot(run="bert", world_size=1, restart_count=0, ranks=(measured(0, 90, 2, age_steps=20),))
    snapshot = Snapshot(wall_s=1.0, version="", runs=[run])
    found = snapshot.compute_once(run, read_windows)
    assert found == (find_run_ratios(run.ranks), None, None)
    assert snapshot.compute_once(run, read_windows) is found
    assert build_status(run, 1, found) == build_status(run, 1)
