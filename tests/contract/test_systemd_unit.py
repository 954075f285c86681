"""The systemd unit: systemd itself accepts it, finds it well closed, and the command in it is one that exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.collector.commands.main import build_parser
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "rankscope-collector.service"
INSTALLED = "/opt/rankscope/bin/rankscope"
EXPOSURE_MAX = 15
"""Limit of systemd's own measure, in tenths from 0 to 100: below 20 it rates a service as well confined."""


def read_command(environment: dict[str, str]) -> list[str]:
    """Return the arguments of ExecStart, with systemd's variables expanded."""
    command: str
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", UNIT.read_text(), re.MULTILINE)
    for name, value in environment.items():
        command = command.replace(f"${{{name}}}", value)
    return command.replace("\\\n", " ").split()


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that is there: systemd refuses one whose program is missing."""
    there = Path(sys.executable).parent / "rankscope"
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(INSTALLED, str(there)))
    return copy


def test_systemd_accepts_the_unit(unit: Path) -> None:
    command = [find_program("systemd-analyze"), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_systemd_finds_it_well_closed(unit: Path) -> None:
    judged = ["--offline=true", f"--threshold={EXPOSURE_MAX}", str(unit)]
    command = [find_program("systemd-analyze"), "security", *judged]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_its_command_is_one_that_the_collector_takes() -> None:
    program, *arguments = read_command({"STATE_DIRECTORY": "/var/lib/rankscope", "CREDENTIALS_DIRECTORY": "/run/c"})
    assert program == INSTALLED
    options = build_parser().parse_args(arguments)
    assert (options.store, options.key_file) == ("/var/lib/rankscope/incidents.db", "/run/c/collector.key")


def test_its_key_is_a_credential_from_where_keys_are_made() -> None:
    assert "\nLoadCredential=collector.key:/etc/rankscope/keys/collector.key\n" in UNIT.read_text()
    assert "/opt/rankscope/bin/rankscope keys /etc/rankscope/keys " in (ROOT / "docs" / "deploy.md").read_text()
