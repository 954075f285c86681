"""The pre-flight as a program, up to its first thread."""

from pathlib import Path
from typing import NoReturn

import pytest

from rankscope.agent.preflight import command
from tests.no_threads import allow_no_threads


def test_preflight_without_a_thread_says_it_is_incomplete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def leave(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANKSCOPE", "0")
    monkeypatch.setattr(command, "leave", leave)
    monkeypatch.setattr(command, "block_sigterm", lambda: None)
    allow_no_threads(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        command.main([])
    assert ended.value.code == command.INCOMPLETE
    assert "incomplete: failed at start (RuntimeError: can't start new thread)" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json-file", "--exclude-file"])
def test_file_that_cannot_be_written_ends_it_before_the_checks(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def check_nothing() -> None:
        raise AssertionError("the checks begin")

    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setattr(command, "block_sigterm", check_nothing)
    path = tmp_path / "none" / "file"
    with pytest.raises(SystemExit) as ended:
        command.main([option, str(path)])
    assert ended.value.code == command.USAGE_ERROR
    assert f"{path} (from {option}) cannot be written: there is no folder" in capsys.readouterr().err
