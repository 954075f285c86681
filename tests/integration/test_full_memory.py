"""A node whose /dev/shm is full, as in a container with its 64 MiB: training goes on as without the agent."""

import os
from pathlib import Path

import pytest

from tests.integration.serving import Served, serving, wait_for
from tests.integration.small_disk import why_not_with_full, with_full
from tests.integration.torchrun import AGENT, ALONE, OFTEN, python, started

MEMORY = "/dev/shm"  # noqa: S108 - the place itself
WHY_NOT = why_not_with_full()

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def find_errors(served: Served) -> str:
    """Return the line of the page that counts errors of the part `sidecar`; empty where there is none."""
    lines = served.read_metrics().splitlines()
    return next((line for line in lines if "rankscope_agent_errors_total{" in line and 'part="sidecar"' in line), "")


def test_sidecar_meets_its_ranks_in_tmpdir_where_memory_is_full(tmp_path: Path) -> None:
    stop, temporary = tmp_path / "stop", tmp_path / "t"
    temporary.mkdir()
    command = [*with_full(MEMORY), *python(*AGENT, "paced.py", "--stop", str(stop))]
    with started(command, {**ALONE, **OFTEN, "TMPDIR": str(temporary)}) as job:
        (descriptor,) = wait_for(
            lambda: list(temporary.glob("*/*/*.json")) or None, lambda: "no descriptor in TMPDIR", 120
        )
        assert descriptor.parent.parent.name == f"rankscope-{os.getuid()}"
        stop.touch()
        ended = job.wait()
    assert ended.exit_code == 0, ended.stderr  # 135 (SIGBUS) when a full file system is stored to
    assert [line for line in ended.heard_of_agent if "failed" in line] == []


def test_training_without_any_room_goes_on_and_logs_it_once(tmp_path: Path) -> None:
    stop, temporary = tmp_path / "stop", tmp_path / "t"
    temporary.mkdir()
    command = [*with_full(MEMORY, temporary), *python(*AGENT, "paced.py", "--stop", str(stop))]
    with serving() as served:
        settings = {**ALONE, **OFTEN, "TMPDIR": str(temporary), "RANKSCOPE_COLLECTOR": served.endpoint}
        with started(command, settings) as job:
            counted = wait_for(lambda: find_errors(served) or None, lambda: "no error is counted", 120)
            stop.touch()
            ended = job.wait()
    assert ended.exit_code == 0, ended.stderr
    assert counted.endswith(" 1.0")
    (said,) = [line for line in ended.heard_of_agent if "sidecar" in line]
    assert "the sidecar's files cannot be written (/dev/shm: [Errno 28] No space left on device; " in said
    assert "or set sidecar = false" in said


def test_heartbeat_file_cut_by_somebody_does_not_end_training(tmp_path: Path) -> None:
    stop, temporary = tmp_path / "stop", tmp_path / "t"
    temporary.mkdir()
    # Nothing but TMPDIR is there for it: /dev/shm is full. What other tests leave in /dev/shm is theirs.
    command = [*with_full(MEMORY), *python(*AGENT, "paced.py", "--stop", str(stop))]
    with started(command, {**ALONE, **OFTEN, "TMPDIR": str(temporary)}) as job:
        (beat,) = wait_for(lambda: list(temporary.glob("*/*/*.beat")) or None, lambda: "no heartbeat in TMPDIR", 120)
        os.truncate(beat, 0)
        wait_for(lambda: beat.stat().st_size or None, lambda: f"none follows; exit {job.launcher.poll()}", 120)
        stop.touch()
        assert job.wait().exit_code == 0
