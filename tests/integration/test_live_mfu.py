"""Live MFU of two ranks with gloo, against the FLOPs counted by hand and the step times that the script measured."""

import json
from pathlib import Path

import pytest

from rankscope.collector.runs.snapshot import RankSnapshot
from tests.integration.serving import Served, find_rank, read_url, serving, wait_for
from tests.integration.test_live_metrics import find_values
from tests.integration.torchrun import forked_ranks, name_job, started

RANKS = 2
PEAK_TFLOPS = 0.1
FLOPS_PER_STEP = 2 * 2 * 3 * 2 * 64 * 256 * 256
"""Two micro-batches through two layers, three products each (one forward, two backward) of 64 x 256 and 256 x 256."""
TOLERANCE = 0.01


def wait_for_all_steps(served: Served, run: str, folder: Path) -> dict[int, float]:
    """Return the MFU of each rank by the script's own clock, once the page has all of its steps."""
    files = [folder / f"{rank}.json" for rank in range(RANKS)]
    wait_for(lambda: True if all(file.exists() for file in files) else None, served.read_metrics)
    own = {rank: json.loads(file.read_text()) for rank, file in enumerate(files)}
    for rank, timed in own.items():

        def has_all(found: RankSnapshot, flops: float = timed["steps"] * FLOPS_PER_STEP) -> bool:
            return found.totals.model_flops == flops

        served.wait_for_rank(run, rank, has_all)
    return {
        rank: FLOPS_PER_STEP * timed["steps"] / timed["elapsed_s"] / (PEAK_TFLOPS * 1e12) for rank, timed in own.items()
    }


def test_live_mfu_is_declared_flops_over_step_time_over_peak(tmp_path: Path) -> None:
    run = name_job()
    settings = {
        "RANKSCOPE_RUN": run, "RANKSCOPE_PEAK_TFLOPS": str(PEAK_TFLOPS), "RANKSCOPE_REPORT_INTERVAL_S": "0.2",
        "RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0",
    }  # fmt: skip
    command = forked_ranks(RANKS, "-m", "rankscope.agent", "declared_flops.py", str(tmp_path))
    with (
        serving("--store", str(tmp_path / "store.db")) as served,
        started(command, {**settings, "RANKSCOPE_COLLECTOR": served.endpoint}) as job,
    ):
        expected = wait_for_all_steps(served, run, tmp_path)
        shown = served.read_run(run)
        assert shown is not None
        page = wait_for(lambda: find_mfu_page(served, expected, run), served.read_metrics)
        live = json.loads(read_url(f"{served.url}/api/v1/runs/{run}/ranks?order=rank"))["ranks"]
        (tmp_path / "stop").touch()
        assert job.wait().exit_code == 0
    for rank, mfu in expected.items():
        assert find_rank(shown, rank).flops.mfu == pytest.approx(mfu, rel=TOLERANCE)
        assert page["rankscope_mfu_ratio", of_rank(run, rank)] == pytest.approx(mfu, rel=TOLERANCE)
        assert live[rank]["mfu_ratio"] == pytest.approx(mfu, rel=TOLERANCE)
    of_run = frozenset({("run", run)})
    assert page["rankscope_run_mfu_ratio", of_run] == pytest.approx(sum(expected.values()) / RANKS, rel=TOLERANCE)
    assert page["rankscope_run_model_flops_per_step", of_run] == RANKS * FLOPS_PER_STEP
    assert "rankscope_hfu_ratio" not in {name for name, _ in page}  # nothing has measured executed FLOPs


def of_rank(run: str, rank: int) -> frozenset[tuple[str, str]]:
    return frozenset({("run", run), ("rank", str(rank))})


def find_mfu_page(
    served: Served, expected: dict[int, float], run: str
) -> dict[tuple[str, frozenset[tuple[str, str]]], float] | None:
    """Return the gauges of the page once it has all steps; the page is a tick behind the API."""
    page = served.read_metrics()
    totals = find_values(page, "counter")
    flops = [totals.get(("rankscope_model_flops_total", of_rank(run, rank))) for rank in expected]
    return find_values(page, "gauge") if flops == [100 * FLOPS_PER_STEP] * RANKS else None
