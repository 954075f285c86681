"""Verdicts about three recorded jobs of others, where their files are at hand (see straggler_jobs.py):

PUBLISHED_TRACES=FOLDER pytest bench/published        with pyarrow installed
"""

import importlib.util
import os
from functools import cache
from pathlib import Path

import pytest

from bench.published.straggler_jobs import describe, find_findings, read_job, read_slowdown
from rankscope.collector.detect.finding import STRAGGLER, Finding

FOLDER = os.environ.get("PUBLISHED_TRACES", "")
IMBALANCE, UNEVEN = "imbalance", "uneven_work"
COST_TOLERANCE = 0.05
"""Of the step."""

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="PUBLISHED_TRACES does not name the folder of the traces"),
    pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow, which reads them, is not there"),
]


@cache
def findings_of(name: str) -> tuple[Finding, ...]:
    return tuple(find_findings(read_job(Path(FOLDER) / f"trace-{name}.parquet")))


def test_only_the_worker_that_was_slowed_is_a_straggler() -> None:
    """AR: an artificial slowdown of one worker of 4 stages x 4; its compute takes 2.36 times that of its peers."""
    found = findings_of("AR")
    assert [(one.kind, one.ranks) for one in found] == [(STRAGGLER, (0,))], describe(list(found))
    assert found[0].slowdown_ratio == pytest.approx(2.36, abs=0.05)


def test_cost_of_the_slowed_worker_is_the_published_one() -> None:
    (straggler,) = findings_of("AR")
    published = read_slowdown(Path(FOLDER) / "result-AR.json")
    assert straggler.run_slowdown_ratio is not None
    assert 1 / straggler.run_slowdown_ratio == pytest.approx(1 / published, abs=COST_TOLERANCE)


def test_long_last_stage_of_a_small_pipeline_is_an_imbalance() -> None:
    """ST: 4 stages x 2, the last one computes 1.37 s of a step, the others 0.84."""
    found = findings_of("ST")
    assert [(one.kind, one.ranks) for one in found] == [(IMBALANCE, (6, 7))], describe(list(found))


def test_uneven_sequences_blame_nobody() -> None:
    """SE: each step another of 64 workers is the slowest; beside that the last stage has more work."""
    found = findings_of("SE")
    assert {one.kind for one in found} <= {IMBALANCE, UNEVEN}, describe(list(found))
    assert any(one.kind == UNEVEN for one in found)
