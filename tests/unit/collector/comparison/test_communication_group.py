"""Which process groups have the change of communication between two runs."""

import pytest

from rankscope.collector.comparison.communication_group import find_group
from rankscope.collector.steps.collective_totals import Kind, KindTime

DP0, DP1 = ("mesh_dp/0,2", "all_reduce"), ("mesh_dp/1,3", "all_reduce")
TP = ("mesh_tp/0-1", "all_gather")
DEFAULT = ("default_pg", "all_reduce")
BEFORE = {DP0: KindTime(10, 1_000), DP1: KindTime(10, 1_000), TP: KindTime(100, 500)}


def times(**durations_ns: int) -> dict[Kind, KindTime]:
    """The same calls as before, with these durations."""
    kinds = {"dp0": DP0, "dp1": DP1, "tp": TP}
    changed = {kinds[name]: KindTime(BEFORE[kinds[name]].calls, ns) for name, ns in durations_ns.items()}
    return BEFORE | changed


@pytest.mark.parametrize(
    ("after", "group"),
    [
        (times(dp0=1_400, dp1=1_400), "mesh_dp"),  # all of +800
        (times(dp0=1_400, tp=600), "mesh_dp"),  # 400 of 500, which is 0.8
        (times(dp0=1_400, tp=601), ""),  # 400 of 501
        (times(dp0=1_400, dp1=900, tp=400), ""),  # 300 of 400, the other one the other way
        (times(tp=514), ""),  # +2.8 % of its own time
        (times(tp=516), "mesh_tp"),  # +3.2 %
        (times(dp0=700, dp1=700), ""),  # shorter
        (times(), ""),
    ],
)
def test_group_with_nearly_all_of_the_change_is_found(after: dict[Kind, KindTime], group: str) -> None:
    assert find_group(BEFORE, after, is_longer=True) == group


def test_group_that_became_shorter_is_that_of_a_faster_run() -> None:
    assert find_group(BEFORE, times(dp0=600), is_longer=False) == "mesh_dp"


def test_more_measured_calls_are_no_change() -> None:
    twice = {kind: KindTime(2 * time.calls, 2 * time.duration_ns) for kind, time in BEFORE.items()}
    assert find_group(BEFORE, twice, is_longer=True) == ""
    assert find_group(BEFORE, twice | {TP: KindTime(200, 1_500)}, is_longer=True) == "mesh_tp"


def test_other_collectives_on_one_side_are_not_judged() -> None:
    slower = times(dp0=1_400, dp1=1_400)
    assert find_group(BEFORE, slower | {("mesh_pp/0-1", "send"): KindTime(1, 1)}, is_longer=True) == ""
    assert find_group(BEFORE, slower | {("mesh_pp/0-1", "send"): KindTime(0, 0)}, is_longer=True) == "mesh_dp"
    assert find_group({}, {}, is_longer=True) == ""


def test_group_of_all_ranks_has_its_own_name() -> None:
    assert find_group({DEFAULT: KindTime(10, 100)}, {DEFAULT: KindTime(10, 200)}, is_longer=True) == "default_pg"


def test_groups_without_a_description_are_not_named() -> None:
    one = ("undefined/0,2", "all_reduce")
    assert find_group({one: KindTime(10, 100)}, {one: KindTime(10, 200)}, is_longer=True) == ""
