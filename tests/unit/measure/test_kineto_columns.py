"""The columns that events become: times, numbers, names, threads, categories, repeated events."""

import math
from typing import Any

import pytest

from rankscope.measure.kineto import NONE, Category, ReadOptions, StreamWait, find_uncounted
from rankscope.measure.kineto_columns import TraceColumns, read_trace
from rankscope.measure.kineto_json import TraceBlocks
from tests.unit.measure.written_traces import Event, allocation, event, kernel, launch, read, read_events, to_json

DAY_US = 24 * 3600 * 1_000_000
EPOCH_US = 1_718_000_000_000_000
"""June 2024. As floats such times are a quarter of a microsecond apart."""


def start_of(written: str) -> list[int]:
    return list(read(f'[{{"ph": "X", "name": "a", "ts": {written}, "dur": 1}}]'.encode()).events.start_ns)


def duration_of(written: str) -> list[int]:
    return list(read(f'[{{"ph": "X", "name": "a", "ts": 1, "dur": {written}}}]'.encode()).events.duration_ns)


# -- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("3", 3_000),
        ("1.5", 1_500),
        ('"2.25"', 2_250),
        ("1e3", 1_000_000),
        ("1.2345678E1", 12_346),
        ("-4.001", -4_001),
        ("0.0004", 0),
        ("4458676522690.655", 4_458_676_522_690_655),
        (f"{EPOCH_US}", EPOCH_US * 1_000),
        (f"{EPOCH_US}.123", EPOCH_US * 1_000 + 123),
        (f"{EPOCH_US}.1236", EPOCH_US * 1_000 + 124),
        (f'"{EPOCH_US}.123"', EPOCH_US * 1_000 + 123),
    ],
)
def test_a_time_is_exact_to_the_ns(written: str, ns: int) -> None:
    assert start_of(written) == [ns]


@pytest.mark.parametrize("written", ["null", '""', '"soon"', "nan", "inf", "1e300", f"{2**52}", "1" + "0" * 40])
def test_an_event_without_a_usable_time_is_counted_and_left_out(written: str) -> None:
    trace = read(f'[{{"ph": "X", "name": "a", "ts": {written}, "dur": 1}}]'.encode())
    assert (len(trace.events), trace.event_count) == (0, 1)
    assert trace.warnings == ["1 x not used: an event without a usable time or duration"]


@pytest.mark.parametrize(("written", "ns"), [("0", 0), ("0.001", 1), ('"2.5"', 2_500), ("1e2", 100_000)])
def test_a_duration_is_exact_to_the_ns(written: str, ns: int) -> None:
    assert duration_of(written) == [ns]


def test_duration_that_is_no_number_leaves_others_as_they_are() -> None:
    trace = read_events(kernel("a", 1, "soon"), kernel("b", 2, 1.5), kernel("c", 3, 2**44 + 0.25))
    assert (trace.events.duration_ns.tolist(), len(trace.warnings)) == ([1_500], 2)


def test_a_negative_duration_is_taken_as_none_and_told() -> None:
    trace = read_events(kernel("k", 10, -3))
    assert trace.events.duration_ns.tolist() == [0]
    assert trace.warnings == ["1 events have a negative duration: counted with duration 0"]


def test_the_latest_end_still_fits_64_bits() -> None:
    most_us = 2**52 - 1
    trace = read_events(kernel("k", most_us, DAY_US - 1))
    assert trace.events.end_ns.tolist() == [(most_us + DAY_US - 1) * 1_000]


# -- impossible times -------------------------------------------------------------------------------------------------


def test_event_with_time_zero_is_left_out() -> None:
    trace = read_events(kernel("k", 0, 5), *(kernel("k", EPOCH_US + k, 1) for k in range(3)))
    assert trace.events.start_ns.tolist() == [(EPOCH_US + k) * 1_000 for k in range(3)]
    assert trace.device_work.row.tolist() == [0, 1, 2]
    assert trace.warnings == ["1 events left out: a time of zero"]


def test_kernel_of_a_day_is_left_out() -> None:
    trace = read_events(kernel("short", 5, DAY_US - 1), kernel("long", 5, DAY_US), kernel("k", 9, 1))
    assert sorted(trace.names[code] for code in trace.events.name) == ["k", "short"]
    assert trace.warnings == ["1 events left out: a length of a day or more"]


@pytest.mark.parametrize(("length_s", "kept"), [(61.9, 2), (62.1, 1)])
def test_kernel_that_ends_a_minute_after_the_host_is_left_out(length_s: float, kept: int) -> None:
    # The host's call ends at 2 s, the kernel that it launched begins at 0.
    trace = read_events(event("cuda_runtime", "sync", 1_000_000, 1_000_000), kernel("k", 0, length_s * 1e6))
    assert len(trace.events) == kept
    assert len(trace.warnings) == 2 - kept


def test_long_kernel_without_anything_on_the_host_is_kept() -> None:
    assert len(read_events(kernel("k", 0, 3_600_000_000)).events) == 1


def test_host_range_long_after_the_device_is_kept() -> None:
    assert len(read_events(kernel("k", 1, 1), event("cpu_op", "a", 100_000_000, 1)).events) == 2


@pytest.mark.parametrize("others", [[kernel("k", EPOCH_US, 1)], [allocation(EPOCH_US, 8), allocation(EPOCH_US + 1, 8)]])
def test_allocation_with_time_zero_is_left_out(others: list[dict[str, Any]]) -> None:
    trace = read_events(allocation(0, 8), *others)
    assert 0 not in trace.memory.time_ns.tolist()
    assert trace.warnings == ["1 [memory] events left out: a time a day or more from the others"]


def test_time_does_not_depend_on_one_that_is_read_from_text() -> None:
    # 1.0015 is a little less than that as a float: 1,001 ns, as text it would be 1,001.5 and round to 1,002.
    alone = read_events(kernel("a", 1.0015, 1.0015)).events
    beside = read_events(kernel("a", 1.0015, 1.0015), kernel("c", 2, 1), kernel("b", EPOCH_US + 0.25, "7")).events
    assert (beside.start_ns[0], beside.duration_ns[0]) == (alone.start_ns[0], alone.duration_ns[0])


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [(3, 3), ("3", NONE), (3.5, NONE), (None, NONE), ([1], NONE), (2**62, 2**62), (2**63, NONE), (2**70, NONE)],
)
def test_a_correlation_is_an_integer_of_64_bits_or_missing(value: Any, expected: int) -> None:
    assert read_events(launch(1, value)).events.correlation.tolist() == [expected]


@pytest.mark.parametrize("other", ["3", None, 1.5, 2**70, [1, 2]])
def test_a_correlation_does_not_depend_on_those_beside_it(other: Any) -> None:
    assert read_events(launch(1, 2**60), launch(2, other)).events.correlation.tolist() == [2**60, NONE]


def test_operator_id_is_read_in_both_spellings() -> None:
    old, new = event("Runtime", "r", 1, 1, **{"external id": 5}), event("Operator", "o", 2, 1, **{"External id": 6})
    assert read_events(old, new).events.external_id.tolist() == [5, 6]


@pytest.mark.parametrize(("written", "stream"), [(7, 7), ("7", 7), ("stream 7", 7), ("seven", NONE), ("9" * 30, NONE)])
def test_a_stream_is_known_by_its_number(written: Any, stream: int) -> None:
    assert read_events(kernel("k", 1, 1, stream=written)).device_work.stream.tolist() == [stream]


def test_a_stream_is_known_beside_one_in_another_spelling() -> None:
    trace = read_events(kernel("k", 1, 1, stream=7), kernel("k", 2, 1, stream="stream 8"))
    assert trace.device_work.stream.tolist() == [7, 8]


def test_old_trace_gives_stream_and_device_by_thread_and_program() -> None:
    old = {"ph": "X", "cat": "Kernel", "name": "k", "pid": "1", "tid": "stream 7", "ts": 5, "dur": 2}
    work = read_events(old).device_work
    assert (work.device.tolist(), work.stream.tolist()) == ([1], [7])


def test_what_a_kernel_tells_of_itself_is_kept() -> None:
    args = {"blocks per SM": 0.5, "est. achieved occupancy %": 40}
    work = read_events(kernel("k", 1, 1, **args), kernel("l", 2, 1, **{"blocks per SM": "many"})).device_work
    assert work.blocks_per_sm.tolist() == pytest.approx([0.5, math.nan], nan_ok=True)
    assert work.occupancy_percent.tolist() == pytest.approx([40.0, math.nan], nan_ok=True)


def test_a_collective_tells_its_operation_group_and_size() -> None:
    args = {
        "Collective name": "allreduce", "In msg nelems": 10, "Out msg nelems": 10, "Group size": 2, "dtype": "Float",
        "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
        "Seq": 2**70, "Comms Id": 2**70,
    }  # fmt: skip
    found = read_events(kernel("ncclKernel", 1, 1, **args)).collectives[0]
    assert (found.op, found.in_elements, found.group_size, found.dtype) == ("allreduce", 10, 2, "Float")
    assert (found.group_name, found.group_description, found.group_ranks) == ("0", "default_pg", "[0, 1]")


def test_numbers_that_a_collective_gives_as_text_are_missing() -> None:
    found = read_events(kernel("k", 1, 1, **{"Collective name": "x", "In msg nelems": "10"})).collectives[0]
    assert (found.in_elements, found.out_elements, found.dtype) == (None, None, None)


# -- names, threads, categories ---------------------------------------------------------------------------------------


def test_events_stand_by_their_start_and_the_longest_first() -> None:
    trace = read_events(event("", "late", 5, 1), event("", "short", 1, 1), event("", "long", 1, 9))
    assert [trace.name(row) for row in range(3)] == ["long", "short", "late"]


def test_a_thread_is_a_program_and_a_number() -> None:
    trace = read_events(event("", "a", 1, 1, tid=4), event("", "b", 2, 1, tid=5), event("", "c", 3, 1, tid=4))
    assert [trace.threads[code] for code in trace.events.thread] == [("100", "4"), ("100", "5"), ("100", "4")]


def test_a_thread_may_be_written_as_anything() -> None:
    trace = read_events(event("", "a", 1, 1, tid=[4]), {**allocation(2, 8), "tid": {"a": 1}})
    assert trace.threads == [("100", "[4]"), ("100", "{'a': 1}")]


@pytest.mark.parametrize(
    ("written", "category"),
    [
        ("kernel", Category.KERNEL), ("Kernel", Category.KERNEL), ("gpu_memcpy", Category.MEMCPY),
        ("Memset", Category.MEMSET), ("Operator", Category.CPU_OP), ("cpu_op", Category.CPU_OP),
        ("cuda_runtime", Category.RUNTIME), ("Runtime", Category.RUNTIME), ("cuda_driver", Category.DRIVER),
        ("gpu_user_annotation", Category.GPU_ANNOTATION), ("cuda_sync", Category.SYNC), ("", Category.OTHER),
        ("of_tomorrow", Category.OTHER),
    ],
)  # fmt: skip
def test_a_category_is_known_in_the_spellings_of_all_years(written: str, category: Category) -> None:
    assert read_events(event(written, "a", 1, 1)).events.category.tolist() == [category]


def ascend(name: str, start_us: str, task_type: str | None = None) -> dict[str, Any]:
    """Return an event of a device as Ascend's profiler writes it: no category, times as text with a tab."""
    args = {"connection_id": 3} if task_type is None else {"Task Type": task_type, "Stream Id": 16}
    return {"ph": "X", "name": name, "pid": 682820896, "tid": 3, "ts": start_us, "dur": 5.5, "args": args}


def test_work_of_ascend_devices_is_known_by_its_task_type() -> None:
    trace = read_events(
        event("cpu_op", "aten::mm", f"{EPOCH_US}.000", 1),
        ascend("MatMul", f"{EPOCH_US}.250\t", "AI_CORE"),
        ascend("Cast", f"{EPOCH_US + 1}.000\t", "MIX_AIV"),
        ascend("MEMCPY", f"{EPOCH_US + 2}.000\t", "MEMCPY_ASYNC"),
        ascend("EVENT_WAIT", f"{EPOCH_US + 3}.000\t", "EVENT_WAIT_SQE"),
        ascend("hcom_allReduce__123_0_1", f"{EPOCH_US + 4}.000"),
        ascend("hcom_allReduce_AicpuKernel", f"{EPOCH_US + 4}.500", "AI_CPU"),
        ascend("AscendCL@aclopExecute", f"{EPOCH_US + 5}.000"),
    )
    kinds = [Category(int(kind)).name for kind in trace.events.category]
    assert kinds == ["CPU_OP", "KERNEL", "KERNEL", "MEMCPY", "OTHER", "KERNEL", "OTHER", "OTHER"]
    assert trace.events.start_ns[1] == EPOCH_US * 1_000 + 250
    assert trace.device_work.stream.tolist() == [16, 16, 16, 3]
    assert trace.device_work.device.tolist() == [NONE] * 4
    assert find_uncounted(trace.categories) == {}


def test_only_kernels_copies_and_sets_are_device_work() -> None:
    others = [event(kind, kind, 1, 1, stream=7) for kind in ("cpu_op", "cuda_sync", "gpu_user_annotation")]
    trace = read_events(*others, kernel("k", 2, 1))
    assert trace.device_work.row.tolist() == [3]


def test_phases_and_categories_are_counted() -> None:
    trace = read_events(kernel("k", 1, 1), launch(1, 1), {"ph": "M", "name": "process_name"}, allocation(1, 8))
    assert trace.phases == {"X": 2, "M": 1, "i": 1}
    assert trace.categories == {"kernel": 1, "cuda_runtime": 1}


def test_a_trace_of_metadata_only_is_empty() -> None:
    trace = read_events({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})
    assert (len(trace.events), len(trace.device_work.row), trace.event_count) == (0, 0, 1)


def test_halves_of_events_are_counted_and_told() -> None:
    trace = read_events({"ph": "B", "name": "a", "ts": 1}, {"ph": "E", "ts": 2})
    assert trace.warnings == ["2 begin and end events (ph B, E) not used: Kineto writes whole ones (ph X)"]


def test_most_frequent_reasons_are_listed_others_summed() -> None:
    others = [5, 5, 5, "a", "a", [1], None, {"ph": "X", "name": 5}]
    warnings = read_events(*others).warnings
    # Three of a number, two of a text, one each of the others: two of those three are summed.
    assert [warning.partition(" ")[0] for warning in warnings] == ["3", "2", "1", "2"]
    assert warnings[-1] == "2 more events not used, for other reasons"


# -- repeated events --------------------------------------------------------------------------------------------------


def test_repeated_event_is_counted_once_with_a_warning() -> None:
    trace = read_events(launch(1, 3), kernel("k", 2, 5, correlation=3), kernel("k", 2, 5, correlation=3))
    assert (len(trace.events), trace.device_work.row.tolist()) == (2, [1])
    assert trace.warnings == ["1 events stand in the trace twice: counted once"]


def test_repeated_events_are_found_among_others_of_that_time() -> None:
    trace = read_events(*(kernel("k", 2, 5, correlation=number) for number in (3, 4, 3, 4)))
    assert trace.events.correlation.tolist() == [3, 4]


@pytest.mark.parametrize("args", [{}, {"correlation": 3, "duration": 0}], ids=["no identity", "no length"])
def test_equal_events_that_may_be_two_are_counted_twice(args: dict[str, int]) -> None:
    one = kernel("k", 2, args.pop("duration", 5), **args)
    assert len(read_events(one, one).events) == 2


# -- shapes, stacks, memory -------------------------------------------------------------------------------------------


def test_shapes_are_kept_of_what_needs_input_shapes_or_work() -> None:
    shapes = {"Input Dims": [[2, 3]], "Input type": ["float"]}
    trace = read_events(event("cpu_op", "aten::mm", 1, 1, **shapes), event("cpu_op", "aten::add", 2, 1, **shapes))
    assert trace.shapes == {0: (b'["float"]', b"[[2, 3]]")}


def test_shapes_without_types_are_not_kept() -> None:
    assert read_events(event("cpu_op", "aten::mm", 1, 1, **{"Input Dims": [[2, 3]]})).shapes == {}


@pytest.mark.parametrize(
    ("written", "stack"),
    [(b'"a.py(1): f;b.py(2): g"', "a.py(1): f;b.py(2): g"), (b'"C:\\q\xff"', "C:?q?"), (b"[1]", ""), (b'["\\q"]', "")],
)
def test_the_stack_of_an_operator_is_its_text(written: bytes, stack: str) -> None:
    inner = b'{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1, "args": {"Call stack": ' + written + b"}}"
    assert read(b"[" + inner + b"]").stacks == {0: stack}


def test_allocations_stand_by_time_with_the_totals_after_them() -> None:
    memory = read_events(allocation(9, -8), allocation(5, 8, **{"Total Allocated": 24, "Total Reserved": 64})).memory
    assert (memory.time_ns.tolist(), memory.bytes.tolist()) == ([5_000, 9_000], [8, -8])
    assert (memory.allocated_bytes.tolist(), memory.reserved_bytes.tolist()) == ([24, NONE], [64, NONE])


def test_a_total_beyond_64_bits_is_missing() -> None:
    assert read_events(allocation(5, 8, **{"Total Allocated": 2**63})).memory.allocated_bytes.tolist() == [NONE]


@pytest.mark.parametrize(
    "broken",
    [
        allocation(None, 8),
        allocation(5, "8"),
        allocation(5, 2**63),
        allocation("x", 8),
        {**allocation(5, 8), "args": None},
    ],
)
def test_allocation_without_time_or_size_is_counted_not_used(broken: dict[str, Any]) -> None:
    trace = read_events(broken, allocation(7, 8))
    assert trace.memory.time_ns.tolist() == [7_000]
    assert trace.warnings == ["1 x not used: a [memory] event without a usable time or size"]


def test_moments_that_are_no_allocations_are_not_memory() -> None:
    assert len(read_events({**allocation(5, 8), "name": "Iteration Start"}).memory.time_ns) == 0


# -- waits of streams -------------------------------------------------------------------------------------------------


def stream_wait(**changes: Any) -> Event:
    recorded = {"stream": 7, "wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": 41, **changes}
    return event("cuda_sync", "Stream Wait Event", 5, 1, correlation=42, **recorded)


def test_waits_of_streams_are_read_when_asked_for() -> None:
    text = to_json(event("cpu_op", "aten::mm", 0, 1), stream_wait())
    assert read_trace([text], ReadOptions(every_wait=True)).stream_waits == {1: StreamWait(7, 9, 41)}
    assert read_trace([text]).stream_waits == {}


@pytest.mark.parametrize("field", ["stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id"])
def test_wait_of_a_stream_without_a_number_is_not_used(field: str) -> None:
    assert read_trace([to_json(stream_wait(**{field: "x"}))], ReadOptions(every_wait=True)).stream_waits == {}


def test_absorbed_waits_of_streams_keep_their_rows() -> None:
    columns, later = TraceColumns(ReadOptions(every_wait=True)), TraceColumns(ReadOptions(every_wait=True))
    columns.read(TraceBlocks(), [to_json(event("cpu_op", "aten::mm", 9, 1))])
    later.read(TraceBlocks(), [to_json(stream_wait())])
    columns.absorb(later)
    assert columns.build({}).stream_waits == {0: StreamWait(7, 9, 41)}


# -- arguments of operators -------------------------------------------------------------------------------------------


def test_arguments_of_operators_are_read_when_asked_for() -> None:
    recorded = {"Concrete Inputs": ["", "[1]"]}
    found = [event("cpu_op", name, start_us, 1, **recorded) for start_us, name in enumerate(("conv", "mm"))]
    assert read_trace([to_json(*found)], ReadOptions(values_of={"conv"})).addresses == {0: b'["", "[1]"]'}
    assert read_trace([to_json(*found)]).addresses == {}


def test_splits_of_collectives_are_read_when_asked_for() -> None:
    kinds = ("all_to_allv", "allreduce")
    found = [kernel("x", n, 1, **{"Collective name": kind, "In split size": "[1, 2]"}) for n, kind in enumerate(kinds)]
    asked = read_trace([to_json(*found)], ReadOptions(values_of={"all_to_allv"})).collectives
    assert [asked[row].in_split for row in (0, 1)] == ["[1, 2]", None]
    assert read_trace([to_json(*found)]).collectives[0].in_split is None


# -- autograd ---------------------------------------------------------------------------------------------------------


def autograd_of(text: bytes) -> tuple[list[int], list[int], list[int]]:
    found = read_trace([text], ReadOptions(autograd=True)).autograd
    assert found is not None
    return found.row.tolist(), found.sequence.tolist(), found.forward_thread.tolist()


FORWARD = event("cpu_op", "aten::mm", 1, 5, **{"Sequence number": 7, "Fwd thread id": 0})
BACKWARD = event("cpu_op", "MmBackward0", 10, 5, **{"Sequence number": 7, "Fwd thread id": 1})
PLAIN = event("cpu_op", "aten::empty", 2, 1)


def test_operators_with_a_number_of_autograd_are_listed() -> None:
    assert autograd_of(to_json(BACKWARD, PLAIN, FORWARD)) == ([0, 2], [7, 7], [0, 1])


def test_numbers_of_autograd_are_read_beside_broken_events() -> None:
    damaged = to_json(FORWARD, {**PLAIN, "cat": 3}, BACKWARD, {**PLAIN, "ts": "?"})
    assert autograd_of(damaged) == ([0, 1], [7, 7], [0, 1])


def test_numbers_of_an_event_that_is_left_out_are_too() -> None:
    two_days_us = 2 * 86_400_000_000
    late = [{**one, "ts": one["ts"] + two_days_us} for one in (FORWARD, PLAIN, PLAIN)]
    assert autograd_of(to_json(BACKWARD, *late)) == ([0], [7], [0])


def test_trace_without_numbers_of_autograd_has_an_empty_list() -> None:
    assert autograd_of(to_json(PLAIN)) == ([], [], [])


def test_numbers_of_autograd_are_not_read_unless_asked_for() -> None:
    assert read_events(FORWARD, BACKWARD).autograd is None


# -- hardware counters ------------------------------------------------------------------------------------------------

RANGE = event("cuda_profiler_range", "gemm", 5, 5, **{"inst.sum": 7, "sm.avg": 0.5, "why": "text", "on": True})


def test_counters_of_a_range_are_its_numbers() -> None:
    assert dict(read_events(PLAIN, RANGE).counters) == {1: {"inst.sum": 7.0, "sm.avg": 0.5}}


@pytest.mark.parametrize("args", [{}, None])
def test_range_without_counters_has_none(args: dict[str, Any] | None) -> None:
    assert read_events({**RANGE, "args": args}).counters == {}
    assert read_events({key: value for key, value in RANGE.items() if key != "args"}).counters == {}


def test_counters_are_read_beside_broken_events() -> None:
    assert dict(read_events({**PLAIN, "cat": 3}, RANGE, {**PLAIN, "ts": "?"}).counters) == {
        0: {"inst.sum": 7.0, "sm.avg": 0.5}
    }
