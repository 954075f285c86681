"""Who is compared with whom."""

from collections.abc import Mapping

from rankscope.collector.steps.peer_groups import Peers, find_peer_groups


def find_peers(rank: int, signatures: Mapping[int, object], ranks: tuple[int, ...]) -> Peers:
    return find_peer_groups(ranks, signatures).of(rank).peers_of(rank)


def test_ranks_with_the_same_signature_do_same_work() -> None:
    signatures = dict.fromkeys(range(4), "first stage") | dict.fromkeys(range(4, 8), "last stage")
    assert find_peers(5, signatures, tuple(range(8))) == Peers((4, 6, 7), 3, do_same_work=True)


def test_three_peers_are_enough_and_two_are_not() -> None:
    three = {0: "a", 1: "a", 2: "a", 3: "a", 4: "b"}
    two = {0: "a", 1: "a", 2: "a", 3: "b", 4: "b"}
    assert find_peers(0, three, tuple(range(5))) == Peers((1, 2, 3), 3, do_same_work=True)
    assert find_peers(0, two, tuple(range(5))) == Peers((1, 2, 3, 4), 4, do_same_work=False)


def test_all_others_are_enough_in_a_small_run() -> None:
    assert find_peers(0, {0: "a", 1: "a"}, (0, 1)) == Peers((1,), 1, do_same_work=True)
    assert find_peers(2, {0: "a", 1: "a", 2: "a"}, (0, 1, 2)) == Peers((0, 1), 2, do_same_work=True)


def test_one_that_differs_leaves_too_few_peers_in_a_small_run() -> None:
    assert find_peers(0, {0: "a", 1: "a", 2: "b"}, (0, 1, 2)) == Peers((1, 2), 2, do_same_work=False)
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
