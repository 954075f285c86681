"""What is read of the dumps of NCCL's Inspector: all versions, and files that are cut, damaged, swapped or endless."""

import json
import os
import socket
from pathlib import Path
from statistics import median

import pytest

from rankscope.agent.sidecar.inspector_dump import (
    BYTES_MAX,
    COMMUNICATORS_MAX,
    LINE_BYTES_MAX,
    LINES_MAX,
    DumpReading,
    InspectorDump,
)
from rankscope.agent.sidecar.inspector_place import InspectorPlace, find_inspector_place
from rankscope.measure.errors import UnavailableError
from rankscope.measure.nccl_inspector import InspectorCommunicator
from tests.inspector_dumps import SAMPLED, WHOLE, Plugin

PID = 4242
BEGIN_US = 1_795_000_000_000_000
TP, DP = "0x7f8c496ae9f661", "0xe62dedaa97644a"


class Process:
    """A process whose plugin writes, and the reader of its dump."""

    def __init__(self, folder: Path, version: str = WHOLE) -> None:
        self.plugin = Plugin(folder, PID, version, begin_us=BEGIN_US + 1)
        self.plugin.path.touch()
        self.place = InspectorPlace(path=str(self.plugin.path), begin_wall_us=BEGIN_US)
        self.dump = InspectorDump(self.place, PID)

    def read(self) -> DumpReading:
        return self.dump.read()

    def read_one(self) -> InspectorCommunicator:
        (one,) = self.read().communicators
        return one

    def find_last(self) -> dict[str, tuple[str, int | None]]:
        return {one.id: (one.last_op, one.last_sequence) for one in self.read().communicators}


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@pytest.mark.parametrize("version", [SAMPLED, WHOLE])
def test_last_operation_and_median_bandwidth(tmp_path: Path, version: str) -> None:
    process = Process(tmp_path, version)
    for took_us in (100, 400, 200):
        process.plugin.complete(bytes_=2_000_000, took_us=took_us)
        process.plugin.dump()
    one = process.read_one()
    assert (one.id, one.size, one.last_op, one.last_sequence, one.last_bytes) == (TP, 8, "AllReduce", 2, 2_000_000)
    (bandwidth,) = one.bandwidths
    # 2 MB in 200 us are 10 GB/s, and 2 * 7/8 of that go over the bus.
    assert (bandwidth.op, bandwidth.count) == ("AllReduce", 3)
    assert bandwidth.bus_bandwidth_bytes_per_s == pytest.approx(17.5e9)


def test_bandwidths_are_those_since_the_reading_before(process: Process) -> None:
    process.plugin.complete(took_us=100)
    process.plugin.dump()
    assert [one.count for one in process.read_one().bandwidths] == [1]
    assert process.read_one().bandwidths == ()
    for took_us in (200, 400):
        process.plugin.complete(took_us=took_us)
    process.plugin.dump()
    one = process.read_one()
    expected = median([2**20 * 1e6 / us * 1.75 for us in (200, 400)])
    assert one.bandwidths[0].bus_bandwidth_bytes_per_s == pytest.approx(expected)
    assert one.last_sequence == 2


def test_communicators_and_operations_are_apart(process: Process) -> None:
    process.plugin.complete("AllGather", TP, size=4, name="TP Group 0")
    process.plugin.complete("ReduceScatter", TP, size=4, name="TP Group 0")
    process.plugin.complete("AllReduce", DP, size=2)
    process.plugin.complete("Send", DP, size=2)
    process.plugin.dump()
    by_id = {one.id: one for one in process.read().communicators}
    assert (by_id[TP].name, by_id[TP].size, by_id[TP].last_op) == ("TP Group 0", 4, "ReduceScatter")
    assert [one.op for one in by_id[TP].bandwidths] == ["AllGather", "ReduceScatter"]
    assert by_id[DP].name == ""
    # The number of a transfer counts those of the rank alone, so it says nothing beside another rank's.
    assert (by_id[DP].last_op, by_id[DP].last_sequence) == ("AllReduce", 0)
    assert [one.op for one in by_id[DP].bandwidths] == ["AllReduce", "Send"]


def test_sampled_dump_has_the_last_operation_of_any_kind(tmp_path: Path) -> None:
    process = Process(tmp_path, SAMPLED)
    for op in ("AllReduce", "AllReduce", "Broadcast"):
        process.plugin.complete(op)
    assert process.plugin.dump() == 1
    assert process.find_last() == {TP: ("Broadcast", 0)}


@pytest.mark.parametrize(
    "changed",
    [{"took_us": 0}, {"source": "collective_cpu"}, {"op": "All2All", "bytes_": 0}],
    ids=["no time", "timed on the host", "no formula"],
)
def test_operation_without_a_bandwidth_still_counts_as_the_last(process: Process, changed: dict[str, object]) -> None:
    process.plugin.complete(**changed)  # type: ignore[arg-type]
    process.plugin.dump()
    one = process.read_one()
    assert (one.last_sequence, one.bandwidths) == (0, ())


@pytest.mark.parametrize("value", ["nan", 0, -1.5, 1e308])
def test_bandwidth_that_is_no_number_is_none(process: Process, value: object) -> None:
    process.plugin.complete()
    process.plugin.dump(coll_perf__coll_busbw_gbs=value)
    assert process.read_one().bandwidths == ()


def test_size_of_an_unknown_type_is_not_known(process: Process) -> None:
    process.plugin.complete()
    process.plugin.dump(coll_perf__coll_msg_size_bytes=2**64 - 1024)  # -1 byte an element, as the plugin writes it
    one = process.read_one()
    assert (one.last_sequence, one.last_bytes) == (0, None)


def test_verbose_line_without_timing_source(process: Process) -> None:
    line = process.plugin.complete()
    line["coll_perf"] |= {"event_trace_sn": {"kernel_events": [{"channel_id": n} for n in range(64)]}}
    process.plugin.dump(coll_perf__coll_timing_source=None)
    assert len(process.read_one().bandwidths) == 1


# -- files ------------------------------------------------------------------------------------------------------------


def test_line_is_read_once_it_is_whole(process: Process) -> None:
    process.plugin.complete()
    process.plugin.dump()
    text = process.plugin.path.read_bytes()
    process.plugin.path.write_bytes(b"")
    for part in (text[:100], text[100:-1]):
        process.plugin.append(part)
        assert process.read() == DumpReading()
    process.plugin.append(text[-1:])
    assert process.find_last() == {TP: ("AllReduce", 0)}


@pytest.mark.parametrize(
    "garbage",
    [
        b"garbage\n", b"\xff\xfe\x00\n", b"{}\n", b"[" * 40_000 + b"\n", b"x" * (LINE_BYTES_MAX + 1) + b"\n",
        b'{"header": {}}\n', b"\n", b"null\n",
    ],
)  # fmt: skip
def test_damaged_line_is_counted_and_makes_the_last_unknown(process: Process, garbage: bytes) -> None:
    process.plugin.complete()
    process.plugin.dump()
    process.plugin.append(garbage)
    found = process.read()
    assert found.lines_skipped == 1
    # The damaged line may have been a later operation.
    assert [(one.last_op, one.last_sequence) for one in found.communicators] == [("", None)]
    assert [one.count for one in found.communicators[0].bandwidths] == [1]
    process.plugin.complete()
    process.plugin.dump()
    assert process.find_last() == {TP: ("AllReduce", 1)}


@pytest.mark.parametrize(
    "changed",
    [
        {"metadata__inspector_output_format_version": "v5.0"},
        {"metadata__pid": PID + 1},
        {"metadata__dump_timestamp_us": BEGIN_US - 3600 * 10**6},
        {"coll_perf__coll_sn": -1},
        {"coll_perf__coll_sn": 2**63},
        {"coll_perf__coll_sn": "7"},
        {"header__id": None},
        {"header__n_ranks": 2**80},
    ],
    ids=lambda one: next(iter(one)),
)
def test_line_of_another_process_or_format_is_counted_only(process: Process, changed: dict[str, object]) -> None:
    process.plugin.complete()
    process.plugin.dump(**changed)
    found = process.read()
    assert (found.lines_skipped, found.communicators) == (1, ())


def test_file_that_begins_again_is_read_from_its_begin(process: Process) -> None:
    for _ in range(3):
        process.plugin.complete()
    process.plugin.dump()
    assert process.find_last() == {TP: ("AllReduce", 2)}
    process.plugin.path.write_bytes(b"")
    assert process.find_last() == {TP: ("", None)}
    process.plugin.complete("Reduce")
    process.plugin.dump()
    assert process.find_last() == {TP: ("Reduce", 0)}


def test_file_that_was_replaced_is_read_from_its_begin(process: Process) -> None:
    process.plugin.complete()
    process.plugin.dump()
    process.read()
    process.plugin.path.rename(process.plugin.path.with_suffix(".1"))
    for _ in range(5):
        process.plugin.complete("Reduce")
    process.plugin.dump()
    assert process.find_last() == {TP: ("Reduce", 4)}


def test_of_a_large_file_only_the_end_is_read(process: Process) -> None:
    process.plugin.complete("Broadcast", DP)
    process.plugin.dump()
    process.read()
    os.truncate(process.plugin.path, 20 << 30)  # 20 GB of zeros, without a line
    process.plugin.append(b"\n")
    process.plugin.complete()
    process.plugin.dump()
    size = process.plugin.path.stat().st_size
    found = process.read()
    assert {one.id: one.last_op for one in found.communicators} == {DP: "", TP: "AllReduce"}
    assert found.lines_skipped == 0
    assert size - BYTES_MAX < found.bytes_skipped < size


def test_endless_line_is_skipped_until_its_end(process: Process) -> None:
    for _ in range(3):
        process.plugin.append(b"x" * (LINE_BYTES_MAX + 1))
        assert process.read().communicators == ()
    assert process.read().bytes_skipped == 3 * (LINE_BYTES_MAX + 1)
    process.plugin.append(b"x\n")
    process.plugin.complete()
    process.plugin.dump()
    found = process.read()
    assert (found.communicators[0].last_sequence, found.lines_skipped) == (0, 0)
    assert found.bytes_skipped == 3 * (LINE_BYTES_MAX + 1) + 2


def test_million_lines_are_bounded_and_counted(process: Process) -> None:
    process.plugin.append(b"x\n" * 10**6)
    process.plugin.complete()
    process.plugin.dump()
    length = process.plugin.path.stat().st_size - 2 * 10**6
    found = process.read()
    (one,) = found.communicators
    assert (one.last_op, one.last_sequence) == ("AllReduce", 0)
    # All lines are accounted for: those before the last mebibyte by their bytes, 2 each.
    before = 2 * 10**6 + length - BYTES_MAX
    assert 0 <= found.bytes_skipped - before <= 2
    assert found.lines_skipped == 10**6 - found.bytes_skipped // 2
    assert found.lines_skipped > LINES_MAX


def test_real_lines_beyond_the_bound_of_lines(process: Process) -> None:
    short = json.dumps({"header": {"id": TP, "n_ranks": 2}, "metadata": {
        "inspector_output_format_version": "v4.1", "dump_timestamp_us": BEGIN_US, "pid": PID,
    }, "coll_perf": {"coll": "Reduce", "coll_sn": 7, "coll_msg_size_bytes": 1, "coll_busbw_gbs": 2}},
        separators=(",", ":"),
    ).encode() + b"\n"  # fmt: skip
    for count, skipped in ((LINES_MAX, 0), (LINES_MAX + 1, 1)):
        process.plugin.append(short * count)
        found = process.read()
        assert (found.lines_skipped, found.communicators[0].bandwidths[0].count) == (skipped, LINES_MAX)
        assert found.communicators[0].last_sequence == 7


def test_many_communicators_are_bounded(process: Process) -> None:
    for number in range(COMMUNICATORS_MAX + 5):
        process.plugin.complete("AllReduce", hex(number))
    process.plugin.dump()
    found = process.read()
    assert [one.id for one in found.communicators] == [hex(number + 5) for number in range(COMMUNICATORS_MAX)]
    assert found.communicators_left_out == 5


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    for name, make in (("pipe", os.mkfifo), ("folder", os.mkdir)):
        path = tmp_path / name
        make(path)
        with pytest.raises((UnavailableError, OSError)):
            InspectorDump(InspectorPlace(path=str(path)), PID).read()


# -- where ------------------------------------------------------------------------------------------------------------

ON = {"NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000"}


def find(**changed: str) -> InspectorPlace:
    place = find_inspector_place(ON | changed, pid=PID, wall_ns=5_000_000)
    assert place is not None
    return place


@pytest.mark.parametrize(
    ("changed", "folder"),
    [
        ({"NCCL_INSPECTOR_DUMP_DIR": "/dumps"}, "/dumps"),
        ({}, "nccl-inspector-unknown-jobid"),
        ({"SLURM_JOBID": "77"}, "nccl-inspector-77"),
    ],
)
def test_file_is_where_the_plugin_writes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, str], folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place = find(**changed)
    assert place.path == str(tmp_path / folder / f"{socket.gethostname()}-pid{PID}.log")
    assert (place.interval_us, place.begin_wall_us, place.problem) == (500_000, 5_000, "")


@pytest.mark.parametrize("value", [None, "", "0", "yes"])
def test_plugin_is_off(value: str | None) -> None:
    environment = {} if value is None else {"NCCL_INSPECTOR_ENABLE": value}
    assert find_inspector_place(environment, pid=PID, wall_ns=0) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"NCCL_INSPECTOR_PROM_DUMP": "1"}, "NCCL_INSPECTOR_PROM_DUMP"),
        ({"NCCL_INSPECTOR_DUMP_THREAD_ENABLE": "0"}, "NCCL_INSPECTOR_DUMP_THREAD_ENABLE"),
        ({"NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "-1"}, "INTERVAL_MICROSECONDS gives no interval"),
    ],
)
def test_why_nothing_is_written_meanwhile(changed: dict[str, str], named: str) -> None:
    assert named in find(**changed).problem


def test_folder_that_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "cannot be found" in find().problem
    assert find(NCCL_INSPECTOR_DUMP_DIR="/dumps").problem == ""
