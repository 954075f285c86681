"""Tell whose process a process is: its user, its batch job, the name of its program. Reads /proc; raises nothing.

Of other people's processes no more is kept than that. The job is in the path of the process's control group, under
Slurm and Kubernetes. Where it is not, it is looked for in the process's environment, which only root and its user may
read: the value of one of JOB_VARIABLES, if it looks like an id, and of nothing else.
"""

import pwd
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rankscope.measure.bounds import SHORT_NAME_LENGTH_MAX
from rankscope.measure.held_gpus import GpuHolder

JOB_VARIABLES: Final = (b"SLURM_JOB_ID", b"PBS_JOBID", b"LSB_JOBID")
"""Where Slurm, PBS and LSF name the job in the environment of its processes."""
ENVIRONMENT_BYTES_MAX: Final = 1024 * 1024
CGROUP_BYTES_MAX: Final = 64 * 1024
FILE_BYTES_MAX: Final = 4096
USERS_MAX: Final = 4096
"""Names of users that are remembered: a look-up may ask a server."""

_SLURM: Final = re.compile(r"slurm[^\n]*/job_(\d+)(?:/|$)", re.MULTILINE)
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})\b")
_UID: Final = re.compile(r"\d{1,10}")
_JOB_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\[\]-]{0,63}")


def find_job_in_cgroup(membership: str) -> str:
    """Return the batch job or pod of a process from its /proc/PID/cgroup; empty where it names none.

    >>> find_job_in_cgroup("0::/system.slice/slurmstepd.scope/job_8123/step_0/user/task_0")
    '8123'
    >>> find_job_in_cgroup("0::/user.slice/user-1000.slice/session-3.scope")
    ''
    """
    slurm = _SLURM.search(membership)
    if slurm is not None:
        return slurm[1][:SHORT_NAME_LENGTH_MAX]
    pod = _POD.search(membership) if "kubepods" in membership else None
    return "" if pod is None else f"pod-{pod[1].replace('_', '-')}"


def find_job_in_environment(environment: bytes) -> str:
    r"""Return the id of a batch job from a /proc/PID/environ; empty where there is none.

    >>> find_job_in_environment(b"HOME=/home/ana\0SLURM_JOB_ID=8123\0TOKEN=secret\0")
    '8123'
    """
    for name in JOB_VARIABLES:
        start = environment.find(b"\0" + name + b"=") + 1
        if not start and not environment.startswith(name + b"="):
            continue
        value = environment[start + len(name) + 1 :].partition(b"\0")[0].decode("ascii", "replace")
        if _JOB_ID.fullmatch(value):
            return value
    return ""


class GpuHolders:
    """Reads who a process is. `proc` and `jobs` replace /proc and the folder in which a prolog of the scheduler writes
    the jobs of GPUs (`read_job_of`). For one thread.
    """

    def __init__(self, jobs: str, proc: str = "/proc") -> None:
        self._jobs = Path(jobs) if jobs else None
        self._proc = Path(proc)
        self._names: dict[int, str] = {}

    def read(self, pid: int, memory_bytes: int | None) -> GpuHolder:
        """Return whose process it is. A process of another pid namespace has only its number."""
        folder = self._proc / str(pid)
        uid = self._read_uid(folder)
        if uid is None:
            return GpuHolder(pid, memory_bytes=memory_bytes)
        program = _read(folder / "comm", SHORT_NAME_LENGTH_MAX).decode("utf-8", "replace").strip()
        membership = _read(folder / "cgroup", CGROUP_BYTES_MAX).decode("utf-8", "replace")
        job = find_job_in_cgroup(membership)
        if not job:
            job = find_job_in_environment(_read(folder / "environ", ENVIRONMENT_BYTES_MAX))
        return GpuHolder(pid, self.find_user(uid), job, program[:SHORT_NAME_LENGTH_MAX], memory_bytes)

    def read_job_of(self, names: Iterable[str]) -> GpuHolder | None:
        """Return the job to which the scheduler has given a GPU, from the first file of these names: its index, its
        UUID. The file has the id of the job and the number of its user, as the prologs of jobstats and CEEMS write it;
        None where there is none.
        """
        if self._jobs is None:
            return None
        for name in names:
            words = _read(self._jobs / name, FILE_BYTES_MAX).decode("ascii", "replace").split()
            if words and _JOB_ID.fullmatch(words[0]):
                uid = _UID.fullmatch(words[1]) if len(words) > 1 else None
                return GpuHolder(0, "" if uid is None else self.find_user(int(uid[0])), words[0])
        return None

    def find_user(self, uid: int) -> str:
        """Return the name of a user, or the number where the machine has none for it."""
        name = self._names.get(uid)
        if name is None:
            if len(self._names) >= USERS_MAX:
                self._names.clear()
            name = self._names[uid] = _look_up(uid)
        return name

    def _read_uid(self, folder: Path) -> int | None:
        """Return the real user id of a process: the owner of its folder is root where it may not be traced."""
        for line in _read(folder / "status", FILE_BYTES_MAX).split(b"\n"):
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
        return None


def _look_up(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name[:SHORT_NAME_LENGTH_MAX]
    except (KeyError, OverflowError, OSError):
        return str(uid)


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(bytes_max)
    except OSError:  # it has ended, or may not be read
        return b""
