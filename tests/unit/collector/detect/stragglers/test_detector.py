"""Stragglers as findings: one for each rank or node, with what is known of it kept."""

import dataclasses

import msgspec
import numpy as np
import pytest

from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.finding_memory import recall
from rankscope.collector.detect.stragglers.detector import Stragglers
from rankscope.collector.detect.stragglers.persistent import Thresholds
from rankscope.collector.detect.view import Candidate, RunView, Samples, TimeCount
from rankscope.collector.steps.step_series import Floats, Lag
from tests.unit.collector.steps.step_series import MS, series_of, view_of

DETECTOR = Stragglers(Thresholds())
NODES = {rank: f"node{rank // 4}" for rank in range(12)}


def times(steps: int = 120, ranks: int = 12, seed: int = 1) -> Floats:
    return 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, 0.02, (steps, ranks)))


def view(own_ms: Floats) -> RunView:
    return view_of(series_of(own_ms.tolist()), nodes=NODES)


def find(own_ms: Floats, *explained: Finding) -> list[Candidate]:
    found = DETECTOR.find(view(own_ms), explained)
    assert not isinstance(found, Abstain)
    return list(found)


def known(*ranks: int, since_step: int | None = 7) -> Finding:
    return Finding(kind=STRAGGLER, ranks=ranks, since_step=since_step, cause="host_cpu", sentence="")


def test_slow_node_is_one_finding_and_its_steps_are_charged_once() -> None:
    own_ms = times()
    own_ms[60:, 4:8] *= 1.5
    ((finding, lost_ns),) = find(own_ms)
    assert (finding.ranks, finding.nodes, finding.since_step) == ((4, 5, 6, 7), ("node1",), 60)
    assert finding.headline.startswith("Node node1 (ranks 4-7): up to 1.5")
    assert isinstance(lost_ns, np.ndarray)
    assert float(np.median(lost_ns[60:])) == pytest.approx(55 * MS, rel=0.1)  # the slowest of four, 1.5 and some noise
    assert (lost_ns[:60] == 0).all()


def test_slowness_that_grows_is_called_drifting() -> None:
    own_ms = times()
    own_ms[40:, 2] *= np.linspace(1.0, 1.6, 80)
    ((finding, _),) = find(own_ms)
    assert (finding.ranks, finding.pattern) == ((2,), "drifting")
    assert finding.since_step is not None
    assert abs(finding.since_step - 40) <= 15
    assert "and getting slower since about step" in finding.headline


def test_rank_that_is_slow_now_and_then_is_found_and_passes() -> None:
    own_ms = times(steps=200)
    own_ms[60:120:5, 2] *= 1.6
    ((finding, lost_ns),) = find(own_ms[:120])
    assert (finding.ranks, finding.pattern, finding.evidence["gap_steps"]) == ((2,), "intermittent", 5.0)
    assert lost_ns is not None
    assert np.flatnonzero(lost_ns).tolist() == list(range(60, 120, 5))
    assert not DETECTOR.has_passed(view(own_ms[:120]), finding, ())
    assert DETECTOR.has_passed(view(own_ms[:160]), finding, ())


def test_sparse_known_steps_need_as_many_to_pass() -> None:
    own_ms = times(steps=100)
    own_ms[10:60:2, 2] *= 1.6

    def sparse(steps: int) -> RunView:
        """Every tenth step is known."""
        series = series_of(own_ms[:steps].tolist())
        return view_of(dataclasses.replace(series, steps=10 * series.steps), nodes=NODES)

    found = DETECTOR.find(sparse(60), ())
    assert not isinstance(found, Abstain)
    ((finding, _),) = found
    assert (finding.pattern, finding.evidence["gap_steps"], recall(finding).gap_known_steps) == (
        "intermittent", 20.0, 2.0,
    )  # fmt: skip
    assert not DETECTOR.has_passed(sparse(70), finding, ())
    assert DETECTOR.has_passed(sparse(72), finding, ())


@pytest.mark.parametrize(("since_step", "expected"), [(-5, -5), (2, 2), (7, 0), (None, 0)])
def test_begin_that_has_left_the_window_is_kept(since_step: int | None, expected: int) -> None:
    own_ms = times()
    own_ms[:, 2] *= 1.5
    # Two slow steps before an open finding are no evidence of an earlier begin, seven are.
    ((finding, _),) = find(own_ms, known(2, since_step=since_step))
    assert finding.since_step == expected


@pytest.mark.parametrize(("since_step", "expected"), [(99, 99), (101, 101), (400, 400), (410, 400)])
def test_begin_is_moved_back_and_never_forward(since_step: int, expected: int) -> None:
    """Steps up to 100 are known, and from 400 on, of which it is slow."""
    own_ms = times()
    own_ms[60:, 2] *= 1.5
    steps = np.concatenate([np.arange(41, 101), np.arange(400, 460)])
    series = dataclasses.replace(series_of(own_ms.tolist()), steps=steps)
    found = DETECTOR.find(view_of(series, nodes=NODES), (known(2, since_step=since_step),))
    assert not isinstance(found, Abstain)
    assert [candidate.finding.since_step for candidate in found] == [expected]


@pytest.mark.parametrize(
    ("since_step", "since_range", "expected"),
    [
        # It is slow since step 60, and two slow steps do not prove that. The range reaches to the begin that is kept.
        (50, None, (50, 50, 61)),
        (62, (61, 63), (62, 61, 62)),
        (60, (50, 70), (60, 60, 60)),
        # Steps before the first one that is kept.
        (-5, (-9, -2), (-5, -9, -2)),
    ],
)
def test_kept_begin_has_the_range_known_now_or_before(
    since_step: int, since_range: tuple[int, int] | None, expected: tuple[int, int | None, int | None]
) -> None:
    own_ms = times()
    own_ms[60:, 2] *= 1.5
    earliest, latest = since_range or (None, None)
    open_one = msgspec.structs.replace(known(2, since_step=since_step), since_step_min=earliest, since_step_max=latest)
    ((finding, _),) = find(own_ms, open_one)
    assert (finding.since_step, finding.since_step_min, finding.since_step_max) == expected


def test_node_has_passed_when_all_of_its_ranks_have() -> None:
    own_ms = times()
    own_ms[:90, 4:8] *= 1.5
    assert DETECTOR.has_passed(view(own_ms), known(4, 5, 6, 7), ())
    own_ms[90:, 6] *= 1.5
    assert not DETECTOR.has_passed(view(own_ms), known(4, 5, 6, 7), ())


def test_slowest_of_several_states_what_all_cost_together() -> None:
    own_ms = np.full((60, 12), 100.0)
    own_ms[:, 1], own_ms[:, 6] = 150.0, 120.0
    slowest, other = (one.finding for one in find(own_ms))
    assert (slowest.ranks, other.ranks) == ((1,), (6,))
    assert slowest.run_slowdown_ratio == pytest.approx(150 / 100)
    assert (slowest.cost_of, other.cost_of) == ("rank 6", "")
    assert "Cost (with rank 6): run " in slowest.sentence
    assert other.run_slowdown_ratio == 1.0  # no step is shorter without it, as long as rank 1 is slower
    assert other.cost == ""


def test_several_others_are_named_as_ranks() -> None:
    own_ms = np.full((60, 12), 100.0)
    own_ms[:, 1], own_ms[:, 6], own_ms[:, 8] = 150.0, 120.0, 120.0
    slowest = find(own_ms)[0].finding
    assert slowest.cost_of == "ranks 6, 8"


def reason_with(*lags: Lag, unknown_from: int = 60) -> str | None:
    """Of 120 steps of 12 ranks whose own times are unknown from a step on."""
    own_ms = times()
    own_ms[unknown_from:] = np.nan
    series = dataclasses.replace(series_of(own_ms.tolist()), lags=lags)
    found = DETECTOR.find(view_of(series, nodes=NODES), ())
    return found.reason if isinstance(found, Abstain) else None


def test_rank_that_left_out_a_collective_explains_no_verdict() -> None:
    assert reason_with(Lag("tp", 3, 1, 60, 60)) == (
        "rank 3 is 1 collective behind in group tp since step 60: it has called fewer of them than the other members, "
        "so that their waits cannot be matched"
    )
    assert "in group tp since about step 60 (41-60): it" in str(reason_with(Lag("tp", 3, 1, 60, 41)))
    assert reason_with(Lag("dp", 4, -2, 80, 80), Lag("tp", 3, -2, 60, 60)) == (
        "rank 3 is 2 collectives ahead in group tp since step 60: it has called more of them than the other "
        "members, so that their waits cannot be matched; so has 1 more rank"
    )


def test_without_a_lag_or_with_known_ranks_there_is_a_verdict() -> None:
    assert reason_with() is None
    assert reason_with(Lag("tp", 3, 1, 60, 60), unknown_from=61) is None  # another group's ranks are known since
    assert reason_with(Lag("tp", 3, 1, 110, 110), unknown_from=110) is None  # for ten steps only


def test_open_finding_stays_steady_and_says_its_present_size() -> None:
    own_ms = times(steps=240)
    own_ms[60:, 2] *= 1.15
    ((finding, _),) = find(own_ms[:110])
    own_ms[120:, 2] *= 1.1
    own_ms[200:, 2] *= 1.05 / 1.15 / 1.1
    ((later, _),) = find(own_ms[:180], finding)
    assert (later.pattern, later.since_step) == ("steady", 60)
    level_from = round(later.evidence["level_from_step"])
    assert abs(level_from - 120) <= 5
    assert later.slowdown_ratio == pytest.approx(1.15 * 1.1, rel=0.02)
    assert later.run_slowdown_ratio == pytest.approx(1.15 * 1.1, rel=0.05)
    # The change has left the table; the finding keeps it.
    series = dataclasses.replace(series_of(own_ms[130:200].tolist()), steps=np.arange(130, 200))
    found = DETECTOR.find(view_of(series, nodes=NODES), (later,))
    assert not isinstance(found, Abstain)
    ((last, _),) = found
    assert (last.since_step, last.also) == (60, (f"by this much since step {level_from} only",))
    # 1.05 times is less than a rank is called slow for anew, and it is not over.
    ((least, _),) = find(own_ms, later)
    assert least.slowdown_ratio == pytest.approx(1.05, rel=0.01)


def words_over_time(own_ms: Floats, kept: int = 256) -> list[tuple[int | None, tuple[str, ...]]]:
    """What is said of the begin and the level of rank 2, pass by pass, of the last steps each."""
    open_ones: tuple[Finding, ...] = ()
    said = []
    for end in range(100, len(own_ms), 16):
        first = max(0, end - kept)
        series = dataclasses.replace(series_of(own_ms[first:end].tolist()), steps=np.arange(first, end))
        found = DETECTOR.find(view_of(series, nodes=NODES), open_ones)
        assert not isinstance(found, Abstain)
        open_ones = tuple(candidate.finding for candidate in found if candidate.finding.ranks == (2,))
        said += [(one.since_step, one.also) for one in open_ones]
    return said


@pytest.mark.parametrize("seed", range(3))
def test_constant_fault_in_wandering_noise_has_one_begin_only(seed: int) -> None:
    random = np.random.default_rng(seed)
    own_ms = np.full((1_500, 4), 50.0) * np.exp(random.normal(0.0, 0.02, (1_500, 4)))
    own_ms[60:, 2] *= 3.0 * np.exp(0.04 * np.sin(np.arange(1_440) / 40) + random.normal(0.0, 0.02, 1_440))
    assert set(words_over_time(own_ms)) == {(60, ())}


def test_told_level_does_not_move_and_ends_with_a_later_one() -> None:
    own_ms = np.full((1_200, 4), 50.0) * np.exp(np.random.default_rng(1).normal(0.0, 0.02, (1_200, 4)))
    own_ms[60:, 2] *= 2.0
    own_ms[300:, 2] *= 2.0
    assert list(dict.fromkeys(words_over_time(own_ms))) == [
        (60, ()),
        (60, ("by this much since step 300 only",)),
    ]
    own_ms[900:, 2] *= 2.0
    assert words_over_time(own_ms)[-1] == (60, ())


def test_rank_growing_slower_beyond_the_table_still_drifts() -> None:
    own_ms = times(steps=200)
    own_ms[:, 2] *= np.linspace(1.2, 1.6, 200)
    ((finding, _),) = find(own_ms, known(2))
    assert finding.pattern == "drifting"
    assert (finding.since_step or 0) <= 7


def test_as_many_healthy_steps_close_as_had_opened() -> None:
    own_ms = times(steps=200)
    own_ms[60:120, 2] *= 1.5
    ((finding, _),) = find(own_ms[:90])
    assert recall(finding).steps_to_close == 30
    assert not DETECTOR.has_passed(view(own_ms[:149]), finding, ())
    assert DETECTOR.has_passed(view(own_ms[:150]), finding, ())


def test_healthy_steps_by_chance_close_nothing() -> None:
    """Since its begin the rank is 1.05 times as slow, in its last twelve steps it is not."""
    own_ms = times(steps=120)
    own_ms[60:, 2] *= 1.06
    own_ms[110:, 2] *= 0.96
    finding = known(2, since_step=60)
    assert not DETECTOR.has_passed(view(own_ms), finding, ())


def held_up(wait_ms: float, peers_wait_ms: float) -> RunView:
    """Rank 2 takes 130 ms from step 60 on, the others 100; CPU times are equal, and waits for a core as given."""
    own_ms = times()
    own_ms[60:, 2] *= 1.3
    series = series_of(own_ms.tolist(), cpu_ms=[[90.0] * 12] * 120)
    waits = {
        rank: [TimeCount(steps, round(steps * (wait_ms if rank == 2 else peers_wait_ms) * MS)) for steps in (60, 119)]
        for rank in range(12)
    }
    return view_of(series, nodes=NODES, samples=Samples({}, {}, {}, core_waits=waits))


@pytest.mark.parametrize(("peers_wait_ms", "ranks"), [(29.9, [(2,)]), (30.0, [])])
def test_rank_is_not_named_where_its_peers_wait_for_cores_alike(peers_wait_ms: float, ranks: list[object]) -> None:
    # Half of 60 ms is 30.
    found = DETECTOR.find(held_up(60.0, peers_wait_ms), ())
    assert not isinstance(found, Abstain)
    assert [one.finding.ranks for one in found] == ranks


def test_found_rank_stays_found_while_its_peers_wait_for_cores() -> None:
    found = DETECTOR.find(held_up(60.0, 35.0), (known(2),))
    assert not isinstance(found, Abstain)
    assert [(one.finding.ranks, one.finding.cause) for one in found] == [((2,), "cpu_pressure")]


def test_rank_slow_for_another_cause_is_named_on_busy_machines() -> None:
    # It waits as long for a core as its peers do: 30 ms of 60.
    found = DETECTOR.find(held_up(60.0, 60.0), ())
    assert not isinstance(found, Abstain)
    assert [(one.finding.ranks, one.finding.cause) for one in found] == [((2,), "unseen_wait")]
