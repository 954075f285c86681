"""Who is compared with whom."""

from collections.abc import Hashable, Mapping

import numpy as np

from rankscope.collector.steps.peer_groups import PeerComparison, Peers, find_peer_groups, middle_of_ranks


def find_peers(rank: int, signatures: Mapping[int, Hashable], ranks: tuple[int, ...]) -> Peers:
    return find_peer_groups(ranks, signatures).of(rank).peers_of(rank)


def test_ranks_with_the_same_signature_do_same_work() -> None:
    signatures = dict.fromkeys(range(4), "first stage") | dict.fromkeys(range(4, 8), "last stage")
    assert find_peers(5, signatures, tuple(range(8))) == Peers((4, 6, 7), 3, do_same_work=True)


def test_one_rank_with_the_same_signature_is_a_peer() -> None:
    signatures = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    assert find_peers(0, signatures, tuple(range(5))) == Peers((1, 2), 2, do_same_work=True)
    assert find_peers(4, signatures, tuple(range(5))) == Peers((3,), 1, do_same_work=True)


def test_few_ranks_that_are_alike_join_the_many() -> None:
    # Ranks 4 and 5 have one small collective more than the others: "work" is what is left without it.
    signatures = dict.fromkeys(range(4), "work") | dict.fromkeys((4, 5), "work and a flag")
    found = find_peer_groups(tuple(range(6)), signatures, coarsen=lambda signature: str(signature).split()[0])
    assert found.comparisons == (PeerComparison((0, 1, 2, 3, 4, 5), (0, 1, 2, 3, 4, 5), do_same_work=True),)
    assert found.works == ((0, 1, 2, 3, 4, 5),)


def test_few_ranks_whose_stages_are_not_told_apart_are_no_peers() -> None:
    signatures = {0: "first", 1: "middle", 2: "middle", 3: "last"}
    found = find_peer_groups((0, 1, 2, 3), signatures, coarsen=lambda _: None)
    assert (found.works, found.ranks_without_peers) == ((), (0, 1, 2, 3))
    all_alike = find_peer_groups((0, 1, 2), dict.fromkeys(range(3), "a ring"), coarsen=lambda _: None)
    assert all_alike.works == ((0, 1, 2),)


def test_many_ranks_of_one_signature_stay_by_themselves() -> None:
    signatures = dict.fromkeys(range(4), "work") | dict.fromkeys(range(4, 8), "work and a flag")
    found = find_peer_groups(tuple(range(8)), signatures, coarsen=lambda signature: str(signature).split()[0])
    assert found.works == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_ranks_on_one_model_of_gpu_are_peers() -> None:
    models = {0: "new", 1: "old", 2: "new", 3: "old", 4: "new"}
    found = find_peer_groups(tuple(range(5)), {}, models)
    assert found.of(3) == PeerComparison((1, 3), (1, 3), do_same_work=True)
    assert found.of(0) == PeerComparison((0, 2, 4), (0, 2, 4), do_same_work=True)
    assert (found.works, found.models) == (((0, 1, 2, 3, 4),), models)


def test_rank_alone_on_its_model_has_no_peers() -> None:
    found = find_peer_groups((0, 1, 2), {}, {0: "new", 1: "new", 2: "old"})
    assert found.of(2) == PeerComparison((2,), (0, 1, 2), do_same_work=False)
    assert found.ranks_without_peers == (2,)


def test_rank_of_unknown_model_is_no_peer_of_the_others() -> None:
    found = find_peer_groups(tuple(range(5)), {}, {0: "new", 1: "new", 2: "old", 3: "old", 4: None})
    assert found.ranks_without_peers == (4,)


def test_one_model_for_all_makes_no_difference() -> None:
    found = find_peer_groups((0, 1, 2), {}, {0: "new", 1: "new", 2: None})
    assert (found.works, found.models, found.ranks_without_peers) == (((0, 1, 2),), {}, ())


def test_of_two_ranks_the_shorter_time_is_that_of_the_group() -> None:
    assert middle_of_ranks(np.array([[3.0, 2.0], [1.0, 4.0]])).tolist() == [2.0, 1.0]
    assert middle_of_ranks(np.array([[3.0, 2.0, 9.0]])).tolist() == [3.0]


def test_all_others_are_enough_in_a_small_run() -> None:
    assert find_peers(0, {0: "a", 1: "a"}, (0, 1)) == Peers((1,), 1, do_same_work=True)
    assert find_peers(2, {0: "a", 1: "a", 2: "a"}, (0, 1, 2)) == Peers((0, 1), 2, do_same_work=True)


def test_one_that_differs_has_no_peers() -> None:
    assert find_peers(0, {0: "a", 1: "a", 2: "b"}, (0, 1, 2)) == Peers((1,), 1, do_same_work=True)
    assert find_peers(2, {0: "a", 1: "a", 2: "b"}, (0, 1, 2)) == Peers((0, 1), 2, do_same_work=False)
    assert find_peers(0, {0: "a", 1: "b"}, (0, 1)) == Peers((1,), 1, do_same_work=False)


def test_all_are_peers_before_any_signature_is_known() -> None:
    assert find_peers(1, {}, (0, 1, 2, 3)) == Peers((0, 2, 3), 3, do_same_work=True)


def test_rank_without_a_signature_is_in_no_peer_group() -> None:
    signatures = dict.fromkeys(range(4), "a")
    assert find_peers(4, signatures, tuple(range(5))) == Peers((0, 1, 2, 3), 4, do_same_work=False)
    assert find_peers(0, signatures, tuple(range(5))) == Peers((1, 2, 3), 3, do_same_work=True)


def test_rank_that_is_alone_has_no_peers() -> None:
    assert find_peers(0, {0: "a"}, (0,)) == Peers((), 0, do_same_work=False)
    assert find_peers(0, {}, (0,)) == Peers((), 0, do_same_work=True)


def test_ranks_that_do_not_take_part_are_not_peers() -> None:
    assert find_peers(1, dict.fromkeys(range(9), "a"), (1, 3, 5, 7)) == Peers((3, 5, 7), 3, do_same_work=True)


def test_slow_ranks_of_a_small_group_are_no_peers_of_the_others() -> None:
    groups = find_peer_groups(range(4), {}).without({1})
    assert groups.of(0).peers_of(0).ranks == (2, 3)
    assert groups.of(1).peers_of(1).ranks == (0, 2, 3)
    two = find_peer_groups(range(3), {}).without({0, 2})
    # The only rank that is left is compared with all: there is none like it.
    assert [two.of(rank).peers_of(rank).ranks for rank in range(3)] == [(1,), (0, 2), (1,)]
    assert [two.of(rank).peers_of(rank).size for rank in range(3)] == [1, 2, 1]


def test_slow_ranks_that_do_not_move_a_median_stay_in_it() -> None:
    groups = find_peer_groups(range(8), {})
    assert groups.without({1}) is groups
    assert groups.without(set(range(8))) is groups


def test_many_slow_ranks_are_compared_with_others_at_any_size() -> None:
    many = find_peer_groups(range(16_384), {}).without(set(range(8_000)))
    assert many.of(0).peers_of(0) == Peers(tuple(range(8_000, 16_384, 66)), 8_384, do_same_work=True, are_apart=True)
    assert many.of(8_000).peers_of(8_000).size == 8_383
