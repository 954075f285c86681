"""Jobs over gloo whose windows see few steps: what the phases of every step show of who was slow, when, at what cost.

A step takes 20 ms; the cost of each fault follows from its parts by hand.
"""

from collections.abc import Callable

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.steps.step_series import Floats
from tests.simulation.host_jobs import HostJob, Parts

SHARES = {"data": 0.02, "forward": 0.3, "backward": 0.5, "optimizer": 0.15, "other": 0.03}
STEP_MS = 20.0
BEGIN = 60


def draw_usual(ranks: int, seed: int = 1, noise: float = 0.05) -> Callable[[int], Parts]:
    random = np.random.default_rng(seed)
    return lambda _step: {
        name: STEP_MS * share * np.exp(random.normal(0, noise, ranks)) for name, share in SHARES.items()
    }


def slow(ranks: int, phase: str, ms: float, who: Callable[[int], int | None]) -> Callable[[int], Parts]:
    """Return the parts of a job in which `who` names the slow rank of a step, from BEGIN on."""
    return slower(ranks, phase, lambda step: ms * (np.arange(ranks) == who(step)))


def slower(ranks: int, phase: str, added_ms: Callable[[int], Floats]) -> Callable[[int], Parts]:
    """Return the parts of a job in which a phase of each rank is longer by so much, from BEGIN on."""
    usual = draw_usual(ranks)

    def parts(step: int) -> Parts:
        found = usual(step)
        if step > BEGIN:
            found[phase] += added_ms(step)
        return found

    return parts


def every(steps: int, rank: int = 1) -> Callable[[int], int | None]:
    return lambda step: rank if step % steps == 0 else None


def only(job: HostJob, steps: int) -> Finding:
    (found,) = job.run(steps)
    return found


def accused(job: HostJob) -> set[tuple[int, ...]]:
    return {finding.ranks for _, findings in job.passes for finding in findings if finding.ranks}


@pytest.mark.parametrize(("ranks", "noise"), [(2, 0.05), (3, 0.25)])
def test_nobody_is_accused_in_a_healthy_job(ranks: int, noise: float) -> None:
    job = HostJob(ranks, draw_usual(ranks, noise=noise))
    job.run(600)
    assert accused(job) == set()


def in_turns(ranks: int, steps: int) -> Callable[[int], int]:
    return lambda step: (step // steps) % ranks


def at_random(ranks: int) -> Callable[[int], int]:
    return lambda step: int(np.random.default_rng(step).integers(ranks))


@pytest.mark.parametrize(
    ("ranks", "who"),
    [(2, in_turns(2, 25)), (2, at_random(2)), (3, in_turns(3, 10)), (3, at_random(3)), (8, at_random(8))],
    ids=["two, 25 steps each", "two at random", "three, 10 steps each", "three at random", "eight at random"],
)
def test_ranks_whose_loaders_are_slow_in_turns_are_not_accused(ranks: int, who: Callable[[int], int]) -> None:
    job = HostJob(ranks, slow(ranks, "data", 60, who))
    (found,) = (finding for finding in job.run(300) if finding.kind != "data_bound")
    assert (found.kind, found.cause, accused(job)) == ("uneven_work", "data_loading", set())
    # 80 ms instead of 20.
    assert found.run_slowdown_ratio == pytest.approx(4.0, rel=0.05)


def test_rank_that_is_slow_in_all_steps_is_named_beside_longer_stalls_of_others() -> None:
    def added_ms(step: int) -> Floats:
        of_others = 60.0 * (step % 45 < 15)
        return np.array([20.0, of_others * (step // 45 % 2 == 0), of_others * (step // 45 % 2)])

    job = HostJob(3, slower(3, "data", added_ms))
    job.run(300)
    assert (0,) in {one.ranks for one in job.end.run.open_findings if one.kind == "straggler"}


def test_stalls_of_others_are_no_turns_beside_a_slow_loader() -> None:
    stalls = np.random.default_rng(5)

    def added_ms(_step: int) -> Floats:
        return np.array([15.0, 0.0, 0.0]) + np.where(stalls.random(3) < 0.15, stalls.exponential(40.0, 3), 0.0)

    job = HostJob(3, slower(3, "data", added_ms))
    kinds = {(one.kind, one.ranks) for one in job.run(400)}
    assert ("straggler", (0,)) in kinds
    assert "uneven_work" not in {kind for kind, _ in kinds}


def test_rank_that_stays_slow_after_a_turn_of_another_is_named() -> None:
    job = HostJob(2, slow(2, "data", 60, lambda step: 0 if step < 85 else 1))
    job.run(300)
    assert [(one.kind, one.ranks) for one in job.end.run.open_findings if one.ranks] == [("straggler", (1,))]


def test_steady_slowness_in_forward_is_known_before_next_window() -> None:
    job = HostJob(4, slow(4, "forward", 15, lambda _step: 2))
    found = only(job, 160)
    assert (found.ranks, found.since_step) == ((2,), BEGIN + 1)
    assert found.slowdown_ratio == pytest.approx(1.75, rel=0.05)


@pytest.mark.parametrize("period", [4, 10])
def test_one_of_two_ranks_that_stalls_every_few_steps_is_named(period: int) -> None:
    found = only(HostJob(2, slow(2, "forward", 400, every(period))), BEGIN + 24 * period)
    assert (found.kind, found.ranks, found.pattern) == ("straggler", (1,), "intermittent")
    assert found.evidence["gap_steps"] == period
    # Of each period 400 ms are lost beside period * 20.
    assert found.run_slowdown_ratio == pytest.approx(1 + 400 / (20.7 * period), rel=0.1)


@pytest.mark.parametrize(
    ("phase", "kind", "cause"), [("forward", "straggler", "unattributed"), ("other", "periodic_work", "periodic_work")]
)
def test_stall_every_80_steps_is_named_with_its_cost(phase: str, kind: str, cause: str) -> None:
    job = HostJob(4, slow(4, phase, 2000, every(80)))
    found = only(job, 600)
    assert (found.kind, found.ranks, found.cause) == (kind, (1,), cause)
    assert (found.since_step, found.evidence["gap_steps"], found.evidence["stalls"]) == (80, 80, 7)
    # Of 600 steps of 20.7 ms and 7 stalls of 2 s.
    goodput = job.end.snapshot(job.now_ns).goodput
    assert goodput.slow_ns / goodput.wall_ns == pytest.approx(14_000 / (600 * 20.7 + 14_000), abs=0.02)


def test_garbage_collector_pauses_are_the_cause_of_rare_stalls() -> None:
    def paused(step: int) -> Floats:
        return np.array([0.0, 500.0]) * (step > BEGIN and step % 70 == 0)

    found = only(HostJob(2, slow(2, "forward", 500, every(70)), paused=paused), 600)
    assert (found.ranks, found.cause) == ((1,), "garbage_collection")


def test_stalls_that_stop_are_over() -> None:
    job = HostJob(2, slow(2, "forward", 400, lambda step: every(20)(step) if step < 300 else None))
    job.run(280)
    assert accused(job) == {(1,)}
    assert list(job.run(400)) == []


def test_gc_pauses_of_ranks_in_turn_are_found_and_name_nobody() -> None:
    ranks, usual = 16, draw_usual(16)

    def paused(step: int) -> Floats:
        return np.where((step + 6 * np.arange(ranks)) % 100 == 0, 60.0, 0.0) * (step > BEGIN)

    def parts(step: int) -> Parts:
        found = usual(step)
        found["forward"] += paused(step)
        return found

    job = HostJob(ranks, parts, paused=paused)
    found = only(job, 400)
    assert (found.kind, accused(job)) == ("garbage_collection", set())
    # 16 of 100 steps are longer by 60 ms; the slowest of 16 ranks takes some 22 ms.
    assert found.evidence["beyond_usual_ratio"] == pytest.approx(9.6 / (22 + 9.6), abs=0.05)


FSDP = {"forward": "begin", "backward": "begin"}  # what is in backward comes after its last collective
EARLY = ("other", *(name for name in SHARES if name != "other"))


@pytest.mark.parametrize(
    ("phase", "order", "meets"),
    [
        ("backward", tuple(SHARES), FSDP),
        ("optimizer", tuple(SHARES), FSDP),
        ("other", tuple(SHARES), FSDP),
        ("other", EARLY, {"forward": "begin", "backward": "end"}),
        ("other", EARLY, {"optimizer": "begin"}),
        ("optimizer", tuple(SHARES), {"backward": "end", "other": "end"}),
    ],
    ids=["end of backward", "optimizer", "end of step", "begin of step", "grad norm", "barrier"],
)
@pytest.mark.parametrize(("ms", "period"), [(400, 40), (60, 10)])
def test_rank_waiting_outside_backward_is_not_accused(
    phase: str, order: tuple[str, ...], meets: dict[str, str], ms: float, period: int
) -> None:
    job = HostJob(2, slow(2, phase, ms, every(period, rank=0)), order=order, meets=meets)
    job.run(BEGIN + 9 * period)
    assert accused(job) <= {(0,)}
