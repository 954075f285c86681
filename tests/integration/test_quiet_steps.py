"""A real job in which a rank works before a barrier: it is known whom the others wait for, and at which line."""

import re

from rankscope.agent.captures.called_name import HAS_POSITIONS
from rankscope.measure.stalls import WAITS_FOR_RANKS, WORKS
from tests.integration.listening_collector import Life, listening
from tests.integration.torchrun import AGENT, OFTEN, SCRIPTS, forked_ranks, started

SCRIPT = "before_barrier.py"
LINES = {
    name: number
    for number, line in enumerate((SCRIPTS / SCRIPT).read_text(encoding="utf-8").splitlines(), 1)
    for name in re.findall(r"# (rank \d)", line)
}
DEADLINE_S = 120.0
LOOKS_MIN = 3
RIGHT_MIN = 0.7
"""On a busy machine a rank may be late by itself, and be met in a step of its own."""


def count_looks(life: Life) -> int:
    return sum(len(report.quiet) for report in life.reports)


def test_rank_that_works_before_a_barrier_and_the_one_that_waits_are_told_apart() -> None:
    with listening() as collector:
        environment = {**OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        with started(forked_ranks(2, *AGENT, SCRIPT, "60"), environment):
            collector.wait_until(
                lambda lives: len(lives) == 2 and all(count_looks(one) >= LOOKS_MIN for one in lives), DEADLINE_S
            )
            lives = {one.rank: one for one in collector.lives}
    works, waits = ([one for report in lives[rank].reports for one in report.quiet] for rank in (0, 1))
    in_upload = [one for one in works if one.line == f"{SCRIPT}:{LINES['rank 0']} (upload)"]
    in_barrier = [one for one in waits if one.line == f"{SCRIPT}:{LINES['rank 1']} (main)"]
    assert len(in_upload) >= RIGHT_MIN * len(works)
    assert len(in_barrier) >= RIGHT_MIN * len(waits)
    assert {one.does for one in in_barrier} == {WAITS_FOR_RANKS}
    if HAS_POSITIONS:
        assert {(one.does, one.call) for one in in_upload} == {(WORKS, "time.sleep")}
    recorded = {record.step for record in lives[0].steps}
    assert {one.step for one in in_upload[:-1]} <= recorded
    durations_ns = {record.step: record.duration_ns for record in lives[0].steps}
    assert all(durations_ns[one.step] > 500_000_000 for one in in_upload[:-1])
