"""What a real job is told of the agent's own cost, and that a budget is kept."""

import re

from rankscope.agent.agent_thread import RARE_REPORTS_TIMES
from rankscope.agent.governor import (
    AGENT_THREAD,
    DROP_ORDER,
    FREQUENT_REPORTS,
    FULL_WINDOWS,
    HEAD_START_NS,
    HOST_SAMPLES,
    LIGHT_WINDOWS,
    STEP_HOOKS,
)
from rankscope.agent.profiler.window_plan import FULL_COST_ASSUMED_NS
from rankscope.measure.messages import Report
from rankscope.measure.units import ns_to_s
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, ALONE, OFTEN, SCRIPTS, Forked, forked_ranks, python, run

SCARCE = 0.002
"""40 ms of head start: less than a full window is taken for before one was paid, enough for light ones."""


def watch(**environment: str) -> list[Life]:
    """The lives of a job of two ranks, with a report every 0.1 s."""
    with listening() as collector:
        settings = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, **environment}
        ended = run(forked_ranks(2, *AGENT, "small_ddp.py"), settings)
        assert (ended.exit_code, ended.left) == (0, ())
        return collector.lives


def costs_of(reports: list[Report], part: str) -> list[int]:
    return [report.cost.part_ns[part] for report in reports if part in report.cost.part_ns]


def test_every_part_that_works_tells_its_time_which_only_grows() -> None:
    for life in watch():
        for part in (STEP_HOOKS, LIGHT_WINDOWS, FULL_WINDOWS, AGENT_THREAD, HOST_SAMPLES):
            told_ns = costs_of(life.reports, part)
            assert told_ns[-1] > 0, part
            assert told_ns == sorted(told_ns), part
        last = life.reports[-1]
        assert last.cost.dropped == dict.fromkeys((part for part, *_ in DROP_ORDER), False)
        assert last.overhead_ratio is not None
        assert last.overhead_ratio > 0


def test_young_job_on_a_small_budget_has_no_full_window() -> None:
    assert SCARCE * HEAD_START_NS < FULL_COST_ASSUMED_NS
    for life in watch(RANKSCOPE_OVERHEAD_RATIO_MAX=str(SCARCE)):
        assert life.breakdowns == []
        assert costs_of(life.reports, FULL_WINDOWS)[-1] == 0
        assert len(life.steps) == 40, "steps are seen all the same"


def test_agent_above_budget_reports_less_often_but_every_step() -> None:
    with listening() as collector:
        settings = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, "RANKSCOPE_OVERHEAD_RATIO_MAX": "0.0001"}
        ended = run(Forked((*AGENT, "overspending.py")), settings)
        assert (ended.exit_code, ended.left) == (0, ())
        (life,) = collector.lives
    rare = [report.host_ns for report in life.reports if report.cost.dropped[FREQUENT_REPORTS]]
    interval_s = RARE_REPORTS_TIMES * float(OFTEN["RANKSCOPE_REPORT_INTERVAL_S"])
    assert len(rare) > 3
    # In the first it is decided, the second has its time by then, and the last is that of the end.
    assert len(rare) - 3 <= ns_to_s(rare[-1] - rare[0]) / interval_s
    assert len(life.steps) == overspending_steps()


def test_what_reads_windows_is_not_loaded_where_there_are_none() -> None:
    with listening() as collector:
        no_windows = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": "0"}
        settings = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint, **no_windows}
        ended = run(python(*AGENT, "windowless.py"), settings)
        assert (ended.exit_code, ended.left) == (0, ())
        (life,) = collector.lives
    assert len(life.steps) == 5
    loaded = set(ended.stdout.split())
    assert "rankscope.agent.agent_thread" in loaded
    assert not {"rankscope.agent.profiler.reduction_process", "rankscope.measure.kineto"} & loaded


def test_heap_left_free_by_windows_returns_to_the_kernel() -> None:
    """The script leaves 64 MiB of holes itself, 32 KiB each, all at once."""
    held: dict[str, int] = {}
    for windows in ("1", "0"):
        off = {"RANKSCOPE_FULL_WINDOWS": "0", "RANKSCOPE_COLLECTIVE_WINDOWS": windows}
        ended = run(python(*AGENT, "leaving_holes.py"), {**OFTEN, **ALONE, **off})
        assert (ended.exit_code, ended.left) == (0, ())
        before, after = map(int, ended.stdout.split())
        held[windows] = after - before
    assert held["1"] < -48 * 2**20
    assert held["0"] > -16 * 2**20, "without windows nothing is left by them, and the heap is the script's own"


def overspending_steps() -> int:
    """How many steps the script says that it makes."""
    found = re.search(r"^STEPS, .* = (\d+),", (SCRIPTS / "overspending.py").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
