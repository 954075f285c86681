"""The past of the nodes of a pre-flight where a collector or a file cannot be used: said once, and the checks go on."""

from pathlib import Path

import pytest

from rankscope.agent.preflight.checks import CPU, MEMORY, list_checks
from rankscope.agent.preflight.options import parse_options
from rankscope.agent.preflight.past import NodesPast
from rankscope.agent.preflight.results import Measured, PreflightReport, RankResults

RESULT = RankResults(
    rank=0, local_rank=0, node="a", kind=CPU, device="EPYC", checks={MEMORY: Measured(values=(4.0,))}
)  # fmt: skip
REPORT = PreflightReport(
    wall_s=1.0, took_s=2.0, status="not_judged", sentence="", ranks=1, nodes=("a",), results=(RESULT,)
)  # fmt: skip
NOWHERE = "ipc:///nonexistent/collector"


def test_without_file_and_collector_there_is_no_past(capfd: pytest.CaptureFixture[str]) -> None:
    past = NodesPast("", "", 1.0)
    past.read({"a": "EPYC"})
    past.keep(REPORT, list_checks(CPU))
    assert (past.find([RESULT]), past.mistakes, capfd.readouterr().err) == ({}, [], "")
    assert past.describe([RESULT]) == ""


def test_collector_that_does_not_answer_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    past = NodesPast("", NOWHERE, 0.05)
    past.read({"a": "EPYC"})
    past.keep(REPORT, list_checks(CPU))
    (mistake,) = past.mistakes
    assert mistake.startswith(
        f"the collector at {NOWHERE} did not send the past of the nodes: no answer within 0.05 s."
    )
    assert (past.find([RESULT]), capfd.readouterr().err) == ({}, "")


def test_file_is_used_beside_a_collector_that_does_not_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "history.jsonl")
    past = NodesPast(path, NOWHERE, 0.05)
    past.read({"a": "EPYC"})
    past.keep(REPORT, list_checks(CPU))
    assert past.mistakes == []
    assert past.describe([RESULT]) == f"0 of 1 nodes have 3 or more earlier pre-flights in {path}"
    assert "did not confirm that it has kept this pre-flight: no answer" in capfd.readouterr().err
    later = NodesPast(path, "", 1.0)
    later.read({"a": "EPYC"})
    assert later.find([RESULT]) == {MEMORY: {"a": [4.0]}}


def test_file_that_is_a_folder_is_said(tmp_path: Path) -> None:
    past = NodesPast(str(tmp_path), "", 1.0)
    past.read({"a": "EPYC"})
    (mistake,) = past.mistakes
    assert "cannot be read: Is a directory" in mistake


def test_damaged_lines_of_the_file_are_said(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("no line\n")
    past = NodesPast(str(path), "", 1.0)
    past.read({"a": "EPYC"})
    assert past.mistakes == [f"1 line is left out of {path}: no pre-flight"]


def test_past_of_a_file_is_forgotten_by_deleting_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--history", "h.jsonl", "--forget-past"])
    assert "--forget-past is for the store of a collector; delete the file h.jsonl instead" in capsys.readouterr().err
