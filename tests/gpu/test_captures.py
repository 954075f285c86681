"""Captures on a real GPU: whole steps with their kernels, linked to operators and modules, and training unharmed."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankscope.agent.config import OFF
from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.report import RankReport
from tests.gpu.captures import describe_events
from tests.gpu.test_windows import SCRIPT, find_losses, needs_gpu
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, Ended, python, run

pytestmark = pytest.mark.gpu

RUN = "captured"
FIRST_STEP, LAST_STEP = 41, 43
"""After the graph of `train_on_gpu.py graph`, which is captured in step 23."""
SETTINGS = {
    "RANKSCOPE_RUN": RUN,
    "RANKSCOPE_DEVICE_WINDOWS": OFF,
    "RANKSCOPE_CAPTURE_SCHEDULE": f"skip_first={FIRST_STEP - 1}, warmup=1, active=3",
}


def capture(folder: Path, how: str, options: str = "") -> tuple[Ended, Life]:
    with listening() as collector:
        given = {"RANKSCOPE_CAPTURE_FOLDER": str(folder), "RANKSCOPE_CAPTURE_OPTIONS": options}
        environment = {**OFTEN, **ALONE, **SETTINGS, **given, "RANKSCOPE_COLLECTOR": collector.endpoint}
        ended = run(python(*AGENT, SCRIPT, how), environment)
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    assert life.losses.errors == {}
    return ended, life


def find_file(folder: Path) -> Path:
    return folder / RUN / f"steps-{FIRST_STEP}-{LAST_STEP}" / "rank-0.pt.trace.json.gz"


def read_events(folder: Path, category: str) -> list[dict[str, Any]]:
    trace = json.loads(gzip.decompress(find_file(folder).read_bytes()))
    return [event for event in trace["traceEvents"] if event.get("cat") == category]


def analyze_one(folder: Path) -> RankReport:
    (rank,) = analyze(str(find_file(folder)), modules=True).ranks
    return rank


@needs_gpu
@pytest.mark.parametrize("options", ["", "modules", "shapes, stacks, memory"])
def test_captured_kernels_are_in_the_file_and_losses_the_same(tmp_path: Path, options: str) -> None:
    plain = run(python(SCRIPT, "plain"), ALONE)
    ended, life = capture(tmp_path, "plain", options)
    assert np.allclose(find_losses(ended), find_losses(plain), rtol=1e-4)
    assert [one.step for one in life.steps if one.captured] == [*range(FIRST_STEP - 1, LAST_STEP + 2)]
    kernels = read_events(tmp_path, "kernel")
    launches = {event["args"]["correlation"] for event in read_events(tmp_path, "cuda_runtime")}
    launches |= {event["args"]["correlation"] for event in read_events(tmp_path, "cuda_driver")}
    assert kernels, describe_events(find_file(tmp_path))
    assert {event["args"]["correlation"] for event in kernels} <= launches
    rank = analyze_one(tmp_path)
    assert [step.step for step in rank.steps] == list(range(FIRST_STEP, LAST_STEP + 1))


@needs_gpu
def test_modules_have_the_device_time_of_what_they_launched(tmp_path: Path) -> None:
    capture(tmp_path, "plain", "modules")
    rank = analyze_one(tmp_path)
    rows = {row.path: row for row in rank.modules or () if row.path is not None}
    linear = [row for path, row in rows.items() if path.endswith(("Linear_0", "Linear_1"))]
    assert [row.count for row in linear] == [3, 3]
    assert all((row.device_self_ns or 0) > 0 and (row.backward_device_self_ns or 0) > 0 for row in linear)
    spent_ns = sum((row.device_self_ns or 0) + (row.backward_device_self_ns or 0) for row in rows.values())
    kernels_ns = sum(round(event["dur"] * 1000) for event in read_events(tmp_path, "kernel"))
    assert 0 < spent_ns < kernels_ns, "the loss, the copies and the optimizer are in no module"


@needs_gpu
def test_replays_of_a_graph_are_captured_and_losses_are_the_same(tmp_path: Path) -> None:
    plain = run(python(SCRIPT, "graph"), ALONE)
    ended, _ = capture(tmp_path, "graph")
    assert np.allclose(find_losses(ended), find_losses(plain), rtol=1e-4)
    if find_file(tmp_path).exists():
        assert read_events(tmp_path, "kernel"), describe_events(find_file(tmp_path))
    else:
        assert "rankscope: " in ended.stderr, "a capture that is left out says so"
