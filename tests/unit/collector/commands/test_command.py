"""Logging and settings that several commands share."""

import argparse
import logging
import os
import select
from pathlib import Path

import pytest

from rankscope.collector.commands.command import add_settings, check_json_file, read_overrides
from rankscope.collector.commands.main import main
from rankscope.collector.log_lines import start_logging
from rankscope.collector.relay.config import RelayConfig
from rankscope.measure.errors import UnavailableError


@pytest.mark.parametrize(
    ("verbose", "levels"),
    [(0, (logging.INFO, logging.NOTSET)), (1, (logging.INFO, logging.DEBUG)), (2, (logging.DEBUG, logging.DEBUG))],
)
def test_verbose_lowers_the_levels(verbose: int, levels: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    root, ours = logging.getLogger(), logging.getLogger("rankscope")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    start_logging(logging.INFO, verbose)
    assert (root.level, ours.level) == levels


def test_log_line_spells_control_characters_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    start_logging(logging.INFO, 0)
    root.info("run %s", "a\x1b[2J\nb")
    assert capsys.readouterr().err.endswith(" INFO run a\\x1b[2J\\nb\n")


def test_overrides_are_the_settings_that_were_given() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser, RelayConfig)
    assert read_overrides(parser.parse_args([]), RelayConfig) == {}
    options = parser.parse_args(["--collector", "tcp://host:18490"])
    assert read_overrides(options, RelayConfig) == {"collector": "tcp://host:18490"}


def test_json_file_is_checked_without_being_made(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("kept")
    for name in ("new.json", "old.json"):
        check_json_file(argparse.Namespace(json_file=tmp_path / name))
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.json", "kept")]


def test_reader_of_a_pipe_sees_no_end_before_the_first_data(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as reader:
        polled = select.poll()
        polled.register(reader, select.POLLIN)
        check_json_file(argparse.Namespace(json_file=tmp_path / "pipe"))
        assert polled.poll(0) == []  # POLLHUP after a writer has come and gone


def test_json_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"\(from --json-file\) cannot be written: it is a folder"):
        check_json_file(argparse.Namespace(json_file=tmp_path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (["analyze", "traces", "--list", *given], f"{given[0]} is given with --list, which analyzes nothing")
            for given in (["--json"], ["--json-file", "F"], ["--html", "F"], ["--tables", "F"], ["--memory-flow", "F"])
        ),
        (
            ["report", "bert", "--store", "runs.db", "--parquet", "F", "--json-file", "X"],
            "--json-file is given with --parquet, which writes no report; call `report` once for each.",
        ),
    ],
)
def test_output_that_would_not_be_made_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
