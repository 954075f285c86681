"""Commands for events: what they get, and commands that hang, flood, fork, fail or do not exist."""

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from rankscope.collector.config import CollectorConfig
from rankscope.collector.notifications.channel import DELIVERED, FAILED, Delivery
from rankscope.collector.notifications.command import OUTPUT_BYTES_MAX, PASSED_VARIABLES, Command, make_command
from rankscope.measure.errors import SettingError
from tests.integration.serving import wait_for, wait_for_end_of
from tests.unit.collector.notifications.worlds import NEVER_CANCELLED, an_event

SHELL = "/bin/sh"
PATIENT_S = 60.0
IMPATIENT_S = 2.0
"""Limit of a command that never ends by itself: on a busy machine it has begun by then."""


def run(
    script: str, *arguments: str, seconds_max: float = PATIENT_S, cancelled: threading.Event | None = None
) -> Delivery:
    """Run a script of the shell, which is the command here, for an event."""
    command = Command([SHELL, "-c", script, "command", *arguments], seconds_max, dict(os.environ))
    return command(an_event(), cancelled or NEVER_CANCELLED)


def wait_for_number(path: Path) -> int:
    """The number that a script writes into a file."""

    def look() -> int | None:
        text = path.read_text() if path.exists() else ""
        return int(text) if text.endswith("\n") else None

    return wait_for(look, lambda: f"nothing in {path}")


def test_command_gets_the_event_on_stdin_and_its_own_arguments(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    assert run('cat > "$1"', str(path)) == Delivery(DELIVERED)
    event = json.loads(path.read_text())
    assert (event["kind"], event["id"], event["incident"]["run"]) == ("opened", an_event().id, "bert")


def test_command_gets_few_variables_and_the_root_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    path = tmp_path / "environment"
    assert run('env > "$1"; pwd >> "$1"', str(path)) == Delivery(DELIVERED)
    *lines, folder = path.read_text().splitlines()
    names = {line.partition("=")[0] for line in lines} - {"PWD", "OLDPWD", "SHLVL", "_"}  # the shell's own
    assert names <= set(PASSED_VARIABLES)
    assert "PATH" in names
    assert folder == "/"


def test_arguments_reach_no_shell(tmp_path: Path) -> None:
    config = CollectorConfig(
        notify_command=f"/usr/bin/env printf '%s' '$(touch {tmp_path}/made)' ';' '>{tmp_path}/made'"
    )
    assert make_command(config)(an_event(), NEVER_CANCELLED) == Delivery(DELIVERED)
    assert list(tmp_path.iterdir()) == []


def test_command_that_does_not_read_its_input_is_fine() -> None:
    assert run("exit 0") == Delivery(DELIVERED)


def test_output_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert run("echo paged the team") == Delivery(DELIVERED)
    assert "/bin/sh: paged the team" in caplog.text


def test_failure_is_told_with_status_and_output() -> None:
    assert run("echo no such team >&2; exit 3") == Delivery(FAILED, "/bin/sh ended with status 3: no such team")


def test_command_ended_by_a_signal_is_a_failure() -> None:
    assert run("kill -9 $$") == Delivery(FAILED, "/bin/sh was ended by signal 9")


def test_missing_program_is_a_failure() -> None:
    command = Command(["/nowhere/pager"], PATIENT_S, {})
    text = "/nowhere/pager cannot be started: No such file or directory"
    assert command(an_event(), NEVER_CANCELLED) == Delivery(FAILED, text)


def test_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    delivery = run('trap "" TERM; sleep 1000 & echo $! > "$1"; wait', str(path), seconds_max=IMPATIENT_S)
    assert delivery == Delivery(FAILED, "/bin/sh has not ended within 2 s, and was killed")
    wait_for_end_of(wait_for_number(path))


def test_grandchild_that_holds_the_output_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    assert run('sleep 1000 & echo $! > "$1"', str(path)) == Delivery(DELIVERED)
    wait_for_end_of(wait_for_number(path))  # it is of the group, which is ended


def test_flood_of_output_is_cut() -> None:
    delivery = run("yes; exit 1", seconds_max=IMPATIENT_S)
    assert delivery.outcome == FAILED
    assert "killed: y\ny\n" in delivery.problem
    assert len(delivery.problem) <= OUTPUT_BYTES_MAX + 100


def test_command_that_closes_its_output_is_waited_for() -> None:
    assert run("exec >&- 2>&-; sleep 0.2; exit 4") == Delivery(FAILED, "/bin/sh ended with status 4")


def test_bytes_that_are_no_text_do_no_harm() -> None:
    assert run("printf '\\377\\376'; exit 1").problem == "/bin/sh ended with status 1: \ufffd\ufffd"


def test_end_of_the_collector_ends_the_command(tmp_path: Path) -> None:
    cancelled, path = threading.Event(), tmp_path / "pid"
    found: list[Delivery] = []
    script = 'echo $$ > "$1"; sleep 1000'
    thread = threading.Thread(target=lambda: found.append(run(script, str(path), cancelled=cancelled)))
    thread.start()
    pid = wait_for_number(path)
    cancelled.set()
    thread.join()
    wait_for_end_of(pid)
    assert [delivery.outcome for delivery in found] == [FAILED]


# -- the settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pager --team ml", "its first word must be the absolute path of a program"),
        ("/bin/echo 'open", "it cannot be split into arguments: No closing quotation"),
        ("  ", "its first word must be the absolute path of a program"),
    ],
)
def test_command_that_cannot_be_split_is_refused(command: str, reason: str) -> None:
    with pytest.raises(SettingError, match=f"notify_command is .*; {reason}"):
        CollectorConfig(notify_command=command)


@pytest.mark.parametrize("path", ["/nowhere/pager", "/etc", "/etc/passwd"])
def test_program_that_cannot_be_run_is_named_at_start(path: str) -> None:
    with pytest.raises(SettingError, match=f"and {path} is not a program that can be run"):
        make_command(CollectorConfig(notify_command=f"{path} --team ml"))
