"""The devices' own times in the step table: device step less tail, in place of own times where no window comes.

Two ranks; times in ns, small enough to add up in one's head.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from rankscope.collector.steps.device_own_times import fill_from_device, read_own_ns
from rankscope.collector.steps.measured_steps import STAND_IN_NS, STAND_IN_STEPS
from rankscope.collector.steps.predicted_steps import MEASURED_MIN
from rankscope.collector.steps.stacked_tables import stack_tables
from rankscope.collector.steps.step_series import StepSeries
from rankscope.collector.steps.step_table import StepTable
from rankscope.measure.records import (
    DEVICE_TAIL,
    CollectiveRecord,
    StepRecord,
    collectives_to_table,
    steps_to_table,
)
from rankscope.measure.table import Table
from tests.unit.collector.steps.one_rank import add_collectives, add_steps, mark_complete

RANKS = (0, 1)
KEPT = 8
GROUP = "default_pg"
FIRST = STAND_IN_STEPS + 1
"""Without a window something stands in from here on."""
STEP_NS = 100
TAILS_NS = (30, 5)
OWN_NS = [STEP_NS - tail_ns for tail_ns in TAILS_NS]
DEVICE_NS = {"data": 0, "forward": 40, "backward": 55, "optimizer": 5, "other": 0}


def table_of(measured_min: int = 0, sizes: Mapping[str, int] | None = None, kept: int = KEPT) -> StepTable:
    """A table whose first step was long ago, with these process groups."""
    table = StepTable(kept, len(RANKS), measured_min)
    for label, size in ({GROUP: len(RANKS)} if sizes is None else sizes).items():
        table.set_group_size(label, size)
    make(table, 0)
    return table


def make(table: StepTable, *steps: int, timed: tuple[int, ...] = (), duration_ns: int = STEP_NS) -> None:
    """Each rank makes these steps; those of the ranks in `timed` have device times."""
    for rank in RANKS:
        records = [
            StepRecord(
                step=step,
                start_host_ns=0,
                duration_ns=duration_ns,
                phases_ns={},
                device_phases_ns=DEVICE_NS if rank in timed else None,
                device_tail_ns=TAILS_NS[rank] if rank in timed else None,
            )
            for step in steps
        ]
        add_steps(table, rank, steps_to_table(records))


def reduce_all(table: StepTable, durations_ns: tuple[int, int], step: int, ranks: tuple[int, ...] = RANKS) -> None:
    """An all-reduce in this step, timed by the recorders of these ranks, and by those of the others without it."""
    for rank in RANKS:
        record = CollectiveRecord(
            step=step, group=GROUP, op="all_reduce", start_host_ns=0, duration_ns=durations_ns[rank], sequence=step
        )
        if rank in ranks:
            add_collectives(table, rank, collectives_to_table([record]))
        mark_complete(table, rank, step, step, is_timed=True)
    table.match_collectives()


def read(table: StepTable) -> StepSeries:
    return table.series(RANKS, skip_steps=0)


def known_steps(series: StepSeries) -> list[int]:
    return [int(step) for step in series.steps[~np.isnan(series.own_ns).any(axis=1)]]


def test_device_step_without_its_tail_is_the_own_time() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    make(table, FIRST + 1)
    series = read(table)
    assert (series.is_by_device, series.own_is_measured) == (True, False)
    assert series.own_ns[-2].tolist() == OWN_NS
    assert np.isnan(series.own_ns[-1]).all()


def test_step_that_one_rank_did_not_time_is_not_compared() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    make(table, FIRST + 1, timed=(1,))
    assert known_steps(read(table)) == [FIRST]


def test_phases_stand_in_until_all_ranks_have_timed_a_step() -> None:
    table = table_of()
    make(table, FIRST, timed=(0,))
    assert not read(table).is_by_device


def test_measured_waits_count_before_the_devices_own_times() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    for rank in RANKS:
        mark_complete(table, rank, FIRST, FIRST)
    table.match_collectives()
    series = read(table)
    assert (series.is_by_device, series.own_is_measured) == (False, True)
    assert series.own_ns[-1].tolist() == [STEP_NS, STEP_NS]


@pytest.mark.parametrize(
    ("sizes", "is_known"),
    [
        ({GROUP: 2}, True),
        ({GROUP: 2, "mesh_tp/0": 1}, True),
        ({GROUP: 2, "mesh_dp": 2}, True),
        ({}, False),  # not reported yet
    ],
)
def test_own_times_are_known_where_every_group_has_all_ranks(sizes: Mapping[str, int], *, is_known: bool) -> None:
    table = table_of(sizes=sizes)
    make(table, FIRST, timed=RANKS)
    series = read(table)
    assert series.is_by_device
    assert bool(known_steps(series)) == is_known


def test_nothing_is_known_if_a_group_of_several_ranks_lacks_some() -> None:
    table = StepTable(KEPT, 4)
    table.set_group_size(GROUP, 4)
    table.set_group_size("mesh_tp/0-1", 2)
    record = StepRecord(
        step=FIRST, start_host_ns=0, duration_ns=9, phases_ns={}, device_phases_ns=DEVICE_NS, device_tail_ns=5
    )
    for rank in range(4):
        add_steps(
            table, rank, steps_to_table([StepRecord(step=0, start_host_ns=0, duration_ns=9, phases_ns={}), record])
        )
    series = table.series((0, 1, 2, 3), skip_steps=0)
    assert series.is_by_device
    assert np.isnan(series.own_ns).all()


def test_own_times_no_longer_count_a_minute_after_the_last() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS, duration_ns=STAND_IN_NS)
    make(table, FIRST + KEPT, duration_ns=STAND_IN_NS)
    assert read(table).is_by_device
    make(table, FIRST + KEPT + 1, duration_ns=STAND_IN_NS)
    assert not read(table).is_by_device


def test_as_many_timed_steps_are_kept_as_a_verdict_needs() -> None:
    table = table_of(measured_min=3)
    for step in range(FIRST, FIRST + 40):
        make(table, step, timed=RANKS if step % 10 == 0 else ())
    series = read(table)
    assert known_steps(series) == [80, 90, 100]
    assert series.own_ns[~np.isnan(series.own_ns).any(axis=1)].tolist() == [OWN_NS] * 3
    table.validate()


def test_timed_steps_tell_what_windows_have_not_measured() -> None:
    table = table_of(measured_min=2)
    for step in range(FIRST, FIRST + 40):
        make(table, step, timed=RANKS if step % 2 == 0 else ())
        if step in {FIRST, FIRST + 2}:
            for rank in RANKS:
                mark_complete(table, rank, step, step)
            table.match_collectives()
    series = table.series(RANKS, skip_steps=0)
    assert series.own_is_measured  # 38 steps take no minute
    kept = [step for step in range(FIRST + 32, FIRST + 40) if step % 2 == 0]
    assert known_steps(series) == [FIRST, FIRST + 2, *kept]
    # Timed steps are in the ring in number, so that no other ones are kept for them.
    assert series.earlier_count == 2


def test_device_times_are_doubted_once_windows_show_waits_within() -> None:
    # Up to step 20 both work 100 ns a step; then rank 1 is 80 ns late, and rank 0 waits for its buffers in forward.
    own_ns = np.full((40, 2), 100.0)
    own_ns[20:, 1] += 80.0
    device_ns = np.repeat(own_ns.max(axis=1, keepdims=True), 2, axis=1)
    measured_ns = own_ns.copy()
    measured_ns[20 + MEASURED_MIN :] = np.nan
    assert np.isnan(fill_from_device(measured_ns, device_ns)[20 + MEASURED_MIN :]).all()


# -- collectives of these steps ---------------------------------------------------------------------------------------


def test_waits_in_timed_collectives_are_known_of_timed_steps() -> None:
    table = table_of()
    make(table, FIRST, FIRST + 1, timed=RANKS)
    make(table, FIRST + 2)
    for step in (FIRST, FIRST + 2):
        reduce_all(table, (50, 20), step)
    series = read(table)
    (row,) = series.timed_waits_ns
    assert int(series.steps[row]) == FIRST
    assert series.timed_waits_ns[row].tolist() == [50 - 20, 0]


def test_waits_are_not_known_where_a_member_lacks_the_collective() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    reduce_all(table, (50, 20), FIRST, ranks=(0,))
    assert read(table).timed_waits_ns == {}


def test_step_without_collectives_has_no_waits() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    reduce_all(table, (50, 20), FIRST, ranks=())
    assert read(table).timed_waits_ns == {}


def test_waits_are_kept_with_their_step() -> None:
    table = table_of(measured_min=1)
    make(table, FIRST, timed=RANKS)
    reduce_all(table, (50, 20), FIRST)
    for step in range(FIRST + 1, FIRST + 20):
        make(table, step)
    series = read(table)
    assert [int(series.steps[row]) for row in series.timed_waits_ns] == [FIRST]
    assert known_steps(series) == [FIRST]


def test_waits_are_left_out_while_windows_measure() -> None:
    table = table_of()
    make(table, FIRST, timed=RANKS)
    reduce_all(table, (50, 20), FIRST)
    for rank in RANKS:
        mark_complete(table, rank, FIRST, FIRST)
    assert read(table).timed_waits_ns == {}


# -- what ranks send --------------------------------------------------------------------------------------------------


def own_times(names: tuple[str, ...], *rows: tuple[int | None, ...]) -> list[float] | None:
    ((_, block),) = stack_tables([Table.from_rows(names, rows)])
    found = read_own_ns(block)
    return None if found is None else found.tolist()


def test_own_time_is_the_sum_of_the_phases_less_the_tail() -> None:
    assert own_times(("device:data", "device:forward", DEVICE_TAIL), (10, 20, 5)) == [25]


def test_tail_longer_than_the_step_leaves_no_time() -> None:
    assert own_times(("device:data", DEVICE_TAIL), (10, 11)) == [0]


def test_tail_without_phases_leaves_no_time() -> None:
    assert own_times((DEVICE_TAIL,), (11,)) == [0]


def test_table_without_tails_has_no_own_times() -> None:
    assert own_times(("device:data",), (10,)) is None


def test_own_time_is_not_known_where_a_part_is_missing() -> None:
    found = own_times(("device:data", DEVICE_TAIL), (None, 5), (10, None), (10, 4))
    assert found is not None
    assert [None if np.isnan(value) else value for value in found] == [None, None, 6]
