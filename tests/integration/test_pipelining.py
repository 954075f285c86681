"""Pipelines of torch.distributed.pipelining, four ranks over gloo: the bubble of each stage against the script's own
clock, who sets the pace, and what an even split would give.
"""

from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

import pytest

from rankscope.collector.runs.snapshot import RunSnapshot
from rankscope.collector.steps.pipeline_stages import PipelineTimes, describe_pipeline
from tests.integration.served_training import train_to_end
from tests.integration.serving import Served, serving

APART_MAX = 0.05
"""Of the pipeline's time. What the script's clock has waited for messages includes their transfer: on a busy machine
1 ms and more for each of 32, in steps of 0.9 s."""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """The standing collector of all these jobs."""
    with serving() as served:
        yield served


class Clock(NamedTuple):
    """What a rank's own clock says of a step, in ns: its pipeline, of that the work on microbatches and the waiting for
    messages, and the whole of it.
    """

    pipeline_ns: int
    work_ns: int
    wait_ns: int
    step_ns: int


def train(served: Served, run: str, schedule: str, *options: str) -> tuple[RunSnapshot, PipelineTimes, list[Clock]]:
    """Train with four ranks; what is known of the run at its end, and what the ranks' own clocks say."""
    lines, found = train_to_end(served, run, 4, "pipelining.py", schedule, "--steps", "26", *options)
    told = sorted(line.split()[1:] for line in lines if line.startswith("clock "))
    clocks = [Clock(*map(int, times)) for _, *times in told]
    assert len(clocks) == 4
    assert found.pipeline is not None
    assert found.pipeline.stages, found.pipeline.absent
    return found, found.pipeline, clocks


def wait_ratios(clocks: list[Clock]) -> list[float]:
    return [one.wait_ns / one.pipeline_ns for one in clocks]


def test_stage_with_more_work_sets_the_pace(served: Served) -> None:
    options = ("--microbatches", "8", "--work-s", "0.04", "--slow", "2", "--times", "1.5")
    run, found, clocks = train(served, "uneven", "1F1B", *options)
    announced = (found.schedule, found.stage_count, found.ranks, found.microbatches)
    assert announced == ("Schedule1F1B", 4, 4, 8)
    assert [(one.stages, one.ranks) for one in found.stages] == [((n,), (n,)) for n in range(4)]
    assert [one.bubble_ratio for one in found.stages] == pytest.approx(wait_ratios(clocks), abs=APART_MAX)
    assert found.pace == (2,)
    # Stage 2 works 8 x 2 x 60 ms = 960 ms in a step, the others 640 ms.
    assert found.margin_ns == pytest.approx(320e6, rel=0.15)
    # By the ranks' own clocks: the mean work, with the bubble of 1F1B that 4 stages and 8 microbatches have.
    outside_ns = mean(one.step_ns - one.pipeline_ns for one in clocks)
    assert found.ideal_ratio == pytest.approx(3 / 11)
    assert found.even_step_ns == pytest.approx(outside_ns + mean(one.work_ns for one in clocks) * 11 / 8, rel=0.06)
    assert describe_pipeline(found)[1].startswith("stage 2 sets the pace")
    assert [one for one in run.findings if one.ranks] == [], "more work from the first step on is no slow rank"


@pytest.mark.parametrize(
    ("schedule", "microbatches"), [("GPipe", 8), ("Interleaved1F1B", 4)], ids=["one stage a rank", "two stages a rank"]
)
def test_even_stages_have_the_bubble_of_the_schedule(served: Served, schedule: str, microbatches: int) -> None:
    options = ("--microbatches", str(microbatches), "--work-s", "0.04")
    _, found, clocks = train(served, f"even-{schedule}", schedule, *options)
    least = 3 / 11  # of both: 8 microbatches, or 4 in 2 stages a rank, and 3 ranks to wait for
    held = [(n,) if schedule == "GPipe" else (n, n + 4) for n in range(4)]
    assert [one.stages for one in found.stages] == held
    assert found.ideal_ratio == pytest.approx(least)
    ratios = [one.bubble_ratio for one in found.stages]
    assert ratios == pytest.approx(wait_ratios(clocks), abs=APART_MAX)
    assert min(ratios) > least - APART_MAX, "no schedule is better than its formula"
    assert found.pace is None
