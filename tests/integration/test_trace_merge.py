"""Merging real traces, read back with Python's own json and with our reader."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rankscope.collector.traces.files import read_chunks
from rankscope.collector.traces.origin import read_origin
from rankscope.collector.traces.timeline import MergeReport, merge
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import find_collectives

TRACES = Path(__file__).parent.parent / "traces"
SETS = {
    "v100": [str(TRACES / f"v100_dlrm_8ranks_r{rank}.json.gz") for rank in range(4)],
    "gloo": [str(TRACES / "gloo-2.13" / "ddp_2r_slow1_forward" / f"rank{rank}.json.gz") for rank in range(2)],
}
REPLACED = {"process_name", "process_labels", "process_sort_index"}
Event = dict[str, Any]


class Merged(NamedTuple):
    report: MergeReport
    path: Path
    whole: Event
    inputs: list[Event]

    @property
    def events(self) -> list[Event]:
        found: list[Event] = self.whole["traceEvents"]
        return found

    def of_rank(self, place: int) -> list[Event]:
        """The events of one rank that it recorded, in the order of the file."""
        pids = set(map(int, self.report.ranks[place].processes))
        return [e for e in self.events if e["pid"] in pids and e.get("cat") != "collective" and not is_replaced(e)]


def is_replaced(event: Event) -> bool:
    return event["ph"] == "M" and event["name"] in REPLACED


def recorded(trace: Event) -> list[Event]:
    return [event for event in trace["traceEvents"] if not is_replaced(event)]


def to_ns(time_us: float, base_ns: int = 0) -> int:
    """A float holds the ns of these times: they are whole, or below 2^43 us."""
    return base_ns + int(time_us) * 1000 + round((time_us - int(time_us)) * 1000)


@pytest.fixture(scope="module", params=list(SETS.values()), ids=list(SETS))
def merged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Merged:
    path = tmp_path_factory.mktemp("merged") / "merged.json.gz"
    report = merge(request.param, path)
    inputs = [json.loads(gzip.decompress(Path(file).read_bytes())) for file in request.param]
    return Merged(report, path, json.loads(gzip.decompress(path.read_bytes())), inputs)


def test_every_recorded_event_is_there_once(merged: Merged) -> None:
    counts = [len(merged.of_rank(place)) for place in range(len(merged.inputs))]
    assert counts == [len(recorded(trace)) for trace in merged.inputs]
    assert counts == [one.event_count for one in merged.report.ranks]


def test_whole_file_is_the_ranks_their_names_and_the_flows(merged: Merged) -> None:
    named = 2 * sum(len(one.processes) for one in merged.report.ranks)  # a name and a place for each
    flows = sum(event.get("cat") == "collective" for event in merged.events)
    assert len(merged.events) == sum(one.event_count for one in merged.report.ranks) + named + flows
    assert len(merged.events) == merged.report.event_count


def test_events_keep_all_but_time_process_and_flow(merged: Merged) -> None:
    for place, trace in enumerate(merged.inputs):
        for event, before in zip(merged.of_rank(place), recorded(trace), strict=True):
            changed = {key for key in before if event.get(key) != before[key]}
            assert changed <= {"ts", "pid", "id"}
            assert event.keys() <= before.keys()


def test_times_are_the_recorded_ones_up_to_the_offset(merged: Merged) -> None:
    origin_ns = merged.whole["baseTimeNanoseconds"]
    for place, trace in enumerate(merged.inputs):
        base_ns = trace.get("baseTimeNanoseconds", 0)
        shifts = {
            to_ns(before["ts"], base_ns) - to_ns(event["ts"], origin_ns)
            for event, before in zip(merged.of_rank(place), recorded(trace), strict=True)
            if before["ph"] != "M"
        }
        assert shifts == {merged.report.ranks[place].offset_ns}


def test_timeline_begins_at_zero(merged: Merged) -> None:
    assert min(event["ts"] for event in merged.events if "ts" in event) == 0


def test_no_process_is_of_two_ranks(merged: Merged) -> None:
    pids = Counter(pid for one in merged.report.ranks for pid in one.processes)
    assert set(pids.values()) == {1}
    assert set(map(int, pids)) == {event["pid"] for event in merged.events}


def test_each_rank_has_a_named_host(merged: Merged) -> None:
    names = {event["args"]["name"] for event in merged.events if event["name"] == "process_name"}
    assert {f"rank {one.rank}: host" for one in merged.report.ranks} <= names


def test_flow_ids_of_the_ranks_stay_apart(merged: Merged) -> None:
    ids = [{event["id"] for event in merged.of_rank(place) if "id" in event} for place in range(len(merged.inputs))]
    before = [{event["id"] for event in trace["traceEvents"] if "id" in event} for trace in merged.inputs]
    assert len(set().union(*ids)) == sum(map(len, before))


def test_each_step_of_a_flow_lies_in_a_slice_of_a_collective(merged: Merged) -> None:
    slices: dict[tuple[int, Any], list[tuple[int, int]]] = {}
    for event in merged.events:
        if event["ph"] == "X" and ("nccl" in event["name"] or event["name"].startswith("gloo:")):
            start_ns = to_ns(event["ts"])
            slices.setdefault((event["pid"], event["tid"]), []).append((start_ns, start_ns + to_ns(event["dur"])))
    for flow in [event for event in merged.events if event.get("cat") == "collective"]:
        moment_ns = to_ns(flow["ts"])
        assert any(start_ns <= moment_ns < end_ns for start_ns, end_ns in slices[flow["pid"], flow["tid"]])


def test_each_flow_touches_every_rank_once_and_never_runs_back(merged: Merged) -> None:
    flows: dict[int, list[Event]] = {}
    for event in merged.events:
        if event.get("cat") == "collective":
            flows.setdefault(event["id"], []).append(event)
    ranks = len(merged.inputs)
    assert merged.report.arrow_count == len(flows) * (ranks - 1) > 0
    for flow in flows.values():
        assert "".join(event["ph"] for event in flow) == "s" + "t" * (ranks - 2) + "f"
        assert [event["ts"] for event in flow] == sorted(event["ts"] for event in flow)
        assert len({event["pid"] for event in flow}) == ranks


def test_ends_of_a_collective_agree_within_the_error_bound(merged: Merged) -> None:
    ends = []
    for one in merged.report.ranks:
        trace = read_trace(read_chunks(one.file))
        origin = read_origin(trace.head, one.file)
        found = find_collectives(RankView(trace), origin.base_ns, origin.only_group_size)
        ends.append([c.start_ns + c.duration_ns - one.offset_ns for c in found])
    spreads = [max(together) - min(together) for together in zip(*ends, strict=True)]
    assert merged.report.error_bound_ns is not None
    within = sum(spread <= merged.report.error_bound_ns for spread in spreads)
    assert 0.9 * len(spreads) <= within


def test_file_has_the_method_of_alignment(merged: Merged) -> None:
    says = merged.whole["rankscope"]
    assert says["offsets_ns"] == {str(one.rank): one.offset_ns for one in merged.report.ranks}
    assert (says["error_bound_ns"], says["how"]) == (merged.report.error_bound_ns, merged.report.how)


def test_our_own_reader_reads_all_of_it(merged: Merged) -> None:
    trace = read_trace(read_chunks(str(merged.path)))
    assert trace.event_count == len(merged.events)
    assert trace.warnings == []


def test_four_v100_ranks_are_aligned_to_a_few_microseconds(tmp_path: Path) -> None:
    # Their ends differ by up to 7 us (tests/traces/README.md); taking the offsets off makes that no worse.
    bound_ns = merge(SETS["v100"], tmp_path / "merged.json").error_bound_ns
    assert bound_ns is not None
    assert bound_ns <= 7000


def test_folder_of_traces_is_merged_without_what_else_lies_there(tmp_path: Path) -> None:
    report = merge([str(TRACES / "gloo-2.13" / "ddp_4r_slow2_forward")], tmp_path / "merged.json.gz")
    assert ([one.rank for one in report.ranks], report.errors) == ([0, 1, 2, 3], [])  # its truth_rank*.json are none
