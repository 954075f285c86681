"""Waiting against transfer, on small cases worked out by hand. Times in ns."""

import numpy as np
import pytest

from rankscope.collector.steps.collectives import number_codes
from rankscope.collector.steps.wait_times import split_waits
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, ReadWaits, split_ranks, step_of

Call = tuple[str, int, int, int]  # op, sequence, start, duration


def calls(*rows: Call, group: str = "world", size_bytes: int = 64) -> RankCollectives:
    return RankCollectives(
        groups=[group],
        ops=[row[0] for row in rows],
        group=np.zeros(len(rows), dtype=np.int64),
        op=np.arange(len(rows)),
        sequence=np.array([row[1] for row in rows], dtype=np.int64),
        start_ns=np.array([row[2] for row in rows], dtype=np.int64),
        duration_ns=np.array([row[3] for row in rows], dtype=np.int64),
        size_bytes=np.full(len(rows), size_bytes, dtype=np.int64),
        exposed_ns=np.full(len(rows), MISSING, dtype=np.int64),
    )


def split(*ranks: RankCollectives, size: int | None = None) -> ReadWaits:
    return split_ranks(dict(enumerate(ranks)), {"world": len(ranks) if size is None else size})


def test_last_rank_did_not_wait_and_others_did() -> None:
    waits = split(calls(("all_reduce", 1, 0, 100)), calls(("all_reduce", 1, 80, 20)), calls(("all_reduce", 1, 50, 50)))
    assert waits.exposed_ns == {0: 80, 1: 0, 2: 30}
    assert [(kind.wait_ns, kind.transfer_ns) for kind in waits.kinds] == [(80, 20), (0, 20), (30, 20)]


def test_clocks_of_the_ranks_do_not_matter() -> None:
    far = 10**18
    waits = split(calls(("all_reduce", 1, 0, 100)), calls(("all_reduce", 1, far, 20)))
    assert waits.exposed_ns == {0: 80, 1: 0}


def test_waiting_of_two_buckets_at_once_is_counted_once() -> None:
    # Rank 0 waits in both from 10 on; the second bucket was enqueued at 10, so before that it still computed.
    waiting = calls(("all_reduce", 1, 0, 100), ("all_reduce", 2, 10, 95))
    late = calls(("all_reduce", 1, 80, 20), ("all_reduce", 2, 90, 15))
    assert split(waiting, late).exposed_ns[0] == 90 - 10


def test_waiting_behind_compute_is_not_exposed() -> None:
    # The first bucket waits from 0 to 80, but at 70 the thread enqueued another: until then it was at work.
    waiting = calls(("all_reduce", 1, 0, 100), ("all_reduce", 2, 70, 40))
    late = calls(("all_reduce", 1, 80, 20), ("all_reduce", 2, 90, 20))
    assert split(waiting, late).exposed_ns[0] == 90 - 70


def test_sequence_matches_operations_that_began_in_another_order() -> None:
    one = calls(("all_reduce", 2, 0, 50), ("all_reduce", 1, 1, 60))
    other = calls(("all_reduce", 1, 0, 60), ("all_reduce", 2, 1, 50))
    assert split(one, other).exposed_ns == {0: 0, 1: 0}


def test_sequences_may_be_as_far_apart_as_they_can_be_written() -> None:
    far = 2**40
    waiting = calls(("all_reduce", 1, 0, 100), ("all_reduce", far, 200, 50))
    late = calls(("all_reduce", 1, 80, 20), ("all_reduce", far, 240, 10))
    assert split(waiting, late).exposed_ns == {0: 80 + 40, 1: 0}


@pytest.mark.parametrize("scale", [1, 10**12])
def test_codes_are_numbered_alike_whether_they_are_dense_or_not(scale: int) -> None:
    codes, numbers = number_codes(scale * np.array([7, 3, 7, 5]), bound=8 * scale)
    assert (codes.tolist(), numbers.tolist()) == ([3 * scale, 5 * scale, 7 * scale], [2, 0, 2, 1])


def test_repeated_report_replaces_the_earlier_one() -> None:
    told = step_of({0: calls(("all_reduce", 1, 0, 100)), 1: calls(("all_reduce", 1, 50, 50))})
    again = step_of({1: calls(("all_reduce", 1, 80, 20))})
    waits = split_waits([*told, *again], {"world": 2})
    assert (waits.ranks.tolist(), waits.exposed_ns.tolist()) == ([0, 1], [80, 0])


def test_without_sequence_the_kth_of_its_kind_is_matched() -> None:
    one = calls(("all_reduce", MISSING, 0, 50), ("all_gather", MISSING, 60, 10), ("all_reduce", MISSING, 80, 30))
    other = calls(("all_reduce", MISSING, 40, 10), ("all_gather", MISSING, 60, 10), ("all_reduce", MISSING, 80, 30))
    assert split(one, other).exposed_ns == {0: 40, 1: 0}


def test_collective_missing_on_a_member_is_unknown_waiting() -> None:
    waits = split(calls(("all_reduce", 1, 0, 100)), calls(), size=2)
    assert waits.exposed_ns == {0: None, 1: 0}
    assert waits.kinds[0].matched == 0


def test_broadcast_is_not_split_but_counts_as_waiting() -> None:
    waits = split(calls(("broadcast", 1, 0, 100)), calls(("broadcast", 1, 80, 20)))
    assert waits.exposed_ns == {0: 80, 1: 0}
    assert [(kind.calls, kind.matched, kind.duration_ns) for kind in waits.kinds] == [(1, 0, 100), (1, 0, 20)]


def test_receiver_waits_beyond_the_shortest_of_its_kind() -> None:
    waits = split(calls(("recv", 1, 0, 100)), calls(("recv", 2, 80, 20)), calls(("send", 1, 0, 15)))
    assert waits.exposed_ns == {0: 100 - 20, 1: 0, 2: 0}


def test_waiting_in_point_to_point_operations_is_also_told_alone() -> None:
    by_rank = {
        0: calls(("recv", 1, 0, 100), ("all_reduce", 1, 200, 40)),
        1: calls(("recv", 2, 80, 20), ("all_reduce", 1, 230, 10)),
    }
    waits = split_waits(step_of(by_rank), {"world": 2})
    assert waits.exposed_ns.tolist() == [80 + 30, 0]
    assert waits.handover_ns is not None
    assert waits.handover_ns.tolist() == [80, 0]


def test_transfer_is_kept_where_a_rank_reports_no_exposure() -> None:
    one = calls(("all_reduce", 1, 0, 5))
    told = one._replace(exposed_ns=np.array([5]))
    assert split_waits(step_of({0: told, 1: one}), {"world": 2}).is_transfer_kept
    assert not split_waits(step_of({0: told, 1: told}), {"world": 2}).is_transfer_kept


def test_nothing_is_told_of_point_to_point_without_any() -> None:
    assert split_waits(step_of({0: calls(("all_reduce", 1, 0, 5))}), {"world": 1}).handover_ns is None


def test_point_to_point_is_counted_and_its_waiting_not_reported() -> None:
    waits = split(calls(("send", 1, 0, 100)), calls(("send", 1, 80, 20)))
    assert [(kind.calls, kind.matched, kind.wait_ns) for kind in waits.kinds] == [(1, 0, 0), (1, 0, 0)]


def test_reported_exposure_includes_the_transfer() -> None:
    # Of the 100 of one rank the last 30 were exposed, of the 20 of the other the last 5.
    waiting = calls(("all_reduce", 1, 0, 100))._replace(exposed_ns=np.array([30]))
    late = calls(("all_reduce", 1, 80, 20))._replace(exposed_ns=np.array([5]))
    assert split(waiting, late).exposed_ns == {0: 30, 1: 5}


@pytest.mark.parametrize("exposed_ns", [40, 60])
def test_compute_while_a_send_lasts_is_no_waiting(exposed_ns: int) -> None:
    # The send lasts from 0 to 100. From 20 to 60 its sender waits in a receive and then computes, in one case up to 80.
    sender = calls(("send", 1, 0, 100), ("recv", 2, 20, 40))._replace(exposed_ns=np.array([exposed_ns, 40]))
    assert split(sender).exposed_ns == {0: exposed_ns}


def test_send_on_the_host_has_its_own_wait_as_exposed_part() -> None:
    # The script waits for its receive from 20 to 60, and from 90 to 100 for its send.
    sender = calls(("send", 1, 0, 100), ("recv", 2, 20, 40))._replace(exposed_ns=np.array([10, 40]))
    waits = split_waits(step_of({0: sender}), {"world": 1}, {"world"})
    assert waits.exposed_ns.tolist() == [40 + 10]


def test_send_that_is_not_exposed_leaves_other_waiting_as_it_is() -> None:
    hidden = calls(("send", 1, 0, 100), ("all_reduce", 2, 120, 40))._replace(exposed_ns=np.array([0, 30]))
    assert split(hidden).exposed_ns == {0: 30}


def test_exposed_part_of_operations_at_once_is_counted_once() -> None:
    both = calls(("all_reduce", 1, 0, 100), ("all_reduce", 2, 50, 60))._replace(exposed_ns=np.array([30, 35]))
    # From 70 to 100 and from 75 to 110.
    assert split(both).exposed_ns == {0: 110 - 70}


def test_transfer_of_a_host_stays_in_despite_reported_exposure() -> None:
    # Rank 0 waits from 0 to 80, and was at work up to 30; the transfer takes 20.
    by_rank = {
        0: calls(("all_reduce", 1, 0, 100))._replace(exposed_ns=np.array([70])),
        1: calls(("all_reduce", 1, 80, 20))._replace(exposed_ns=np.array([20])),
    }
    assert split_ranks(by_rank, {"world": 2}, {"world"}).exposed_ns == {0: 50, 1: 0}
    assert split_waits(step_of(by_rank), {"world": 2}, {"world"}).is_transfer_kept
    assert split_ranks(by_rank, {"world": 2}).exposed_ns == {0: 70, 1: 20}


def test_groups_are_matched_apart() -> None:
    by_rank = {
        0: calls(("all_reduce", 1, 0, 100), group="tp/0-1"),
        1: calls(("all_reduce", 1, 90, 10), group="tp/0-1"),
        2: calls(("all_reduce", 1, 0, 30), group="tp/2-3"),
        3: calls(("all_reduce", 1, 10, 20), group="tp/2-3"),
    }
    waits = split_ranks(by_rank, {"tp/0-1": 2, "tp/2-3": 2})
    assert waits.exposed_ns == {0: 90, 1: 0, 2: 10, 3: 0}


def test_step_without_collectives_has_no_waiting() -> None:
    assert split(calls(), calls()) == ReadWaits({0: 0, 1: 0}, [])


def test_group_of_unknown_size_leaves_the_waiting_unknown() -> None:
    waits = split_ranks({0: calls(("all_reduce", 1, 0, 9)), 1: calls(("all_reduce", 1, 0, 5))}, {})
    assert waits.exposed_ns == {0: None, 1: None}


def test_group_of_one_has_nobody_to_wait_for() -> None:
    assert split_ranks({0: calls(("all_reduce", 1, 0, 9))}, {"world": 1}).exposed_ns == {0: 0}


def test_sizes_are_summed_only_when_all_are_known() -> None:
    known = split(calls(("all_reduce", 1, 0, 9), ("all_reduce", 2, 9, 9)))
    unknown = split(calls(("all_reduce", 1, 0, 9), size_bytes=MISSING))
    assert (known.kinds[0].size_bytes, unknown.kinds[0].size_bytes) == (128, None)


# -- how much of the transfer was exposed -----------------------------------------------------------------------------


def exposed_transfers(*ranks: RankCollectives) -> list[int]:
    return [kind.exposed_transfer_ns for kind in split(*ranks).kinds]


def test_transfer_is_exposed_from_the_next_enqueue() -> None:
    # The transfer of the first bucket is from 80 to 100; rank 0 enqueued another at 90 and rank 1 at 95.
    one = calls(("all_reduce", 1, 0, 100), ("all_gather", 2, 90, 20))
    other = calls(("all_reduce", 1, 80, 20), ("all_gather", 2, 95, 15))
    assert exposed_transfers(one, other) == [10, 15, 5, 15]


def test_exposed_transfer_is_at_most_what_the_rank_tells() -> None:
    told = [
        calls(("all_reduce", 1, start, 100 - start))._replace(exposed_ns=np.array([exposed]))
        for start, exposed in ((0, 60), (80, 5))
    ]
    # The transfer takes 20: of rank 0 all of it is in its last 60, of rank 1 it is the last 5.
    assert exposed_transfers(*told) == [20, 5]


def test_operation_that_was_not_matched_has_no_exposed_transfer() -> None:
    assert [kind.exposed_transfer_ns for kind in split(calls(("all_reduce", 1, 0, 100)), size=2).kinds] == [0]
