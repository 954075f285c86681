"""What launchers do with the hosts to exclude: the script for torchrun over ssh, and the lines of docs/nodes.md."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from rankscope.collector.publish.http_listener import listen_http
from rankscope.collector.publish.http_server import HttpServer
from rankscope.collector.runs.snapshot import Snapshot
from tests.integration.serving import DEADLINE_S, find_fixed_port
from tests.integration.slurm import Cluster, running_slurm
from tests.programs import find_program
from tests.unit.collector.incidents.bad_node import keep_bad_node

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "deploy" / "torchrun" / "run-on-hosts.sh"
REMOTE: Final = '#!/bin/bash\necho "$1" >> "$ASKED"\nexec bash -c "$2"\n'
"""A remote shell of which every host is this machine; it notes which ones were asked."""
TORCHRUN: Final = '#!/bin/bash\nprintf \'%s\\n\' "$PWD" "$@" > "$ARGUMENTS"\nexit "${STATUS:-0}"\n'


class Launch:
    """A folder with hosts, and how the script runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked = folder / "asked"
        self.arguments = folder / "arguments"
        for name, text in (("remote", REMOTE), ("torchrun", TORCHRUN)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.environment = {
            **os.environ, "REMOTE_SHELL": str(folder / "remote"), "TORCHRUN": str(folder / "torchrun"),
            "ASKED": str(self._asked), "ARGUMENTS": str(self.arguments),
        }  # fmt: skip

    def start(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), "hosts.txt", "exclude.txt", *arguments], cwd=self.folder, capture_output=True, text=True,
            env={**self.environment, **environment}, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    @property
    def asked(self) -> list[str]:
        """The hosts that were asked, by name."""
        return sorted(self._asked.read_text().split()) if self._asked.exists() else []


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Four hosts, of which node-2 is excluded."""
    (tmp_path / "hosts.txt").write_text("node-1 slots=8\n\n# spare ones\n  node-2\nnode-3 # new\nnode-20\n")
    (tmp_path / "exclude.txt").write_text("node-2\n")
    return Launch(tmp_path)


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").rglob("*.sh")), ids=lambda path: path.name)
def test_shellcheck_has_nothing_to_say_against_scripts(path: Path) -> None:
    done = subprocess.run([find_program("shellcheck"), path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_first_hosts_that_are_not_excluded_are_used(launch: Launch) -> None:
    done = launch.start("2", "--nproc-per-node", "8", "train.py")
    assert (done.returncode, launch.asked) == (0, ["node-1", "node-3"])
    told = launch.arguments.read_text().splitlines()
    assert told[:5] == [str(launch.folder), "--nnodes", "2", "--rdzv-backend", "c10d"]
    assert told[7:] == ["--rdzv-endpoint", "node-1:29400", "--nproc-per-node", "8", "train.py"]


def test_arguments_come_as_they_were_given(launch: Launch) -> None:
    odd = ["a b", "$(touch hacked)", "it's", 'say "x"', "*", ";", ""]
    assert launch.start("1", "train.py", *odd).returncode == 0
    assert launch.arguments.read_text().splitlines()[-len(odd) :] == odd
    assert not (launch.folder / "hacked").exists()


def test_too_few_hosts_start_nothing(launch: Launch) -> None:
    done = launch.start("4", "train.py")
    assert (done.returncode, launch.asked) == (2, [])
    assert done.stderr == "run-on-hosts: 3 of 4 hosts are left, after those in exclude.txt are excluded\n"


def test_all_hosts_may_be_excluded(launch: Launch) -> None:
    (launch.folder / "exclude.txt").write_text("node-1\nnode-2\nnode-3\nnode-20\n")
    assert "0 of 1 hosts are left" in launch.start("1", "train.py").stderr


@pytest.mark.parametrize("content", ["", None], ids=["empty", "missing"])
def test_without_hosts_to_exclude_all_are_used(launch: Launch, content: str | None) -> None:
    path = launch.folder / "exclude.txt"
    path.unlink() if content is None else path.write_text(content)
    done = launch.start("4", "train.py")
    assert (done.returncode, launch.asked) == (0, ["node-1", "node-2", "node-20", "node-3"])
    assert ("there is no exclude.txt" in done.stderr) is (content is None)


def test_status_of_a_host_that_fails_is_returned(launch: Launch) -> None:
    assert launch.start("2", "train.py", STATUS="7").returncode == 7


@pytest.mark.parametrize(("nodes", "host"), [("0", "a"), ("two", "a"), ("1", "-oProxyCommand=x")])
def test_what_is_no_number_or_host_is_refused(launch: Launch, nodes: str, host: str) -> None:
    (launch.folder / "hosts.txt").write_text(f"{host}\n")
    assert (launch.start(nodes, "train.py").returncode, launch.asked) == (2, [])


def test_torchrun_trains_on_the_hosts_that_are_left(launch: Launch) -> None:
    # Both names are this machine, so the rendezvous is a real one.
    (launch.folder / "hosts.txt").write_text("localhost\nnode-2\n127.0.0.1\n")
    (launch.folder / "train.py").write_text(
        "import os\nseen = [os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'GROUP_WORLD_SIZE')]\n"
        "os.write(1, f'{\" \".join(seen)}\\n'.encode())  # at once, or the lines of the two would mix\n"
    )
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = launch.start(
        "2", "--nproc-per-node", "1", "train.py", TORCHRUN=torchrun, RENDEZVOUS_PORT=str(find_fixed_port())
    )
    assert (done.returncode, launch.asked) == (0, ["127.0.0.1", "localhost"]), done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line) == ["0 2 2", "1 2 2"]


# -- Slurm ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Slurm of node-a, and of node-b, which is down."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, running_slurm(Path(name), "node-a", "node-b") as cluster:
        yield cluster


def read_lines(place: int) -> str:
    """Return the block of this place in the part about Slurm of the document."""
    text = (ROOT / "docs" / "nodes.md").read_text().partition("## Slurm")[2]
    return str(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)[place])


@contextmanager
def serving(folder: Path, bad: str) -> Iterator[dict[str, str]]:
    """A collector whose store has a node that held up three of four runs; the environment of its clients."""
    snapshot = Snapshot(wall_s=0.0, version="0")
    server = HttpServer(
        listen_http("127.0.0.1:0"), lambda: snapshot, tuple, is_healthy=lambda: None, is_ready=lambda: None,
        store=keep_bad_node(folder, good="node-c", bad=bad),
    )  # fmt: skip
    with closing(server):
        yield {"RANKSCOPE_URL": server.url}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("bad", "excluded"),
    [("node-b", "node-b\n"), ("node-removed", "node-removed\n"), ("-no host", ""), ("node-a", "node-a\n")],
    ids=["another node", "a node that Slurm does not know", "nothing", "the only node"],
)
def test_slurm_takes_the_hosts_to_exclude(cluster: Cluster, tmp_path: Path, bad: str, excluded: str) -> None:
    job = ["--immediate=10", "--ntasks=1", "printenv", "SLURMD_NODENAME"]
    with serving(tmp_path, bad) as settings:
        done = subprocess.run(
            [find_program("bash"), "-c", read_lines(0), "lines", *job], cwd=tmp_path, capture_output=True, text=True,
            env={**cluster.environment, **settings}, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert (tmp_path / "exclude.txt").read_text() == excluded, done.stderr
    ran_on = done.stdout.splitlines()[-1]  # after the list of nodes
    if bad == "node-a":
        assert (done.returncode > 0, ran_on) == (True, "1 other node held up none of 4 runs")
    else:
        assert (done.returncode, ran_on) == (0, "node-a"), done.stderr


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ("node-b", "scontrol update NodeName=node-b State=DRAIN Reason='rankscope: held up 3/4 runs'\n"),
        ("$(touch hacked)", ""),
    ],
)
def test_commands_to_drain_are_printed_only(tmp_path: Path, bad: str, expected: str) -> None:
    with serving(tmp_path, bad) as settings:
        done = subprocess.run(
            [find_program("bash"), "-c", read_lines(1)], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, **settings, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert not (tmp_path / "hacked").exists()
