"""Merging small traces written by hand."""

import contextlib
import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankscope.collector.traces.clock_offsets import find_offset_bounds, place_clocks
from rankscope.collector.traces.cross_rank import CollectiveOfRanks
from rankscope.collector.traces.timeline import MergeReport, merge
from rankscope.collector.traces.timeline_arrows import find_flow_points
from rankscope.collector.traces.timeline_events import EventArray, TimelineFile, format_us, make_distinct, parse_ns
from rankscope.measure.errors import UnavailableError
from rankscope.measure.traced_collectives import Collective
from tests.unit.measure.written_traces import event, kernel

EPOCH_US = 1694128201427784
Event = dict[str, Any]


def name_process(pid: int, label: str) -> list[Event]:
    return [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "python3"}},
        {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": label}},
    ]


def all_reduce(start_us: float, duration_us: float, *, elements: int = 256) -> Event:
    """A communication kernel on GPU 0, stream 20, of group 0."""
    return {
        "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0, "tid": 20,
        "ts": start_us, "dur": duration_us,
        "args": {
            "Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "Group size": 2,
            "dtype": "Float", "Process Group Name": "0", "stream": 20, "device": 0,
        },
    }  # fmt: skip


def write_trace(
    folder: Path, rank: int | None, events: Sequence[Event], *, host: str | None = None, base_ns: int = 0
) -> str:
    head: Event = {"baseTimeNanoseconds": base_ns} if base_ns else {}
    if rank is not None:
        head["distributedInfo"] = {"rank": rank, "world_size": 2, "backend": "nccl"}
    if host is not None:
        head["host_name"] = host
    path = folder / f"trace_of_{rank}.json"
    for number, one in enumerate(made for made in events if "Collective name" in made.get("args", {})):
        one["args"]["Seq"] = number
    named = [*name_process(7000 + (rank or 0), "CPU"), *name_process(0, "GPU 0")]
    path.write_text(json.dumps({**head, "traceEvents": [*named, *events]}))
    return str(path)


def on_host(start_us: float, rank: int = 0, **more: Any) -> Event:
    return {"ph": "X", "name": "step", "pid": 7000 + rank, "tid": 7000, "ts": start_us, "dur": 1, **more}


def read_merged(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def merge_events(folder: Path, *paths: str) -> list[Event]:
    merge(paths, folder / "merged.out")
    events: list[Event] = read_merged(folder / "merged.out")["traceEvents"]
    return events


@pytest.fixture
def pair(tmp_path: Path) -> list[str]:
    """Rank 1 enters a 100 us all-reduce 60 us late; its clock is 5000 us ahead, on another host."""
    first = write_trace(tmp_path, 0, [all_reduce(1000, 100), all_reduce(2000, 40)], host="a")
    second = write_trace(tmp_path, 1, [all_reduce(6060, 40), all_reduce(7000, 40)], host="b")
    return [first, second]


# -- text of times and ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        (b"1694128201427784.123", 1694128201427784123),
        (b"1694128201427784", 1694128201427784000),
        (b"4361680097461.8", 4361680097461800),
        (b'"12.000001"', 12000),
        (b"1.5e3", 1500000),
        (b"-2.001", -2001),
        (b"null", None),
        (b"", None),
        (b"99999999999999999999", None),
    ],
)
def test_decimal_microseconds_become_nanoseconds_without_a_float(text: bytes, time_ns: int | None) -> None:
    assert parse_ns(text) == time_ns


@pytest.mark.parametrize("time_ns", [0, 1, 999, 1000, 1694128201427784123, -1, -1001])
def test_written_time_is_read_back_to_the_nanosecond(time_ns: int) -> None:
    assert parse_ns(format_us(time_ns)) == time_ns


@pytest.mark.parametrize("text", [b"7", b'"0x1f"', b'"job-7"', b"18446744073709551615"])
def test_one_id_of_two_ranks_becomes_two(text: bytes) -> None:
    assert len({bytes(make_distinct(msgspec.Raw(text), place, 3)) for place in range(3)}) == 3


# -- the events -------------------------------------------------------------------------------------------------------


def test_epoch_time_with_a_fraction_loses_no_nanosecond(tmp_path: Path) -> None:
    path = Path(write_trace(tmp_path, 0, [on_host(EPOCH_US)]))
    later = on_host(0)
    text = path.read_text().replace("]}", f", {json.dumps(later)}]}}").replace('"ts": 0, "dur"', '"ts": T, "dur"')
    path.write_text(text.replace("T,", f"{EPOCH_US + 3}.007,"))
    times = [event["ts"] for event in merge_events(tmp_path, str(path)) if event["ph"] == "X"]
    assert times == [0, 3.007]


def test_time_of_day_is_restored_from_the_merged_file(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 0, [on_host(5.25)], base_ns=1_700_000_000_000_000_000)
    merge([path], tmp_path / "merged.json")
    assert read_merged(tmp_path / "merged.json")["baseTimeNanoseconds"] == 1_700_000_000_000_005_250


def test_times_count_from_the_earliest_event_or_instant(tmp_path: Path) -> None:
    instant = {"ph": "i", "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 90, "s": "g"}
    events = merge_events(tmp_path, write_trace(tmp_path, 0, [on_host(100), instant]))
    assert [event["ts"] for event in events if "ts" in event] == [10, 0]


def test_arguments_and_unknown_fields_are_copied_as_they_are(tmp_path: Path) -> None:
    more: Event = {"args": {"External id": 3, "Input Dims": [[1, 2], []], "note": 'a "b" \u00e9'}, "cname": "good"}
    events = merge_events(tmp_path, write_trace(tmp_path, 0, [on_host(1, **more)]))
    copied = next(event for event in events if event["name"] == "step")
    assert {key: copied[key] for key in more} == more


def test_flow_of_a_rank_keeps_its_two_ends_together(tmp_path: Path) -> None:
    flow = [{"ph": ph, "id": 4, "name": "ac2g", "cat": "ac2g", "pid": 7000, "tid": 1, "ts": 1} for ph in "sf"]
    paths = [write_trace(tmp_path, rank, [on_host(1, rank), *flow]) for rank in (0, 1)]
    ids = [event["id"] for event in merge_events(tmp_path, *paths) if event["name"] == "ac2g"]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_broken_text_of_a_trace_is_valid_json_in_the_merged_one(tmp_path: Path) -> None:
    path = Path(write_trace(tmp_path, 0, [on_host(1, args={"note": "BAD"})]))
    path.write_bytes(path.read_bytes().replace(b"BAD", b"\xff\xfe"))
    events = merge_events(tmp_path, str(path))
    assert next(event for event in events if event["name"] == "step")["args"] == {"note": "\ufffd\ufffd"}


def test_damaged_trace_is_merged_with_what_was_mended(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    events = '{"ph": "X", "name": "f {"a": 1}", "ts": 5, "dur": 1, "pid": 1, "tid": 1},'
    file.write_text('{"traceEvents": [' + events * 2 + '{"ph": "X", "na')
    report = merge([str(file)], tmp_path / "merged.json")
    merged = json.loads((tmp_path / "merged.json").read_text())
    assert [one["name"] for one in merged["traceEvents"] if one["ph"] == "X"] == ['f {"a": 1}'] * 2
    assert [warning.partition(": ")[2][:10] for warning in report.warnings[:2]] == ["the file i", "2 x mended"]


def warnings_of(report: MergeReport, file: Path) -> list[str]:
    """Return what is said of this file, without its name."""
    return [warning.removeprefix(f"{file}: ") for warning in report.warnings if warning.startswith(str(file))]


def test_impossible_times_are_left_out_of_the_timeline(tmp_path: Path) -> None:
    day_us = 24 * 3600 * 1_000_000
    now_us = 1_718_000_000_000_000
    times = [(0, 1), (now_us, 2), (now_us + 5, day_us), (now_us + 9, 1)]
    events = [{"ph": "X", "name": "a", "ts": ts, "dur": dur, "pid": 1, "tid": 1} for ts, dur in times]
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    report = merge([str(file)], tmp_path / "merged.json")
    found = [one for one in read_merged(tmp_path / "merged.json")["traceEvents"] if one["ph"] == "X"]
    assert [(one["ts"], one["dur"]) for one in found] == [(0, 2), (9, 1)]
    said = "2 events left out: they begin a day or more from the middle of the trace, or last a day or more"
    assert warnings_of(report, file) == [said], "once"


def test_late_device_work_is_kept_and_called_so(tmp_path: Path) -> None:
    # The host ends at 2 us; the kernel ends 60 s and 1 us after that.
    events = [event("cpu_op", "a", 1, 1), kernel("k", 60_000_002, 1)]
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    report = merge([str(file)], tmp_path / "merged.json")
    assert [one["name"] for one in read_merged(tmp_path / "merged.json")["traceEvents"] if one["ph"] == "X"] == [
        "a",
        "k",
    ]
    late = "device work that ends a minute or more after everything on the host"
    assert warnings_of(report, file) == [f"1 events kept in the timeline, but not used to match collectives: {late}"]


def test_what_is_copied_is_not_called_unused(tmp_path: Path) -> None:
    # `analyze` counts the repeated event once, the negative duration as 0, and uses no begin and end events.
    repeated = event("cpu_op", "a", 1, 1)
    begin = {"ph": "B", "name": "b", "cat": "cpu_op", "ts": 3, "pid": 1, "tid": 1}
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": [repeated, repeated, begin, event("cpu_op", "c", 5, -1)]}))
    report = merge([str(file)], tmp_path / "merged.json")
    copied = [one["name"] for one in read_merged(tmp_path / "merged.json")["traceEvents"] if one["ph"] != "M"]
    assert (copied, warnings_of(report, file)) == (["a", "a", "b", "c"], [])


def test_event_without_usable_time_is_copied_with_a_warning(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 0, [on_host(1), {**on_host(2), "ts": None}])
    report = merge([path], tmp_path / "merged.json")
    assert f"{path}: 1 events have no usable time: copied as they are" in report.warnings


def test_value_that_is_no_event_is_left_out_with_a_warning(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 0, [on_host(1), {}])
    report = merge([path], tmp_path / "merged.json")
    assert f"{path}: 1 values among its events are no events: left out" in report.warnings


def test_kernels_of_ones_own_are_matched_as_collectives(tmp_path: Path) -> None:
    # Two collectives of a library that rankscope does not know, at the same steps of both ranks on one host.
    names = ("my_all_reduce_kernel", "my_all_gather_kernel")
    paths = []
    for rank in range(2):
        steps = [event("user_annotation", f"ProfilerStep#{number}", number * 100, 90) for number in (1, 2)]
        kernels = [
            {**kernel(name, 100 * (place + 1) + 20 + rank, 50 - rank), "pid": 0} for place, name in enumerate(names)
        ]
        paths.append(write_trace(tmp_path, rank, [*steps, *kernels], host="a"))
    assert merge(paths, tmp_path / "merged.json").arrow_count == 0
    assert merge(paths, tmp_path / "merged.json", communication_kernels="^my_").arrow_count == 2


# -- the processes ----------------------------------------------------------------------------------------------------


def test_processes_of_all_ranks_are_distinct_and_named(tmp_path: Path, pair: list[str]) -> None:
    Path(pair[0]).write_text(Path(pair[0]).read_text().replace("]}", f", {json.dumps(on_host(1000))}]}}"))
    named = {e["pid"]: e["args"]["name"] for e in merge_events(tmp_path, *pair) if e["name"] == "process_name"}
    assert sorted(named.values()) == ["rank 0: GPU 0", "rank 0: host", "rank 1: GPU 0"]


def test_processes_are_sorted_by_rank_with_the_host_first(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path, rank, [all_reduce(9, 1), on_host(1, rank)]) for rank in (10, 2)]
    events = merge_events(tmp_path, *paths)
    index = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    in_order = [names[pid] for pid in sorted(index, key=lambda pid: index[pid])]
    assert in_order == ["rank 2: host", "rank 2: GPU 0", "rank 10: host", "rank 10: GPU 0"]


def test_unused_gpu_is_no_process_of_the_timeline(tmp_path: Path) -> None:
    path = write_trace(tmp_path, 0, [on_host(1)])  # its file names GPU 0 too
    names = [e["args"]["name"] for e in merge_events(tmp_path, path) if e["name"] == "process_name"]
    assert names == ["rank 0: host"]


def test_thread_names_are_kept(tmp_path: Path) -> None:
    thread = {"ph": "M", "name": "thread_name", "pid": 7000, "tid": 7000, "ts": 0, "args": {"name": "loader"}}
    events = merge_events(tmp_path, write_trace(tmp_path, 0, [thread, on_host(1)]))
    step = next(event for event in events if event["name"] == "step")
    assert {"ph": "M", "name": "thread_name", "pid": step["pid"], "tid": 7000, "args": {"name": "loader"}} in events


# -- the clock --------------------------------------------------------------------------------------------------------


def test_clocks_of_two_hosts_are_aligned_by_collectives(tmp_path: Path, pair: list[str]) -> None:
    report = merge(pair, tmp_path / "merged.json")
    # Ends on rank 0: 1100 and 2040 us; on rank 1: 6100 and 7040 us.
    assert [one.offset_ns for one in report.ranks] == [0, 5_000_000]


def test_error_bound_is_how_far_apart_the_ends_still_are(tmp_path: Path) -> None:
    first = write_trace(tmp_path, 0, [all_reduce(1000, 100), all_reduce(2000, 40), all_reduce(3000, 40)], host="a")
    second = write_trace(tmp_path, 1, [all_reduce(1000, 103), all_reduce(2000, 40), all_reduce(3000, 40)], host="b")
    # One end is 3 us later, the median of the three differences is 0.
    assert merge([first, second], tmp_path / "merged.json").error_bound_ns == 3000


def test_clock_of_another_host_may_be_off_by_a_whole_collective(tmp_path: Path) -> None:
    first = write_trace(tmp_path, 0, [all_reduce(1000, 100), all_reduce(2000, 40)], host="a")
    second = write_trace(tmp_path, 1, [all_reduce(1000, 100), all_reduce(2000, 40)], host="b")
    # In the shorter one each entered before the other left: the clocks are at most 40 us further apart.
    assert merge([first, second], tmp_path / "merged.json").offset_bound_ns == 40_000


def test_clocks_that_drift_apart_have_the_widest_bound() -> None:
    # Rank 1 seems to enter 50 after rank 0 left, and later to leave 30 before rank 0 entered.
    apart = [(reduced(0, 10), reduced(60, 10)), (reduced(1000, 10), reduced(960, 10))]
    matched = [
        CollectiveOfRanks("0", place, "all_reduce", 4, dict(enumerate(pair)), 2) for place, pair in enumerate(apart)
    ]
    # 50 to 70 by the first, -50 to -30 by the second: no offset lies in both.
    assert find_offset_bounds(matched, {0: 0, 1: 0}, {0: "a", 1: "b"}) == {"a": 0, "b": 70}


def test_all_to_all_bounds_no_clock() -> None:
    matched = [CollectiveOfRanks("0", 0, "all_to_all", 4, {0: reduced(0, 10), 1: reduced(0, 10)}, 2)]
    assert find_offset_bounds(matched, {0: 0, 1: 0}, {0: "a", 1: "b"}) == {"a": 0}


def test_ranks_on_one_host_are_not_shifted_against_each_other(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path, rank, [all_reduce(1000, 100 + 8 * rank)], host="a") for rank in (0, 1)]
    report = merge(paths, tmp_path / "merged.json")
    assert ([one.offset_ns for one in report.ranks], report.error_bound_ns) == ([0, 0], 8000)
    assert report.offset_bound_ns == 0


def test_refused_matching_leaves_the_clocks_and_warns(tmp_path: Path) -> None:
    first = write_trace(tmp_path, 0, [all_reduce(1000, 100)], host="a")
    second = write_trace(tmp_path, 1, [all_reduce(9000, 100, elements=64)], host="b")
    report = merge([first, second], tmp_path / "merged.json")
    assert (report.error_bound_ns, report.how, report.arrow_count) == (None, "the hosts' own clocks", 0)
    assert "do not line up" in report.warnings[0]
    assert "the clocks of the hosts were trusted" in report.warnings[1]


def test_refused_matching_on_one_host_needs_no_trust_in_clocks(tmp_path: Path) -> None:
    paths = [write_trace(tmp_path, rank, [on_host(1, rank)], host="a") for rank in (0, 1)]
    report = merge(paths, tmp_path / "merged.json")
    assert report.how == "one host: one clock"
    assert report.warnings == [
        "collectives are not linked: the traces have no synchronizing collective in common",
    ]


def test_rank_that_shares_no_collective_leaves_the_error_unknown(tmp_path: Path, pair: list[str]) -> None:
    lonely = write_trace(tmp_path, 5, [on_host(1, 5)], host="c")
    report = merge([*pair, lonely], tmp_path / "merged.json")
    assert (report.error_bound_ns, report.offset_bound_ns) == (None, None)
    assert report.warnings == ["rank 5: no collective in common with the others: the host's clock was trusted"]


def test_offset_of_a_second_group_follows_the_shared_host() -> None:
    # Rank 1 is 70 ahead of rank 0. Rank 3 is 5 behind rank 2, which is on rank 1's host: 70 - 5.
    clocks = {0: "a", 1: "b", 2: "b", 3: "c"}
    assert place_clocks(clocks, [{0: 0, 1: 70}, {2: 0, 3: -5}]) == ({"a": 0, "b": 70, "c": 65}, [])


def test_group_on_separate_hosts_is_unrelated() -> None:
    clocks = {0: "a", 1: "b", 2: "c", 3: "d"}
    assert place_clocks(clocks, [{0: 0, 1: 7}, {2: 0, 3: 5}])[1] == ["rank 2, 3"]


# -- the arrows -------------------------------------------------------------------------------------------------------


def test_flow_starts_at_the_last_rank_when_it_enters(tmp_path: Path, pair: list[str]) -> None:
    events = merge_events(tmp_path, *pair)
    flows = [event for event in events if event.get("cat") == "collective"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    # Rank 1 came at 6060 - 5000 us on rank 0's clock, which is 60 us after the first event; its kernel is the third.
    assert [(one["ph"], one["pid"], one["ts"]) for one in flows[:2]] == [
        ("s", kernels[2]["pid"], 60),
        ("f", kernels[0]["pid"], 60),
    ]


def test_every_flow_begins_once_and_ends_once(tmp_path: Path, pair: list[str]) -> None:
    flows = [event for event in merge_events(tmp_path, *pair) if event.get("cat") == "collective"]
    phases = {one["id"]: [e["ph"] for e in flows if e["id"] == one["id"]] for one in flows}
    assert list(phases.values()) == [["s", "f"], ["s", "f"]]


def reduced(start_ns: int, duration_ns: int) -> Collective:
    return Collective("0", 3, None, "all_reduce", None, 4, None, start_ns, duration_ns)


def test_flow_visits_ranks_in_the_order_of_time() -> None:
    by_rank = {0: reduced(0, 100), 1: reduced(70, 30), 2: reduced(80, 20)}
    assert find_flow_points(by_rank, 1, {0: 0, 1: 0, 2: 0}) == [(1, 70), (0, 70), (2, 80)]


def test_flow_never_runs_back_in_time() -> None:
    by_rank = {0: reduced(50, 10), 1: reduced(0, 20)}  # rank 1 was gone at 20, before rank 0 came
    assert find_flow_points(by_rank, None, {0: 0, 1: 0}) == [(1, 0), (0, 50)]


# -- the files --------------------------------------------------------------------------------------------------------


def test_order_of_the_paths_changes_nothing(tmp_path: Path, pair: list[str]) -> None:
    merge(pair, tmp_path / "one.json.gz")
    merge(pair[::-1], tmp_path / "other.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "other.json.gz").read_bytes()


def test_broken_file_costs_only_itself(tmp_path: Path, pair: list[str]) -> None:
    broken = tmp_path / "cut.json"
    broken.write_text('{"traceEvents": [{"ph": "X", "na')
    report = merge([*pair, str(broken)], tmp_path / "merged.json")
    assert [one.rank for one in report.ranks] == [0, 1]
    assert [file for file, _ in report.errors] == [str(broken)]


def test_file_of_several_ranks_is_not_merged_as_one(tmp_path: Path, pair: list[str]) -> None:
    several = write_trace(tmp_path, 2, [{**on_host(1_000 * rank, rank), "cat": "cpu_op"} for rank in range(3)])
    report = merge([*pair, several], tmp_path / "merged.json")
    assert [one.rank for one in report.ranks] == [0, 1]
    ((file, reason),) = report.errors
    assert file == several
    assert reason.startswith("it has the events of 3 processes (7000, 7001, 7002), not of one rank")


def test_second_file_of_a_rank_is_refused_naming_the_first(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [write_trace(folder, 3, [on_host(at)]) for at, folder in enumerate((tmp_path, tmp_path / "b"), 1)]
    (file, reason), *_ = merge(paths, tmp_path / "merged.json").errors
    cure = "give one file for each rank; --rank-from finds the rank in the path instead"
    assert reason == f"it claims rank 3, as {({*paths} - {file}).pop()} does; {cure}"


def test_merged_timeline_is_not_merged_again(tmp_path: Path, pair: list[str]) -> None:
    merge(pair, tmp_path / "merged.json")
    with pytest.raises(UnavailableError, match="it is a merged timeline itself"):
        merge([str(tmp_path / "merged.json")], tmp_path / "again.json")


def test_paths_may_be_objects_and_the_output_a_text(tmp_path: Path, pair: list[str]) -> None:
    report = merge([Path(one) for one in pair], str(tmp_path / "out.json"))
    assert (len(report.ranks), report.output) == (2, str(tmp_path / "out.json"))


def test_trace_is_not_overwritten_by_the_timeline(pair: list[str]) -> None:
    before = Path(pair[0]).read_bytes()
    with pytest.raises(UnavailableError, match=r"it is a trace, which would be lost\. Name another file"):
        merge(pair, Path(pair[0]))
    assert Path(pair[0]).read_bytes() == before


def test_merged_timeline_beside_its_traces_is_skipped(tmp_path: Path, pair: list[str]) -> None:
    merge(pair, tmp_path / "merged.json")
    report = merge([str(tmp_path)], tmp_path / "merged.json")
    assert ([one.rank for one in report.ranks], report.errors) == ([0, 1], [])


def test_no_usable_file_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UnavailableError, match=r"none of the 1 files can be merged: .*a\.json: JSON without"):
        merge([str(tmp_path / "a.json")], tmp_path / "merged.json.gz")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_missing_folder_is_an_error_before_reading(tmp_path: Path, pair: list[str]) -> None:
    out = tmp_path / "none" / "merged.json"
    read: list[float] = []
    with pytest.raises(UnavailableError, match=r"none/merged\.json .* cannot be written: there is no folder "):
        merge(pair, out, progress=lambda done, _: read.append(done))
    assert read == []


def test_output_that_is_a_folder_is_refused(tmp_path: Path, pair: list[str]) -> None:
    with pytest.raises(UnavailableError, match="it is a folder"):
        merge(pair, tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here to play the full disk")
@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_full_disk_is_an_error(tmp_path: Path, name: str) -> None:
    output = TimelineFile(tmp_path / name)
    (tmp_path / f".{name}.{os.getpid()}.partial").symlink_to("/dev/full")
    with pytest.raises(UnavailableError, match=f"{name} cannot be written: No space left on device"), output:
        output.write(b"[]")
    assert list(tmp_path.iterdir()) == []


def test_failure_while_writing_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    out = tmp_path / "merged.json"
    out.write_text("old")
    with contextlib.suppress(RuntimeError), TimelineFile(out) as output:
        EventArray(output).add([{"ph": "X"}])
        raise RuntimeError
    assert ([path.name for path in tmp_path.iterdir()], out.read_text()) == (["merged.json"], "old")


def test_progress_counts_both_readings_of_each_file(tmp_path: Path, pair: list[str]) -> None:
    seen: list[tuple[float, int]] = []
    merge(pair, tmp_path / "merged.json", progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
