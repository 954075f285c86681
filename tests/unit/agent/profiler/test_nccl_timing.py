"""Torch's timing of NCCL's collectives: when the variable is set, and what is said."""

from types import SimpleNamespace

import pytest
import torch
from torch._C import _distributed_c10d as c10d

from rankscope.agent.config import AUTO, MEASURED, OFF, ON
from rankscope.agent.profiler.nccl_timing import (
    SET_VARIABLE,
    TIMING_VARIABLE,
    describe_timing,
    describe_too_late,
    enable_timing,
    find_obstacle,
    find_ring_entries,
    is_timing,
    may_read,
)

SET = {TIMING_VARIABLE: "1", SET_VARIABLE: "1"}


@pytest.fixture
def with_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch of the first version known to have durations by default, with NCCL."""
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", SimpleNamespace, raising=False)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")


def enabled(choice: str, environment: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment afterwards, less what was in it unchanged."""
    before = environment or {}
    after = dict(before)
    assert enable_timing(choice, after) is (after != before)
    return {name: value for name, value in after.items() if before.get(name) != value}


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(("choice", "expected"), [(AUTO, SET), (ON, SET), (MEASURED, {}), (OFF, {})])
def test_variable_is_set_by_the_setting(choice: str, expected: dict[str, str]) -> None:
    assert enabled(choice) == expected


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize("choice", [AUTO, ON, OFF])
@pytest.mark.parametrize("value", ["0", "1", ""])
def test_value_of_the_user_stays(choice: str, value: str) -> None:
    assert enabled(choice, {TIMING_VARIABLE: value}) == {}


def test_torch_without_nccl_is_left_alone_by_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(c10d, "ProcessGroupNCCL", raising=False)
    assert (enabled(AUTO), enabled(ON)) == ({}, SET)


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(
    ("version", "ring", "expected"),
    [
        ("2.10.1", {}, {}),
        ("2.10.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, SET),
        ("2.10.1", {"TORCH_FR_BUFFER_SIZE": "2000"}, {}),
        ("2.10.1", {"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, SET),
        ("2.10.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, {}),
        ("2.5.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, {}),
        ("2.11.0", {"TORCH_FR_BUFFER_SIZE": "0"}, {}),
        ("2.11.0", {"TORCH_FR_BUFFER_SIZE": "no number"}, SET),
        ("3.0", {}, SET),
        ("main", {}, {}),
    ],
)
def test_auto_needs_a_recorder_that_is_on(
    monkeypatch: pytest.MonkeyPatch, version: str, ring: dict[str, str], expected: dict[str, str]
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert enabled(AUTO, ring) == expected


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize("choice", [AUTO, ON])
def test_timing_needs_the_cache_of_events(choice: str) -> None:
    assert enabled(choice, {"TORCH_NCCL_CUDA_EVENT_CACHE": "0"}) == {}
    assert enabled(choice, {"TORCH_NCCL_CUDA_EVENT_CACHE": "1"}) == SET


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(
    ("version", "changes", "expected"),
    [
        ("2.6.0", {}, True),
        ("2.13.0+cu130", {"TORCH_NCCL_CUDA_EVENT_CACHE": "1"}, True),
        ("2.5.1", {}, False),
        ("main", {}, False),
        ("2.11.0", {"TORCH_NCCL_CUDA_EVENT_CACHE": "FALSE"}, False),
        ("2.11.0", {TIMING_VARIABLE: "0"}, True),
        ("2.10.0", {TIMING_VARIABLE: "0"}, False),
        ("2.10.0", {TIMING_VARIABLE: "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, True),
        ("2.11.0", {TIMING_VARIABLE: "0", "TORCH_NCCL_CUDA_EVENT_CACHE": "0"}, False),
    ],
)
def test_recorder_is_read_where_it_is_on_and_that_is_safe(
    monkeypatch: pytest.MonkeyPatch, version: str, changes: dict[str, str], expected: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert may_read({TIMING_VARIABLE: "1", **changes}) is expected


@pytest.mark.usefixtures("with_nccl")
def test_timing_needs_a_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        monkeypatch.delattr(c10d, name, raising=False)
    assert (enabled(AUTO), enabled(ON)) == ({}, {})


@pytest.mark.usefixtures("with_nccl")
@pytest.mark.parametrize(
    ("version", "environment", "expected"),
    [
        ("2.11.0", {}, None),
        ("2.10.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, None),
        ("2.10.1", {}, "this torch has no NCCL, or no flight recorder that is known to be on"),
        (
            "2.11.0",
            {"TORCH_FR_BUFFER_SIZE": "0"},
            "this torch has no NCCL, or no flight recorder that is known to be on",
        ),
        ("2.5.1", {}, "reading the durations is not safe with this torch, or without its event cache"),
    ],
)
def test_obstacles_to_measured_timing_are_those_of_auto(
    monkeypatch: pytest.MonkeyPatch, version: str, environment: dict[str, str], expected: str | None
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert find_obstacle(environment) == expected
    assert (enabled(AUTO, environment) == SET) is (expected is None)


def test_variable_is_read_as_torch_does() -> None:
    assert [is_timing({TIMING_VARIABLE: text}) for text in ("1", "TRUE", "y", "0", "")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not is_timing({})


def test_size_of_the_ring_is_that_of_the_newer_variable() -> None:
    assert find_ring_entries({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "TORCH_FR_BUFFER_SIZE": "7"}) == 7


def test_what_is_said_has_value_cost_and_cure() -> None:
    assert describe_timing(SET) == (
        "NCCL's collectives are timed (TORCH_NCCL_ENABLE_TIMING=1), which costs 2.5 to 3.7 us a collective on an H200. "
        "To switch it off: RANKSCOPE_NCCL_TIMING=off (docs/cost.md)."
    )
    assert describe_timing({TIMING_VARIABLE: "TRUE"}) == (
        "NCCL's collectives are timed (TORCH_NCCL_ENABLE_TIMING=TRUE), which costs 2.5 to 3.7 us a collective on an "
        "H200. The job set the variable itself; RANKSCOPE_NCCL_TIMING=off stops rankscope from reading the durations "
        "(docs/cost.md)."
    )
    assert describe_too_late().startswith("NCCL's collectives are not timed: the agent was started after init_process")


def test_text_about_untimed_collectives_has_the_cure() -> None:
    assert describe_timing({TIMING_VARIABLE: "0"}) == (
        "NCCL's collectives are not timed (TORCH_NCCL_ENABLE_TIMING was 0). When ranks enqueue some of them is read "
        "from torch's flight recorder instead; RANKSCOPE_NCCL_TIMING=off stops that (docs/cost.md)."
    )
    assert "(TORCH_NCCL_ENABLE_TIMING was not set in time)" in describe_timing({})
