"""Recorded GPU work of real jobs, replayed by the fake GPU in every step of a job: what its reports say of the steps
equals the figures of tests/traces/reference.json, which other code has computed from the same files.
"""

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fake_gpu_jobs import find_library, settings
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import ALONE, run_forked

TRACES = Path(__file__).parents[1] / "traces"
FILES: dict[str, Any] = json.loads((TRACES / "reference.json").read_text())["files"]
OF_A_GPU = sorted(name for name, found in FILES.items() if "gpu" in found["exact"])
STEPS = 8
"""The first window of whole steps is of the 4th and 5th, and the 6th bounds it."""
FIGURES = {
    "compute_ns": "compute_us", "communication_ns": "comm_us", "overlap_ns": "overlap_us",
    "exposed_communication_ns": "exposed_comm_us", "copy_ns": "copy_us",
}  # fmt: skip


def watch(name: str) -> Life:
    with listening() as collector:
        words = ("fake_gpu_replay.py", find_library(), str(TRACES / name), "--steps", str(STEPS))
        ended = run_forked(*words, environment={**ALONE, **settings(collector.endpoint)})
    assert (ended.exit_code, ended.left) == (0, ()), ended.stderr
    (life,) = collector.lives
    return life


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, "Future[Life]"]]:
    """Each trace is replayed once, two at a time: most of what it takes is waiting for its device."""
    find_library()
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(watch, name) for name in OF_A_GPU}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", OF_A_GPU)
def test_breakdown_of_a_replayed_trace_equals_its_reference(name: str, jobs: "dict[str, Future[Life]]") -> None:
    life = jobs[name].result()
    exact = FILES[name]["exact"]
    expected = {ours: round(exact["gpu"][theirs] * 1000) for ours, theirs in FIGURES.items()}
    assert [found.first_step for found in life.breakdowns] == [4, 5]
    for found in life.breakdowns:
        assert {ours: getattr(found, ours) for ours in FIGURES} == expected
        assert found.compute_ns + found.exposed_communication_ns + found.copy_ns + found.idle_ns == found.window_ns
        assert found.operator_count == exact["gpu_counts"]["kernel"]
    assert life.losses.errors == {}
