"""Who caused the waiting, on small steps worked out by hand. Times in ns: a unit is far above what a stream hides."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from rankscope.collector.steps import wait_attribution as blame_module
from rankscope.collector.steps.wait_attribution import BEHIND_NS, WaitAttribution, attribute_waits
from rankscope.measure.table import MISSING
from tests.unit.collector.steps.collective_steps import RankCollectives, step_of

MS = 10 * BEHIND_NS
TP_01, TP_23, DP_02, DP_13 = "tp/0-1", "tp/2-3", "dp/0,2", "dp/1,3"
SIZES = {TP_01: 2, TP_23: 2, DP_02: 2, DP_13: 2, "world": 3, "pp/0-1": 2}


class Call(NamedTuple):
    """One operation on one rank, in ms of its own clock. `hidden`: how much of it the rank computed through."""

    group: str
    start: float
    duration: float
    op: str = "all_reduce"
    hidden: float = 0.0


def columns(calls: Sequence[Call]) -> RankCollectives:
    groups, ops = sorted({call.group for call in calls}), sorted({call.op for call in calls})

    def column(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([round(value) for value in values], dtype=np.int64)

    return RankCollectives(
        groups=groups,
        ops=ops,
        group=column([groups.index(call.group) for call in calls]),
        op=column([ops.index(call.op) for call in calls]),
        sequence=column([MISSING] * len(calls)),
        start_ns=column([call.start * MS for call in calls]),
        duration_ns=column([call.duration * MS for call in calls]),
        size_bytes=column([64] * len(calls)),
        exposed_ns=column([(call.duration - call.hidden) * MS for call in calls]),
    )


def blame_of(*ranks: Sequence[Call]) -> WaitAttribution:
    found = attribute_waits(step_of({rank: columns(calls) for rank, calls in enumerate(ranks)}), SIZES)
    assert found is not None
    return found


def caused_ms(found: WaitAttribution) -> list[float]:
    return [charged_ns / MS for charged_ns in found.caused_ns.tolist()]


def test_rank_that_comes_last_is_charged_what_the_others_wait() -> None:
    found = blame_of([Call("world", 10, 31)], [Call("world", 40, 1)], [Call("world", 20, 21)])
    assert caused_ms(found) == [0, 50, 0]
    assert (found.charged_ns / MS).tolist() == [[0, 30, 0], [0, 0, 0], [0, 20, 0]]
    assert (found.waited_ns / MS).tolist() == [30, 0, 20]


def test_victim_passes_on_the_lateness_and_is_charged_nothing() -> None:
    # Rank 0 is 50 late for its tensor parallel peer 1, which therefore is 50 late for its data parallel peer 3.
    found = blame_of(
        [Call(TP_01, 60, 1), Call(DP_02, 71, 1)],
        [Call(TP_01, 10, 51), Call(DP_13, 71, 1)],
        [Call(TP_23, 10, 1), Call(DP_02, 21, 51)],
        [Call(TP_23, 10, 1), Call(DP_13, 21, 51)],
    )
    assert caused_ms(found) == [150, 0, 0, 0]
    assert (found.passed_on_ns / MS).tolist() == [0, 50, 0, 0]


def test_two_origins_share_what_they_caused_together() -> None:
    # Rank 1 has waited 30 for rank 0 and then takes 20 longer than rank 3 itself.
    found = blame_of(
        [Call(TP_01, 40, 1)],
        [Call(TP_01, 10, 31), Call(DP_13, 71, 1)],
        [Call(TP_23, 10, 1)],
        [Call(TP_23, 10, 1), Call(DP_13, 21, 51)],
    )
    assert (found.charged_ns[3] / MS).tolist() == [30, 20, 0, 0]
    assert found.charged_ns[1].tolist() == [30 * MS, 0, 0, 0]


def test_lateness_is_evened_out_by_the_operation_that_shows_it() -> None:
    # Rank 1 waits 50 for rank 0; after that they begin together, and rank 1 takes 10 longer.
    found = blame_of(
        [Call(TP_01, 60, 1), Call(TP_01, 71, 11)],
        [Call(TP_01, 10, 51), Call(TP_01, 81, 1)],
    )
    assert caused_ms(found) == [50, 10]


def test_waiting_behind_compute_makes_nobody_late() -> None:
    # Rank 1 waits 50 for rank 0 while it computes; what it comes later than rank 3 afterwards is its own doing.
    found = blame_of(
        [Call(TP_01, 60, 1)],
        [Call(TP_01, 10, 51, hidden=51), Call(DP_13, 91, 1)],
        [Call(TP_23, 10, 1)],
        [Call(TP_23, 10, 1), Call(DP_13, 71, 21)],
    )
    assert caused_ms(found) == [50, 20, 0, 0]


def test_operation_behind_another_is_late_with_it() -> None:
    # Rank 1's second operation can begin only when the first, which waited 50 for rank 0, is over.
    found = blame_of(
        [Call(TP_01, 60, 1)],
        [Call(TP_01, 10, 51, hidden=51), Call(DP_13, 61, 1, hidden=1)],
        [Call(TP_23, 10, 1)],
        [Call(TP_23, 10, 1), Call(DP_13, 11, 51)],
    )
    assert caused_ms(found) == [100, 0, 0, 0]


def test_operation_begun_before_a_wait_ended_is_not_late_with_it() -> None:
    # Rank 0 waits 50 for rank 2; both then take 10 and a bit, and again. Rank 1 begins both operations at once.
    found = blame_of(
        [Call(DP_02, 10, 52), Call("world", 72, 1), Call("world", 82, 1)],
        [Call("world", 20, 53), Call("world", 30, 53)],
        [Call(DP_02, 60, 2), Call("world", 71, 2), Call("world", 80, 3)],
    )
    # Rank 0 has come 2 later in the first, and 4 in the second; the others' waits of 1 and 2 for it count too.
    once = 62 / 104  # rank 1 waits from 20 to 72 and from 30 to 82
    assert caused_ms(found) == pytest.approx([1 + 2 + (2 + 52 * 4 / 54) * once, 0, 50 + (50 + 52 * 50 / 54) * once])


def test_wait_for_a_sender_is_untraced() -> None:
    # Rank 1 waits 40 in a recv, whose sender is not known, and comes 40 later than rank 3.
    found = blame_of(
        [Call("pp/0-1", 10, 1, op="recv")],
        [Call("pp/0-1", 10, 41, op="recv"), Call(DP_13, 61, 1)],
        [Call(TP_23, 10, 1)],
        [Call(TP_23, 10, 1), Call(DP_13, 21, 41)],
    )
    assert caused_ms(found) == [0, 0, 0, 0]
    assert (found.untraced_ns / MS).tolist() == [0, 0, 0, 40]
    assert (found.waited_ns / MS).tolist() == [0, 0, 0, 40]


def test_ranks_that_disagree_on_the_order_are_charged() -> None:
    found = blame_of(
        [Call(TP_01, 10, 21), Call("world", 50, 1, op="barrier")],
        [Call("world", 10, 41, op="barrier"), Call(TP_01, 60, 1)],
        [Call("world", 20, 31, op="barrier")],
    )
    assert int(found.waited_ns.sum()) == (20 + 40 + 30) * MS


def test_operation_that_a_member_did_not_report_has_no_waiting() -> None:
    found = blame_of([Call(TP_01, 10, 31)], [], [Call("world", 10, 1)])
    assert (int(found.waited_ns.sum()), found.ranks) == (0, (0, 1, 2))


def test_step_without_operations_has_no_waiting() -> None:
    found = blame_of([], [])
    assert found.charged_ns.tolist() == [[0, 0], [0, 0]]


def test_larger_steps_than_can_be_afforded_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [Call(TP_01, 10, 1), Call(TP_01, 20, 1)]
    step = step_of({0: columns(calls), 1: columns(calls)})
    monkeypatch.setattr(blame_module, "OPERATIONS_MAX", 1)
    assert attribute_waits(step, SIZES) is None
    monkeypatch.setattr(blame_module, "OPERATIONS_MAX", 2)
    assert attribute_waits(step, SIZES) is not None
    monkeypatch.setattr(blame_module, "CELLS_MAX", 7)  # 4 rows of 2 ranks
    assert attribute_waits(step, SIZES) is None


# -- operations with a root -------------------------------------------------------------------------------------------


def broadcast(start: float, duration: float) -> Call:
    return Call("world", start, duration, op="broadcast")


def not_traced_ms(found: WaitAttribution) -> list[float]:
    return [waited_ns / MS for waited_ns in found.not_traced_ns.tolist()]


def test_root_awaiting_a_late_receiver_passes_lateness_on() -> None:
    # As in DDP with a buffer: rank 0 sends, rank 2 comes 60 late; rank 1 has its data at once, and waits later.
    found = blame_of(
        [broadcast(0, 62), Call("world", 72, 3)],
        [broadcast(0, 2), Call("world", 12, 63)],
        [broadcast(60, 2), Call("world", 72, 3)],
    )
    assert caused_ms(found) == [0, 0, 60 + 60]
    assert not_traced_ms(found) == [0, 0, 0]


def test_receivers_that_wait_for_a_late_root_charge_it() -> None:
    found = blame_of(
        [broadcast(60, 2), Call("world", 72, 3)],
        [broadcast(0, 62), Call("world", 72, 3)],
        [broadcast(20, 42), Call("world", 72, 3)],
    )
    assert caused_ms(found) == [60 + 40, 0, 0]


def test_each_member_is_released_by_the_one_that_came_then() -> None:
    # The root comes at 30 and rank 2 at 70: rank 1 waits for the root alone, and the root for rank 2.
    found = blame_of(
        [broadcast(30, 42), Call("world", 80, 1)],
        [broadcast(0, 32), Call("world", 40, 41)],
        [broadcast(70, 2), Call("world", 80, 1)],
    )
    # In the end rank 1 waits 40 for ranks 0 and 2, which come alike: rank 0 only because rank 2 has held it up.
    assert caused_ms(found) == [30, 0, 40 + 40]


def test_a_root_that_two_late_receivers_released_names_neither() -> None:
    found = blame_of(
        [broadcast(0, 62), Call("world", 72, 3)],
        [broadcast(56, 2), Call("world", 72, 3)],
        [broadcast(60, 2), Call("world", 72, 3)],
    )
    assert (caused_ms(found), not_traced_ms(found)) == ([0, 0, 0], [60, 0, 0])


def test_wait_that_ended_with_nobodys_arrival_is_not_traced() -> None:
    # Rank 0 goes on 30 after rank 2 has come: something else kept it.
    found = blame_of(
        [broadcast(0, 92), Call("world", 95, 3)],
        [broadcast(0, 2), Call("world", 95, 3)],
        [broadcast(60, 2), Call("world", 95, 3)],
    )
    assert (caused_ms(found), not_traced_ms(found)) == ([0, 0, 0], [90, 0, 0])


def test_arrivals_need_an_operation_that_all_leave_together() -> None:
    found = blame_of([broadcast(0, 62)], [broadcast(0, 2)], [broadcast(60, 2)])
    assert (caused_ms(found), not_traced_ms(found)) == ([0, 0, 0], [60, 0, 0])


def test_clocks_of_members_of_a_broadcast_do_not_matter() -> None:
    found = blame_of(
        [broadcast(1_000, 62), Call("world", 1_072, 3)],
        [broadcast(5_000, 2), Call("world", 5_012, 63)],
        [broadcast(60, 2), Call("world", 72, 3)],
    )
    assert caused_ms(found) == [0, 0, 120]
