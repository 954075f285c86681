"""The table of integers that travels as one block."""

import pytest

from rankscope.measure.errors import DecodeError, DecodeReason
from rankscope.measure.records import (
    BACKWARD_CPU,
    CAPTURED,
    DEVICE_TAIL,
    CollectiveRecord,
    StepRecord,
    collectives_to_table,
    steps_to_table,
)
from rankscope.measure.table import COLUMNS_MAX, MISSING, Table


def refusal(table: Table) -> str:
    with pytest.raises(DecodeError) as caught:
        table.check()
    assert caught.value.reason is DecodeReason.BAD_TABLE
    return str(caught.value)


def test_rows_come_back_as_columns_with_missing_in_place_of_none() -> None:
    table = Table.from_rows(("step", "bytes"), [(7, None), (8, 64), (9, 0)])
    assert {name: column.tolist() for name, column in table.columns().items()} == {
        "step": [7, 8, 9],
        "bytes": [MISSING, 64, 0],
    }


def test_the_block_holds_column_after_column_in_little_endian() -> None:
    table = Table.from_rows(("a", "b"), [(1, 3), (2, -1)])
    assert table.data == b"".join(value.to_bytes(8, "little", signed=True) for value in (1, 2, 3, -1))


def test_a_column_the_sender_does_not_have_is_missing_throughout() -> None:
    assert Table.from_rows(("step",), [(7,), (8,)]).column("of_tomorrow").tolist() == [MISSING, MISSING]


def test_a_column_can_be_written_to_without_changing_the_table() -> None:
    table = Table.from_rows(("step",), [(7,)])
    table.column("step")[0] = 8
    assert table.column("step").tolist() == [7]


@pytest.mark.parametrize("table", [Table(), Table.from_rows(("step", "bytes"), []), Table(("a",), 1, bytes(8))])
def test_a_table_whose_sizes_agree_passes(table: Table) -> None:
    table.check()


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(15), bytes(17)])
def test_data_of_another_size_than_announced_is_refused(data: bytes) -> None:
    # Two columns of one row of 8 bytes.
    assert refusal(Table(("a", "b"), 1, data)).endswith(f"{len(data)} bytes of data where 16 were announced")


def test_a_negative_number_of_rows_is_refused() -> None:
    assert refusal(Table(("a",), -1, b"")).endswith("0 bytes of data where -8 were announced")


def test_rows_without_a_column_are_refused_before_allocation() -> None:
    assert refusal(Table((), 2**60, b"")).endswith(f"{2**60} rows were announced, and no column")


def test_two_columns_of_one_name_are_refused() -> None:
    assert refusal(Table(("a", "a"), 0, b"")).endswith("2 columns, the limit is 64, each once")


def test_more_columns_than_the_limit_are_refused() -> None:
    names = tuple(map(str, range(COLUMNS_MAX)))
    Table(names, 0, b"").check()
    assert "65 columns, the limit is 64" in refusal(Table((*names, "one more"), 0, b""))


def test_steps_become_a_row_each_with_a_column_for_every_phase() -> None:
    phases_ns = {"data": 1, "forward": 2, "backward": 3, "optimizer": 4, "other": 0}
    table = steps_to_table(
        [
            StepRecord(step=3, start_host_ns=100, duration_ns=10, phases_ns=phases_ns, batches=1, backwards=2),
            StepRecord(step=4, start_host_ns=110, duration_ns=5, phases_ns={"checkpoint": 5}, cpu_ns=0, samples=8),
        ]
    )
    columns = {name: column.tolist() for name, column in table.columns().items()}
    assert list(columns)[6:] == [
        "samples", "tokens",
        "phase:data", "phase:forward", "phase:backward", "phase:optimizer", "phase:other", "phase:checkpoint",
    ]  # fmt: skip
    assert (columns["step"], columns["cpu_ns"], columns["backwards"]) == ([3, 4], [MISSING, 0], [2, 0])
    assert (columns["samples"], columns["tokens"]) == ([MISSING, 8], [MISSING, MISSING])
    assert (columns["phase:backward"], columns["phase:checkpoint"]) == ([3, 0], [0, 5])


def test_cpu_time_in_backward_is_a_column_where_it_was_read() -> None:
    known = StepRecord(step=3, start_host_ns=100, duration_ns=10, phases_ns={}, backward_cpu_ns=4)
    unknown = StepRecord(step=4, start_host_ns=110, duration_ns=10, phases_ns={})
    assert steps_to_table([known, unknown]).column(BACKWARD_CPU).tolist() == [4, MISSING]
    assert BACKWARD_CPU not in steps_to_table([unknown]).names


def test_device_timed_steps_have_a_device_column_for_each_phase() -> None:
    phases_ns = {"data": 1, "forward": 2, "backward": 3, "optimizer": 4, "other": 0}
    on_device = {"data": 0, "forward": 7, "backward": 8, "optimizer": 9, "other": 1}
    untimed = StepRecord(step=3, start_host_ns=100, duration_ns=10, phases_ns=phases_ns)
    timed = StepRecord(step=4, start_host_ns=110, duration_ns=10, phases_ns=phases_ns, device_phases_ns=on_device)
    columns = {name: column.tolist() for name, column in steps_to_table([untimed, timed]).columns().items()}
    assert {name: columns[f"device:{name}"] for name in on_device} == {
        name: [MISSING, duration_ns] for name, duration_ns in on_device.items()
    }
    assert not any(name.startswith("device:") for name in steps_to_table([untimed]).names)


def test_tails_of_timed_steps_are_a_column_where_any_is_known() -> None:
    on_device = {"data": 0, "forward": 7, "backward": 8, "optimizer": 9, "other": 1}
    timed = StepRecord(step=3, start_host_ns=100, duration_ns=10, phases_ns={}, device_phases_ns=on_device)
    with_tail = StepRecord(
        step=4, start_host_ns=110, duration_ns=10, phases_ns={}, device_phases_ns=on_device, device_tail_ns=0
    )
    assert steps_to_table([timed, with_tail]).column(DEVICE_TAIL).tolist() == [MISSING, 0]
    assert DEVICE_TAIL not in steps_to_table([timed]).names


def test_device_times_beyond_the_columns_are_part_of_other() -> None:
    # As many user phases as may be set. 59 columns are used, so 5 of the 51 phases still fit.
    own = {f"own {number:02}": 1 for number in range(46)}
    phases_ns = {"data": 10, "forward": 20, "backward": 30, "optimizer": 40, "other": 50, **own}
    record = StepRecord(step=0, start_host_ns=0, duration_ns=196, phases_ns=phases_ns, device_phases_ns=phases_ns)
    table = steps_to_table([record])
    table.check()
    on_device = {name: table.column(name).tolist()[0] for name in table.names if name.startswith("device:")}
    assert on_device == {
        "device:data": 10, "device:forward": 20, "device:backward": 30, "device:optimizer": 40, "device:other": 50 + 46,
    }  # fmt: skip


def test_a_step_ends_where_its_duration_ends() -> None:
    assert StepRecord(step=0, start_host_ns=100, duration_ns=10, phases_ns={}).end_host_ns == 110


def test_collectives_name_their_group_and_operation_by_an_index() -> None:
    collectives = collectives_to_table(
        [
            CollectiveRecord(step=1, group="world", op="barrier", start_host_ns=5, duration_ns=2),
            CollectiveRecord(step=1, group="dp", op="all_reduce", start_host_ns=9, duration_ns=4, sequence=1, bytes=0),
        ]
    )
    assert (collectives.groups, collectives.ops) == (("dp", "world"), ("all_reduce", "barrier"))
    columns = {name: column.tolist() for name, column in collectives.table.columns().items()}
    assert (columns["group"], columns["op"]) == ([1, 0], [1, 0])
    assert (columns["sequence"], columns["bytes"]) == ([MISSING, 1], [MISSING, 0])


def test_captured_steps_have_a_column_where_there_is_any() -> None:
    plain = StepRecord(step=1, start_host_ns=0, duration_ns=5, phases_ns={})
    captured = StepRecord(step=2, start_host_ns=5, duration_ns=9, phases_ns={}, captured=True)
    assert steps_to_table([plain, captured]).column(CAPTURED).tolist() == [0, 1]
    assert CAPTURED not in steps_to_table([plain]).names
