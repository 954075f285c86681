"""Traces that are made to take long: what grows with the square of something in them is refused."""

import json
from pathlib import Path
from typing import Any

from rankscope.collector.traces import analyze
from rankscope.collector.traces.rank_analysis import DEVICES_MAX, STEPS_MAX


def write(path: Path, events: list[dict[str, Any]]) -> str:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return str(path)


def test_more_devices_than_a_machine_has_are_refused(tmp_path: Path) -> None:
    kernels = [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": one, "tid": 7, "ts": one, "dur": 1,
         "args": {"device": one, "stream": 7}}
        for one in range(DEVICES_MAX + 1)
    ]  # fmt: skip
    (error,) = analyze(write(tmp_path / "devices.json", kernels)).errors
    assert error.reason == "it has work on 1,025 devices; a machine has at most 1,024"


def test_more_steps_than_can_be_divided_are_refused_and_some_may_be_chosen(tmp_path: Path) -> None:
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{one}",
            "pid": 1,
            "tid": 1,
            "ts": 2 * one,
            "dur": 1,
        }
        for one in range(STEPS_MAX + 1)
    ]
    path = write(tmp_path / "steps.json", steps)
    (error,) = analyze(path).errors
    assert error.reason == "it has 20,001 steps; choose some of them (--steps A:B), at most 20,000"
    assert len(analyze(path, steps=(5, 9)).ranks[0].steps) == 4
