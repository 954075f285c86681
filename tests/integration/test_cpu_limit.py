"""A container's CPU limit stops one rank of a real job; the kernel's own count of it is the truth."""

import re
from pathlib import Path

import pytest

from tests.integration.cpu_quotas import cpu_quotas, why_none
from tests.integration.listening_collector import listening
from tests.integration.torchrun import ALONE, OFTEN, Forked, started

CORES = 0.3
SCRIPT = "busy_steps.py"


def read_periods(group: Path) -> tuple[int, int]:
    found = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", (group / "cpu.stat").read_text(), re.MULTILINE))
    return int(found["nr_periods"]), int(found["nr_throttled"])


@pytest.mark.skipif(why_none() != "", reason=why_none())
def test_report_says_how_often_the_limit_stops_the_rank() -> None:
    with listening() as collector, cpu_quotas([CORES]) as (group,):
        words = (SCRIPT, str(group / "cgroup.procs"))
        environment = {**ALONE, **OFTEN, "RANKSCOPE_COLLECTOR": collector.endpoint}
        with started(Forked(words), environment) as job:
            job.wait_for_output("in the group")
            before = read_periods(group)
            assert job.wait().exit_code == 0
            after = read_periods(group)
    (life,) = collector.lives
    told = [one.host.throttled_ratio for one in life.reports if one.host is not None]
    known = [one for one in told if one is not None]
    assert known
    truth = (after[1] - before[1]) / (after[0] - before[0])
    assert truth > 0.5, "a process that computes all the time, with a third of a core"
    assert sum(known) / len(known) == pytest.approx(truth, abs=0.25)
