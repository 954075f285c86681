"""A real Slurm of one node on this machine, and if wanted of another one that is down: munged, slurmctld and slurmd in
the foreground, in a folder of their own.

Who runs the tests is Slurm's user, and submits. Nothing of it outlives the block: jobs are cancelled, the daemons end,
and processes of jobs that are left are killed, known by the configuration that their environment names.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.integration.serving import DEADLINE_S, end_child, find_fixed_port, wait_for
from tests.programs import find_program

NODE: Final = "localhost"
"""What `scontrol show hostnames` gives for the node must resolve, whatever this machine is called."""
CONFIGURATION: Final = """\
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
{absent}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""Jobs share the node, and one that is queued again may begin after `cred_expire` seconds."""
CANCEL_S_MAX: Final = 20.0
"""Slurm kills after KillWait."""
OVER: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})


class Cluster:
    """A running Slurm. Made by `running_slurm`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment: Mapping[str, str] = {
            **{name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "RANKSCOPE"))},
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def submit(self, script: Path, *arguments: str, name: str, environment: Mapping[str, str]) -> str:
        """Submit a job of one core; its number. What it says is in NAME.log in the folder."""
        options = ["--parsable", "--nodes=1", "--cpus-per-task=1", f"--job-name={name}", f"--output={name}.log"]
        given = {**self.environment, **environment}
        return self._ask("sbatch", *options, str(script), *arguments, environment=given)

    def read_log(self, name: str) -> str:
        """What a job has said so far."""
        return (self._folder / f"{name}.log").read_text()

    def requeue(self, job: str) -> None:
        """End a job and put it back into the queue."""
        self._ask("scontrol", "requeue", job)

    def show(self, job: str) -> dict[str, str]:
        """What Slurm knows of a job."""
        words = self._ask("scontrol", "show", "job", "-o", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_end(self, job: str) -> dict[str, str]:
        """Wait until a job is over; what Slurm knows of it then."""
        return wait_for(
            lambda: known if (known := self.show(job))["JobState"] in OVER else None,
            lambda: f"job {job} is not over: {self.show(job)}",
        )

    def wait_for_node(self) -> None:
        """Wait until the node takes jobs."""
        wait_for(
            lambda: True if "idle" in self._ask("sinfo", "-h", "-o", "%t", check=False).split() else None,
            lambda: "; ".join(f"{path.name}: {path.read_text()[-400:]}" for path in self._folder.glob("*.out")),
            DEADLINE_S,
        )

    def read_command_lines(self) -> list[list[str]]:
        """The command line of each process that runs within a job."""
        return [process.cmdline() for process in self._find_processes() if "SLURM_JOB_ID" in process.environ()]

    def cancel_all(self) -> None:
        """Cancel every job, and kill what is left of them when Slurm has had its time."""
        self._ask("scancel", "--user", str(os.getuid()), check=False)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: None if self._ask("squeue", "-h", check=False) else True, str, CANCEL_S_MAX)
        for process in self._find_processes():
            with contextlib.suppress(psutil.Error):
                if "SLURM_JOB_ID" in process.environ():
                    process.kill()

    def _find_processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURM_CONF") == self.environment["SLURM_CONF"]:
                    found.append(process)
        return found

    def _ask(self, program: str, *arguments: str, check: bool = True, environment: Mapping[str, str] = {}) -> str:
        command = [find_program(program), *arguments]
        given = environment or self.environment
        done = subprocess.run(
            command, cwd=self._folder, env=given, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert not check or done.returncode == 0, f"{command} ends with {done.returncode}: {done.stderr}"
        return done.stdout.strip()


@contextlib.contextmanager
def running_slurm(folder: Path, node: str = NODE, absent: str = "") -> Iterator[Cluster]:
    """Start it, in a folder whose path is short enough for Unix sockets; it does not outlive the block. The node
    `absent` is known and does not answer; with one, `node` cannot be localhost, which is every node's host to Slurm.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_configure(folder, node, absent))
    (folder / "cgroup.conf").touch()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    cluster = Cluster(folder)
    files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid", "log-file": "munge.out"}
    munge = [f"--{option}={folder / name}" for option, name in {**files, "seed-file": "munge.seed"}.items()]
    with contextlib.ExitStack() as daemons:
        for command in (
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", node],
        ):
            daemons.enter_context(_running(command, folder, cluster.environment))
        daemons.callback(cluster.cancel_all)
        cluster.wait_for_node()
        yield cluster


def _configure(folder: Path, node: str, absent: str) -> str:
    ports = {"controller_port": find_fixed_port(), "node_port": find_fixed_port()}
    user = psutil.Process().username()
    host = socket.gethostname().split(".")[0]
    other = f"NodeName={absent} NodeAddr=127.0.0.2 CPUs=4 State=DOWN Reason=absent\n" if absent else ""
    return CONFIGURATION.format(host=host, user=user, folder=folder, node=node, absent=other, **ports)


@contextlib.contextmanager
def _running(command: list[str], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a daemon, with what it says in a file; for munged wait until it listens, since the others do not wait."""
    program = find_program(command[0])
    with (folder / f"{command[0]}.out").open("wb") as said:
        child = subprocess.Popen([program, *command[1:]], env=environment, stdout=said, stderr=said, cwd=folder)
        try:
            if command[0] == "munged":
                sock = folder / "munge.socket"
                wait_for(lambda: sock.exists() or None, (folder / "munge.out").read_text)
            yield
        finally:
            end_child(child)
