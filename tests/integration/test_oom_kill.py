"""The kernel's own OOM killer strikes a rank in a cgroup of its own, of whichever version this machine has."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.measure.node_messages import RankEnded
from tests.unit.agent.sidecar.watched_node import Node

MOUNTS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 64 * 2**20
LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")
EAT_ALL = "kept = []\nwhile True: kept.append(bytearray(b'x') * 2**20)"


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """An empty cgroup with a limit of memory. Only root can make one, and in many containers not even root; how an end
    is told from the counts is tested on files in tests/unit/agent/sidecar/test_oom_kills.py all the same.
    """
    for mount in (MOUNTS / "memory", MOUNTS, MOUNTS / "unified"):
        folder = mount / f"rankscope-{secrets.token_hex(4)}"
        try:
            folder.mkdir()
            (limit,) = [folder / name for name in LIMIT_FILES if (folder / name).exists()]
            limit.write_text(str(LIMIT_BYTES))
        except (OSError, ValueError):
            if folder.is_dir():
                folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no cgroup with a limit of memory can be made here")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def test_rank_out_of_memory_is_told_apart_from_a_killed_one(node: Node, cgroup: Path) -> None:
    eater, killed = node.prepare(EAT_ALL), node.prepare("os.kill(os.getpid(), signal.SIGKILL)")
    for process in (eater, killed):
        (cgroup / "cgroup.procs").write_text(str(process.pid))
    node.announce(eater, rank=0)
    node.announce(killed, rank=1)
    found = []
    for process in (eater, killed):
        process.end()
        found += [notice for notice in node.run_pass() if isinstance(notice, RankEnded)]
        process.reap()
    assert [(notice.identity.rank, notice.reason, notice.oom_kills) for notice in found] == [
        (0, "out_of_memory", 1),
        (1, "killed", 0),
    ]
    assert os.path.basename(cgroup) in found[0].detail  # noqa: PTH119
