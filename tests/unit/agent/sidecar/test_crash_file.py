"""Who writes stacks into the crash file of a rank, with real signals in processes of their own."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.agent.sidecar.beacon import read_heartbeat, read_last_crash

SCRIPT = """
import os, resource, signal, sys
from rankscope.agent.sidecar.beacon import GOODBYE_ACKNOWLEDGED, Beacon, Descriptor, Heartbeat
from rankscope.agent.sidecar.link import SidecarLink
from rankscope.measure.identity import RankIdentity

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
identity = RankIdentity(
    run="r", rank=0, local_rank=0, world_size=1, node="n", restart_count=0, boot_id="b" * 8, pid=os.getpid()
)
link = SidecarLink(identity, {}, frozen_after_ns=1)
link.folder = sys.argv[1]
survived = []
if sys.argv[2] == "end":  # a handler of the script from before, which faulthandler calls after its own
    signal.signal(signal.SIGABRT, lambda *_: survived.append(1))
link._catch_crashes()
if sys.argv[2] == "child":
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGABRT)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
elif sys.argv[2] == "reused":
    links = [f"/proc/self/fd/{number}" for number in range(3, 64)]
    found = [int(link[14:]) for link in links if os.path.exists(link) and os.readlink(link).endswith(".crash")]
    own = os.open(os.path.join(sys.argv[1], "own"), os.O_WRONLY | os.O_CREAT)
    os.dup2(own, found[0])
    child = os.fork()
    if not child:
        os.write(found[0], b"of the script")
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
elif sys.argv[2] == "end":
    ends = Heartbeat(1, state=GOODBYE_ACKNOWLEDGED)
    if sys.argv[3] == "after":
        os.kill(os.getpid(), signal.SIGABRT)
        written_ns = os.stat(os.path.join(sys.argv[1], "b" * 8 + ".crash")).st_mtime_ns
        while os.stat(sys.argv[1]).st_mtime_ns <= written_ns:  # until the clock of file times, some ms a tick, is later
            os.utime(sys.argv[1])
    Beacon(sys.argv[1], Descriptor(identity=identity, start_ticks=1, frozen_after_ns=1), ends).close()
    if sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGABRT)
    print("survived", len(survived))
else:
    os.kill(os.getpid(), signal.SIGABRT)
"""


def run(folder: Path, *who: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(folder), *who]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def read(folder: Path) -> str:
    return (folder / ("b" * 8 + ".crash")).read_text()


def test_crash_of_a_rank_has_its_stacks_in_the_file(tmp_path: Path) -> None:
    assert run(tmp_path, "rank").returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in read(tmp_path)


def test_crash_of_a_forked_worker_is_none_of_the_rank(tmp_path: Path) -> None:
    done = run(tmp_path, "child")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGABRT}\n", "")
    assert read(tmp_path) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_file_number_the_script_reused_is_left_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "reused")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    assert (tmp_path / "own").read_text() == "of the script"


@pytest.mark.skipif(sys.platform != "linux", reason="the clock of its file times")
@pytest.mark.parametrize("agent_ends", ["before", "after"])
def test_signal_before_the_end_of_the_agent_was_survived(tmp_path: Path, agent_ends: str) -> None:
    done = run(tmp_path, "end", agent_ends)
    assert (done.returncode, done.stdout) == (0, "survived 1\n")
    assert "Aborted" in read(tmp_path)
    goodbye = read_heartbeat(str(tmp_path), "b" * 8)
    assert goodbye is not None
    last = read_last_crash(str(tmp_path), "b" * 8, goodbye)
    assert ("Aborted" in last) == (agent_ends == "before")
