"""The steps of all ranks side by side, however they arrive. Times in ns, small enough to add up in one's head."""

from collections.abc import Mapping

import numpy as np
import pytest

from rankscope.collector.steps import step_table, wait_attribution
from rankscope.collector.steps.measured_steps import STAND_IN_STEPS
from rankscope.collector.steps.step_table import PHASES_MAX, StepTable
from rankscope.collector.steps.workload_signature import VARIES
from rankscope.measure.records import CollectiveRecord, StepRecord, collectives_to_table, steps_to_table
from tests.unit.collector.steps.collective_steps import KindWaits, rows_of
from tests.unit.collector.steps.one_rank import add_collectives, add_steps, mark_complete

STEP_NS = 100
GROUP = "default_pg"
NAN = float("nan")


def step_of(
    step: int, duration_ns: int = STEP_NS, cpu_ns: int | None = None, phases_ns: Mapping[str, int] | None = None
) -> StepRecord:
    return StepRecord(step=step, start_host_ns=0, duration_ns=duration_ns, phases_ns=phases_ns or {}, cpu_ns=cpu_ns)


def add(window: StepTable, rank: int, *records: StepRecord) -> int:
    return add_steps(window, rank, steps_to_table(records))


def window_of(ranks: int, steps: int = 0, kept: int = 8) -> StepTable:
    """A window in which all ranks have made so many steps."""
    window = StepTable(kept, ranks)
    window.set_group_size(GROUP, ranks)
    for rank in range(ranks):
        add(window, rank, *map(step_of, range(steps)))
    return window


def reduce_all(window: StepTable, rank: int, duration_ns: int, *steps: int, size: int | None = 64) -> None:
    """An all-reduce of that rank in each of these steps."""
    records = [
        CollectiveRecord(
            step=step, group=GROUP, op="all_reduce", start_host_ns=0, duration_ns=duration_ns, sequence=step, bytes=size
        )
        for step in steps
    ]
    add_collectives(window, rank, collectives_to_table(records))


def cover(window: StepTable, rank: int, first_step: int, last_step: int) -> list[KindWaits]:
    mark_complete(window, rank, first_step, last_step)
    return [kind for step in window.match_collectives() for kind in rows_of(step)]


def own_times(window: StepTable, *ranks: int) -> list[list[float | None]]:
    """Row by row, None where not known."""
    rows = window.series(ranks, skip_steps=0).own_ns.tolist()
    return [[None if np.isnan(value) else value for value in row] for row in rows]


def steps_in(window: StepTable) -> list[int]:
    return [int(step) for step in window.series((0,), skip_steps=0).steps]


# -- steps ------------------------------------------------------------------------------------------------------------


def test_steps_stand_in_order_however_they_came() -> None:
    window = window_of(2)
    add(window, 1, step_of(3, 31), step_of(1, 11))
    add(window, 0, step_of(2, 20), step_of(3, 30))
    add(window, 0, step_of(1, 10))
    add(window, 1, step_of(2, 21))
    series = window.series((0, 1), skip_steps=0)
    assert series.steps.tolist() == [1, 2, 3]
    assert series.step_ns.tolist() == [[10, 11], [20, 21], [30, 31]]


def test_step_that_comes_twice_is_there_once() -> None:
    window = window_of(1)
    add(window, 0, step_of(0, 10), step_of(0, 12))
    assert window.series((0,), skip_steps=0).step_ns.tolist() == [[12]]


def test_step_that_a_rank_has_not_reported_is_not_known_of_it() -> None:
    window = window_of(2)
    add(window, 0, step_of(0), step_of(5))
    add(window, 1, step_of(5))
    series = window.series((0, 1), skip_steps=0)
    assert series.steps.tolist() == [0, 5]
    assert np.isnan(series.step_ns).tolist() == [[False, True], [False, False]]


def test_step_older_than_the_window_is_late_and_counted() -> None:
    window = window_of(1, kept=8)
    assert add(window, 0, step_of(20)) == 0
    assert add(window, 0, step_of(12), step_of(13), step_of(-1)) == 2
    assert steps_in(window) == [13, 20]


def test_new_step_replaces_the_oldest_completely() -> None:
    window = window_of(2, kept=4)
    cover(window, 0, 0, 0)
    add(window, 0, step_of(0, cpu_ns=7, phases_ns={"mine": 3}))
    add(window, 1, step_of(4))
    series = window.series((0,), skip_steps=0)
    assert series.steps.tolist() == [4]
    assert np.isnan([series.step_ns, series.cpu_ns[:], series.phases_ns["mine"][:]]).all()


def test_first_steps_of_the_run_are_left_out() -> None:
    assert window_of(1, steps=6).series((0,), skip_steps=3).steps.tolist() == [3, 4, 5]


def test_columns_are_the_ranks_asked_for() -> None:
    window = window_of(3)
    for rank in range(3):
        add(window, rank, step_of(0, 10 + rank))
    series = window.series((2, 0), skip_steps=0)
    assert (series.ranks, series.step_ns.tolist()) == ((2, 0), [[12, 10]])


def test_cpu_time_that_was_not_measured_is_not_known() -> None:
    window = window_of(2)
    add(window, 0, step_of(0, cpu_ns=None))
    add(window, 1, step_of(0, cpu_ns=0))
    assert np.isnan(window.series((0, 1), skip_steps=0).cpu_ns[:]).tolist() == [[True, False]]


def test_empty_window_has_an_empty_series() -> None:
    series = window_of(2).series((0, 1), skip_steps=0)
    assert (series.steps.tolist(), series.step_ns.shape) == ([], (0, 2))


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_waiting_is_known_once_every_rank_has_told_of_the_step() -> None:
    window = window_of(2, steps=1)
    reduce_all(window, 0, 50, 0)
    assert cover(window, 0, 0, 0) == []
    assert own_times(window, 0, 1) == [[None, None]]
    reduce_all(window, 1, 20, 0)
    cover(window, 1, 0, 0)
    assert own_times(window, 0, 1) == [[70, 100]]


def test_own_time_is_unknown_where_a_rank_waited_over_its_step() -> None:
    # Rank 0 waited 107 ns in steps of 100: it was in the collectives of another step, too. One of 0.5 ns is rounding.
    window = window_of(2, steps=1)
    reduce_all(window, 0, 127, 0)
    reduce_all(window, 1, 20, 0)
    for rank in range(2):
        cover(window, rank, 0, 0)
    assert own_times(window, 0, 1) == [[None, 100]]
    (noted,) = window.impossible.pop()
    assert noted == ("own_time", 1, "rank 0 waited 107 ns of the 100 ns of step 0")


def test_ranks_may_cover_the_same_steps_in_different_chunks() -> None:
    window = window_of(2, steps=4)
    for rank, duration_ns in ((0, 50), (1, 20)):
        reduce_all(window, rank, duration_ns, 0, 1, 2, 3)
    resolved = [len(cover(window, *chunk)) for chunk in ((0, 0, 3), (1, 2, 2), (1, 0, 1), (1, 2, 3))]
    # Each step resolved gives one kind of collective for each of the two ranks.
    assert resolved == [0, 2, 4, 2]
    assert own_times(window, 0, 1) == [[70, 100]] * 4


def test_steps_that_only_some_have_told_of_stay_unknown() -> None:
    window = window_of(2, steps=4)
    cover(window, 0, 0, 2)
    cover(window, 1, 1, 3)
    assert own_times(window, 0, 1) == [[None, None], [100, 100], [100, 100], [None, None]]


def time_all(window: StepTable, rank: int, first_step: int, last_step: int) -> list[KindWaits]:
    mark_complete(window, rank, first_step, last_step, is_timed=True)
    return [kind for step in window.match_collectives() for kind in rows_of(step)]


def test_timed_step_has_waits_and_transfer_but_no_own_time() -> None:
    window = window_of(2, steps=2)
    for rank, duration_ns in ((0, 50), (1, 20)):
        reduce_all(window, rank, duration_ns, 0)
    assert time_all(window, 0, 0, 1) == []
    found = time_all(window, 1, 0, 1)
    assert [(kind.calls, kind.duration_ns, kind.wait_ns, kind.transfer_ns) for kind in found] == [
        (1, 50, 30, 20),
        (1, 20, 0, 20),
    ]
    assert own_times(window, 0, 1) == [[None, None]] * 2
    transfers = window.transfers(skip_steps=0)
    assert transfers.ns[GROUP].tolist()[0] == 20
    assert np.isnan(transfers.exposed_ns[GROUP]).tolist() == [True, True], "how much was exposed is not known"
    assert window.signatures == {}, "some kinds of communication are missing"
    window.validate()


def test_step_in_the_window_of_one_rank_only_has_no_own_time() -> None:
    window = window_of(2, steps=1)
    reduce_all(window, 0, 50, 0)
    cover(window, 0, 0, 0)
    reduce_all(window, 1, 20, 0)
    assert [kind.wait_ns for kind in time_all(window, 1, 0, 0)] == [30, 0]
    assert own_times(window, 0, 1) == [[None, None]]
    window.validate()


def test_timed_steps_are_forgotten_with_the_ring() -> None:
    window = window_of(2, steps=2, kept=4)
    for rank in (0, 1):
        reduce_all(window, rank, 20, 1)
    assert time_all(window, 0, 0, 1) == []
    add(window, 0, *map(step_of, range(2, 6)))
    assert time_all(window, 1, 1, 5) == [], "step 5 took the slot of step 1"
    window.validate()


def test_step_told_of_twice_is_counted_once() -> None:
    window = window_of(2, steps=1)
    for rank in (0, 1):
        reduce_all(window, rank, 20, 0)
    cover(window, 0, 0, 0)
    assert len(cover(window, 1, 0, 0)) == 2
    for rank in (0, 1):
        reduce_all(window, rank, 90, 0)
        assert cover(window, rank, 0, 0) == []
    assert own_times(window, 0, 1) == [[100, 100]]


def test_what_the_collectives_came_to_is_returned() -> None:
    window = window_of(2, steps=1)
    reduce_all(window, 0, 50, 0)
    reduce_all(window, 1, 20, 0)
    cover(window, 0, 0, 0)
    assert cover(window, 1, 0, 0) == [
        KindWaits(0, GROUP, "all_reduce", 1, 50, 64, 1, 30, 20, 64, 20),
        KindWaits(1, GROUP, "all_reduce", 1, 20, 64, 1, 0, 20, 64, 20),
    ]


def test_unreported_collective_makes_the_waiting_unknown() -> None:
    window = window_of(2, steps=1)
    reduce_all(window, 0, 50, 0)
    cover(window, 0, 0, 0)
    cover(window, 1, 0, 0)
    assert own_times(window, 0, 1) == [[None, 100]]


def test_steps_that_the_window_does_not_hold_are_not_covered() -> None:
    window = window_of(2, kept=4)
    for rank in (0, 1):
        add(window, rank, step_of(8), step_of(10))
        reduce_all(window, rank, 20, 5, 6)
        assert cover(window, rank, 0, 2**60) == []
    # 5 and 6 have left the window; 7 and 9 were never reported; 11 and later may still come.
    assert (cover(window, 0, 11, 11), cover(window, 1, 11, 11)) == ([], [])
    assert own_times(window, 0, 1) == [[100, 100], [100, 100]]


def test_collectives_of_a_step_outside_the_ring_are_dropped() -> None:
    window = window_of(2, steps=1, kept=4)
    reduce_all(window, 0, 50, 0)
    add(window, 0, step_of(4))
    reduce_all(window, 1, 20, 0, 4)
    reduce_all(window, 0, 30, 4)
    cover(window, 0, 0, 4)
    assert [kind.duration_ns for kind in cover(window, 1, 0, 4)] == [30, 20]


# -- peers ------------------------------------------------------------------------------------------------------------


def resolve(window: StepTable, step: int, sizes: Mapping[int, int | None]) -> None:
    for rank, size in sizes.items():
        reduce_all(window, rank, 20, step, size=size)
    for rank in range(len(sizes)):
        cover(window, rank, step, step)


def test_ranks_that_communicate_the_same_have_the_same_signature() -> None:
    window = window_of(4, steps=1)
    resolve(window, 0, {0: 64, 1: 64, 2: 4096, 3: 4096})
    found = window.signatures
    assert found[0] == found[1] != found[2] == found[3]
    assert found[0].calls == (("all_reduce", 4, 64),)


def test_sizes_that_change_twice_vary() -> None:
    window = window_of(2, steps=3)
    for step, sizes in enumerate(({0: 64, 1: 72}, {0: 80, 1: 88}, {0: 96, 1: 104})):
        resolve(window, step, sizes)
        is_alike = window.signatures[0] == window.signatures[1]
        assert is_alike == (step == 2)
    assert window.signatures[0].calls == (("all_reduce", 2, VARIES),)


def test_order_of_the_calls_makes_no_other_signature() -> None:
    window = window_of(2, steps=1)
    for rank, order in ((0, ("barrier", "all_reduce")), (1, ("all_reduce", "barrier"))):
        records = [
            CollectiveRecord(step=0, group=GROUP, op=op, start_host_ns=start_ns, duration_ns=1, sequence=1, bytes=0)
            for start_ns, op in enumerate(order)
        ]
        add_collectives(window, rank, collectives_to_table(records))
        cover(window, rank, 0, 0)
    assert window.signatures[0] == window.signatures[1]


def hand_over(window: StepTable, rank: int, first: str, second: str) -> None:
    records = [
        CollectiveRecord(step=0, group=GROUP, op=op, start_host_ns=start_ns, duration_ns=1, sequence=1, bytes=8)
        for start_ns, op in enumerate((first, second))
    ]
    add_collectives(window, rank, collectives_to_table(records[::-1]))  # not in the order in which they begin
    cover(window, rank, 0, 0)


def test_pipeline_stages_differ_by_their_place() -> None:
    window = window_of(4, steps=1)
    window.set_group_size(GROUP, 2)
    for rank in range(4):
        window.set_place(rank, GROUP, rank // 2)
        hand_over(window, rank, *(("send", "recv") if rank < 2 else ("recv", "send")))
    found = window.signatures
    assert found[0] == found[1] != found[2] == found[3]


def test_waits_in_point_to_point_operations_are_kept_by_step() -> None:
    window = window_of(2, steps=1)
    assert window.series((0, 1), skip_steps=0).handover_ns is None
    window.set_group_size(GROUP, 2)
    hand_over(window, 0, "send", "recv")
    hand_over(window, 1, "recv", "send")
    handover_ns = window.series((0, 1), skip_steps=0).handover_ns
    assert handover_ns is not None
    assert handover_ns.tolist() == [[0.0, 0.0]]  # all are as short as the shortest of their kind


@pytest.mark.parametrize(("backend", "waited_ns"), [("gloo", 50.0), ("nccl", 40.0)])
def test_only_a_host_reports_the_wait_for_a_send_alone(backend: str, waited_ns: float) -> None:
    window = window_of(1, steps=1)
    window.set_group_size(GROUP, 1, backend)
    records = [
        CollectiveRecord(step=0, group=GROUP, op=op, start_host_ns=start_ns, duration_ns=duration_ns, exposed_ns=waited)
        for op, start_ns, duration_ns, waited in (("send", 0, 100, 10), ("recv", 20, 40, 40))
    ]
    add_collectives(window, 0, collectives_to_table(records))
    cover(window, 0, 0, 0)
    handover_ns = window.series((0,), skip_steps=0).handover_ns
    assert handover_ns is not None
    assert handover_ns.tolist() == [[waited_ns]]


def test_in_a_group_of_all_ranks_it_counts_who_sends_first() -> None:
    window = window_of(4, steps=1)
    for rank in range(4):
        window.set_place(rank, GROUP, rank)
        hand_over(window, rank, *(("send", "recv") if rank < 2 else ("recv", "send")))
    found = window.signatures
    assert found[0] == found[1] != found[2] == found[3]


@pytest.mark.parametrize("unsized", [{0: None, 1: None}, {0: 64, 1: None}])
def test_signature_is_learned_only_where_all_sizes_are_known(unsized: Mapping[int, int | None]) -> None:
    window = window_of(2, steps=3)
    resolve(window, 0, unsized)
    assert window.signatures == {}
    resolve(window, 1, {0: 64, 1: 64})
    known = window.signatures
    assert set(known) == {0, 1}
    resolve(window, 2, unsized)
    assert window.signatures == known


def test_step_without_collectives_has_no_signature() -> None:
    window = window_of(2, steps=2)
    resolve(window, 0, {0: 64, 1: 64})
    known = window.signatures
    for rank in (0, 1):
        cover(window, rank, 1, 1)
    assert window.signatures == known


# -- phases that stand in ---------------------------------------------------------------------------------------------

PHASES_NS = {"data": 1, "forward": 2, "backward": 40, "optimizer": 3, "other": 4, "mine": 50}


def made(steps: int) -> StepTable:
    """A window of one rank after so many steps, none of them profiled."""
    window = window_of(1, kept=4)
    add(window, 0, *(step_of(step, phases_ns=PHASES_NS) for step in range(steps)))
    return window


def test_phases_stand_in_when_no_window_has_come_for_long() -> None:
    series = made(STAND_IN_STEPS + 1).series((0,), skip_steps=0)
    assert not series.own_is_measured
    assert series.own_ns.tolist() == [[1 + 2 + 3 + 4]] * 4


def test_phases_stand_in_although_collectives_are_timed() -> None:
    window = made(STAND_IN_STEPS + 1)
    time_all(window, 0, STAND_IN_STEPS - 1, STAND_IN_STEPS)
    series = window.series((0,), skip_steps=0)
    assert (series.own_is_measured, series.own_ns.tolist()) == (False, [[1 + 2 + 3 + 4]] * 4)


def test_phases_do_not_stand_in_early() -> None:
    series = made(STAND_IN_STEPS).series((0,), skip_steps=0)
    assert series.own_is_measured
    assert np.isnan(series.own_ns).all()


def test_phases_do_not_stand_in_once_a_window_has_come() -> None:
    window = made(STAND_IN_STEPS + 1)
    cover(window, 0, STAND_IN_STEPS, STAND_IN_STEPS)
    series = window.series((0,), skip_steps=0)
    assert series.own_is_measured
    assert series.own_ns[-1].tolist() == [STEP_NS]
    assert np.isnan(series.own_ns[:-1]).all()


def test_phase_that_a_rank_lacks_leaves_its_stand_in_unknown() -> None:
    window = window_of(2, kept=4)
    add(window, 0, step_of(0), step_of(STAND_IN_STEPS, phases_ns=PHASES_NS))
    assert np.isnan(window.series((0, 1), skip_steps=0).own_ns).tolist() == [[False, True]]


def test_without_phases_nothing_stands_in() -> None:
    window = StepTable(4, 1)
    window.set_group_size(GROUP, 1)
    table = steps_to_table([step_of(0), step_of(STAND_IN_STEPS)])
    columns = tuple(name for name in table.names if not name.startswith("phase:"))
    add_steps(window, 0, type(table)(columns, 2, table.data[: 2 * 8 * len(columns)]))
    assert not window.series((0,), skip_steps=0).own_is_measured
    assert np.isnan(window.series((0,), skip_steps=0).own_ns).all()


def test_phases_beyond_the_limit_are_left_out() -> None:
    window = window_of(1)
    add(window, 0, step_of(0, phases_ns={f"p{number:02}": number for number in range(PHASES_MAX)}))
    found = window.series((0,), skip_steps=0).phases_ns
    # The five of every step are there before the user's own.
    assert len(found) == PHASES_MAX
    assert f"p{PHASES_MAX - 6}" in found
    assert f"p{PHASES_MAX - 5}" not in found


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_of_each_batch_are_kept_where_they_are_counted() -> None:
    window = window_of(2)
    add(window, 0, StepRecord(step=0, start_host_ns=0, duration_ns=STEP_NS, phases_ns={}, tokens=512))
    add(window, 1, step_of(0))
    tokens = window.series((0, 1), skip_steps=0).tokens
    assert tokens is not None
    assert tokens[0, 0] == 512
    assert np.isnan(tokens[0, 1])


# -- transfers --------------------------------------------------------------------------------------------------------


def test_transfers_are_of_steps_all_ranks_reported() -> None:
    window = window_of(2, steps=3)
    for rank, duration_ns in ((0, 50), (1, 20)):
        reduce_all(window, rank, duration_ns, 1, 2)
        cover(window, rank, 1, 1)
    found = window.transfers(skip_steps=1)
    assert found.ns[GROUP].tolist()[0] == 20
    assert np.isnan(found.ns[GROUP]).tolist() == [False, True]
    assert found.size_bytes[GROUP].tolist()[0] == 64


def test_transfers_of_a_step_leave_with_it() -> None:
    window = window_of(2, steps=1, kept=4)
    for rank in (0, 1):
        reduce_all(window, rank, 20, 0)
        cover(window, rank, 0, 0)
    add(window, 0, step_of(4))
    assert window.transfers(skip_steps=0).ns == {}


# -- who caused the waiting -------------------------------------------------------------------------------------------


def wait_caused(window: StepTable) -> list[list[float | None]]:
    found = window.series((0, 1), skip_steps=0).wait_caused_ns
    assert found is not None
    return [[None if np.isnan(value) else value for value in row] for row in found.tolist()]


def test_slow_attribution_takes_one_completed_step_in_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_table, "OPERATIONS_AT_ONCE", 0)
    window = window_of(2, steps=4)
    reduce_all(window, 0, 50, 0, 1, 2, 3)
    reduce_all(window, 1, 10, 0, 1, 2, 3)
    cover(window, 0, 0, 3)
    cover(window, 1, 0, 1)
    assert wait_caused(window) == [[0, 40], [None, None], [None, None], [None, None]]
    cover(window, 1, 2, 3)
    assert wait_caused(window) == [[0, 40], [None, None], [None, None], [0, 40]]


def test_steps_that_take_little_are_attributed_together() -> None:
    window = window_of(2, steps=3)
    reduce_all(window, 0, 50, 0, 1, 2)
    reduce_all(window, 1, 10, 0, 1, 2)
    cover(window, 0, 0, 2)
    cover(window, 1, 0, 2)
    assert wait_caused(window) == [[0, 40]] * 3


@pytest.mark.parametrize(("members", "caused", "untraced"), [(2, [0, 40], 0), (3, [0, 0, 0], 80)])
def test_broadcast_wait_is_charged_if_there_is_one_other_only(
    members: int, caused: list[float], untraced: float
) -> None:
    window = window_of(members, steps=1)
    for rank in range(members):
        record = CollectiveRecord(
            step=0, group=GROUP, op="broadcast", start_host_ns=0, sequence=0, bytes=64,
            duration_ns=10 if rank == members - 1 else 50,
        )  # fmt: skip
        add_collectives(window, rank, collectives_to_table([record]))
        cover(window, rank, 0, 0)
    series = window.series(tuple(range(members)), skip_steps=0)
    assert series.wait_caused_ns is not None
    assert series.wait_untraced_ns is not None
    assert (series.wait_caused_ns[0].tolist(), series.wait_untraced_ns.tolist()) == (caused, [untraced])


@pytest.mark.parametrize(("late_ns", "caused"), [(0, 40), (20, 60)], ids=["at once", "one beginning amid the other"])
def test_waits_of_a_rank_in_concurrent_operations_count_once(late_ns: int, caused: int) -> None:
    """Rank 0 starts two buckets, the second later; rank 1 comes 40 later to each, and both last 10."""
    window = window_of(2, steps=1)
    for rank, duration_ns in ((0, 50), (1, 10)):
        buckets = [
            CollectiveRecord(
                step=0, group=GROUP, op="all_reduce", start_host_ns=number * late_ns + (0, 40)[rank], sequence=number,
                bytes=64, duration_ns=duration_ns,
            )
            for number in range(2)
        ]  # fmt: skip
        add_collectives(window, rank, collectives_to_table(buckets))
        cover(window, rank, 0, 0)
    assert wait_caused(window) == [[0, caused]]


def test_step_too_large_to_be_charged_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_attribution, "CELLS_MAX", 0)
    window = window_of(2, steps=1)
    for rank in (0, 1):
        reduce_all(window, rank, 10, 0)
        cover(window, rank, 0, 0)
    assert window.series((0, 1), skip_steps=0).wait_caused_ns is None


def test_what_a_rank_caused_is_forgotten_with_its_step() -> None:
    window = window_of(2, steps=1, kept=2)
    reduce_all(window, 0, 50, 0)
    reduce_all(window, 1, 10, 0)
    for rank in (0, 1):
        cover(window, rank, 0, 0)
    add(window, 0, step_of(2))
    assert wait_caused(window) == [[None, None]]


def test_cells_are_read_like_an_array() -> None:
    """A window that has wrapped round, of ranks 0 and 2 of three."""
    kept = 6
    window = window_of(3, kept=kept)
    for step in range(kept + 2):
        for rank in range(3):
            add(window, rank, step_of(step, cpu_ns=10 * step + rank))
    cells = window.series((0, 2), skip_steps=0).cpu_ns
    whole = np.array([[10 * step, 10 * step + 2] for step in range(2, kept + 2)], dtype=np.float64)
    rows, columns, is_even = np.array([0, kept - 1]), np.array([1]), whole[:, 0] % 20 == 0
    for key in (
        slice(None), slice(-2, None), rows, is_even, (rows, 1), (0, 0), np.ix_(rows, columns), (slice(None), columns),
        (slice(-2, None), columns), (slice(None), slice(0, 1)),
    ):  # fmt: skip
        np.testing.assert_array_equal(cells[key], whole[key])
        assert cells[key].dtype == np.float64


def test_steps_that_recording_has_made_longer_are_not_compared() -> None:
    window = window_of(ranks=2, steps=2)
    captured = StepRecord(step=3, start_host_ns=0, duration_ns=9 * STEP_NS, phases_ns={}, captured=True)
    assert add(window, 0, step_of(2), captured, step_of(4)) == 0, "it has not come too late"
    add(window, 1, *map(step_of, range(2, 5)))
    series = window.series((0, 1), skip_steps=0)
    assert series.steps.tolist() == [0, 1, 2, 3, 4]
    found = series.step_ns[:, 0]
    assert found[[0, 1, 2, 4]].tolist() == [STEP_NS] * 4
    assert np.isnan(found[3])
