"""A power limit that a fault lowers, by the real pynvml and tests/nvml_stand_in: it is restored however a rank ends.

The stand-in keeps the limit in a file, so that it outlives processes as that of a GPU does.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rankscope.agent.config import read_config
from rankscope.agent.faults.gpu_actions import PowerCap
from rankscope.agent.faults.injected_fault import make_fault
from rankscope.agent.guard import Guard
from rankscope.measure.errors import UnavailableError
from tests.integration.serving import wait_for
from tests.nvml_stand_in import compile_nvml
from tests.nvml_stand_in.sampling import STRAINED

BEFORE, LOWEST = "700000", "200000"
DEADLINE_S = 300.0
HOLDING = (
    "import sys, time; from rankscope.agent.faults.gpu_actions import PowerCap\n"
    "cap = PowerCap(sys.argv[1]); cap.act(); print('lowered', flush=True); sys.stdin.read()"
)
"""A rank that lowers the limit and goes on."""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nvml(tmp_path_factory.mktemp("driver")).parent


@pytest.fixture
def limit(driver: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the limit of the GPU, for this process's children."""
    path = tmp_path / "limit"
    path.write_text(BEFORE)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    monkeypatch.setenv("STAND_IN_POWER_FILE", str(path))
    return path


def read(limit: Path) -> str:
    return limit.read_text().strip()


def helpers() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if "rankscope.agent.faults.power_cap" in one.cmdline()]


def test_limit_is_lowered_and_restored_at_the_end(limit: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cap = PowerCap(STRAINED)
    cap.act()
    cap.act()
    assert (read(limit), len(helpers())) == (LOWEST, 1)
    said = "is lowered from 700 to 200 W until the fault or this process ends, for 10 minutes at most; to restore it by"
    assert f"{said} hand, as root: nvidia-smi -i {STRAINED} " in capfd.readouterr().err
    cap.end()
    assert (read(limit), helpers()) == (BEFORE, [])


def test_signals_that_end_a_run_do_not_end_the_helper(limit: Path) -> None:
    cap = PowerCap(STRAINED)
    cap.act()
    (helper,) = helpers()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        helper.send_signal(number)
    cap.end()
    assert read(limit) == BEFORE


def test_rank_that_is_killed_leaves_the_limit_as_it_was(limit: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, STRAINED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "lowered\n"
        assert read(limit) == LOWEST
        rank.kill()
    wait_for(lambda: read(limit) == BEFORE or None, lambda: read(limit), DEADLINE_S)


def make(kind: str) -> object:
    order = {"RANKSCOPE_FAULT": f"rank=0 kind={kind} steps=3:9", "RANKSCOPE_FAULTS_ALLOWED": "1"}
    return make_fault(read_config(order), 0, Guard(1), {})


def test_without_the_right_the_fault_is_refused_with_the_reason(
    limit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert make("power_cap") is not None
    assert "a fault is injected on rank 0 on purpose (RANKSCOPE_FAULT): power_cap" in capfd.readouterr().err
    monkeypatch.setenv("STAND_IN_POWER_RESULT", "4")
    assert make("power_cap") is None
    assert capfd.readouterr().err == (
        "rankscope: the fault power_cap of RANKSCOPE_FAULT is not injected on rank 0: NVML says: Insufficient "
        "Permissions. Only root may change a power limit: run this rank as root, in a container with the right to\n"
    )
    assert read(limit) == BEFORE


def test_without_a_driver_the_fault_is_refused(
    limit: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(limit.parent))
    if os.path.exists("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"):  # noqa: PTH110 - a name of the system
        pytest.skip("this machine has a driver")
    assert make("power_cap") is None
    assert "not injected on rank 0: NVML says: NVML Shared Library Not Found" in capfd.readouterr().err


def test_limit_that_is_the_lowest_already_is_said(limit: Path) -> None:
    limit.write_text(LOWEST)
    with pytest.raises(UnavailableError, match="was not lowered: its power limit is 200 W, the lowest allowed already"):
        PowerCap(STRAINED).act()
    assert read(limit) == LOWEST
