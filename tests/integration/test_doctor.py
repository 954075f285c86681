"""`rankscope doctor` with a real torch, a driver's library and a collector with keys."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rankscope.agent.inspection import _inspect_nvml
from rankscope.collector.client import Credentials
from rankscope.collector.doctor.reach import check_window_effects
from rankscope.collector.runs.run_end import RunEnd
from rankscope.collector.runs.snapshot import LostSeconds, RunSnapshot
from rankscope.measure.inspection import TorchFound
from rankscope.measure.records import AgentCost
from tests.integration.live_worlds import LiveWorld
from tests.integration.serving import find_fixed_port, serving
from tests.nvml_stand_in import compile_nvml
from tests.nvml_stand_in.sampling import QUIET, STRAINED
from tests.unit.collector.runs.run_snapshots import rank_of

COMMAND = (sys.executable, "-m", "rankscope.collector")


def doctor(*arguments: str, **environment: str) -> dict[str, dict[str, Any]]:
    """Run the doctor and return its checks by name."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("RANKSCOPE")}
    command = [*COMMAND, "doctor", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=given | environment, timeout=500)
    checks = json.loads(done.stdout)
    assert done.returncode == int(any(check["state"] == "problem" for check in checks)), done.stderr
    return {check["name"]: check for check in checks}


def states_of(checks: dict[str, dict[str, Any]], name: str) -> list[tuple[str, str]]:
    return [(check["state"], check["found"]) for key, check in checks.items() if key.startswith(name)]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    subprocess.run([*COMMAND, "keys", str(folder), "--client", "agent", "--client", "stranger"], check=True)
    (folder / "allowed" / "stranger.pub").unlink()
    return folder


def agent_with(folder: Path, name: str = "agent") -> dict[str, str]:
    return {
        "RANKSCOPE_KEY_FILE": str(folder / f"{name}.key"),
        "RANKSCOPE_COLLECTOR_KEY_FILE": str(folder / "collector.pub"),
    }


def test_healthy_machine_has_no_problem() -> None:
    checks = doctor()
    assert checks["torch"]["found"].startswith(version("torch"))
    assert checks["launch"]["state"] == "ok"
    assert not [check for check in checks.values() if check["state"] == "problem"]


def test_invalid_setting_has_the_error_of_the_agent() -> None:
    check = doctor(RANKSCOPE_STALL_S="soon")["settings"]
    assert check["state"] == "problem"
    assert "stall_s" in check["found"]


def test_collector_without_keys_accepts_and_answers() -> None:
    with serving() as served:
        checks = doctor("--url", served.url, RANKSCOPE_COLLECTOR=served.endpoint)
    assert states_of(checks, "connection") == [("ok", "accepts this agent")]
    assert states_of(checks, "http") == [("ok", f"{served.url} is ready")]


def test_collector_with_keys_is_checked_with_the_agents_keys(keys: Path) -> None:
    options = ("--key-file", str(keys / "collector.key"), "--allowed-keys", str(keys / "allowed"))
    with serving(*options) as served:
        collector = {"RANKSCOPE_COLLECTOR": served.endpoint}
        allowed = doctor(**collector, **agent_with(keys))
        stranger = doctor(**collector, **agent_with(keys, "stranger"))
        without_key = doctor(**collector)
    assert states_of(allowed, "connection") == [("ok", "accepts this agent, with its key")]
    assert states_of(stranger, "connection") == [("problem", "this agent's key is not allowed")]
    assert states_of(without_key, "connection") == [
        ("problem", "something listens there and refuses agents without keys")
    ]


def test_missing_collector_differs_from_one_that_refuses() -> None:
    checks = doctor("--collector", f"tcp://127.0.0.1:{find_fixed_port()}")
    assert states_of(checks, "connection") == [("problem", "no answer within 5 s")]


def test_gpus_are_read_as_by_the_agent(tmp_path: Path) -> None:
    """Run in a process of its own, because pynvml loads its library once."""
    compile_nvml(tmp_path)
    script = (
        "import msgspec\nfrom rankscope.agent.inspection import _inspect_nvml\n"
        "from rankscope.measure.inspection import TorchFound\n"
        f"print(msgspec.json.encode(_inspect_nvml(TorchFound(gpus=({STRAINED!r}, {QUIET!r})))).decode())"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    problem, gpus = json.loads(done.stdout)
    assert problem == ""
    assert [gpu["uuid"] for gpu in gpus] == [STRAINED, QUIET]
    assert all(gpu["model"] for gpu in gpus)


def test_missing_driver_has_the_reason_of_nvml() -> None:
    problem, gpus = _inspect_nvml(TorchFound(gpus=("GPU-1",)))
    assert (problem, gpus) == ("library_not_found", ())


def test_effect_of_windows_on_running_runs_is_said() -> None:
    cost = AgentCost(attached_ratio=0.29, detached_ratio=0.004, window_effect="ended")
    slowed = RunSnapshot(run="a", world_size=1, restart_count=0, ranks=(rank_of(0, run="a", cost=cost),))
    over = RunSnapshot(run="b", world_size=1, restart_count=0, ranks=slowed.ranks, end=RunEnd(reason="finished"))
    unmeasured = RunSnapshot(run="c", world_size=1, restart_count=0, ranks=(rank_of(0, run="c"),))
    world = LiveWorld()
    world.show(slowed, over, unmeasured)
    with world.serve() as server:
        (check,) = check_window_effects(server.url, Credentials())
    assert (check.name, check.state) == ("windows of a", "ok")
    assert check.found.startswith("full windows ended on 1 of 1 ranks: between windows, steps took 29 % longer")


def test_run_whose_answer_cannot_be_read_hides_no_other() -> None:
    ranks = (rank_of(0, cost=AgentCost(attached_ratio=0.29, window_effect="ended")),)
    unreadable = (LostSeconds(0, "host_cpu", float("nan")),)  # in JSON no number
    bad = RunSnapshot(run="a", world_size=1, restart_count=0, ranks=ranks, lost=unreadable)
    world = LiveWorld()
    world.show(bad, RunSnapshot(run="b", world_size=1, restart_count=0, ranks=ranks))
    with world.serve() as server:
        assert [check.name for check in check_window_effects(server.url, Credentials())] == ["windows of b"]


def test_collector_that_does_not_answer_says_nothing_of_windows() -> None:
    assert check_window_effects("http://127.0.0.1:1", Credentials()) == []
