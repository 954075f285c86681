"""The judge of the table: what it calls right, false and untrue."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from rankscope.collector.runs.goodput import GoodputSnapshot
from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost, When
from tests.second_table.families import ddp, quiet, slow, worlds
from tests.second_table.judging import judge, judge_world, names_exactly
from tests.second_table.sentences import check_course, find_lost
from tests.second_table.worlds import Course, Pass, World

WORLD = slow("test", "", ddp(4), Cost(part=of.ASLEEP, ranks=(1,), ms=50, when=When(begin=2)), 4)


def course(findings: tuple[Finding, ...], text: str = "", *, world: World = WORLD, slow_ns: int = 0) -> Course:
    """Four steps of 1, 1, 2 and 2 s, which would be of 1 s without the cost: 2 of 6 s are lost."""
    goodput = GoodputSnapshot(wall_ns=6 * 10**9, productive_ns=6 * 10**9 - slow_ns, slow_ns=slow_ns)
    one = Pass(4, 6 * 10**9, findings, text, goodput, None)
    ends, without = np.array([1.0, 2.0, 4.0, 6.0]) * 1e9, np.array([1.0, 2.0, 3.0, 4.0]) * 1e9
    return Course(world, [one], one, findings, 0.0, ends, [without, without])


def finding(**more: object) -> Finding:
    known = {
        "kind": "straggler", "number": 1, "ranks": (1,), "since_step": 2, "since_step_min": 2, "since_step_max": 2,
        "cause": "unseen_wait", "run_slowdown_ratio": 2.0,
        "sentence": "Rank 1: 2.0x slower than its 3 peers since step 2.",
    }  # fmt: skip
    return Finding(**{"suggestion": "", "evidence": {}, **known, **more})  # type: ignore[arg-type]


def kinds(told: Course) -> list[str]:
    return sorted(wrong.kind for wrong in check_course(told))


def test_lost_share_is_that_against_the_run_without() -> None:
    told = course(())
    assert find_lost(told, told.last) == [pytest.approx(1 / 3)]


def test_right_finding_is_right_in_all() -> None:
    told = judge(course((finding(),), slow_ns=2 * 10**9))
    truth = told.truths[0]
    assert (truth.named, truth.begin, truth.cause, truth.cost) == (True, True, True, True)
    assert told.lost_is_right
    assert not told.false_findings
    assert not told.wrongs


def test_begin_outside_of_its_range_is_wrong() -> None:
    early = finding(since_step=30, since_step_min=20, since_step_max=40, sentence="")
    assert judge(course((early,))).truths[0].begin is False


def test_begin_or_before_is_every_step_up_to_its_latest() -> None:
    for latest, is_right in ((2, True), (1, False)):
        older = finding(
            since_step=latest, since_step_min=None, since_step_max=latest, sentence="since step 2 or before."
        )
        assert judge(course((older,))).truths[0].begin is is_right


def test_set_is_named_only_as_a_whole_and_without_others() -> None:
    pair = slow("test", "", ddp(4), Cost(part=of.ASLEEP, ranks=(1, 2), ms=50, when=When(begin=2)), 4)
    for ranks, is_right in (((1,), False), ((1, 2), True), ((1, 2, 3), False)):
        told = course((finding(ranks=ranks),), world=pair)
        assert names_exactly(told.findings, pair.truths[0], told) is is_right


def test_innocent_rank_is_false_and_untrue() -> None:
    told = judge(course((finding(ranks=(3,), sentence="Rank 3: 2.0x slower than its 3 peers since step 2."),)))
    assert len(told.false_findings) == 1
    assert [wrong.kind for wrong in told.wrongs] == ["innocent"]


def test_nobody_slower_is_untrue_where_somebody_costs_a_third() -> None:
    assert kinds(course((), "No rank was slower than the others.")) == ["untrue"]
    healthy = quiet("test", "", ddp(4), 4)
    assert kinds(course((), "No rank was slower than the others.", world=healthy)) == []


def test_nobody_slower_until_then_is_said_of_the_time_before() -> None:
    text = (
        "The run has not been heard of since 1970-01-01 00:00:0{} UTC; until then no rank was slower than the others."
    )
    assert kinds(course((), text.format(2))) == []
    assert kinds(course((), text.format(6))) == ["untrue"]


def test_nobody_to_blame_is_untrue_unless_culprit_is_told_beside() -> None:
    run = finding(
        kind="run_slowdown", number=2, ranks=(), sentence="Whole run: 2.0x slower than before. No single rank to blame."
    )
    assert kinds(course((run,))) == ["untrue"]
    assert kinds(course((run, finding()))) == []


def test_sentence_and_fields_must_agree() -> None:
    assert kinds(course((finding(sentence="Rank 2: 2.0x slower than its 3 peers since step 2."),))) == ["contradiction"]
    assert kinds(course((finding(sentence="Rank 1: 2.0x slower than its 3 peers, steps 3-9."),))) == ["contradiction"]
    wrong_ratio = finding(sentence="Rank 1: 2.0x slower than its 3 peers. Cost: run 1.50x slower.")
    assert kinds(course((wrong_ratio,))) == ["contradiction"]


def test_numbers_out_of_bounds_are_found() -> None:
    assert kinds(course((finding(lost_rank_seconds=100.0),))) == ["bounds"]  # 4 ranks for 6 s are 24
    assert kinds(course((finding(sentence="Rank 1 lost 130 % of a step."),))) == ["bounds"]
    assert kinds(course((finding(sentence="Rank 1 took -7.2 ms."),))) == ["bounds"]


def test_begin_that_moves_is_found() -> None:
    told = course((finding(),))
    later = told.passes[0]._replace(open=(finding(since_step=40, since_step_min=40, since_step_max=40, sentence=""),))
    told.passes.append(later._replace(step=60))
    assert set(kinds(told)) == {"moved"}


def test_halves_share_no_world_and_have_as_many() -> None:
    every = list(worlds())
    assert len({world.seed for world in every}) == len(every)
    halves = [[world for world in every if world.half == half] for half in ("tuning", "held-out")]
    assert len(halves[0]) == len(halves[1])
    assert {world.family for world in halves[0]} == {world.family for world in halves[1]}


def test_plain_slow_rank_is_found_from_its_reports() -> None:
    cost = Cost(part=of.ASLEEP, ranks=(1,), when=When(begin=40), ms=60)
    told = judge_world(slow("test", "", ddp(4, step_ms=100), cost, 120, seed=2))
    assert told.truths[0].share == pytest.approx(80 * 60 / (120 * 104 + 80 * 60), rel=0.05)
    assert told.truths[0].named


def test_run_without_a_fault_loses_nothing() -> None:
    told = judge_world(quiet("test", "", ddp(4, step_ms=100), 120, seed=2))
    assert told.lost is not None
    assert told.lost[1] == 0.0
    assert not told.false_findings
