"""Collectives matched across ranks: matching, refusals, waiting and transfer."""

from collections.abc import Sequence
from typing import Any

import pytest

from rankscope.collector.traces.cross_rank import (
    Matching,
    RankCollectives,
    find_waiting,
    match,
    split,
    sum_by_rank,
)
from rankscope.measure.traced_collectives import Collective

US = 1_000
MS = 1_000_000


def collective(start_ns: int, duration_ns: int, **changed: Any) -> Collective:
    fields = {"group": "default_pg", "group_size": 2, "ranks": "[0, 1]", "op": "all_reduce", "dtype": "Float"}
    return Collective(
        **{**fields, "bytes": 64, "sequence": None, **changed},
        start_ns=start_ns,
        duration_ns=duration_ns,
    )


def on(rank: int, *found: Collective, host: str | None = "node0", on_host: bool = False) -> RankCollectives:
    """Return one rank; each of its collectives is of a step of its own."""
    return RankCollectives(rank, host, found, on_host, range(len(found)))


def ending_together(ends_ns: Sequence[int], *durations_ns: int, **changed: Any) -> list[RankCollectives]:
    """Return one rank for each duration; all leave every operation together."""
    return [
        on(rank, *(collective(end - length, length, **changed) for end in ends_ns))
        for rank, length in enumerate(durations_ns)
    ]


def wait_of(matching: Matching) -> dict[str, int]:
    return sum_by_rank(split(matching))[0]


# -- matching ---------------------------------------------------------------------------------------------------------


def test_kth_operation_of_a_group_is_the_same_on_all_ranks() -> None:
    matching = match(ending_together([10 * MS, 20 * MS], 1 * MS, 3 * MS), 2)
    assert [(one.place, sorted(one.by_rank)) for one in matching.matched] == [(0, [0, 1]), (1, [0, 1])]
    assert (matching.refused, matching.missing_ranks) == (None, False)


def test_numbered_operations_are_matched_by_their_number() -> None:
    first = on(0, *(collective(10 * MS * n, MS, sequence=n) for n in (3, 4, 5)))
    second = on(1, *(collective(10 * MS * n, MS, sequence=n) for n in (4, 5, 6)))
    assert [one.place for one in match([first, second], 2).matched] == [4, 5]


def test_groups_of_one_name_with_other_members_are_not_matched() -> None:
    matching = match([on(0, collective(0, MS, ranks="[0, 1]")), on(1, collective(0, MS, ranks="[2, 3]"))], 4)
    assert (matching.matched, matching.refused) == ([], "the traces have no synchronizing collective in common")


def test_messages_between_two_ranks_are_not_matched() -> None:
    assert match(ending_together([10 * MS], 1 * MS, 3 * MS, op="send"), 2).matched == []


def test_another_operation_at_the_same_place_refuses() -> None:
    matching = match([on(0, collective(0, MS)), on(1, collective(0, MS, op="all_gather"))], 2)
    assert matching.refused == (
        "the ranks' collectives do not line up: in group default_pg place 0 is all_reduce of 64 bytes on rank 0, "
        "all_gather of 64 bytes on rank 1. The traces are of different steps, or collectives are missing in some"
    )


def test_another_size_of_an_all_reduce_refuses() -> None:
    numbered = [on(0, collective(0, MS, sequence=7)), on(1, collective(0, MS, sequence=7, bytes=8))]
    assert "in group default_pg sequence 7 is all_reduce of 64 bytes on rank 0" in str(match(numbered, 2).refused)


def test_another_size_of_an_all_to_all_is_no_mismatch() -> None:
    ranks = [on(0, collective(0, MS, op="all_to_all")), on(1, collective(0, MS, op="all_to_all", bytes=8))]
    matching = match(ranks, 2)
    assert (matching.refused, matching.matched[0].bytes) == (None, None)


def test_unknown_size_on_one_rank_is_no_mismatch() -> None:
    matching = match([on(0, collective(0, MS)), on(1, collective(0, MS, bytes=None))], 2)
    assert (matching.refused, matching.matched[0].bytes) == (None, 64)


def test_one_rank_alone_is_refused() -> None:
    matching = match([on(0, collective(0, MS))], 2)
    assert (matching.refused, matching.missing_ranks) == ("only one rank's trace: nothing to compare with", True)


@pytest.mark.parametrize(("world_size", "missing"), [(2, False), (3, True), (None, True)])
def test_what_is_found_is_a_lower_bound_while_ranks_are_missing(world_size: int | None, missing: bool) -> None:
    assert match(ending_together([10 * MS], MS, MS), world_size).missing_ranks is missing


# -- belief -----------------------------------------------------------------------------------------------------------


def test_missing_first_operation_is_refused_on_one_host() -> None:
    first, second = ending_together([100 * MS * n for n in range(1, 7)], MS, MS)
    matching = match([first, second._replace(collectives=second.collectives[1:], steps=range(1, 6))], 2)
    assert matching.refused == (
        "ranks on host node0 seem to leave the same collectives 100 ms apart by one clock: "
        "the traces are of different steps"
    )


def test_operations_of_different_steps_are_refused() -> None:
    ends_ns = [MS * at for at in (10, 25, 70, 90, 180, 210)]
    first, second = ending_together(ends_ns, MS, MS)
    matching = match([first, second._replace(host="node1", collectives=second.collectives[1:], steps=range(5))], 2)
    # One further each time: 15, 45, 20, 90 and 30 ms, of which the median, 30 ms, is taken for the clocks.
    assert matching.refused == (
        "4 of 5 matched collectives end at different times on different ranks (by 15.0 ms in the median): "
        "the traces are of different steps, collectives are missing in some, or times are wrong"
    )


def test_one_operation_in_five_may_end_at_different_times() -> None:
    first, second = ending_together([100 * MS * n for n in range(1, 6)], MS, MS)
    late = [*second.collectives[:4], collective(500 * MS, 10 * MS)]
    assert match([first, second._replace(collectives=late)], 2).refused is None


def test_clocks_of_two_hosts_may_be_seconds_apart() -> None:
    first, second = ending_together([10 * MS, 20 * MS, 30 * MS], MS, 3 * MS)
    ahead = [collective(one.start_ns + 5_000 * MS, one.duration_ns) for one in second.collectives]
    matching = match([first, second._replace(host="node1", collectives=ahead)], 2)
    assert (matching.refused, matching.offsets_ns, matching.end_disagreement_ns) == (None, {0: 0, 1: 5_000 * MS}, 0)
    assert wait_of(matching) == {"0": 0, "1": 6 * MS}


def test_clock_is_found_along_a_chain_of_groups() -> None:
    pair, other = {"ranks": "[0, 1]"}, {"ranks": "[1, 2]"}
    first, last = on(0, collective(0, MS, **pair)), on(2, collective(70 * MS, MS, **other), host="c")
    middle = on(1, collective(30 * MS, MS, **pair), collective(50 * MS, MS, **other), host="b")
    # 1 is 30 ms ahead of 0, 2 is 20 ms ahead of 1.
    assert match([first, middle, last], 3).offsets_ns == {0: 0, 1: 30 * MS, 2: 50 * MS}


def test_groups_unrelated_to_the_first_are_checked() -> None:
    ends_ns = [MS * at for at in (10, 25, 70, 90, 180, 210)]
    good = ending_together(ends_ns, MS, MS)
    third, fourth = (
        on(rank, *(collective(end, MS, ranks="[2, 3]") for end in mine))
        for rank, mine in ((2, ends_ns), (3, ends_ns[1:]))
    )
    assert match([*good, third, fourth], 4).refused is not None


def test_clocks_of_unrelated_groups_are_not_compared() -> None:
    # 0 and 2 are on one host, 1 and 3 on another whose clock is 5 s ahead: each group finds that for itself.
    near, far = collective(10 * MS, MS), collective(5_010 * MS, MS)
    ranks = [on(0, near), on(1, far, host="b")]
    others = [
        on(3, collective(far.start_ns, MS, ranks="[2, 3]"), host="b"),
        on(2, collective(10 * MS, MS, ranks="[2, 3]")),
    ]
    matching = match([*ranks, *others], 4)
    assert (matching.refused, matching.offsets_ns) == (None, {0: 0, 1: 5_000 * MS, 3: 0, 2: -5_000 * MS})


@pytest.mark.parametrize(("on_host", "refuses"), [(False, True), (True, False)])
def test_on_a_cpu_ends_may_be_further_apart(on_host: bool, refuses: bool) -> None:
    ends = ((0, 10 * MS), (1, 25 * MS))
    ranks = [on(rank, collective(end - MS, MS), on_host=on_host) for rank, end in ends]
    assert (match(ranks, 2).refused is not None) is refuses


# -- waiting and transfer ---------------------------------------------------------------------------------------------


def test_shortest_duration_is_the_transfer() -> None:
    one = split(match(ending_together([10 * MS], 4 * MS, 1 * MS, 3 * MS), 3))[0]
    assert (one.transfer_ns, one.wait_ns) == (1 * MS, {"0": 3 * MS, "1": 0, "2": 2 * MS})
    # The median of 4, 1 and 3 ms is 3 ms.
    assert (one.late_rank, one.lateness_ns) == (1, 2 * MS)


@pytest.mark.parametrize(("shorter_us", "late"), [(4, None), (10, 1)])
def test_no_rank_is_late_within_launch_jitter(shorter_us: int, late: int | None) -> None:
    # Of two ranks the median lies halfway: the lateness is 2 or 5 us.
    one = split(match(ending_together([10 * MS], MS, MS - shorter_us * US), 2))[0]
    assert one.late_rank == late


def test_operation_with_a_root_has_no_waiting() -> None:
    matching = match(
        [
            on(rank, collective(10 * MS - n, n), collective(20 * MS - n, n, op="broadcast"))
            for rank, n in ((0, MS), (1, 3 * MS))
        ],
        2,
    )
    assert [one.wait_ns for one in split(matching)] == [{"0": 0, "1": 2 * MS}, None]


def test_refused_matching_is_not_split() -> None:
    one = split(match([on(0, collective(0, MS)), on(1, collective(0, MS, bytes=8))], 2))[0]
    assert (one.ranks, one.transfer_ns, one.wait_ns, one.late_rank) == ([0, 1], None, None, None)


def test_waiting_and_transfer_are_summed_by_rank() -> None:
    wait, transfer = sum_by_rank(split(match(ending_together([10 * MS, 20 * MS], 4 * MS, 1 * MS), 2)))
    assert (wait, transfer) == ({"0": 6 * MS, "1": 0}, {"0": 2 * MS, "1": 2 * MS})


def test_ranks_are_sorted_by_number() -> None:
    ranks = [one._replace(rank=number) for one, number in zip(ending_together([MS], 3, 2, 1), (10, 9, 2), strict=True)]
    assert list(wait_of(match(ranks, 3))) == ["2", "9", "10"]


def test_rank_waits_from_its_start_until_the_transfer() -> None:
    assert find_waiting(match(ending_together([10 * MS], 4 * MS, 1 * MS), 2), 0).tolist() == [[6 * MS, 9 * MS]]


def test_rank_outside_an_operation_has_no_waiting() -> None:
    assert find_waiting(match(ending_together([10 * MS], 4 * MS, 1 * MS), 2), 7).tolist() == []
