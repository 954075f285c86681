"""What the doctor is told of NCCL's Inspector, by the environment in which ranks would be started."""

from pathlib import Path

import pytest

from rankscope.agent.config import AgentConfig
from rankscope.agent.inspection import _inspect_inspector
from rankscope.measure.inspection import InspectorFound


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the dumps, where all is as it should be."""
    plugin = tmp_path / "libnccl-profiler-inspector.so"
    plugin.touch()
    for name, value in (
        ("NCCL_PROFILER_PLUGIN", str(plugin)),
        ("NCCL_INSPECTOR_ENABLE", "1"),
        ("NCCL_INSPECTOR_DUMP_DIR", str(tmp_path)),
        ("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "1000000"),
    ):
        monkeypatch.setenv(name, value)
    return tmp_path


def test_all_is_there(folder: Path) -> None:
    assert _inspect_inspector(AgentConfig()) == InspectorFound(folder=str(folder), interval_us=10**6)


@pytest.mark.usefixtures("folder")
def test_plugin_that_is_off_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_INSPECTOR_ENABLE")
    assert _inspect_inspector(AgentConfig()) == InspectorFound()


@pytest.mark.parametrize(
    ("changed", "settings", "said"),
    [
        ({"NCCL_PROFILER_PLUGIN": ""}, {}, "NCCL_PROFILER_PLUGIN is not set"),
        ({"NCCL_PROFILER_PLUGIN": "/nowhere/x.so"}, {}, "names /nowhere/x.so, which is not there"),
        ({"NCCL_INSPECTOR_PROM_DUMP": "1"}, {}, "NCCL_INSPECTOR_PROM_DUMP is set"),
        ({}, {"sidecar": False}, "sidecar is false"),
    ],
)
def test_why_dumps_would_not_be_read(
    folder: Path, changed: dict[str, str], settings: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changed.items():
        monkeypatch.setenv(name, value)
    found = _inspect_inspector(AgentConfig(**settings))  # type: ignore[arg-type]
    assert (found.folder, said in found.problem) == (str(folder), True), found.problem


@pytest.mark.usefixtures("folder")
def test_plugin_that_is_named_without_a_folder_is_nccl_s_to_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "inspector")
    assert _inspect_inspector(AgentConfig()).problem == ""


def test_folder_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, _mode: path != str(folder))
    assert "cannot be read by this user" in _inspect_inspector(AgentConfig()).problem
