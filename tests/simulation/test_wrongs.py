"""What counts as wrong beside names and misses: each kind is counted for a wrong finding, and not for a right one."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import BLAME, NOBODY, NOBODY_ELSE, NOT_KNOWN, Finding
from rankscope.collector.detect.finding_memory import FindingMemory, remember
from rankscope.collector.detect.stragglers.detector import LEVEL_FROM
from tests.simulation.claims import check_skip, find_false_claims
from tests.simulation.collector_end import Opened
from tests.simulation.cost_truth import CostTold, compare_costs, find_wrong_costs, steps_without
from tests.simulation.faults import Fault
from tests.simulation.finding_watch import FindingWatch
from tests.simulation.noise import NOISES
from tests.simulation.topology import Topology
from tests.simulation.unequal import Hardware
from tests.simulation.world import Outcome, Scenario, Skip
from tests.simulation.wrongs import CLOSED, CONTRADICTION, COST, MOVED, UNCOUNTED, UNSAID, UNTRUE, Wrong

TOPOLOGY = Topology.mesh(dp=4)
FAULT = Fault(cause="host_cpu", ranks=(1,), ratio=1.3, begin=60, end=120)
AGAIN = replace(FAULT, begin=180, end=None)
EVERYBODY = Fault(cause="host_cpu", ranks=(0, 1, 2, 3), ratio=1.3, begin=60)
OLD = Hardware(model="old", ranks=(0, 1), ratio=1.1, clock_hertz=1)
SCENARIO = Scenario(topology=TOPOLOGY, kind="dp", faults=(FAULT,), steps=120)


def finding(since_step: int | None, kind: str = "straggler", sentence: str = "", *ranks: int) -> Finding:
    return Finding(kind=kind, number=1, ranks=ranks, since_step=since_step, cause="host_cpu", sentence=sentence)


def slower(kind: str = "run_slowdown", blame: str = NOT_KNOWN, *ranks: int) -> Finding:
    """Return a finding about a slower run or stage, with a sentence that says nothing."""
    return msgspec.structs.replace(finding(60, kind, "", *ranks), number=2, details={BLAME: blame})


def slow(*ranks: int, sentence: str = "", evidence: Mapping[str, float] = {}) -> Finding:
    return msgspec.structs.replace(finding(60, "straggler", sentence, *ranks), evidence=evidence)


# -- in the course of a run -------------------------------------------------------------------------------------------


def seen_by_watch(step: int, *findings: Finding, faults: tuple[Fault, ...] = (FAULT,)) -> tuple[Wrong, ...]:
    watch = FindingWatch(faults, TOPOLOGY)
    watch.observe(findings, step)
    return watch.violations


def test_begin_may_move_back_and_not_forward() -> None:
    watch = FindingWatch((FAULT,), TOPOLOGY)
    for since_step in (60, 58, None):
        watch.observe([finding(since_step)], 70)
    assert not watch.violations
    watch.observe([finding(59)], 78)
    assert watch.violations == (Wrong(MOVED, "the begin of finding 1 (the run) moved forward"),)


@pytest.mark.parametrize(("kind", "ranks"), [("run_slowdown", ()), ("stage_slowdown", (2, 3))])
def test_denial_contradicts_an_open_rank(kind: str, ranks: tuple[int, ...]) -> None:
    found = seen_by_watch(70, slower(kind, NOBODY, *ranks), slow(2), faults=(EVERYBODY,))
    assert found == (Wrong(CONTRADICTION, f"{kind} denies that rank 2 is to blame"),)
    for blame in (NOBODY_ELSE, NOT_KNOWN):
        assert seen_by_watch(70, slower(kind, blame, *ranks), slow(2), faults=(EVERYBODY,)) == ()


@pytest.mark.parametrize("blame", [NOBODY, NOBODY_ELSE])
def test_denial_is_untrue_where_only_a_rank_is_slow(blame: str) -> None:
    denial = slower("run_slowdown", blame)
    assert seen_by_watch(70, denial) == (Wrong(UNTRUE, "run_slowdown blames no rank where one is to blame"),)
    assert seen_by_watch(70, denial, faults=(EVERYBODY,)) == ()
    assert seen_by_watch(70, slower()) == ()


def test_slower_run_beside_the_only_slow_rank_is_a_contradiction() -> None:
    text = "the run is said to be slower, beside rank 1, which explains it"
    assert seen_by_watch(70, slower(), slow(1)) == (Wrong(CONTRADICTION, text),)
    assert seen_by_watch(70, slower(), slow(1), faults=(FAULT, EVERYBODY)) == ()
    assert seen_by_watch(70, slower(), slow(2)) == ()  # a rank named wrongly is counted elsewhere


def test_finding_of_a_slower_run_says_whether_a_rank_is_to_blame() -> None:
    with pytest.raises(KeyError, match=BLAME):
        seen_by_watch(70, finding(60, "run_slowdown"))


def test_rank_has_one_finding_that_calls_it_slow() -> None:
    assert not seen_by_watch(70, slow(1), slow(2))
    assert seen_by_watch(70, slow(1), slow(1, 2)) == (Wrong(CONTRADICTION, "2 findings say that rank 1 is slow"),)


def test_slow_link_is_no_second_cause_of_a_slower_run() -> None:
    link = msgspec.structs.replace(finding(60, "slow_link"), cause="slow_link", number=2)
    run = msgspec.structs.replace(slower(), cause="slow_link")
    text = "the run is said to be slower, beside the link that slows it, by a link"
    assert seen_by_watch(70, link, run) == (Wrong(CONTRADICTION, text),)
    assert not seen_by_watch(70, run)
    assert not seen_by_watch(70, link, slower())


@pytest.mark.parametrize(("step", "count"), [(60, 0), (61, 1), (120, 1), (121, 0)])
def test_finding_must_not_pass_while_its_fault_lasts(step: int, count: int) -> None:
    watch = FindingWatch((FAULT,), TOPOLOGY)
    for passed in (slow(1), slow(2), finding(60, "run_slowdown")):
        watch.observe_passed(passed, step)
    assert [one.kind for one in watch.violations] == [CLOSED] * count


@pytest.mark.parametrize(("step", "count"), [(148, 0), (149, 1)])
def test_rank_is_called_slow_until_its_recovery_can_be_seen(step: int, count: int) -> None:
    # Slow until step 120; 12 healthy steps are to be seen, and two passes of 8 steps may come between.
    found = seen_by_watch(step, remember(slow(1), FindingMemory(steps_to_close=12)))
    assert found == (Wrong(UNTRUE, "finding 1 (rank 1) says that it is slow, and it was until step 120"),) * count


@pytest.mark.parametrize(("step", "count"), [(170, 0), (208, 0), (209, 1)])
def test_rank_is_not_called_healthy_while_it_is_slow(step: int, count: int) -> None:
    # It is slow again from step 180 on, and 12 steps and two passes are needed to see that.
    paused = msgspec.structs.replace(remember(slow(1), FindingMemory(steps_to_close=12)), is_paused=True)
    found = seen_by_watch(step, paused, faults=(FAULT, AGAIN))
    assert found == (Wrong(UNTRUE, "finding 1 (rank 1) says that it is not slow, and it is"),) * count


# -- as they were last known ------------------------------------------------------------------------------------------


def claims(one: Finding, scenario: Scenario = SCENARIO) -> list[Wrong]:
    return find_false_claims(Outcome(scenario, [Opened(one, 80, None)], None, np.ones((120, 4))))


@pytest.mark.parametrize(("since_step", "count"), [(54, 1), (55, 0), (60, 0), (65, 0), (66, 1)])
def test_begin_is_untrue_from_six_steps_off(since_step: int, count: int) -> None:
    found = claims(finding(since_step, "straggler", "", 1))
    text = f"finding 1 (straggler, rank 1) says since step {since_step}, and it is since step 60"
    assert found == [Wrong(UNTRUE, text)] * count


@pytest.mark.parametrize(("latest", "count"), [(59, 1), (60, 0)])
def test_begin_with_a_range_is_true_within_it_only(latest: int, count: int) -> None:
    words = f"about step 57 (50-{latest}"
    found = claims(finding(57, "straggler", f"Rank 1: 1.3x slower than its 3 peers since {words}; 14:02 UTC).", 1))
    assert (
        found == [Wrong(UNTRUE, f"finding 1 (straggler, rank 1) says since {words}, and it is since step 60")] * count
    )


def test_begin_is_that_of_the_nearest_fault_of_the_rank() -> None:
    assert claims(finding(180, "straggler", "", 1), replace(SCENARIO, faults=(FAULT, AGAIN), steps=240)) == []


def test_healthy_rank_whose_cost_is_added_is_untrue() -> None:
    added = msgspec.structs.replace(finding(60, "straggler", "", 1), cost_of="ranks 1-3")
    assert claims(added) == [Wrong(UNTRUE, "finding 1 (straggler, rank 1) says that rank 2 is slow")]
    both = replace(SCENARIO, faults=(FAULT, replace(FAULT, ranks=(2, 3))))
    assert claims(added, both) == []


BEHIND = "rank {rank} is 1 collective behind in group {group} since step {step}: it has called fewer of them"


@pytest.mark.parametrize(
    ("skip", "abstained", "kinds"),
    [
        (Skip(rank=3, step=60), BEHIND.format(rank=3, group="mesh_dp", step=60), []),
        (Skip(rank=3, step=60), BEHIND.format(rank=3, group="mesh_dp", step=66), [UNTRUE]),
        (Skip(rank=3, step=60), BEHIND.format(rank=4, group="mesh_dp", step=60), [UNTRUE]),
        (Skip(rank=3, step=60), BEHIND.format(rank=3, group="mesh_tp", step=60), [UNTRUE]),
        (Skip(rank=3, step=60), "no windows", [UNSAID]),
        (Skip(rank=3, step=60), None, [UNSAID]),
        (None, BEHIND.format(rank=3, group="mesh_dp", step=60), [UNTRUE]),
        (None, "no windows", []),
    ],
)
def test_skipped_collective_is_said_where_it_was(skip: Skip | None, abstained: str | None, kinds: list[str]) -> None:
    scenario = replace(SCENARIO, topology=Topology.mesh(dp=8), skip=skip)
    outcome = Outcome(scenario, [], abstained, np.ones((100, 8)))
    assert [wrong.kind for wrong in check_skip(outcome)] == kinds


def test_kind_without_a_known_truth_is_counted() -> None:
    assert claims(finding(60, "moon_phase")) == [
        Wrong(UNCOUNTED, "finding 1 (moon_phase, the run) is of a kind whose truth is not known")
    ]


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("uneven_work", replace(SCENARIO, noise=NOISES["uneven_batches"])),
        ("uneven_work", replace(SCENARIO, noise=NOISES["bursts"], topology=Topology.mesh(dp=64))),
        ("data_bound", replace(SCENARIO, faults=(replace(EVERYBODY, cause="data_loading"),))),
        ("host_bound", replace(SCENARIO, faults=(EVERYBODY,))),
        ("communication_bound", replace(SCENARIO, faults=(replace(FAULT, cause="slow_link"),))),
        ("slow_gpu_model", replace(SCENARIO, hardware=(OLD,))),
    ],
)
def test_information_is_untrue_where_it_is_not_so(kind: str, world: Scenario) -> None:
    assert claims(finding(60, kind), world) == []
    assert claims(finding(60, kind)) == [Wrong(UNTRUE, f"finding 1 ({kind}, the run) is not so in this run")]


# -- cost -------------------------------------------------------------------------------------------------------------


def test_cost_is_wrong_from_a_tenth_of_the_step() -> None:
    told = [CostTold(slow(1), stated, 0.8) for stated in (0.69, 0.71, 0.89, 0.91)]
    assert ["0.690" in wrong.text for wrong in find_wrong_costs(told)] == [True, False]
    assert {wrong.kind for wrong in find_wrong_costs(told)} == {COST}


def costs(*findings: Finding, scenario: Scenario = SCENARIO, real_ns: float = 130.0) -> list[float]:
    """True costs by steps of a fixed length, against the same run simulated without a fault."""
    opened = [Opened(one, 80, None) for one in findings]
    return [one.true for one in compare_costs(Outcome(scenario, opened, None, np.full((120, 4), real_ns)))]


def test_true_cost_is_that_of_the_run_without_the_fault() -> None:
    ideal_ns = steps_without(SCENARIO, (FAULT,))
    stated = msgspec.structs.replace(slow(1), run_slowdown_ratio=1.3)
    assert costs(stated) == [pytest.approx(np.mean(ideal_ns[60:]) / 130.0)]
    level = msgspec.structs.replace(stated, evidence={LEVEL_FROM: 100.0}, until_step=109, pattern="intermittent")
    assert costs(level) == [pytest.approx(np.mean(ideal_ns[100:110]) / 130.0)]
    grown = msgspec.structs.replace(stated, pattern="drifting")
    assert costs(grown) == [pytest.approx(np.mean(ideal_ns[108:]) / 130.0)]  # the last twelve of 120


def test_true_cost_counts_a_wait_into_the_next_step_once() -> None:
    # Rank 1 takes 30 more in each step; half of it the others wait for in their next one. 130 pass in a step, not 145.
    stated = msgspec.structs.replace(slow(1), run_slowdown_ratio=1.3)
    ideal_ns = steps_without(SCENARIO, (FAULT,))[60:]
    step_ns = np.full((120, 4), 130.0)
    step_ns[::2, :2], step_ns[1::2, :2] = 145.0, 115.0
    step_ns[::2, 2:], step_ns[1::2, 2:] = 115.0, 145.0
    (told,) = compare_costs(Outcome(SCENARIO, [Opened(stated, 80, None)], None, step_ns))
    assert told.true == pytest.approx(np.mean(ideal_ns) / 130.0)


def test_true_cost_is_without_the_ranks_that_are_added() -> None:
    other = Fault(cause="gpu_compute", ranks=(2,), ratio=2.0, begin=60)
    both = replace(SCENARIO, faults=(replace(FAULT, end=None), other))
    alone = msgspec.structs.replace(slow(1), run_slowdown_ratio=1.3)
    together = msgspec.structs.replace(alone, cost_of="rank 2")
    with_other, without_both = costs(alone, together, scenario=both)
    assert with_other == pytest.approx(np.mean(steps_without(both, both.faults[:1])[60:]) / 130.0)
    assert without_both == pytest.approx(np.mean(steps_without(both, both.faults)[60:]) / 130.0)


def test_true_cost_of_a_straggler_is_with_its_slow_link() -> None:
    link = Fault(cause="slow_link", ranks=(1,), ratio=2.0, begin=60)
    stated = msgspec.structs.replace(slow(1), run_slowdown_ratio=1.3)
    both = replace(SCENARIO, faults=(FAULT, link))
    assert costs(stated, scenario=both) == [pytest.approx(np.mean(steps_without(both, (FAULT,))[60:]) / 130.0)]
    assert costs(stated, scenario=replace(SCENARIO, faults=(link,))) == []


def test_cost_unstated_or_without_a_step_left_is_not_judged() -> None:
    assert costs(slow(1)) == []
    assert costs(msgspec.structs.replace(slow(2), run_slowdown_ratio=1.3)) == []
    assert costs(msgspec.structs.replace(slow(1), run_slowdown_ratio=1.3, until_step=59)) == []
