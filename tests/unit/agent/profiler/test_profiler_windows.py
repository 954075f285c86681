"""ProfilerWindows: how the setting `device_windows` governs them, when CUPTI may be detached, and what is logged."""

import sysconfig
from typing import Any

import pytest

from rankscope.agent.config import read_config
from rankscope.agent.guard import Guard
from rankscope.agent.profiler.effect_settings import make_effect
from rankscope.agent.profiler.window_effect import SLOWDOWN_MIN, EffectState
from rankscope.agent.profiler.windows import ProfilerWindows
from rankscope.agent.steps.graph_captures import GraphCaptures
from tests.unit.agent.profiler.window_training import FakeProfiler
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of


def make_windows(**settings: str) -> ProfilerWindows:
    """Windows of one rank on a stand-in for torch's profiler."""
    config = read_config({f"RANKSCOPE_{name.upper()}": text for name, text in settings.items()})
    windows = ProfilerWindows(
        config, identity_of(0, pid=1), {}, Guard(error_budget=1), GraphCaptures(), find_resident_bytes=lambda: None,
    )  # fmt: skip
    profiler: Any = FakeProfiler()
    windows._profiler, windows.effect = profiler, make_effect(config)
    return windows


@pytest.mark.parametrize(
    ("setting", "state"),
    [
        ("governed", EffectState.REFERENCE),
        ("off", EffectState.ENDED),
        ("on_demand", EffectState.ON_DEMAND),
        ("always", None),
    ],
)
def test_each_choice_has_its_effect(setting: str, state: EffectState | None) -> None:
    effect = make_effect(read_config({"RANKSCOPE_DEVICE_WINDOWS": setting}))
    assert (None if effect is None else effect.state) is state


@pytest.mark.parametrize(("budget", "slowdown_min"), [("0.005", SLOWDOWN_MIN), ("0.5", 0.5)])
def test_a_larger_budget_allows_windows_to_slow_training_more(budget: str, slowdown_min: float) -> None:
    effect = make_effect(read_config({"RANKSCOPE_OVERHEAD_RATIO_MAX": budget}))
    assert effect is not None
    assert effect._slowdown_min == slowdown_min


@pytest.mark.parametrize(("graphs_seen", "may"), [(None, None), (True, False), (False, True)])
def test_cupti_may_be_detached_once_a_window_has_shown_no_graph(graphs_seen: bool | None, may: bool | None) -> None:
    windows = make_windows()
    windows.graphs_seen = graphs_seen
    assert windows.may_detach() is may


def test_cupti_stays_attached_after_captures_or_if_torch_cannot() -> None:
    windows = make_windows()
    windows.graphs_seen = False
    windows._captures.wrap_begin(lambda: None)()
    windows._captures.wrap_end(lambda: None)()
    assert windows.may_detach() is False
    windows = make_windows()
    windows.graphs_seen = False
    profiler: Any = windows._profiler
    profiler.can_detach = False
    assert windows.may_detach() is False


def test_the_end_of_windows_is_logged_once_with_what_was_seen(capfd: pytest.CaptureFixture[str]) -> None:
    windows = make_windows()
    assert windows.effect is not None
    windows.log_effect()
    windows.effect.state, windows.effect.attached_ratio = EffectState.ENDED, 0.336
    windows.log_effect()
    windows.log_effect()
    line = capfd.readouterr().err
    assert line.count("\n") == 1
    assert "steps were 34 % longer than before it. Whether the profiler library" in line


def test_python_without_thread_frames_has_no_lines_and_says_why(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)
    assert make_windows().sampling.find_sampler() is None
    assert "no source lines: Python without a global interpreter lock" in capfd.readouterr().err


def test_windows_that_are_off_are_not_said_to_have_ended(capfd: pytest.CaptureFixture[str]) -> None:
    make_windows(device_windows="off").log_effect()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("setting", "reduces"), [("on_demand", True), ("off", False), ("always", False)])
def test_only_a_device_in_use_has_ratios_of_captures(setting: str, reduces: bool) -> None:
    windows = make_windows(device_windows=setting)
    profiler: Any = windows._profiler
    profiler.sees_device = True
    assert windows.reduces_captures is reduces
    profiler.sees_device = False
    assert not windows.reduces_captures


def test_effect_is_that_of_a_device_in_use() -> None:
    windows = make_windows(device_windows="off")
    profiler: Any = windows._profiler
    profiler.sees_device = False
    assert windows.find_effect() is None
    profiler.sees_device = True
    assert windows.find_effect() is windows.effect is not None
