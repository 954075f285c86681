"""Worlds in which faults change: what was seen, kept as cases."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from rankscope.collector.config import CollectorConfig
from tests.simulation.changing import FIRST_SEED, SEEDS, trials, write_report
from tests.simulation.cost_truth import TOLERANCE, stated_step_share
from tests.simulation.curriculum import Curriculum
from tests.simulation.faults import Fault
from tests.simulation.noise import Noise
from tests.simulation.parts import carry_out
from tests.simulation.ranks import Windows
from tests.simulation.scenarios import build_layout, parse_fault
from tests.simulation.scoring import FaultJudged
from tests.simulation.world import Outcome, World, run
from tests.simulation.wrongs import MOVED, Wrong

JUMP = Curriculum(ratio=1.5, begin=100)


def story(kind: str, ranks: int, *faults: str, steps: int, seed: int) -> Outcome:
    layout = build_layout(kind, ranks)
    parsed = [parse_fault(text, layout.topology) for text in faults]
    return run(layout.scenario(*parsed, steps=steps, seed=seed))


def named(outcome: Outcome) -> list[tuple[str, tuple[int, ...], int | None, str]]:
    findings = [opened.finding for opened in outcome.opened]
    return [(finding.kind, finding.ranks, finding.since_step, finding.pattern) for finding in findings]


def test_straggler_that_gets_worse_is_to_blame() -> None:
    outcome = story("fsdp", 12, "data_loading:10:1.2:60", "gpu_compute:10:1.5:110", steps=150, seed=3)
    assert (named(outcome), outcome.violations) == ([("straggler", (10,), 60, "steady")], ())
    # 1.2 + 0.5 since step 110, beside the 5 % by which the slowest of twelve healthy ranks exceeds their median.
    assert outcome.opened[0].finding.run_slowdown_ratio == pytest.approx(1.7 / 1.05, abs=0.1)


def test_two_slow_ranks_of_four_are_not_the_stage() -> None:
    outcome = story("pp", 8, "gpu_compute:1:1.3:60", "host_cpu:2:1.2:110", steps=180, seed=2)
    assert {kind for kind, *_ in named(outcome)} == {"straggler"}
    assert ([ranks for _, ranks, *_ in named(outcome)], outcome.violations) == ([(1,), (2,)], ())


def test_steady_straggler_whose_size_changes_stays_steady() -> None:
    outcome = story("fsdp", 16, "gpu_compute:5:1.15:60", "gpu_compute:5:1.05:110", steps=168, seed=1)
    assert (named(outcome), outcome.violations) == ([("straggler", (5,), 60, "steady")], ())


def test_slow_rank_and_a_slower_run_are_told_apart() -> None:
    outcome = story("dp", 8, "gpu_compute:5:1.3:60", "data_loading:all:1.3:120", steps=160, seed=4)
    assert ([kind for kind, *_ in named(outcome)], outcome.violations) == (["straggler", "run_slowdown"], ())
    assert "without what is due to rank 5," in outcome.opened[1].finding.headline


def test_rank_that_becomes_slower_over_300_steps_is_drifting() -> None:
    outcome = story("dp", 8, "gpu_compute:5:1.5:60:very_slow_drift", steps=300, seed=2)
    ((kind, ranks, since_step, pattern),) = named(outcome)
    assert (kind, ranks, pattern, outcome.violations) == ("straggler", (5,), "drifting", ())
    assert 60 <= (since_step or 0) <= 90  # by then it is a twentieth slower


def test_slow_growth_of_a_run_is_one_finding_since_its_begin() -> None:
    outcome = story("dp", 8, "data_loading:all:2:60:slow_drift", steps=240, seed=2)
    ((kind, ranks, since_step, pattern),) = named(outcome)
    assert (kind, ranks, pattern, outcome.violations) == ("run_slowdown", (), "drifting", ())
    assert abs((since_step or 0) - 60) <= 5
    finding = outcome.opened[0].finding
    assert finding.cause == "data_loading"
    assert "more per step waiting for their data loaders" in finding.why


@pytest.mark.parametrize(
    ("cause", "ratio", "grow_steps", "steps"),
    [
        pytest.param("data_loading", 2.0, 400, 400, id="no steps"),  # the table has 256
        pytest.param("gpu_compute", 1.3, 200, 280, id="no windows"),
    ],
)
def test_slow_growth_keeps_its_cause_when_the_past_is_dropped(
    cause: str, ratio: float, grow_steps: int, steps: int
) -> None:
    layout = build_layout("dp", 8)
    ranks = tuple(range(layout.topology.world_size))
    fault = Fault(cause=cause, ranks=ranks, ratio=ratio, begin=60, drift_steps=grow_steps)
    outcome = run(layout.scenario(fault, steps=steps, seed=2))
    (finding,) = (one.finding for one in outcome.opened if one.finding.kind == "run_slowdown")
    assert (finding.cause, finding.pattern, outcome.violations) == (cause, "drifting", ())
    assert finding.why == "found earlier, not comparable now"


def test_begin_is_dated_while_reports_are_lost() -> None:
    scenario = next(one.scenario for one in trials() if one.about == "lost")
    outcome = run(scenario)
    assert (named(outcome), outcome.violations) == ([("straggler", (5,), 70, "steady")], ())


@pytest.mark.parametrize(("ranks", "every", "ratio"), [(3, 3, 3.7), (3, 10, 7.8), (4, 20, 3.0)])
def test_rank_that_stalls_now_and_then_is_named_among_few(ranks: int, every: int, ratio: float) -> None:
    fault = Fault(cause="unseen_wait", ranks=(1,), ratio=ratio, begin=60, every=every)
    scenario = build_layout("dp", ranks).scenario(fault, steps=300, seed=every)
    outcome = run(scenario)
    assert (named(outcome), outcome.violations) == ([("straggler", (1,), 60, "intermittent")], ())
    assert outcome.opened[0].finding.cause == "unseen_wait"  # by the few windows that meet a stall
    without_ns = World(replace(scenario, faults=()), CollectorConfig()).run_unreported()
    share = without_ns[60:].mean() / outcome.step_ns[60:, 0].mean()  # of the time, without the stalls
    assert stated_step_share(outcome.opened[0].finding) == pytest.approx(share, abs=TOLERANCE)


def test_rank_stalling_now_and_then_is_named_despite_few_windows() -> None:
    fault = Fault(cause="unseen_wait", ranks=(1,), ratio=3.7, begin=60, every=3)
    scenario = build_layout("dp", 3).scenario(fault, steps=480, seed=3)
    outcome = run(replace(scenario, windows=Windows(length=4, distance=32), on_cpus=True))
    ((kind, ranks, _, pattern),) = named(outcome)
    assert (kind, ranks, pattern, outcome.violations) == ("straggler", (1,), "intermittent", ())


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_stall_alike_are_not_named(ranks: int) -> None:
    scenario = build_layout("dp", ranks).scenario(steps=300, seed=ranks)
    assert named(run(replace(scenario, noise=Noise(burst_probability=0.1)))) == []


@pytest.mark.parametrize("curriculum", [JUMP, Curriculum(ratio=2.0, begin=60, grow_steps=300, stages=300)])
def test_batches_that_grow_on_purpose_are_no_slowdown(curriculum: Curriculum) -> None:
    scenario = replace(build_layout("dp", 4).scenario(steps=400, seed=2), curriculum=curriculum)
    outcome = run(scenario)
    assert (named(outcome), outcome.violations) == ([], ())
    # The steps have grown as the tokens have; only the transfers have not.
    step_ns = outcome.step_ns.max(axis=1)
    assert np.median(step_ns[-64:]) / np.median(step_ns[8:60]) == pytest.approx(curriculum.ratio, rel=0.05)


@pytest.mark.parametrize(("ranks", "kind"), [((1,), "straggler"), ((0, 1, 2, 3), "run_slowdown")])
def test_slowness_beside_a_larger_batch_is_found(ranks: tuple[int, ...], kind: str) -> None:
    fault = Fault(cause="gpu_compute", ranks=ranks, ratio=1.3, begin=140)
    early = replace(JUMP, begin=60)  # before a change of the run counts the median of all steps until then
    scenario = replace(build_layout("dp", 4).scenario(fault, steps=220, seed=2), curriculum=early)
    outcome = run(scenario)
    (finding,) = (one.finding for one in outcome.opened)
    assert (finding.kind, finding.since_step, finding.cause) == (kind, 140, "gpu_compute")
    assert finding.slowdown_ratio == pytest.approx(1.3, abs=0.03)


# -- the worlds -------------------------------------------------------------------------------------------------------


def test_every_run_has_a_seed_of_its_own() -> None:
    seeds = [one.scenario.seed for one in trials()]
    assert seeds == list(range(FIRST_SEED, FIRST_SEED + len(seeds)))


@pytest.mark.parametrize("family", ["skips", "curricula", "growing_runs", "growing_ranks"])
def test_family_has_a_healthy_half_and_a_held_out_half(family: str) -> None:
    runs = [one for one in trials() if one.about == family]
    for odd in (0, 1):
        half = [one for one in runs if one.scenario.seed % 2 == odd]
        assert len(half) >= 24
        assert {bool(one.scenario.faults) for one in half} == {True, False}


def test_row_says_what_its_runs_are() -> None:
    rows = {f"{one.about}; {one.what}; {one.where}; {one.noise}" for one in trials()}
    assert "skips; healthy, rank 3 skips a collective at 60, 160 steps; dp 8; usual" in rows
    assert "curricula; healthy, 2 x the tokens since 60 over 200 steps, 300 steps; fsdp 16; usual" in rows
    assert "lost; rank 5 1.3 x since 70, no reports of 1 from 48 to 96, 220 steps; fsdp 16; usual" in rows
    assert "stalls; rank 1 3.7 x since 60 in one of 3 steps, 800 steps; dp 3, on CPUs, rare windows; usual" in rows
    assert "stalls_of_all; healthy, 320 steps; dp 2, on CPUs; bursts" in rows
    assert "stalls_of_all; healthy, 320 steps; dp 2, on CPUs; stalls in 10 % of the steps" in rows
    assert len(rows) == len(list(trials())) / SEEDS


def test_report_has_both_halves_and_names_what_was_wrong() -> None:
    few = list(islice(trials(), 2))
    even, odd = (carry_out(trial) for trial in few)
    missed = even.ours._replace(faults=(FaultJudged(found=False), *even.ours.faults[1:]))
    report = write_report([even._replace(ours=missed, wrongs=(Wrong(MOVED, "by 3 steps"),)), odd], "", 1.0)
    what = "sizes; rank 5 1.15 x since 60, rank 5 1.05 x since 110, 168 steps; fsdp 16"
    # Two faults of each run, of which one of the even run is missed.
    assert "| even seeds | runs |" in report
    assert "\n| sizes | 1 | 2 | 0.500 |" in report
    assert "\n| sizes | 1 | 2 | 1.000 |" in report.partition("| odd seeds (held out) | runs |")[2]
    assert f"\n| {what}; usual | 2 | 4 | 0.750 |" in report
    assert f"\n- run {FIRST_SEED} ({what}): gpu_compute of rank 5 missed\n" in report
    assert f"\n- run {FIRST_SEED} ({what}): since moved forward: by 3 steps\n" in report
    assert "\n| **rankscope** | reports | 0.750 |" in report
