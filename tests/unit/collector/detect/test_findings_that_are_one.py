"""When two findings are one that has gone on, and whom a finding is about."""

import pytest

from rankscope.collector.detect.finding import Finding

TENSOR, DATA = "mesh_tp/4-7", "mesh_dp/1,5,9,13"


def finding(
    *ranks: int, kind: str = "slow_link", group: str | None = None, groups: str = "", cause: str = "slow_link"
) -> Finding:
    details = {"groups": groups} if groups else {}
    return Finding(kind=kind, ranks=ranks, group=group, cause=cause, sentence="", details=details)


@pytest.mark.parametrize("one", [finding(4, 5, 6, 7, group=TENSOR), finding(1, 5, 9, 13, group=DATA)])
def test_finding_about_several_groups_absorbs_single_ones(one: Finding) -> None:
    both = finding(5, group=TENSOR, groups=f"{DATA}; {TENSOR}")
    assert both.groups == (DATA, TENSOR)
    assert both.is_about_the_same(one)
    assert one.is_about_the_same(both)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (finding(5, group=TENSOR), finding(5, group=DATA), False),
        (finding(5, group=TENSOR), finding(4, group=TENSOR), False),
        (finding(5), finding(5, 6), True),
        (finding(5), finding(5, kind="straggler"), False),
        (finding(5), finding(), False),
        (finding(group=TENSOR), finding(group=TENSOR, cause="other"), True),
        (finding(), finding(), True),
        (finding(), finding(cause="other"), False),
    ],
    ids=[
        "another group", "another rank", "more ranks", "another kind", "no rank", "a group's", "the run's",
        "the run's, another cause",
    ],
)  # fmt: skip
def test_findings_are_one_by_kind_group_and_ranks(one: Finding, other: Finding, same: bool) -> None:
    assert one.is_about_the_same(other) is same
