"""The announcement of the demo, and the count of scraped samples."""

import re
import socket
from pathlib import Path

import pytest

from rankscope.collector.demo.run import describe, describe_next
from rankscope.collector.demo.running_collector import RunningCollector
from rankscope.collector.demo.screen import SLOW_STEP_S, DemoOptions

TRAIN = Path(__file__).parents[4] / "collector" / "demo" / "train.py"


def plan(*, ranks: int = 4, steps: int = 160, fault: str = "host", slow_from: int = 60) -> DemoOptions:
    return DemoOptions(ranks=ranks, steps=steps, fault=fault, slow_rank=2, slow_from=slow_from)


@pytest.mark.parametrize(
    ("options", "cores", "expected_s"),
    [
        (plan(), 2, 45),  # 15 + 160 * 0.0375 * 4 / 2 + 100 * 0.15 = 42
        (plan(), 64, 40),  # 15 + 160 * 0.0375 + 100 * 0.15 = 36: a rank trains on one core
        (plan(fault="none"), 2, 30),  # 15 + 160 * 0.0375 * 4 / 2 = 27
        (plan(ranks=16, steps=400), 4, 130),  # 15 + 400 * 0.0375 * 16 / 4 + 340 * 0.15 = 126
    ],
)
def test_announcement_has_the_expected_duration(options: DemoOptions, cores: int, expected_s: int) -> None:
    assert f" Takes about {expected_s} s, longer on a busy machine." in describe(options, cores)


def test_announcement_of_a_short_demo_has_no_slow_rank() -> None:
    assert "160 steps on 4 ranks; no rank is slow. " in describe(plan(slow_from=160), 2)


def test_slow_step_is_as_long_as_the_script_makes_it() -> None:
    (seconds,) = re.findall(r"^FAULT_S = (.*)$", TRAIN.read_text(), flags=re.MULTILINE)
    assert float(seconds) == SLOW_STEP_S


def test_collector_that_is_too_busy_to_answer_ends_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        collector = RunningCollector(f"http://127.0.0.1:{silent.getsockname()[1]}", "token", {})
        assert collector.read_run("demo", timeout_s=0.05) is None


def test_commands_that_are_shown_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "rankscope").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    demo, job = describe_next("data", str(programs / "rankscope")).splitlines()
    assert demo == "Next:     programs/rankscope demo --fault host"
    assert job == "Your job: RANKSCOPE=1 programs/torchrun --nproc-per-node N train.py"
    (programs / "rankscope").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    assert describe_next("host", str(programs / "rankscope")).startswith("Next:     rankscope demo --fault data\n")
