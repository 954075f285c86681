"""The pure parts of `rankscope profile`: commands, settings, complete captures, and what is said without one."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import psutil
import pytest

from rankscope.agent.capture_settings import CaptureSteps, parse_schedule
from rankscope.agent.config import read_launch_config
from rankscope.collector import profiled_script
from rankscope.collector.commands.main import main as run_command
from rankscope.collector.profiled_script import (
    EndedScript,
    Script,
    build_command,
    build_environment,
    describe_missing,
    end,
    find_traces,
)

ENDPOINT = "tcp://127.0.0.1:18490"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""
SCRIPT = Script(["train.py", "--lr", "0.1"])


@pytest.mark.parametrize(("skip", "steps", "captured"), [(5, 3, CaptureSteps(4, 5, 7)), (2, 1, CaptureSteps(2, 2, 2))])
def test_schedule_captures_the_steps_after_the_skipped_ones(skip: int, steps: int, captured: CaptureSteps) -> None:
    script = Script(["train.py"], skip=skip, steps=steps)
    schedule = parse_schedule(script.schedule)
    assert schedule is not None
    assert (schedule.find_next(0), schedule.find_next(captured.begin_step + 1)) == (captured, None)
    assert script.captured == f"steps-{captured.first_step}-{captured.last_step}"


def test_agent_has_no_complaint_about_its_settings() -> None:
    around = {"RANKSCOPE_COLLECTOR": "tcp://elsewhere:1", "RANKSCOPE_KEY_FILE": "/none", "RANKSCOPE": "1", "HOME": "/h"}
    agents = {"RANKSCOPE_COLLECTOR": ENDPOINT}
    environment = build_environment({**around, "RANKSCOPE_DEBUG": "1"}, SCRIPT, Path("/traces"), agents)
    config, is_usable, mistakes, _ = read_launch_config(environment, {})
    assert (is_usable, mistakes) == (True, ())
    assert (config.collector, config.key_file, config.capture_folder) == (ENDPOINT, "", "/traces")
    assert {"RANKSCOPE_DEBUG": "1", "HOME": "/h"}.items() <= environment.items()
    assert "RANKSCOPE" not in environment


def test_script_runs_under_the_agent_in_this_interpreter() -> None:
    start = [sys.executable, "-m", "rankscope.agent", "--strict"]
    assert build_command(SCRIPT) == [*start, "train.py", "--lr", "0.1"]
    assert build_command(Script(["pkg.train"], is_module=True)) == [*start, "-m", "pkg.train"]


def test_ranks_are_started_by_torchrun() -> None:
    words = build_command(SCRIPT._replace(ranks=4))
    assert words[words.index("torch.distributed.run") :] == [
        "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
        "-m", "rankscope.agent", "--strict", "train.py", "--lr", "0.1",
    ]  # fmt: skip


def test_capture_is_complete_with_the_file_of_each_rank(tmp_path: Path) -> None:
    folder = tmp_path / "steps-5-7"
    folder.mkdir()
    (folder / "rank-0.pt.trace.json.gz").touch()
    (folder / ".rank-1.gz").touch()
    assert find_traces(tmp_path / "absent", 1) == find_traces(tmp_path, 2) == []
    assert find_traces(tmp_path, 1) == [folder]


@pytest.mark.parametrize(
    ("exit_status", "steps", "said"),
    [
        (-9, 1, "the script was killed by signal 9 before the capture was complete. It had 1 step, and 8 are needed"),
        (0, 0, "No step of it was seen, where a step ends with optimizer.step(); 8 are needed"),
        (1, None, "ended with exit status 1 before the capture was complete. How many steps it had is not known"),
        (0, 8, "It had 8 steps, which is enough: a line above says why there is no capture."),
    ],
)
def test_missing_profile_is_explained(exit_status: int, steps: int | None, said: str) -> None:
    assert said in describe_missing(SCRIPT, exit_status, steps)


def test_script_that_ignores_sigterm_is_killed_with_its_children() -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    with child.stdout:
        helper = psutil.Process(int(child.stdout.readline()))
    end(child, is_launcher=False, patience_s=0.1)
    assert child.poll() is not None
    _, living = psutil.wait_procs([helper], 10)
    assert [one for one in living if one.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("prints_json", [True, False])
def test_script_prints_elsewhere_where_json_is_printed(prints_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[TextIO | None] = []

    def pretend(script: Script, folder: Path, out: TextIO | None = None) -> EndedScript:
        del script
        found.append(out)
        return EndedScript(folder, "no profile")

    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(profiled_script, "profile_script", pretend)
    assert run_command(["profile", *(["--json"] if prints_json else []), __file__]) == 1
    assert found == [sys.stderr if prints_json else None]


def test_script_prints_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled_script, "running_collector", lambda: nullcontext(SimpleNamespace(agents={})))
    monkeypatch.setattr(profiled_script, "build_command", lambda _script: [sys.executable, "-c", "print('a step')"])
    monkeypatch.setattr(profiled_script, "_count_steps", lambda _collector: 0)
    with (tmp_path / "printed").open("w+") as out:
        assert profiled_script.profile_script(SCRIPT, tmp_path, out).exit_status == 0
        assert (tmp_path / "printed").read_text() == "a step\n"
