"""A slow link and a slow rank at once: both are named, and nobody else."""

import pytest

from rankscope.collector.detect.finding import SLOW_LINK, STRAGGLER
from tests.simulation.faults import Fault
from tests.simulation.scenarios import LAYOUTS, build_layout
from tests.simulation.scoring import judge
from tests.simulation.world import run


def test_slow_link_of_all_ranks_hides_no_slow_rank() -> None:
    faults = (
        Fault(cause="gpu_thermal_throttle", ranks=(18,), ratio=1.5, begin=80),
        Fault(cause="slow_link", ranks=(9,), ratio=3.0, begin=67),
    )
    outcome = run(build_layout("fsdp", 24).scenario(*faults, seed=1, steps=140))
    link, rank = sorted((one.finding for one in outcome.opened), key=lambda finding: finding.kind)
    assert (link.kind, link.since_step) == (SLOW_LINK, 67)
    assert (rank.kind, rank.ranks, rank.cause, rank.since_step) == (STRAGGLER, (18,), "gpu_thermal_throttle", 80)


@pytest.mark.parametrize("slow", [5, 2])
def test_slow_link_of_a_tensor_group_hides_no_slow_rank(slow: int) -> None:
    faults = (
        Fault(cause="slow_link", ranks=(5,), ratio=2.0, begin=60),
        Fault(cause="gpu_compute", ranks=(slow,), ratio=1.3, begin=90),
    )
    judged = judge(run(LAYOUTS["tp 4 x dp 4"].scenario(*faults, seed=2, steps=130)))
    assert [(fault.found, fault.right_rank, fault.right_cause) for fault in judged.faults] == [(True, True, True)] * 2
    assert judged.false_findings == 0
