"""The origin in the head of a trace, also of heads that are not trusted."""

from typing import Any

import pytest

from rankscope.collector.traces.origin import (
    HEAD_NUMBER_MAX,
    ByRank,
    DeviceProperties,
    read_origin,
    refuse_foreign,
    refuse_several,
)
from rankscope.measure.errors import NotATraceError, TraceError
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events

HEAD = {
    "distributedInfo": {"rank": 2, "world_size": 8, "pg_count": 1, "backend": "nccl"},
    "host_name": "node1",
    "baseTimeNanoseconds": 1_694_128_201_000_000_000,
    "deviceProperties": [{"id": 0, "name": "A100", "computeMajor": 8, "computeMinor": 0}, {"id": 1}],
}


def test_head_has_world_host_and_devices() -> None:
    found = read_origin(HEAD, "a.json")
    assert (found.rank, found.world_size, found.backend, found.host) == (2, 8, "nccl", "node1")
    assert found.base_ns == 1_694_128_201_000_000_000
    assert found.devices == (DeviceProperties(0, "A100", (8, 0)), DeviceProperties(1, None, None))


def test_empty_head_has_no_values_and_base_zero() -> None:
    assert read_origin({}, "a.json") == (None, None, None, None, None, 0, (), ())


def test_rank_in_the_head_precedes_that_in_the_name() -> None:
    assert read_origin(HEAD, "rank3.json").rank == 2
    assert read_origin({}, "rank3.json").rank == 3


def test_negative_rank_counts_as_missing() -> None:
    assert read_origin({"distributedInfo": {"rank": -1}}, "rank3.json").rank == 3


@pytest.mark.parametrize("size", [0, -1, "8", True])
def test_world_without_a_rank_counts_as_missing(size: object) -> None:
    assert read_origin({"distributedInfo": {"world_size": size}}, "a.json").world_size is None


@pytest.mark.parametrize("field", ["rankscope", "rankscopeTimeline"])
def test_merged_timeline_has_no_origin(field: str) -> None:
    with pytest.raises(NotATraceError, match="it is a merged timeline itself"):
        read_origin({field: 1}, "merged.json")


def test_timeline_of_another_tool_is_refused_with_its_categories() -> None:
    with pytest.raises(NotATraceError, match=r"but of the categories 'FEE', 'io': is it the timeline of another tool"):
        refuse_foreign(read_events(event("FEE", "f", 0, 1), event("io", "g", 1, 1), event("", "h", 2, 1)))
    with pytest.raises(NotATraceError, match=r"torch\.profiler records: is it the timeline of another tool\?"):
        refuse_foreign(read_events({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 0}))


def test_trace_with_any_known_event_is_not_refused() -> None:
    refuse_foreign(read_events(event("FEE", "f", 0, 1), kernel("k", 0, 1)))


@pytest.mark.parametrize(
    "events", [(), ({"ph": "M", "name": "process_name", "pid": 0},), ({"count": 4, "labels": []},)]
)
def test_file_without_any_event_that_lasts_is_refused(events: tuple[Any, ...]) -> None:
    with pytest.raises(NotATraceError, match="it has no events that can be used"):
        refuse_foreign(read_events(*events))


def test_events_of_two_processes_are_refused_and_named() -> None:
    other = {**event("cpu_op", "aten::mm", 0, 1), "pid": 200}
    with pytest.raises(
        NotATraceError, match=r"the events of 2 processes \(100, 200\), not of one rank: name the files"
    ):
        refuse_several(read_events(event("cpu_op", "aten::mm", 0, 1), other))
    refuse_several(read_events(event("cpu_op", "aten::mm", 0, 1), {**kernel("k", 0, 1), "pid": 7}))
    calls = launch(0, 1), {**launch(5, 2), "pid": 200}
    with pytest.raises(NotATraceError, match="the events of 2 processes"):
        refuse_several(read_events(*calls))


def test_calls_under_a_device_number_are_of_the_one_process() -> None:
    # As MTIA's runtime writes some of them: published by facebookresearch/HolisticTraceAnalysis.
    call = {**event("mtia_runtime", "synchronize", 5, 1, correlation=9), "pid": 17}
    refuse_several(read_events(event("cpu_op", "aten::mm", 0, 1), launch(1, 1), call))


def test_steps_at_once_on_one_thread_are_of_several_ranks() -> None:
    def step(number: int, start_us: int, tid: int = 1) -> Event:
        return event("user_annotation", f"ProfilerStep#{number}", start_us, 100, tid=tid)

    with pytest.raises(NotATraceError, match="several of its steps run at once on one thread"):
        refuse_several(read_events(step(1, 0), step(1, 10)))
    refuse_several(read_events(step(1, 0), step(2, 99), step(1, 0, tid=2)))


def test_launches_of_one_number_are_of_several_ranks() -> None:
    # Containers give all ranks the same process and thread.
    calls = [launch(10 * number, number) for number in range(20)]
    with pytest.raises(NotATraceError, match="its launches have each number several times"):
        refuse_several(read_events(*calls, *(launch(10 * number + 5, number) for number in range(20))))
    refuse_several(read_events(*calls, launch(500, 3)))


@pytest.mark.parametrize("number", ["2", 2.0, True, HEAD_NUMBER_MAX, -HEAD_NUMBER_MAX])
def test_invalid_or_too_large_number_counts_as_missing(number: Any) -> None:
    distributed = {"rank": number, "world_size": number, "pg_count": number}
    found = read_origin({"distributedInfo": distributed, "baseTimeNanoseconds": number}, "a.json")
    assert (found.rank, found.world_size, found.group_count, found.base_ns) == (None, None, None, 0)


@pytest.mark.parametrize(("group_count", "size"), [(1, 8), (2, None), (None, None)])
def test_group_size_is_known_only_for_a_single_group(group_count: int | None, size: int | None) -> None:
    distributed = {"world_size": 8, "pg_count": group_count}
    assert read_origin({"distributedInfo": distributed}, "a.json").only_group_size == size


def test_files_are_sorted_by_rank_those_without_one_last() -> None:
    files = ByRank[str]()
    for rank, file in ((None, "a"), (10, "b"), (2, "c")):
        files.add(rank, file, file.upper())
    assert files.in_order() == ["C", "B", "A"]


@pytest.mark.parametrize(("rank", "says"), [(3, "it claims rank 3"), (None, "it names no rank")])
def test_second_file_of_one_rank_is_refused_naming_the_first(rank: int | None, says: str) -> None:
    files = ByRank[str]()
    files.add(rank, "a.json", "first")
    with pytest.raises(TraceError, match=rf"^{says}, as a\.json does; give one file for each rank; "):
        files.add(rank, "b.json", "second")
    assert files.in_order() == ["first"]
