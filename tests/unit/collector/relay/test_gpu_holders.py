"""Whose process it is that holds a GPU: user, batch job, program, and nothing else of it."""

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.collector.relay.gpu_holders import GpuHolders, find_job_in_cgroup, find_job_in_environment

POD = "3c1f6a52-7d0e-4c6b-9f25-0d6f1f0a9b11"


@pytest.mark.parametrize(
    ("membership", "job"),
    [
        ("0::/system.slice/slurmstepd.scope/job_812/step_0/user/task_3\n", "812"),
        ("0::/system.slice/node7_slurmstepd.scope/job_812/step_batch\n", "812"),
        ("9:memory:/slurm/uid_1000/job_4711/step_2/task_0\n4:cpuset:/slurm/uid_1000/job_4711/step_2\n", "4711"),
        (f"0::/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-1.scope", f"pod-{POD}"),
        (f"0::/kubepods/besteffort/pod{POD}/0123abcd\n", f"pod-{POD}"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("0::/ci.slice/job_12/task\n", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_job_is_read_from_the_control_group(membership: str, job: str) -> None:
    assert find_job_in_cgroup(membership) == job


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        (b"SLURM_JOB_ID=812\0A=b\0", "812"),
        (b"A=SLURM_JOB_ID=9\0PBS_JOBID=12[3].server\0", "12[3].server"),
        (b"OLD_SLURM_JOB_ID=812\0", ""),
        (b"SLURM_JOB_ID=8 12\0", ""),
        (b"SLURM_JOB_ID=" + b"8" * 65 + b"\0", ""),
        (b"SLURM_JOB_ID=\xff\0", ""),
        (b"", ""),
    ],
)
def test_environment_gives_the_id_of_a_job_only(environment: bytes, job: str) -> None:
    assert find_job_in_environment(environment) == job


def test_real_process_has_its_user_and_its_program() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "an-argument"], stdin=subprocess.PIPE) as child:
        held = GpuHolders("").read(child.pid, 7)
        child.communicate(b"\n")
    assert (held.pid, held.user, held.memory_bytes) == (child.pid, getpass.getuser(), 7)
    assert "an-argument" not in held.program


def test_process_that_cannot_be_seen_has_its_number_only(tmp_path: Path) -> None:
    held = GpuHolders("", str(tmp_path)).read(77, 5)
    assert (held.pid, held.user, held.job, held.program, held.memory_bytes) == (77, "", "", "", 5)


@pytest.mark.parametrize(
    ("text", "user", "job"),
    [
        (f"900 {os.getuid()}\n", getpass.getuser(), "900"),
        ("900 4294967294\n", "4294967294", "900"),
        ("900\n", "", "900"),
    ],
)
def test_job_of_a_prolog_is_read_by_index_or_uuid(tmp_path: Path, text: str, user: str, job: str) -> None:
    (tmp_path / "GPU-1").write_text(text)
    given = GpuHolders(str(tmp_path)).read_job_of(("0", "GPU-1"))
    assert given is not None
    assert (given.pid, given.user, given.job) == (0, user, job)


@pytest.mark.parametrize("text", ["", "-1 0", "a b/c", "../x 0"])
def test_file_of_something_else_is_no_job(tmp_path: Path, text: str) -> None:
    (tmp_path / "0").write_text(text)
    given = GpuHolders(str(tmp_path)).read_job_of(("0",))
    assert given is None or given.job == "a"
