"""Whole nodes that are slow by little, in a run of the second table: 4 of 16 nodes of eight ranks, whose GPUs are 5 %
slow. No rank of theirs stands out of its noise in every pass.
"""

import pytest

from tests.second_table import disturbances as of
from tests.second_table.disturbances import Cost, When
from tests.second_table.families import ddp, slow
from tests.second_table.judging import judge
from tests.second_table.worlds import play


@pytest.mark.parametrize("since", [0, pytest.param(60, marks=pytest.mark.rest("the same from a later step on"))])
def test_slow_nodes_are_one_finding_with_their_cost(since: int) -> None:
    layout, model = ddp(128, step_ms=250)
    who = layout.on_nodes(range(1, 5))
    cost = Cost(part=of.KERNEL, ranks=who, when=When(begin=since), share=0.045)
    collected = play(slow("set of nodes", "4 of 16 nodes", (layout, model), cost, since + 100, pass_s=4))
    (finding,) = collected.findings
    assert (finding.ranks, len(finding.nodes)) == (tuple(sorted(who)), 4)
    found = judge(collected)
    assert found.lost is not None
    assert found.lost[0] == pytest.approx(found.lost[1], rel=0.2)
    assert (found.false_findings, found.wrongs) == ((), ())
