"""Which link several slow groups go back to. Four ranks a machine, on four machines: a, b, c and d."""

import pytest

from rankscope.collector.detect.links.slow_links import Location, find_locations

NODES = {rank: "abcd"[rank // 4] for rank in range(16)}
TENSOR = {"tp0": (0, 1), "tp1": (2, 3), "tp2": (4, 5), "tp3": (6, 7)}
DATA = {"dp0": (0, 4, 8, 12), "dp1": (1, 5, 9, 13)}
PAIRS = {"ab0": (0, 4), "ab1": (1, 5), "cd0": (8, 12), "ac1": (2, 10)}
MEMBERS = TENSOR | DATA | PAIRS | {"world": tuple(range(16))}


def locate(*groups: str) -> tuple[Location, ...]:
    return find_locations(groups, MEMBERS, NODES)


def test_one_slow_group_proves_no_rank() -> None:
    assert locate("dp1") == (Location(("dp1",), (1, 5, 9, 13), ("a", "b", "c", "d")),)


def test_two_groups_that_share_one_rank_prove_it() -> None:
    assert locate("tp2", "dp1") == (Location(("dp1", "tp2"), (5,), ("b",), "rank"),)


def test_groups_that_share_several_ranks_prove_none_of_them() -> None:
    assert locate("world", "tp2") == (Location(("tp2", "world"), (4, 5), ("b",)),)


def test_third_group_that_holds_the_rank_joins_the_two() -> None:
    assert locate("world", "tp2", "dp1") == (Location(("dp1", "tp2", "world"), (5,), ("b",), "rank"),)


def test_groups_of_one_machine_prove_the_machine() -> None:
    assert locate("tp0", "tp1") == (Location(("tp0", "tp1"), (0, 1, 2, 3), ("a",), "node"),)


def test_groups_between_the_same_two_nodes_prove_the_pair() -> None:
    assert locate("ab0", "ab1") == (Location(("ab0", "ab1"), (0, 1, 4, 5), ("a", "b"), "node pair"),)


def test_groups_from_one_machine_to_others_prove_that_machine() -> None:
    # Rank 2 is the one of ac1 on machine a, rank 1 that of ab1.
    assert locate("ab1", "ac1") == (Location(("ab1", "ac1"), (1, 2), ("a",), "node"),)


def test_groups_that_share_all_machines_prove_nothing() -> None:
    found = locate("dp0", "dp1")
    assert [(location.groups, location.suspect) for location in found] == [(("dp0",), ""), (("dp1",), "")]


def test_groups_on_the_only_machine_prove_nothing_about_it() -> None:
    found = find_locations(["tp0", "tp1"], MEMBERS, dict.fromkeys(range(16), "a"))
    assert [location.groups for location in found] == [("tp0",), ("tp1",)]


def test_groups_that_share_nothing_stand_apart() -> None:
    assert [location.groups for location in locate("tp0", "cd0")] == [("cd0",), ("tp0",)]


def test_machines_that_are_not_known_are_left_out() -> None:
    assert find_locations(["tp0"], MEMBERS, {}) == (Location(("tp0",), (0, 1), ()),)


@pytest.mark.parametrize("groups", [(), tuple(MEMBERS)])
def test_every_group_is_in_one_location(groups: tuple[str, ...]) -> None:
    found = [group for location in locate(*groups) for group in location.groups]
    assert sorted(found) == sorted(groups)
