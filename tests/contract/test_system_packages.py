"""Check `tests/system_packages.sh`, which `make test` begins with, on machines of stand-in programs."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.programs import find_program

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "system_packages.sh"
OF_EVERY_MACHINE = ("bash", "cat", "chmod", "dirname", "env", "rm", "tee")
LISTED = re.findall(r"^([\w+-]+) +([\w,+-]+) +\S", SCRIPT.read_text().partition("<<'LIST'")[2], flags=re.MULTILINE)

# Stand-in for apt-get: records its arguments and policy-rc.d's answer, and installs what it is configured to.
APT_GET = """#!/bin/sh
echo "apt-get $*" >> "$LOG"
if [ "$1" = install ]; then
    echo "policy $(sed -n 2p "$RANKSCOPE_TESTS_POLICY")" >> "$LOG"
    for program in $BRINGS; do cp "$BIN/true" "$BIN/$program"; done
fi
exit "$APT_STATUS"
"""
SUDO = '#!/bin/sh\n[ "$1" = -n ] || exit 9\nshift\necho "sudo $1" >> "$LOG"\nexec "$@"\n'


@dataclass
class Machine:
    """A folder of programs that is all of PATH, and what apt-get has been asked for."""

    folder: Path

    def __post_init__(self) -> None:
        """Create what every machine has, all that the tests need, and a user who is not root."""
        self.programs.mkdir()
        for name in (*OF_EVERY_MACHINE, "cp", "sed", "sh"):
            (self.programs / name).symlink_to(find_program(name))
        for name in ("true", "python3", *(program for program, _ in LISTED)):
            self.add(name, "#!/bin/sh\n")
        self.add("id", "#!/bin/sh\necho 1000\n")

    @property
    def programs(self) -> Path:
        """The only folder of PATH."""
        return self.folder / "bin"

    @property
    def policy(self) -> Path:
        """Return the path that stands in for /usr/sbin/policy-rc.d."""
        return self.folder / "policy-rc.d"

    @property
    def asked(self) -> list[str]:
        """Return the recorded calls of apt-get and sudo."""
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def add(self, name: str, text: str) -> None:
        """Put a program there."""
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)

    def remove(self, *names: str) -> None:
        """Let it be a machine without these programs."""
        for name in names:
            (self.programs / name).unlink()

    def environment(self, brings: str = "", apt_status: int = 0) -> dict[str, str]:
        """Return the environment in which apt-get installs the named programs and exits with `status`."""
        return {
            "PATH": str(self.programs),
            "RANKSCOPE_TESTS_POLICY": str(self.policy),
            "LOG": str(self.folder / "log"),
            "BIN": str(self.programs),
            "BRINGS": brings,
            "APT_STATUS": str(apt_status),
        }

    def run(self, *arguments: str, brings: str = "", apt_status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the script there."""
        command = [find_program("bash"), str(SCRIPT), *arguments]
        environment = self.environment(brings, apt_status)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=self.folder)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def debian(machine: Machine) -> Machine:
    """Return a Debian without promtool and shellcheck: no real machine has them in /usr/sbin."""
    machine.add("apt-get", APT_GET)
    machine.remove("promtool", "shellcheck")
    return machine


def become_root(machine: Machine) -> None:
    machine.add("id", "#!/bin/sh\necho 0\n")


def test_list_has_every_program_that_the_tests_find() -> None:
    # amtool and prometheus come with prometheus-alertmanager and promtool; bash, make and coreutils are there before.
    named = re.compile(r"find_program\(\"([\w-]+)\"\)")
    asked = {
        name
        for folder in ("bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for name in named.findall(path.read_text())
    }
    assert asked - {program for program, _ in LISTED} <= {"amtool", "prometheus", "bash", "make", "sha256sum", "true"}


def test_nothing_is_done_where_nothing_is_missing(machine: Machine) -> None:
    machine.add("apt-get", APT_GET)
    done = machine.run("tests")
    assert (done.returncode, done.stdout + done.stderr, machine.asked) == (0, "", [])


def test_root_gets_the_missing_packages_and_no_daemon_is_started(debian: Machine) -> None:
    become_root(debian)
    done = debian.run("tests", brings="promtool shellcheck")
    assert done.returncode == 0, done.stderr
    assert debian.asked == [
        "apt-get update -qq",
        "apt-get install -y -qq --no-install-recommends prometheus shellcheck",
        "policy exit 101",
    ]
    assert "prometheus shellcheck" in done.stderr
    assert not debian.policy.exists()


def test_policy_of_the_machine_stays_as_it_is(debian: Machine) -> None:
    become_root(debian)
    debian.policy.write_text("#!/bin/sh\nexit 0 # mine\n")
    assert debian.run("tests", brings="promtool shellcheck").returncode == 0
    assert debian.policy.read_text() == "#!/bin/sh\nexit 0 # mine\n"


def test_sudo_without_a_password_is_used(debian: Machine) -> None:
    debian.add("sudo", SUDO)
    done = debian.run("tests", brings="promtool shellcheck")
    assert done.returncode == 0, done.stderr
    assert "apt-get install -y -qq --no-install-recommends prometheus shellcheck" in debian.asked
    assert debian.asked.count("sudo apt-get") == 1  # the update; the other one goes through env
    assert not debian.policy.exists()


@pytest.mark.parametrize("sudo", ["", "#!/bin/sh\nexit 1\n"], ids=["without sudo", "sudo that asks for a password"])
def test_other_users_are_told_the_line_to_run(debian: Machine, sudo: str) -> None:
    if sudo:
        debian.add("sudo", sudo)
    done = debian.run("tests")
    assert (done.returncode, debian.asked) == (1, [])
    assert "promtool, shellcheck" in done.stderr
    line = done.stderr.splitlines()[-1].strip()
    assert line == f"bash {SCRIPT} tests python3"
    # The printed line, run as root from anywhere, is the cure.
    become_root(debian)
    environment = debian.environment(brings="promtool shellcheck")
    command = [find_program("bash"), "-c", line]
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/")
    assert again.returncode == 0, again.stderr
    assert debian.run("tests").returncode == 0


def test_machine_without_apt_is_told_the_programs(machine: Machine) -> None:
    machine.remove("promtool", "shellcheck")
    done = machine.run("tests")
    assert done.returncode == 1
    assert "Missing on this machine: promtool, shellcheck." in done.stderr
    assert "has no apt-get" in done.stderr


def test_packages_that_apt_cannot_get_end_it(debian: Machine) -> None:
    become_root(debian)
    done = debian.run("tests", apt_status=100)
    assert done.returncode == 1
    assert "apt-get did not install prometheus shellcheck" in done.stderr
    assert not debian.policy.exists()


def test_package_that_does_not_bring_its_program_ends_it(debian: Machine) -> None:
    become_root(debian)
    done = debian.run("tests", brings="shellcheck")
    assert done.returncode == 1
    assert "still missing: promtool (of prometheus)" in done.stderr


@pytest.mark.parametrize(("python", "package"), [("python3", "python3-venv"), ("python3.12", "python3.12-venv")])
def test_python_without_venv_gets_its_package(debian: Machine, python: str, package: str) -> None:
    become_root(debian)
    debian.add(python, "#!/bin/sh\nexit 1\n")
    done = debian.run("venv", python)
    assert f"apt-get install -y -qq --no-install-recommends {package}" in debian.asked
    assert (done.returncode, f"still missing: {python} -m venv" in done.stderr) == (1, True)


def test_environment_alone_asks_for_no_program_of_the_tests(debian: Machine) -> None:
    done = debian.run("venv")
    assert (done.returncode, done.stderr) == (0, "")


def test_make_stops_before_the_environment_without_packages(debian: Machine) -> None:
    (debian.folder / "tests").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "tests/system_packages.sh"):
        shutil.copy(ROOT / name, debian.folder / name)
    # Without the variables of the make that runs these tests, `make test PYTHON=python3.12` for one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = [find_program("make"), "PYTHON=python3", "test"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment | debian.environment(), cwd=debian.folder
    )
    assert done.returncode == 2  # make's own status for a recipe that failed
    assert f"bash {debian.folder}/tests/system_packages.sh tests python3" in done.stderr
    assert not (debian.folder / ".venv").exists()


def test_bare_machine_runs_make_test_and_then_the_rest() -> None:
    lines = [line.partition("#")[0].strip() for line in (ROOT / ".ci" / "run").read_text().splitlines()]
    assert [line for line in lines if line] == ["set -eu", 'cd "$(dirname "$0")/.."', "make test", "make test-rest"]


@pytest.mark.parametrize("script", [SCRIPT, ROOT / ".ci" / "run"], ids=lambda script: script.name)
def test_shellcheck_has_nothing_to_say_against_it(script: Path) -> None:
    done = subprocess.run([find_program("shellcheck"), str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
