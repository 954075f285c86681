"""The report and its text, from results made by hand."""

import pytest

from rankscope.agent.preflight.checks import CPU, MEMORY, PAIRS, NodeCheck, list_checks
from rankscope.agent.preflight.command import build_report
from rankscope.agent.preflight.judgement import Judgement
from rankscope.agent.preflight.results import EXIT_STATUS, Measured, PreflightReport, RankResults, Slow
from rankscope.agent.preflight.runner import Results
from rankscope.agent.preflight.text import build_sentence, describe_slow, render

CHECKS = {check.name: check for check in list_checks(CPU)}
MATMUL = "matmul_float32"


def make_result(
    rank: int, rate: float, share: float = 0.9, *, faults: tuple[str, ...] = (), notes: tuple[str, ...] = ()
) -> RankResults:
    return RankResults(
        rank=rank, local_rank=0, node=f"node-{rank}", kind=CPU, device="EPYC", cpu_share=share,
        checks={MATMUL: Measured(values=(rate,)), MEMORY: Measured(absent="out of memory")},
        faults=list(faults), notes=list(notes),
    )  # fmt: skip


def make_slow(check: str = MATMUL, rank: int | None = 1, other: str = "", *, is_past: bool = False) -> Slow:
    return Slow(
        check=check, node="node-1", rank=rank, own=5.0, against=20.0, peers=3, ratio=0.25, deviations=9.0,
        is_past=is_past, other=other,
    )  # fmt: skip


def conclude(ranks: list[RankResults], *slow: Slow, compared: tuple[str, ...] = ("matmul float32",)) -> PreflightReport:
    judgement = Judgement(slow, compared, {"memory bandwidth": "no values"})
    checks: tuple[NodeCheck, ...] = tuple(CHECKS.values())
    return build_report(Results(ranks=ranks, judgement=judgement, checks=checks, left_out=()), 3.0, ["a mistake"])


def test_slow_rank_is_described_with_its_share_of_the_cpu() -> None:
    ranks = [make_result(0, 20.0), make_result(1, 5.0, share=0.2), make_result(2, 20.0, share=0.8)]
    assert describe_slow(make_slow(), CHECKS[MATMUL], ranks) == (
        "matmul float32 of rank 1: 5 GFLOP/s against 20 of its 3 peer ranks (0.25 of that), both times; "
        "its threads ran for 0.20 of the time, those of others for 0.85: other processes, or a limit of CPU time, "
        "may be why"
    )


def test_share_of_the_cpu_as_the_others_is_said_too() -> None:
    ranks = [make_result(0, 20.0), make_result(1, 5.0)]
    assert describe_slow(make_slow(), CHECKS[MATMUL], ranks).endswith(
        "its threads ran for 0.90 of the time, as those of others"
    )


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        (
            make_slow(PAIRS, None),
            "exchange with other nodes: 5 GB/s against 20 of its 3 peer nodes (0.25 of that), both times",
        ),
        (
            make_slow(PAIRS, None, "node-2"),
            (
                "exchange with other nodes, between node-1 and node-2: "
                "5 GB/s against 20 of 3 other pairs (0.25 of that), both times"
            ),
        ),
        (
            make_slow(MEMORY, is_past=True),
            "memory bandwidth of rank 1: 5 GB/s against 20 in its last 3 pre-flights (0.25 of that), both times",
        ),
    ],
)
def test_slow_check_is_described(slow: Slow, text: str) -> None:
    assert describe_slow(slow, CHECKS[slow.check], [make_result(0, 1.0), make_result(1, 1.0)]) == text


def test_slow_node_is_named_with_status_1() -> None:
    report = conclude([make_result(0, 20.0), make_result(1, 5.0)], make_slow())
    assert (report.status, EXIT_STATUS[report.status]) == ("named", 1)
    assert [one.node for one in report.named] == ["node-1"]


def test_fault_alone_names_a_node() -> None:
    ranks = [make_result(0, 20.0), make_result(1, 20.0, faults=("1 Xid errors",))]
    report = conclude(ranks, compared=())
    assert [(one.node, one.reasons) for one in report.named] == [("node-1", ("rank 1: 1 Xid errors",))]
    assert report.status == "named"


def test_slow_link_names_no_node_and_is_status_1() -> None:
    report = conclude([make_result(0, 20.0), make_result(1, 20.0)], make_slow(PAIRS, None, "node-0"))
    assert (report.named, len(report.links), report.status) == ((), 1, "named")


def test_nothing_compared_is_not_judged() -> None:
    report = conclude([make_result(0, 20.0)], compared=())
    assert (report.status, EXIT_STATUS[report.status]) == ("not_judged", 3)


def test_absent_values_have_the_reason_of_a_rank() -> None:
    report = conclude([make_result(0, 20.0), make_result(1, 20.0)])
    assert report.not_compared["memory bandwidth"] == "out of memory (rank 0, node-0)"


def test_text_has_named_nodes_first_and_the_verdict_last() -> None:
    ranks = [make_result(0, 20.0, notes=("eth0\x1b[2J",)), make_result(1, 5.0)]
    lines = render(conclude(ranks, make_slow()), list(CHECKS.values())).splitlines()
    assert lines[0] == "rankscope preflight: 2 ranks, 2 nodes, EPYC; 3.0 s"
    assert [line.split() for line in lines[2:4]] == [["node-1", "5", "slow"], ["node-0", "20"]]
    assert "note: a mistake" in lines
    assert r"note: node-0: eth0\x1b[2J" in lines
    assert lines[-1] == "verdict: 1 of 2 nodes was named: node-1."


def test_table_of_many_nodes_is_bounded() -> None:
    ranks = [make_result(rank, 20.0, notes=("x",)) for rank in range(40)]
    lines = render(conclude(ranks), list(CHECKS.values())).splitlines()
    assert "and 8 other nodes (--json-file)" in lines
    assert "and 25 other notes (--json-file)" in lines  # 41 with the mistake


def test_sentence_names_eight_nodes_at_most() -> None:
    sentence = build_sentence([f"n{number}" for number in range(10)], 2, 64, ["disk"])
    assert sentence == (
        "10 of 64 nodes were named: n0, n1, n2, n3, n4, n5, n6, n7 and 2 others. 2 slow links between "
        "nodes that are not slow themselves; no node is excluded for that."
    )
