"""Which sentence about a fault is right, by runs made by hand."""

import re

import pytest

from rankscope.agent.config import read_launch_config
from rankscope.agent.fault_spec import KINDS, parse_fault
from rankscope.collector.detect.finding import Finding
from rankscope.collector.detect.hangs.report import describe_place
from rankscope.collector.detect.sampled_lines import SampledLines
from rankscope.collector.runs.run_end import FirstToFail, RunEnd
from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.selftest.cases import CASES, FIRST_STEP, RANK, Verdict, judge
from rankscope.collector.selftest.run import (
    AGENT_ENVIRONMENT,
    NOT_REACHED,
    RIGHT,
    WRONG,
    Result,
    build_report,
    describe,
    describe_expected,
    grade,
)
from tests.unit.collector.detect.hang_states import still
from tests.unit.collector.runs.run_snapshots import rank_of

CASE = CASES["loader_delay"]


LINE = SampledLines(
    sentence="9 ms in a fault injected on purpose, called at train.py:58 (main); its peer: none.", rank=2
)


def found(
    cause: str = "data_loading",
    ranks: tuple[int, ...] = (RANK,),
    kind: str = "straggler",
    lines: SampledLines | None = LINE,
) -> Finding:
    return Finding(kind=kind, ranks=ranks, cause=cause, sentence=f"{kind} {cause} {ranks}", lines=lines)


def grade_of(verdict: Verdict, kind: str = "loader_delay", others_cores: float = 0.0) -> str:
    """The outcome on a machine of two cores of which others use so many."""
    return grade(Result(kind, verdict, 60.0, others_cores, 2))[0]


def run_of(*findings: Finding, end: RunEnd | None = None) -> RunSnapshot:
    ranks = (rank_of(0, last_step=FIRST_STEP + 23), rank_of(1, last_step=None))
    return RunSnapshot(run="r", world_size=4, restart_count=0, ranks=ranks, findings=findings, end=end)


def failed(rank: int, reason: str, detail: str) -> RunEnd:
    return RunEnd(reason=reason, first=FirstToFail(rank=rank, node="n0", reason=reason, detail=detail))


def test_every_fault_kind_has_a_case_and_an_order_for_the_agent() -> None:
    assert list(CASES) == list(KINDS)
    for name, case in CASES.items():
        spec = parse_fault(case.order(name))
        assert (spec.rank, spec.kind, spec.first_step) == (RANK, name, FIRST_STEP)


def test_the_right_cause_about_the_rank_alone_is_right() -> None:
    verdict = judge(CASE, run_of(found("host_cpu"), found()))
    assert (verdict.said, verdict.steps, grade_of(verdict)) == ("straggler data_loading (2,)", 23, RIGHT)


@pytest.mark.parametrize(
    "other", [found("host_cpu"), found(ranks=(RANK, 3)), found(ranks=(1,)), found(kind="run_slowdown")]
)  # fmt: skip
def test_another_cause_rank_or_kind_is_not_right(other: Finding) -> None:
    verdict = judge(CASE, run_of(other))
    assert (verdict.said, verdict.is_right) == (other.sentence, False)


def test_a_right_cause_in_other_words_is_not_right() -> None:
    assert judge(CASES["allocation_churn"], run_of(found("host_cpu"))).is_right is False


@pytest.mark.parametrize("lines", [None, SampledLines(sentence="9 ms in time.sleep, called at other.py:1.", rank=2)])
def test_right_cause_without_the_line_is_not_right(lines: SampledLines | None) -> None:
    verdict = judge(CASE, run_of(found(lines=lines)))
    assert (verdict.is_right, verdict.line) == (False, "" if lines is None else lines.sentence)


def test_words_of_a_hang_are_those_that_are_said_of_one() -> None:
    said = describe_place(still(activity="backward"))
    assert re.search(CASES["hang"].words, said), said


def test_nothing_said_is_not_right() -> None:
    assert judge(CASE, RunSnapshot(run="r", world_size=4, restart_count=0, ranks=())) == Verdict("", 0, is_right=False)


@pytest.mark.parametrize("kind", ["straggler", "hang"])
def test_finding_on_another_rank_is_wrong_beside_the_right_one(kind: str) -> None:
    verdict = judge(CASE, run_of(found("unseen_wait", (1,), kind), found()))
    assert verdict.is_right
    assert verdict.wrong == f"{kind} unseen_wait (1,)"
    assert grade_of(verdict) == grade_of(verdict, others_cores=1.9) == WRONG


def test_a_finding_about_the_whole_run_accuses_nobody() -> None:
    assert grade_of(judge(CASE, run_of(found("slower", (), "run_slowdown"), found()))) == RIGHT


def test_core_wait_of_a_rank_beside_other_work_is_no_mistake() -> None:
    verdict = judge(CASE, run_of(found("cpu_pressure", (1,)), found()))
    assert (grade_of(verdict), grade_of(verdict, others_cores=0.6)) == (WRONG, RIGHT)
    other = judge(CASE, run_of(found("cpu_pressure", (1,)), found("unseen_wait", (3,)), found()))
    assert (other.wrong_cause, grade_of(other, others_cores=0.6)) == ("unseen_wait", WRONG)


@pytest.mark.parametrize("kind", ["gil_spin", "cpu_hog"])
def test_fault_that_needs_cores_is_not_reached_beside_other_work(kind: str) -> None:
    verdict = judge(CASES[kind], run_of(found("unseen_wait")))
    assert [grade_of(verdict, kind, cores) for cores in (0.0, 0.5, 0.6)] == [WRONG, WRONG, NOT_REACHED]
    assert grade_of(judge(CASE, run_of(found("unseen_wait"))), others_cores=1.9) == WRONG  # needs no core of its own
    assert describe(Result(kind, verdict, 180.0, 1.2, 2)).splitlines()[:2] == [
        f"-      {kind:<18}  after 23 steps of the fault, 180 s from the start",
        (
            "       not reached: other processes used 1.2 of 2 cores meanwhile, so every rank waited for a core and "
            "the fault was not the intended one; run this kind on an idle machine"
        ),
    ]


def test_settings_of_the_training_have_no_mistake() -> None:
    found = read_launch_config({**AGENT_ENVIRONMENT, "RANKSCOPE_FAULT": CASES["gil_spin"].order("gil_spin")}, {})
    assert (found.mistakes, found.is_usable) == ((), True)


def test_training_that_did_not_come_to_the_fault_is_not_reached() -> None:
    early = RunSnapshot(run="r", world_size=4, restart_count=0, ranks=(rank_of(0, last_step=FIRST_STEP - 1),))
    report = build_report(Result("sigstop", judge(CASES["sigstop"], early), 180.0))
    assert (report.outcome, report.is_right) == (NOT_REACHED, False)
    assert report.reason == "the fault begins at step 40, and the training had only reached step 39 after 180 s"
    nothing = judge(CASE, RunSnapshot(run="r", world_size=4, restart_count=0, ranks=()))
    assert grade_of(nothing) == WRONG  # no rank has reported: something is missing here


@pytest.mark.parametrize(
    ("kind", "end", "is_right"),
    [
        ("exit", failed(RANK, "failed", "exit code 3"), True),
        ("exit", failed(RANK, "failed", "exit code 1"), False),
        ("exit", failed(1, "failed", "exit code 3"), False),
        ("crash", failed(RANK, "crashed", "SIGSEGV"), True),
        ("crash", failed(RANK, "killed", "SIGKILL"), False),
        ("crash", None, False),
    ],
)  # fmt: skip
def test_an_end_is_right_with_its_rank_and_its_way(kind: str, end: RunEnd | None, is_right: bool) -> None:
    assert judge(CASES[kind], run_of(end=end)).is_right is is_right


def test_a_result_says_what_was_expected_where_it_was_not_said() -> None:
    right = Result("loader_delay", judge(CASE, run_of(found())), 17.2)
    assert describe(right) == (
        "right  loader_delay        after 23 steps of the fault, 17 s from the start\n"
        "       said: straggler data_loading (2,)\n"
        f"       line: {LINE.sentence}"
    )
    wrong = Result("loader_delay", judge(CASE, run_of(found("unseen_wait", (1,)))), 120.0)
    assert describe(wrong) == (
        "WRONG  loader_delay        after 23 steps of the fault, 120 s from the start\n"
        "       expected: a straggler with the cause data_loading about rank 2 alone, and a line of train.py\n"
        "       said: straggler unseen_wait (1,)\n"
        "       not about rank 2 alone: straggler unseen_wait (1,)"
    )


def test_the_right_sentence_is_described_in_words() -> None:
    assert describe_expected(CASES["hang"]) == (
        "a hang with the cause missing_rank about rank 2 alone, "
        'with "stalled in backward at train.py, in main", and a line of train.py'
    )
    assert describe_expected(CASES["crash"]) == (
        'the end of the run as crashed, rank 2 as the first to fail, with "SIGSEGV"'
    )
