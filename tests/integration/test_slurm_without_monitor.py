"""The sbatch script where its monitor fails: the training goes on, and its status is the job's.

Slurm's programs and torchrun are stand-ins, so that nothing trains: what is looked at is what the training is given.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.serving import END_S_MAX, START_S_MAX
from tests.integration.small_disk import fill, mounted
from tests.programs import find_program

SCRIPT = Path(__file__).parents[2] / "deploy" / "slurm" / "train.sbatch"
WAIT_S_MAX = 2 * (START_S_MAX + END_S_MAX)

STAND_INS = {
    "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    "srun": '#!/bin/sh\nshift; exec "$@"\n',
    # Says what it is given: the collector, its own umask, the options before the script.
    "torchrun": "#!/bin/sh\n"
    'echo "collector=$RANKSCOPE_COLLECTOR on=$RANKSCOPE run=$RANKSCOPE_RUN umask=$(umask)"\necho "options=$*"\n'
    'eval "$IN_THE_TRAINING"\nexit 7\n',
    # The real one, whose collector can be made to fail, and whose process is known.
    "rankscope": "#!/bin/sh\n"
    'if [ "$1" = "$FAILING" ]; then echo "it fails" >&2; exit 1; fi\n'
    'echo $$ >"$SLURM_SUBMIT_DIR/$1.pid"\n'
    f'exec "{Path(sys.executable).parent}/rankscope" "$@"\n',
}


class Job(NamedTuple):
    """What a job has said, and its status."""

    status: int
    said: str
    errors: str

    def find(self, name: str) -> str:
        """What the training was given under that name."""
        return next(word for word in self.said.split() if word.startswith(f"{name}=")).removeprefix(f"{name}=")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a job's only node."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "RANKSCOPE"))},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NAME": "llm",
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "FAILING": "",
        "IN_THE_TRAINING": "",
    }


def train(environment: Mapping[str, str]) -> Job:
    done = subprocess.run(
        [find_program("bash"), SCRIPT, "train.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S_MAX,
        check=False,
    )
    return Job(done.returncode, done.stdout, done.stderr)


def assert_trained_alone(job: Job) -> None:
    assert (job.status, job.find("collector"), job.find("on")) == (7, "", "1")
    assert "rankscope: no collector could be started; rank 0 starts one of its own, without a store" in job.errors


def test_training_gets_the_collector_and_its_status_is_the_jobs(environment: Mapping[str, str]) -> None:
    job = train(environment)
    assert job.status == 7
    assert job.find("collector").startswith("tcp://127.0.0.1:")
    assert job.find("run") == "llm-4711"
    assert job.errors.count("rankscope:") == 2  # no run has reported, so there is no report


def test_files_of_the_training_are_as_public_as_the_user_wants(environment: Mapping[str, str]) -> None:
    before = os.umask(0o027)
    try:
        assert train({**environment, "FAILING": "serve"}).find("umask") == "0027"
    finally:
        os.umask(before)


@pytest.mark.parametrize("command", ["keys", "serve"])
def test_training_goes_on_without_a_command_that_fails(environment: Mapping[str, str], command: str) -> None:
    job = train({**environment, "FAILING": command})
    assert_trained_alone(job)
    assert "it fails" in job.errors


def test_training_goes_on_without_a_folder(environment: Mapping[str, str]) -> None:
    assert_trained_alone(train({**environment, "COLLECTOR_FOLDER": "/proc/none"}))


def test_training_goes_on_with_keys_that_cannot_be_used(environment: Mapping[str, str], tmp_path: Path) -> None:
    keys = tmp_path / "rankscope-4711" / "keys"
    keys.mkdir(parents=True)
    (keys / "agent.key").touch(mode=0o644)
    assert_trained_alone(train(environment))


def test_training_goes_on_where_rankscope_is_not_installed(environment: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "rankscope").unlink()
    path = environment["PATH"].replace(str(Path(sys.executable).parent), "/nowhere")
    assert_trained_alone(train({**environment, "PATH": path}))


def test_training_goes_on_on_a_disk_that_is_full(environment: Mapping[str, str], tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", size_mib=1) as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        fill(disk)
        assert_trained_alone(train({**environment, "COLLECTOR_FOLDER": str(disk / "job")}))


def test_training_goes_on_when_its_collector_is_killed(environment: Mapping[str, str]) -> None:
    killing = 'kill -KILL "$(cat "$SLURM_SUBMIT_DIR/serve.pid")"'
    assert train({**environment, "IN_THE_TRAINING": killing}).status == 7


def test_old_addresses_are_gone_before_the_collector_starts(environment: Mapping[str, str], tmp_path: Path) -> None:
    """To have the new collector's file truncated is not enough: until then the script would read the old one."""
    folder, before = tmp_path / "rankscope-4711", tmp_path / "before.json"
    folder.mkdir()
    addresses = '{"endpoint": "tcp://0.0.0.0:1", "metrics_url": "http://0.0.0.0:2/metrics"}\n'
    before.write_text(addresses)
    (folder / "addresses.json").symlink_to(before)
    assert train(environment).find("collector") != "tcp://127.0.0.1:1"
    assert before.read_text() == addresses, "it is another file that the collector writes"


def test_empty_list_is_never_expanded_alone() -> None:
    """With `set -u` a bash before 4.4, as on CentOS 7, ends the job there."""
    lines = [line for line in SCRIPT.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in lines if re.search(r'(?<!\+)"\$\{\w+\[@\]\}"|\$\{#\w+\[@\]\}', line)] == []


def test_target_that_cannot_be_written_is_said(environment: Mapping[str, str], tmp_path: Path) -> None:
    job = train({**environment, "PROMETHEUS_TARGETS": str(tmp_path / "none")})
    assert job.status == 7
    assert job.find("collector").startswith("tcp://127.0.0.1:")
    assert f"rankscope: {tmp_path}/none/rankscope-4711.json cannot be written, so Prometheus does not" in job.errors


def test_collector_without_a_token_answers_its_own_node_only(environment: Mapping[str, str], tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    job = train({**environment, "PROMETHEUS_TARGETS": str(targets), "COLLECTOR_TOKEN_FILE": "/proc/none/token"})
    assert job.status == 7
    assert list(targets.iterdir()) == []
    assert "there is no token in /proc/none/token, so Prometheus cannot reach the collector" in job.errors
    assert "http://127.0.0.1:" in (tmp_path / "rankscope-4711" / "addresses.json").read_text()
