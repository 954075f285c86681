"""Check the full windows of simulated ranks: which steps they have, across reports and where steps are lost."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from rankscope.agent.steps.step_intervals import find_chosen
from rankscope.measure.codec import decode
from rankscope.measure.messages import Report
from tests.simulation.engine import Engine, Step
from tests.simulation.noise import Noise, Weather
from tests.simulation.program import Program, Work
from tests.simulation.ranks import FULL_INTERVAL_STEPS, FULL_STEPS, SimulatedRank, Windows
from tests.simulation.topology import Topology

ALONE = Topology.mesh(dp=1)
STEPS = 4096


@pytest.fixture(scope="module")
def step() -> Step:
    kinds = ("read", "host", "kernel")
    program: Program = [Work(kind, "forward", np.array([0]), np.array([10])) for kind in kinds]
    return Engine(ALONE, program).run_step(Weather(Noise(), ALONE, 10, np.random.default_rng(0)).draw(0))


def report(step: Step, begins: Sequence[int], steps: int, windows: Windows = Windows()) -> list[Report]:  # noqa: B008
    """Return reports of so many steps each."""
    rank = SimulatedRank(0, ALONE, ALONE.describe_groups()[0], windows=windows)
    found = [decode(rank.report(begin, steps * [step], steps * [[]])) for begin in begins]
    return [one for one in found if isinstance(one, Report)]


def windows_of(reports: Sequence[Report]) -> list[int]:
    """Return the first steps of windows, each of two steps that are broken down one by one."""
    begins = [window.first_step for one in reports for window in one.synchronizations]
    assert {window.step_count for one in reports for window in one.synchronizations} <= {FULL_STEPS}
    steps = [window.first_step for one in reports for window in one.breakdowns]
    assert steps == [begin + ahead for begin in begins for ahead in range(FULL_STEPS)]
    return begins


def test_windows_begin_where_those_of_the_agent_do(step: Step) -> None:
    begins = windows_of(report(step, range(0, STEPS, 8), 8))
    chosen = [find_chosen(block, FULL_INTERVAL_STEPS) for block in range(STEPS // FULL_INTERVAL_STEPS)]
    assert set(begins) <= set(chosen)
    assert all(after - before > FULL_STEPS for before, after in itertools.pairwise(begins))
    assert len(begins) >= 0.9 * len(chosen)  # of two close ones there is one


def test_windows_do_not_hang_on_where_reports_end(step: Step) -> None:
    assert windows_of(report(step, range(0, 512, 8), 8)) == windows_of(report(step, range(0, 512, 1), 1))


def test_window_with_a_lost_step_is_lost(step: Step) -> None:
    begin = find_chosen(1, FULL_INTERVAL_STEPS)
    assert windows_of(report(step, (begin, begin + 1), 1)) == [begin]
    assert windows_of(report(step, (begin, begin + 2), 1)) == []


def test_no_window_begins_after_the_end(step: Step) -> None:
    begins = windows_of(report(step, range(0, 512, 8), 8, Windows(end=100)))
    assert 80 < max(begins) < 100
