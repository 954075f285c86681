"""Tests that exactly one rank of a node logs a line that several want to log."""

import os
import secrets
import subprocess
import sys
from collections.abc import Mapping

import pytest

from rankscope.agent.once_per_node import RUN_VARIABLES, log_once_per_node


def launch() -> dict[str, str]:
    """Return a launcher's environment of two ranks, for a unique run."""
    return {"TORCHELASTIC_RUN_ID": secrets.token_hex(8), "WORLD_SIZE": "2"}


def say_in_another_rank(text: str, environment: Mapping[str, str]) -> str:
    script = "import os, sys; from rankscope.agent.once_per_node import *; log_once_per_node(sys.argv[1], os.environ)"
    command = [sys.executable, "-c", script, text]
    outside = {
        name: value for name, value in os.environ.items() if name not in RUN_VARIABLES
    }  # the tests may run under a launcher
    done = subprocess.run(
        command, env={**outside, **environment}, capture_output=True, text=True, check=True, timeout=500
    )
    return done.stderr


def test_second_rank_of_a_run_does_not_log(capfd: pytest.CaptureFixture[str]) -> None:
    job = launch()
    log_once_per_node("the key is gone", job)
    assert say_in_another_rank("the key is gone", job) == ""
    assert capfd.readouterr().err == "rankscope: the key is gone\n"


def test_other_text_and_other_run_are_logged() -> None:
    job = launch()
    log_once_per_node("the key is gone", job)
    assert say_in_another_rank("the file is gone", job) == "rankscope: the file is gone\n"
    assert say_in_another_rank("the key is gone", launch()) == "rankscope: the key is gone\n"


def test_remaining_rank_logs_after_the_first_has_ended() -> None:
    job = launch()
    assert [say_in_another_rank("the key is gone", job) for _ in range(2)] == ["rankscope: the key is gone\n"] * 2


def test_topic_joins_texts_of_ranks_that_differ(capfd: pytest.CaptureFixture[str]) -> None:
    job = launch()
    log_once_per_node("rank 0 is refused", job, topic="refused")
    log_once_per_node("rank 1 is refused", job, topic="refused")
    assert capfd.readouterr().err == "rankscope: rank 0 is refused\n"


def test_single_rank_and_process_without_launcher_log() -> None:
    alone = {**launch(), "WORLD_SIZE": "1"}
    log_once_per_node("the key is gone", alone)
    assert say_in_another_rank("the key is gone", alone) == "rankscope: the key is gone\n"
