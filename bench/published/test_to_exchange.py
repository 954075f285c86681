"""A recorded job in the format of docs/scoring.md: what each column is, by a job made by hand, and the three jobs."""

import os
from pathlib import Path

import numpy as np
import pytest

from bench.published.straggler_jobs import Job, Operation
from bench.published.test_straggler_jobs import pytestmark as needs_traces
from bench.published.to_exchange import LABELS, build_columns, import_jobs
from tests.simulation.exchange import read_answers, read_steps, score, write_columns

STEP = [
    [Operation("forward-compute", 0, 30), Operation("forward-send", 30, 5), Operation("backward-compute", 40, 50),
     Operation("grads-reduce-scatter", 90, 20), Operation("optimizer", 110, 10)],
    [Operation("forward-compute", 0, 60), Operation("backward-compute", 60, 100), Operation("optimizer", 160, 15)],
]  # fmt: skip
"""Two workers: the second one ends the step, at 175."""


def test_columns_are_sums_of_the_operations(tmp_path: Path) -> None:
    path = tmp_path / "job.csv.gz"
    write_columns(path, list(build_columns(Job([STEP, STEP], stages=[0, 1], data_indices=[0, 0])).values()))
    found = {name: values.tolist() for name, values in read_steps(path).items()}
    assert found == {
        "step_ns": [[175, 175]] * 2, "data_ns": [[0, 0]] * 2, "forward_ns": [[30, 60]] * 2,
        "backward_ns": [[50, 100]] * 2, "optimizer_ns": [[10, 15]] * 2, "communication_ns": [[25, 0]] * 2,
        "kernel_ns": [[90, 175]] * 2,
    }  # fmt: skip


@pytest.mark.skipif(needs_traces[0].args[0] or needs_traces[1].args[0], reason="as in test_straggler_jobs.py")
def test_our_answers_on_recorded_jobs_find_only_the_fault(tmp_path: Path) -> None:
    data = import_jobs(Path(os.environ["PUBLISHED_TRACES"]), tmp_path)
    assert [(run.name, run.world_size, len(run.faults)) for run in data.runs] == [
        ("AR", 16, 1), ("ST", 8, 0), ("SE", 64, 0),
    ]  # fmt: skip
    result = score(data, read_answers(tmp_path / "answers-rankscope.json", data))
    assert (result.faults, result.found, result.exact, result.answers, result.false) == (1, 1, 1, 1, 0)
    kernel_ns = read_steps(tmp_path / "AR.csv.gz")["kernel_ns"]
    peers_ns = np.median(kernel_ns[:, 1:4], axis=1)  # the others of its stage
    assert np.median(kernel_ns[:, 0] / peers_ns) == pytest.approx(LABELS["AR"][1][0].ratio, abs=0.05)
