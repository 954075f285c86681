"""Check the judge with constructed findings."""

import numpy as np
import pytest

from rankscope.collector.detect.finding import Finding
from tests.simulation.busy import Busy
from tests.simulation.collector_end import Opened
from tests.simulation.faults import Fault
from tests.simulation.scoring import Judged, judge, summarize
from tests.simulation.topology import Topology
from tests.simulation.world import Death, Outcome, Scenario

MESH = Topology.mesh(pp=2, dp=8)
"""Stage 0 is ranks 0 to 7 on node0000, stage 1 is ranks 8 to 15 on node0001."""
EVERYBODY = tuple(range(16))
SLOW = Fault(cause="host_cpu", ranks=(3,), ratio=1.3, begin=50)
CAUSES = ("host_cpu", "gpu_compute")
LINK = Fault(cause="slow_link", ranks=(3,), ratio=1.3, begin=50)


def finding(kind: str = "straggler", cause: str = "host_cpu", **fields: object) -> Finding:
    return Finding(kind=kind, cause=cause, sentence="", **fields)  # type: ignore[arg-type]


def judge_of(*findings: Finding, faults: tuple[Fault, ...] = (SLOW,), at_step: int = 64) -> Judged:
    scenario = Scenario(topology=MESH, kind="pp", faults=faults, steps=100)
    opened = [Opened(one, at_step, None) for one in findings]
    return judge(Outcome(scenario, opened, None, np.ones((100, 16))))


def test_finding_that_names_the_slow_rank_and_its_cause_is_right() -> None:
    judged = judge_of(finding(ranks=(3,), since_step=52))
    (fault,) = judged.faults
    assert (fault.found, fault.right_rank, fault.right_cause, fault.right_pattern) == (True, True, True, True)
    assert (fault.since_error_steps, fault.delay_steps) == (2, 14)
    assert (judged.right_findings, judged.false_findings, judged.rank_steps) == (1, 0, 100 * 15)


def test_victim_is_a_false_finding_and_the_fault_stays_unfound() -> None:
    judged = judge_of(finding(ranks=(4,)))
    assert (judged.faults[0].found, judged.false_findings) == (False, 1)


def test_victim_named_with_the_culprit_makes_the_finding_false() -> None:
    judged = judge_of(finding(ranks=(3, 4)))
    (fault,) = judged.faults
    assert (fault.found, fault.right_rank) == (True, False)
    assert (judged.right_findings, judged.false_findings) == (0, 1)


@pytest.mark.parametrize(
    ("cause", "busy", "false_findings"),
    [("core_wait", None, 0), ("host_cpu", Busy(share=0.1), 0), ("host_cpu", None, 1)],
)
def test_busy_machines_are_true_where_ranks_wait_for_cores(cause: str, busy: Busy | None, false_findings: int) -> None:
    fault = Fault(cause=cause, ranks=(3,), ratio=1.3, begin=50)
    scenario = Scenario(topology=MESH, kind="pp", faults=(fault,), steps=100, busy=busy)
    opened = [Opened(finding("cpu_pressure", "cpu_pressure", nodes=("node0000",)), 64, None)]
    judged = judge(Outcome(scenario, opened, None, np.ones((100, 16))))
    assert (judged.faults[0].found, judged.right_findings, judged.false_findings) == (False, 0, false_findings)


def test_cause_is_right_by_the_name_that_findings_give_it() -> None:
    fault = Fault(cause="other_threads", ranks=(3,), ratio=1.3, begin=50)
    assert judge_of(finding(ranks=(3,)), faults=(fault,)).faults[0].right_cause
    assert not judge_of(finding(cause="unseen_wait", ranks=(3,)), faults=(fault,)).faults[0].right_cause


def test_finding_from_before_the_fault_is_false() -> None:
    judged = judge_of(finding(ranks=(3,)), at_step=48)
    assert (judged.faults[0].found, judged.false_findings) == (False, 1)


@pytest.mark.parametrize(
    ("findings", "right_rank"),
    [
        ((finding(nodes=("node0001",)),), True),
        (tuple(finding(ranks=(rank,)) for rank in range(8, 16)), True),
        (tuple(finding(ranks=(rank,)) for rank in range(8, 15)), False),
    ],
)
def test_slow_node_is_named_by_its_name_or_by_all_its_ranks(findings: tuple[Finding, ...], right_rank: bool) -> None:
    node = Fault(cause="host_cpu", ranks=MESH.ranks_on_node(1), ratio=1.3, begin=50)
    judged = judge_of(*findings, faults=(node,))
    assert (judged.faults[0].right_rank, judged.false_findings) == (right_rank, 0)


def test_slow_stage_may_be_named_by_some_of_its_ranks() -> None:
    stage = Fault(cause="gpu_compute", ranks=MESH.ranks_in_stage(0), ratio=1.3, begin=50)
    judged = judge_of(finding("stage_slowdown", ranks=(0,)), faults=(stage,))
    assert (judged.faults[0].right_rank, judged.false_findings) == (True, 0)


def test_slow_run_is_found_by_a_finding_about_the_run_only() -> None:
    all_ranks = Fault(cause="host_cpu", ranks=EVERYBODY, ratio=1.3, begin=50)
    assert judge_of(finding("run_slowdown"), faults=(all_ranks,)).faults[0].right_rank is True
    one_blamed = judge_of(finding(ranks=(3,)), faults=(all_ranks,))
    assert (one_blamed.faults[0].found, one_blamed.false_findings) == (False, 1)


def test_slow_link_is_found_by_a_group_that_holds_its_rank() -> None:
    right = judge_of(finding("slow_link", "slow_link", group="mesh_dp/0-7"), faults=(LINK,))
    assert (right.faults[0].right_rank, right.faults[0].right_cause, right.false_findings) == (True, True, 0)
    wrong = judge_of(finding("slow_link", "slow_link", group="mesh_dp/8-15"), faults=(LINK,))
    assert (wrong.faults[0].found, wrong.false_findings) == (False, 1)


def test_link_with_right_group_and_wrong_suspect_is_false() -> None:
    suspected = finding("slow_link", "slow_link", group="mesh_dp/0-7", ranks=(4,))
    judged = judge_of(suspected, faults=(LINK,))
    assert (judged.faults[0].found, judged.false_findings) == (False, 1)


def test_group_link_is_not_about_a_rank_in_it_slow_by_itself() -> None:
    slow = Fault(cause="gpu_compute", ranks=(5,), ratio=1.3, begin=50)
    link = finding("slow_link", "slow_link", group="mesh_dp/0-7", ranks=tuple(range(8)))
    judged = judge_of(link, finding(ranks=(5,), cause="gpu_compute"), faults=(LINK, slow))
    assert [(fault.right_rank, fault.right_cause, fault.findings) for fault in judged.faults] == [(True, True, 1)] * 2
    assert judged.false_findings == 0


def test_link_blamed_for_a_slow_rank_is_false() -> None:
    assert judge_of(finding("slow_link", "slow_link", group="mesh_dp/0-7")).false_findings == 1


def test_slower_run_is_false_only_without_a_fault() -> None:
    assert judge_of(finding("run_slowdown")).false_findings == 0
    assert judge_of(finding("run_slowdown"), faults=()).false_findings == 1


def test_information_is_false_only_when_it_blames_a_rank() -> None:
    assert judge_of(finding("uneven_work", severity="info"), faults=()).false_findings == 0
    assert judge_of(finding("uneven_work", severity="info", ranks=(1,)), faults=()).false_findings == 1


@pytest.mark.parametrize(("ranks", "false_findings"), [((8, 9, 10), 0), ((0, 1), 1), ((7, 8), 1)])
def test_imbalance_is_true_of_the_stage_with_more_work(ranks: tuple[int, ...], false_findings: int) -> None:
    scenario = Scenario(topology=MESH, kind="pp", faults=(SLOW,), stage_shares=(0.9, 1.1))
    opened = [Opened(finding("imbalance", "more_work", ranks=ranks), 64, None)]
    judged = judge(Outcome(scenario, opened, None, np.ones((200, 16))))
    assert (judged.faults[0].found, judged.right_findings, judged.false_findings) == (False, 0, false_findings)


def test_hang_is_right_only_for_the_rank_that_died() -> None:
    scenario = Scenario(topology=MESH, kind="pp", death=Death(rank=3, step=50))
    for ranks, false_findings in (((3,), 0), ((), 0), ((4,), 1)):
        opened = [Opened(finding("hang", "dead_rank", ranks=ranks), 64, None)]
        assert judge(Outcome(scenario, opened, None, np.ones((50, 16)))).false_findings == false_findings


def test_two_faults_are_judged_each_by_its_own() -> None:
    second = Fault(cause="data_loading", ranks=(9,), ratio=1.3, begin=50)
    judged = judge_of(finding(ranks=(3,)), finding(ranks=(9,)), faults=(SLOW, second))
    assert [fault.right_rank for fault in judged.faults] == [True, True]
    assert [fault.right_cause for fault in judged.faults] == [True, False]


@pytest.mark.parametrize(
    ("begins", "closed_step", "is_found"),
    [((50, 70), None, True), ((50, 70), 68, False), ((50, 64), None, True), ((70, 70), None, False)],
)
def test_slowness_that_changes_is_found_already(
    begins: tuple[int, int], closed_step: int | None, is_found: bool
) -> None:
    first, second = (
        Fault(cause=cause, ranks=(3,), ratio=1.3, begin=begin) for cause, begin in zip(CAUSES, begins, strict=True)
    )
    scenario = Scenario(topology=MESH, kind="pp", faults=(first, second), steps=100)
    opened = [Opened(finding(ranks=(3,), since_step=50), 64, closed_step)]
    changed = judge(Outcome(scenario, opened, None, np.ones((100, 16)))).faults[1]
    assert changed.found == is_found
    if is_found:
        assert (changed.right_rank, changed.right_cause, changed.right_pattern) == (True, True, True)
        assert (changed.since_error_steps, changed.delay_steps) == (None, None)


def test_summary_counts_over_runs() -> None:
    row = summarize([judge_of(finding(ranks=(3,)), finding(ranks=(5,))), judge_of(), judge_of(faults=())])
    assert (row.runs, row.faults, row.recall, row.precision) == (3, 2, 0.5, 0.5)
    # One false finding in 15 + 15 + 16 ranks' 100 steps each.
    assert row.false_per_million == pytest.approx(1e6 / 4600)
