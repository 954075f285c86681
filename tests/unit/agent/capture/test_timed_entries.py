"""parse_dump: the collectives of devices in a recorder's dump, as torch writes it."""

import json

import msgspec
import pytest

from rankscope.agent.capture.timed_entries import Reading, TimedEntry, parse_dump
from tests.unit.agent.sidecar.fake_worker_server import dump, nccl_entry

AT = 1_795_217_000_000_000_000


def parse(*entries: dict[str, object], since: int = 0) -> Reading:
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


def test_a_retired_collective_without_duration_is_over() -> None:
    (found,) = parse(nccl_entry(0, 1_000, None, retired=True)).entries
    assert (found.is_over, found.duration_ns) == (True, None)


def test_recorder_without_entries_is_empty() -> None:
    assert parse() == Reading(taken_wall_ns=AT)


def test_fields_of_newer_versions_and_nulls_are_no_error() -> None:
    (found,) = parse(nccl_entry(0, 1_000, None) | {"duration_ms": None, "frames": [{"name": "f"}]}).entries
    assert found.duration_ns is None


@pytest.mark.parametrize("broken", [{"record_id": "x"}, {"time_created_ns": None}, {"process_group": 5}])
def test_changed_fields_are_an_error(broken: dict[str, object]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        parse(nccl_entry(0, 1_000) | broken)


def test_reading_survives_its_file() -> None:
    found = parse(nccl_entry(0, 1_000), nccl_entry(1, 1_001, None))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Reading) == found


def test_dump_of_torch_itself_is_read() -> None:
    text = json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}})
    assert parse_dump(text, taken_wall_ns=AT, since_wall_ns=0).ring_entries == 0
