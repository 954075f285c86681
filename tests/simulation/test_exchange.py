"""Simulated runs in files: what is written, and that answers are scored as findings are."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.simulation.exchange import (
    COLUMNS,
    Answer,
    Answers,
    DataSet,
    InjectedFault,
    RunTruth,
    answer_by_example,
    choose_trials,
    describe,
    export,
    main,
    read_answers,
    read_steps,
    read_truth,
    score,
)
from tests.simulation.matrix import Trial
from tests.simulation.scenarios import LAYOUTS, slow_rank
from tests.simulation.scoring import judge
from tests.simulation.world import run

FSDP = LAYOUTS["fsdp 16"]
TRIALS = [
    Trial("test", "slow rank", "fsdp 16", "usual", FSDP.scenario(slow_rank("gpu_compute", 1.3), seed=1, steps=140)),
    Trial("test", "slow loader", "fsdp 16", "usual",
          FSDP.scenario(slow_rank("data_loading", 1.3, ranks=(2, 9)), seed=2, steps=140)),
    Trial("test", "healthy", "fsdp 16", "usual", FSDP.scenario(seed=3, steps=140)),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three runs."""
    folder = tmp_path_factory.mktemp("exchange")
    export(folder, TRIALS)
    return folder


def test_steps_are_those_of_the_simulation(folder: Path) -> None:
    outcome = run(TRIALS[0].scenario)
    found = read_steps(folder / "run-0001.csv.gz")
    assert tuple(found) == COLUMNS
    np.testing.assert_allclose(found["step_ns"], outcome.step_ns, atol=0.5)
    np.testing.assert_allclose(found["data_ns"], outcome.phases_ns["data"], atol=0.5)
    np.testing.assert_allclose(found["communication_ns"], outcome.called_ns, atol=0.5)


def test_truth_has_every_fault(folder: Path) -> None:
    one, two, healthy = read_truth(folder).runs
    (fault,) = one.faults
    scenario = TRIALS[0].scenario
    assert (fault.ranks, fault.ratio, fault.begin) == (scenario.faults[0].ranks, 1.3, scenario.faults[0].begin)
    assert (one.world_size, one.steps, len(one.nodes)) == (16, 140, 16)
    assert [fault.ranks for fault in two.faults] == [(2, 9)]
    assert healthy.faults == ()


def test_own_answers_are_scored_as_findings_are(folder: Path) -> None:
    data = read_truth(folder)
    found = score(data, read_answers(folder / "answers-rankscope.json", data))
    judged = [judge(run(trial.scenario)) for trial in TRIALS]
    faults = [fault for one in judged for fault in one.faults]
    assert (found.faults, found.found) == (len(faults), sum(fault.found for fault in faults)) == (2, 2)
    assert found.exact == sum(bool(fault.right_rank) for fault in faults)
    assert found.false == sum(one.false_findings for one in judged)
    assert found.delay_steps == np.median([fault.delay_steps for fault in faults])
    assert found.since_error_steps == np.median([fault.since_error_steps for fault in faults])


def test_example_finds_the_rank_with_slow_kernels_only(folder: Path) -> None:
    answers = answer_by_example(folder)
    slow = TRIALS[0].scenario.faults[0].ranks
    assert {name: {one.ranks for one in found} for name, found in answers.runs.items()} == {
        "run-0001": {slow}, "run-0002": set(), "run-0003": set()
    }  # fmt: skip
    assert score(read_truth(folder), answers).found == 1


FAULT = InjectedFault(ranks=(1, 2), cause="x", ratio=2.0, begin=60)
DATA = DataSet(made_by="hand", runs=(
    RunTruth(name="two", world_size=4, steps=100, nodes=("a",) * 4, faults=(FAULT,)),
    RunTruth(name="all", world_size=2, steps=100, nodes=("a",) * 2,
             faults=(InjectedFault(ranks=(0, 1), cause="x", ratio=2.0, begin=50),)),
    RunTruth(name="healthy", world_size=2, steps=100, nodes=("a",) * 2),
))  # fmt: skip


def answer_with(**runs: tuple[Answer, ...]) -> Answers:
    return Answers(tool="t", runs=runs)


def at(step: int, *ranks: int, since: int | None = None) -> Answer:
    return Answer(ranks=ranks, said_after_step=step, since_step=since)


@pytest.mark.parametrize(
    ("answers", "found", "exact", "false"),
    [
        (answer_with(), 0, 0, 0),
        (answer_with(two=(at(70, 1, 2),)), 1, 1, 0),
        (answer_with(two=(at(70, 1), at(80, 2))), 1, 1, 0),
        (answer_with(two=(at(70, 1),)), 1, 0, 0),
        (answer_with(two=(at(70, 1, 3),)), 1, 0, 1),  # names a healthy rank too
        (answer_with(two=(at(60, 1, 2),)), 0, 0, 1),  # before it could have shown
        (answer_with(two=(at(70, 0),)), 0, 0, 1),
        (answer_with(two=(at(70, 0, 1, 2, 3),)), 1, 0, 0),  # the run is slow, which is true
        (answer_with(all=(at(70, 0),)), 0, 0, 1),  # blames one rank for what all do
        (answer_with(all=(at(70, 0, 1),)), 1, 1, 0),
        (answer_with(healthy=(at(70, 0, 1),)), 0, 0, 1),
        (answer_with(two=(at(70, 0, 0, 0, 0),)), 0, 0, 1),  # one rank, four times
    ],
)
def test_score_of_answers_by_hand(answers: Answers, found: int, exact: int, false: int) -> None:
    scored = score(DATA, answers)
    assert (scored.faults, scored.found, scored.exact, scored.false) == (2, found, exact, false)


def test_delay_and_begin_are_medians_of_the_first_answers() -> None:
    scored = score(DATA, answer_with(two=(at(75, 1, since=63), at(90, 2, since=60)), all=(at(60, 0, 1),)))
    assert (scored.delay_steps, scored.since_error_steps) == (12.5, 3)
    assert describe([scored]).splitlines()[-1] == "| t | 2 of 2 | 2 | 3 | 0 | 12.5 | 3 |"
    assert describe([score(DATA, answer_with())]).splitlines()[-1] == "| t | 0 of 2 | 0 | 0 | 0 | - | - |"


@pytest.mark.parametrize(
    ("answers", "text"),
    [(answer_with(other=()), "'other', which is no run"), (answer_with(two=(at(70, 4),)), "which has 0 to 3"),
     (answer_with(two=(at(70),)), "ranks are \\[\\] in two")],
)  # fmt: skip
def test_answers_about_nothing_are_refused(answers: Answers, text: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_bytes(msgspec.json.encode(answers))
    with pytest.raises(ValueError, match=text):
        read_answers(path, DATA)


def test_command_scores_every_answer_in_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["example", str(folder)])
    main(["score", str(folder)])
    rows = capsys.readouterr().out.splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == ["| kernel-time-1.1", "| rankscope"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"), ("{", "is not of the form in docs/scoring.md"),
        ('{"schema": 1, "tool": "t", "runs": {"two": [{"ranks": [1]}]}}', "missing required field `said_after_step`"),
        ('{"schema": 2, "tool": "t", "runs": {}}', "has schema 2; this scorer reads 1"),
    ],
)  # fmt: skip
def test_file_that_is_not_of_its_form_is_said(
    text: str | None, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "truth.json").write_bytes(msgspec.json.encode(DATA))
    file = tmp_path / "answers-t.json"
    if text is not None:
        file.write_text(text)
    assert main(["score", str(tmp_path), str(file)]) == 1
    said = capsys.readouterr().err
    assert (said.startswith("exchange: "), reason in said, "answers-t.json" in said) == (True, True, True), said


def test_folder_without_answers_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "truth.json").write_bytes(msgspec.json.encode(DATA))
    assert main(["score", str(tmp_path)]) == 1
    assert "has no answers-TOOL.json; `example` writes one" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path), "--every", "0"])


def test_quick_data_set_has_faults_and_healthy_runs() -> None:
    chosen = list(choose_trials(40))
    assert len(chosen) > 20
    assert {bool(trial.scenario.faults) for trial in chosen} == {True, False}
