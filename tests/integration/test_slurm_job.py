"""The sbatch script, with stand-ins for Slurm's own programs: two nodes of one rank each, on this machine."""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.serving import find_fixed_port
from tests.integration.torchrun import Ended, run
from tests.programs import find_program

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"

SCONTROL = "#!/bin/sh\n[ \"$1 $2 $3\" = 'show hostnames 127.0.0.[1-2]' ] || exit 3\nprintf '127.0.0.1\\n127.0.0.2\\n'\n"
SRUN = """#!/bin/sh
# As srun: the command once on each node, all at a time; its status is the worst of theirs.
while [ "${1#--}" != "$1" ]; do shift; done
"$@" & first=$!
"$@" & second=$!
status=0
wait "$first" || status=$?
wait "$second" || status=$?
exit "$status"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a job's first node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_USER": "ada",
        "SLURM_JOB_NAME": "llm",
        "SLURM_JOB_NODELIST": "127.0.0.[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "HOME": str(tmp_path),
        "RENDEZVOUS_PORT": str(find_fixed_port()),
    }


def train(slurm: Mapping[str, str], *arguments: str) -> Ended:
    return run([str(SCRIPT), *arguments], slurm)


def test_job_trains_on_both_nodes_and_ends_with_the_report(slurm: Mapping[str, str], tmp_path: Path) -> None:
    ended = train(slurm, "small_ddp.py")
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    assert "llm-4711" in ended.stdout
    folder = tmp_path / "rankscope-4711"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert "2 ranks" in ended.stdout
    assert re.search(r"origin +Slurm job 4711, user ada", ended.stdout), "the report, from the store"


def test_job_that_fails_fails_with_its_own_status(slurm: Mapping[str, str]) -> None:
    ended = train(slurm, "no_such_script.py")
    assert ended.exit_code == 1
    assert ended.left == ()


def test_bash_and_shellcheck_have_nothing_to_say_against_it() -> None:
    assert subprocess.run([find_program("bash"), "-n", SCRIPT], check=False).returncode == 0
    done = subprocess.run([find_program("shellcheck"), SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
