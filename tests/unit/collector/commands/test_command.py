"""Logging and settings that several commands share."""

import argparse
import logging

import pytest

from rankscope.collector.commands.command import add_settings, read_overrides
from rankscope.collector.log_lines import start_logging
from rankscope.collector.relay.config import RelayConfig


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
