"""parse_dump: the collectives of devices in a recorder's dump, as torch writes it."""

import json
from typing import Any

import msgspec
import pytest

from rankscope.agent.captures.timed_entries import SETTLED_NS, RecorderReading, TimedEntry, parse_dump
from rankscope.agent.sidecar.recorder_files import parse_safely
from tests.unit.agent.sidecar.fake_worker_server import coalesced_entries, dump, nccl_entry

AT = 1_795_217_000_000_000_000


def parse(*entries: dict[str, object], since: int = 0) -> RecorderReading:
    return parse_dump(dump(*entries), taken_wall_ns=AT, since_wall_ns=since)


def test_entries_are_of_devices_with_the_larger_size() -> None:
    gathered = {"output_sizes": [[1000], [1000]], "output_dtypes": ["Float", "Float"]}
    found = parse(
        nccl_entry(9, 1_009, None, profiling_name="nccl:_all_gather_base", **gathered),
        nccl_entry(8, 1_008, 1.25),
        nccl_entry(7, 1_007, profiling_name="nccl:send 0->1", is_p2p=True),
        nccl_entry(6, 1_006, None, profiling_name="gloo:all_reduce"),
    )
    assert found.entries == [
        TimedEntry("0", 9, "all_reduce", 1_008, 1_250_000, is_over=True, bytes=4_000),
        TimedEntry("0", 10, "all_gather", 1_009, None, is_over=False, bytes=8_000),
    ]


def test_ring_is_described_by_all_entries() -> None:
    found = parse(nccl_entry(7, 1_007, is_p2p=True), nccl_entry(8, 1_010), nccl_entry(9, 1_037))
    assert (found.recorded, found.ring_entries, found.ring_ns) == (10, 3, 30)


def test_entries_before_the_asked_time_are_left_out_but_one() -> None:
    entries = [nccl_entry(number, 1_000 + number) for number in range(5)]
    assert [one.created_wall_ns for one in parse(*entries, since=1_003).entries] == [1_002, 1_003, 1_004]
    assert [one.created_wall_ns for one in parse(*entries, since=9_000).entries] == [1_004]


@pytest.mark.parametrize(("created_ns", "completed_ns", "expected"), [
    (AT - SETTLED_NS, 0, True),
    (AT - SETTLED_NS + 1, 0, False),
    (AT - 9 * SETTLED_NS, AT - SETTLED_NS, True),
    (AT - 9 * SETTLED_NS, AT - 1, False),
])  # fmt: skip
def test_retired_collective_is_over_once_its_duration_is_due(
    created_ns: int, completed_ns: int, expected: bool
) -> None:
    entry = nccl_entry(0, created_ns, None, retired=True, time_discovered_completed_ns=completed_ns)
    (found,) = parse(entry).entries
    assert (found.is_over, found.duration_ns) == (expected, None)


def test_coalesced_members_are_over_once_their_group_is() -> None:
    before, after = nccl_entry(0, 1_000), nccl_entry(4, 1_010, None)
    open_group = parse(before, *coalesced_entries(0, 1_001, None), after)
    assert [(one.created_wall_ns, one.is_over) for one in open_group.entries] == [
        (1_000, True), (1_002, False), (1_003, False), (1_004, False), (1_010, False)
    ]  # fmt: skip
    ended = parse(before, *coalesced_entries(0, 1_001), after)
    assert [(one.created_wall_ns, one.duration_ns, one.is_over) for one in ended.entries] == [
        (1_000, 50_000, True), (1_002, None, True), (1_003, None, True), (1_004, None, True), (1_010, None, False)
    ]  # fmt: skip


def test_a_later_collective_of_another_group_ends_none() -> None:
    found = parse(nccl_entry(0, 1_000, None), nccl_entry(1, 1_001, process_group=["1", "other"]))
    assert [one.is_over for one in found.entries] == [False, True]


def test_what_stands_for_several_operations_has_no_duration() -> None:
    nothing: dict[str, Any] = {"input_sizes": [], "output_sizes": []}
    found = parse(
        nccl_entry(0, 1_000),
        nccl_entry(1, 1_001, profiling_name="nccl:coalesced", **nothing),
        nccl_entry(2, 1_002, profiling_name="nccl:reduce_scatter_tensor_coalesced", **nothing),
        nccl_entry(3, 1_003, profiling_name="nccl:allreduce_coalesced"),
    )
    assert [(one.duration_ns, one.bytes, one.is_over) for one in found.entries] == [
        (50_000, 4_000, True), (None, None, True), (None, None, True), (50_000, 4_000, True)
    ]  # fmt: skip


def test_entry_without_sizes_has_no_bytes() -> None:
    (found,) = parse(nccl_entry(0, 1_000, input_sizes=[], output_sizes=[], input_dtypes=[], output_dtypes=[])).entries
    assert found.bytes is None


@pytest.mark.parametrize("size", [2**62, -1])
def test_absurd_size_is_not_known(size: int) -> None:
    (found,) = parse(nccl_entry(0, 1_000, input_sizes=[[size]], output_sizes=[[size]])).entries
    assert found.bytes is None


def test_nesting_without_end_is_a_problem() -> None:
    assert parse_safely(b'{"a":' * 100_000, taken_wall_ns=AT, since_wall_ns=0).problem


def test_recorder_without_entries_is_empty() -> None:
    assert parse() == RecorderReading(taken_wall_ns=AT)


def test_fields_of_newer_versions_and_nulls_are_no_error() -> None:
    (found,) = parse(nccl_entry(0, 1_000, None) | {"duration_ms": None, "frames": [{"name": "f"}]}).entries
    assert found.duration_ns is None


@pytest.mark.parametrize("broken", [
    {"record_id": "x"}, {"time_created_ns": None}, {"process_group": 5}, {"record_id": 2**63}, {"record_id": -1},
    {"time_created_ns": -1}, {"collective_seq_id": 10**30}, {"duration_ms": -0.1}, {"duration_ms": 1e300},
    {"time_discovered_completed_ns": 2**63},
])  # fmt: skip
def test_changed_fields_are_an_error(broken: dict[str, object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse(nccl_entry(0, 1_000) | broken)


def test_reading_survives_its_file() -> None:
    found = parse(nccl_entry(0, 1_000), nccl_entry(1, 1_001, None))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=RecorderReading) == found


def test_dump_of_torch_itself_is_read() -> None:
    text = json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}})
    assert parse_dump(text, taken_wall_ns=AT, since_wall_ns=0).ring_entries == 0
