"""Keys and their modes as the deploy files lay them, read by the users that these files name.

Only root may become another user; where the tests run as somebody else there is nothing that could be tried.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankscope.collector.doctor.check import OK
from rankscope.collector.doctor.reach import check_connections
from rankscope.collector.keys import make_keys
from rankscope.measure.errors import SettingError
from rankscope.measure.key_files import read_key_pair, read_public_key
from tests.contract.test_systemd_unit import read_command
from tests.programs import find_program

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "docker" / "compose.yaml"
OF_THE_IMAGE = 10001
OF_NOBODY = 65534
LONGEST_S = 500.0

# The interpreter may lie where only root looks: what is imported late is imported before it becomes the other user.
AS_USER = """
import os, sys
import rankscope.collector.commands.main as cli
import encodings.ascii, encodings.idna, encodings.latin_1
try: import tomllib
except ImportError: import tomli
user = int(sys.argv.pop(1))
os.setgroups([]); os.setgid(user); os.setuid(user)
sys.exit(cli.main(sys.argv[1:]))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def may_all_enter(place: str) -> bool:
    path = Path(place).resolve()
    return all(one.is_dir() and one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own, and TMPDIR on some machines."""
    place = next(place for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm") if may_all_enter(place))  # noqa: S108
    with tempfile.TemporaryDirectory(prefix="rankscope-users-", dir=place) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def user(number: int) -> Iterator[None]:
    """Be this user in the block, for all that concerns files."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(number)
    os.seteuid(number)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def type_recipe(folder: Path) -> None:
    """Run the commands at the head of compose.yaml, up to the one that wants Docker, in a checkout's place."""
    head = COMPOSE.read_text().partition("\nname:")[0]
    commands = re.findall(r"^#     (.*)$", head, flags=re.MULTILINE)
    assert commands[-1].startswith("docker compose ")
    (folder / "deploy" / "docker").mkdir(parents=True)
    script = 'sudo() { "$@"; }\nset -e\numask 022\n' + "\n".join(commands[:-1])
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [find_program("bash"), "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_container_reads_its_keys_and_agents_theirs(folder: Path) -> None:
    type_recipe(folder)
    keys = folder / "deploy" / "docker" / "keys"
    with user(OF_THE_IMAGE):
        assert read_key_pair(str(keys / "collector.key"), "key_file").secret
        assert [path.name for path in (keys / "allowed").iterdir()] == ["agent.pub"]
        assert read_public_key(str(keys / "allowed" / "agent.pub"), "allowed_keys")
        with pytest.raises(SettingError, match="Permission denied"):
            read_key_pair(str(keys / "agent.key"), "key_file")
    # Whoever ran the recipe is who trains, or hands the key on.
    assert read_key_pair(str(keys / "agent.key"), "key_file").secret
    assert read_public_key(str(keys / "collector.pub"), "collector_key_file")


def test_nobody_else_reads_a_secret_of_the_recipe(folder: Path) -> None:
    type_recipe(folder)
    for name in ("collector.key", "agent.key"):
        with user(OF_NOBODY), pytest.raises(SettingError, match="Permission denied"):
            read_key_pair(str(folder / "deploy" / "docker" / "keys" / name), "key_file")


@pytest.fixture
def machine(folder: Path) -> Path:
    """A folder that stands for /, as docs/deploy.md and systemd lay it out for the unit."""
    keys = folder / "etc" / "rankscope" / "keys"
    make_keys(keys, [], force=False)
    shutil.copy(ROOT / "configs" / "collector.toml", folder / "etc" / "rankscope")
    for name in ("credentials", "state"):
        (folder / name).mkdir(0o700)
        os.chown(folder / name, OF_NOBODY, OF_NOBODY)
    copy = Path(shutil.copy(keys / "collector.key", folder / "credentials"))
    os.chown(copy, OF_NOBODY, OF_NOBODY)
    copy.chmod(0o400)
    return folder


def test_unprivileged_service_lets_in_an_agent_with_keys(machine: Path) -> None:
    variables = {"STATE_DIRECTORY": f"{machine}/state", "CREDENTIALS_DIRECTORY": f"{machine}/credentials"}
    _, *arguments = [word.replace("/etc/", f"{machine}/etc/") for word in read_command(variables)]
    arguments += ["--listen", "tcp://127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--announce"]
    command = [sys.executable, "-c", AS_USER, str(OF_NOBODY), *arguments]
    keys = machine / "etc" / "rankscope" / "keys"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as collector:
        try:
            assert collector.stdout is not None
            assert collector.stderr is not None
            line = collector.stdout.readline()
            assert line, collector.stderr.read()
            (check,) = check_connections(
                json.loads(line)["endpoint"], str(keys / "agent.key"), str(keys / "collector.pub")
            )
            assert check.state == OK, check
        finally:
            collector.send_signal(signal.SIGTERM)
        assert collector.wait(LONGEST_S) == 0
    assert (machine / "state" / "incidents.db").stat().st_uid == OF_NOBODY
