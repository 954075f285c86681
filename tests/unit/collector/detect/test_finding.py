"""Findings: whom they are about, and which of them are one and the same."""

import pytest

from rankscope.collector.detect.finding import Finding


def finding(
    *ranks: int, kind: str = "straggler", cause: str = "host_cpu", group: str | None = None, nodes: tuple[str, ...] = ()
) -> Finding:
    return Finding(kind=kind, ranks=ranks, cause=cause, group=group, nodes=nodes, sentence="")


@pytest.mark.parametrize(
    ("found", "subject", "rank"),
    [
        (finding(3), "rank 3", 3),
        (finding(0, 1, 2, 5, 7, 8), "ranks 0-2, 5, 7-8", 0),
        (finding(8, 9, nodes=("node1",)), "node node1", 8),
        (finding(8, 16, nodes=("node1", "node2")), "nodes node1, node2", 8),
        (finding(group="mesh_dp/0-3"), "group mesh_dp/0-3", None),
        (finding(), "the run", None),
    ],
)
def test_subject_names_the_smallest_thing_that_it_is_about(found: Finding, subject: str, rank: int | None) -> None:
    assert (found.subject, found.rank) == (subject, rank)


@pytest.mark.parametrize(
    ("one", "other", "are_the_same"),
    [
        (finding(3), finding(3, cause="data_loading"), True),
        (finding(3), finding(2, 3, 4), True),
        (finding(3), finding(4), False),
        (finding(3), finding(), False),
        (finding(3), finding(3, kind="hang"), False),
        (finding(group="a"), finding(group="a", cause="slow_link"), True),
        (finding(group="a"), finding(group="b"), False),
        (finding(), finding(), True),
        (finding(), finding(cause="data_loading"), False),
    ],
)
def test_findings_with_a_common_rank_or_group_are_the_same(one: Finding, other: Finding, *, are_the_same: bool) -> None:
    assert one.is_about_the_same(other) is are_the_same
    assert other.is_about_the_same(one) is are_the_same
