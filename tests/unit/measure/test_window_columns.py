"""Check the packed columns of a live window, and the trace built from them."""

from array import array
from collections.abc import Sequence

import msgspec
import pytest

from rankscope.measure.kineto import NONE, Category, CollectiveArguments
from rankscope.measure.window_columns import WindowColumns, to_trace

Event = tuple[Category, str, int, int, int]
"""Category, name, lane, start and duration."""


def pack(events: Sequence[Event], metadata: dict[int, str] | None = None) -> WindowColumns:
    names = tuple(dict.fromkeys(event[1] for event in events))
    lanes = tuple(dict.fromkeys(event[2] for event in events))
    return WindowColumns(
        names=names,
        lanes=lanes,
        category=array("b", [event[0] for event in events]).tobytes(),
        name=array("i", [names.index(event[1]) for event in events]).tobytes(),
        lane=array("i", [lanes.index(event[2]) for event in events]).tobytes(),
        start_ns=array("q", [event[3] for event in events]).tobytes(),
        duration_ns=array("q", [event[4] for event in events]).tobytes(),
        correlation=array("q", range(50, 50 + len(events))).tobytes(),
        metadata=metadata or {},
    )


OPERATOR, KERNEL, COPY = Category.CPU_OP, Category.KERNEL, Category.MEMCPY


def test_events_come_by_start_and_at_one_start_the_longest_first() -> None:
    trace = to_trace(pack([(OPERATOR, "c", 1, 30, 5), (OPERATOR, "b", 1, 20, 2), (OPERATOR, "a", 2, 20, 9)]))
    assert [trace.name(row) for row in range(3)] == ["a", "b", "c"]
    assert (trace.events.start_ns.tolist(), trace.events.duration_ns.tolist()) == ([20, 20, 30], [9, 2, 5])
    assert trace.events.correlation.tolist() == [52, 51, 50], "every column in the same order"
    assert [trace.threads[lane] for lane in trace.events.thread] == [("2", ""), ("1", ""), ("1", "")]


def test_times_are_put_back_to_the_clock_that_is_wanted() -> None:
    assert to_trace(pack([(OPERATOR, "a", 1, 1_030, 5)]), ahead_ns=1_000).events.start_ns.tolist() == [30]


def test_a_negative_duration_is_none() -> None:
    assert to_trace(pack([(OPERATOR, "a", 1, 10, -5)])).events.duration_ns.tolist() == [0]


def test_device_work_is_found_with_its_stream() -> None:
    trace = to_trace(pack([(OPERATOR, "a", 1, 10, 5), (COPY, "copy", 7, 30, 5), (KERNEL, "gemm", 9, 20, 5)]))
    assert (trace.device_work.row.tolist(), trace.device_work.stream.tolist()) == ([1, 2], [9, 7])


def test_an_empty_window_is_an_empty_trace() -> None:
    trace = to_trace(WindowColumns())
    assert (len(WindowColumns()), len(trace.events), len(trace.device_work.row), trace.collectives) == (0, 0, 0, {})


def test_what_is_told_of_a_collective_stays_with_its_kernel() -> None:
    metadata = {0: '"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float", "Seq": 3'}
    trace = to_trace(pack([(KERNEL, "nccl", 7, 20, 5), (KERNEL, "gemm", 7, 10, 5)], metadata))
    expected = CollectiveArguments("allreduce", 8, None, None, "Float", None, None, None, 3)
    assert trace.collectives == {1: expected}, "the later of the two"


@pytest.mark.parametrize("metadata", ["", '"In msg nelems": 8', "not JSON", '"Collective name": ', '"dtype": "\x01"'])
def test_what_tells_no_collective_is_passed_over(metadata: str) -> None:
    assert to_trace(pack([(KERNEL, "nccl", 7, 20, 5)], {0: metadata})).collectives == {}


def test_columns_of_different_lengths_are_refused() -> None:
    events = pack([(KERNEL, "nccl", 7, 20, 5)])
    short = WindowColumns(**{name: getattr(events, name) for name in ("names", "lanes", "start_ns")})
    with pytest.raises(ValueError, match="shape"):
        to_trace(short)


def test_an_identity_is_missing_not_zero() -> None:
    assert to_trace(pack([(KERNEL, "nccl", 7, 20, 5)])).events.external_id.tolist() == [NONE]


def test_operator_rows_have_shapes_values_and_autograd_numbers() -> None:
    dims, types, values = (
        '"Input Dims": [[2, 3], []]',
        '"Input type": ["float", "Scalar"]',
        '"Concrete Inputs": ["", "1"]',
    )
    numbers = '"Sequence number": 9, "Fwd thread id": 1'
    operators = {0: f"{numbers}, {dims}, {types}, {values}", 1: numbers.replace("9", "4"), 2: "not JSON"}
    events = [(OPERATOR, "late", 1, 30, 5), (OPERATOR, "early", 1, 10, 5), (OPERATOR, "damaged", 1, 20, 5)]
    trace = to_trace(msgspec.structs.replace(pack(events), operators=operators))
    assert trace.shapes == {2: (b'["float", "Scalar"]', b"[[2, 3], []]")}
    assert trace.addresses == {2: b'["", "1"]'}
    assert trace.autograd is not None
    links = trace.autograd
    assert [links.row.tolist(), links.sequence.tolist(), links.forward_thread.tolist()] == [[0, 2], [4, 9], [1, 1]]


@pytest.mark.parametrize("operators", [{0: '"Input Dims": [[2]]'}, {0: '"Sequence number": "9"'}])
def test_incomplete_metadata_of_an_operator_is_not_used(operators: dict[int, str]) -> None:
    trace = to_trace(msgspec.structs.replace(pack([(OPERATOR, "mm", 1, 30, 5)]), operators=operators))
    assert (trace.shapes, trace.addresses) == ({}, {})
    assert trace.autograd is not None
    assert trace.autograd.row.tolist() == []


def test_window_without_shapes_has_no_numbers_of_autograd() -> None:
    assert to_trace(pack([(OPERATOR, "mm", 1, 30, 5)])).autograd is None
