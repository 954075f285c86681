"""Tests of reading the flight recorder: number of dumps, shared labels, and graph captures."""

from typing import Any

import pytest
from torch._C import _distributed_c10d as c10d

from rankscope.agent.captures.flight_recorder import NAME_DUMPS_MAX, FlightRecorder
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.records import GroupInfo
from tests.unit.agent.flight_dumps import CREATED_WALL_NS, Recorder, dump_of, entry_of, status_of

WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1), backend="gloo")
TENSOR = GroupInfo(label="mesh_tp/0-1", description="mesh_tp", ranks=(0, 1), backend="gloo")
BOTH = {"0": WORLD, "7": TENSOR}


def recorder_of(
    dump: dict[str, Any], groups: dict[str, GroupInfo], *, nccl: dict[str, Any] | None = None, capturing: bool = False
) -> tuple[FlightRecorder, Recorder, Recorder]:
    host, device = Recorder(dump), Recorder(nccl or {})
    dumps = {"_dump_fr_trace_json": host} | ({} if nccl is None else {"_dump_nccl_trace_json": device})
    return FlightRecorder(lambda: groups, GraphCaptures(lambda: capturing), dumps), host, device


def test_the_status_of_the_only_group_takes_no_full_dump() -> None:
    recorder, asked, _ = recorder_of(dump_of(entry_of(0, 5), g0=status_of(5)), {"0": WORLD})
    assert [(status.group, status.enqueued) for status in recorder.read_progress()] == [("default_pg", 5)]
    assert asked.asked_for_collectives == [False]


def test_status_after_a_full_dump_is_not_behind_its_entries() -> None:
    done = [entry_of(number, number, retired=True) for number in (4, 5)]
    recorder, _, _ = recorder_of(dump_of(*done, g0=status_of(5, completed=4)), {"0": WORLD})
    assert [status.completed for status in recorder.read_progress()] == [4]
    recorder.read_pending(CREATED_WALL_NS, {})
    assert [status.completed for status in recorder.read_progress()] == [5]


def test_group_names_are_learned_from_one_full_dump() -> None:
    entries = [entry_of(0, 1), entry_of(1, 1, pg_id=3, process_group=["7", "mesh_tp"])]
    recorder, asked, _ = recorder_of(dump_of(*entries, g0=status_of(5), g3=status_of(2)), BOTH)
    for _ in range(3):
        assert [status.group for status in recorder.read_progress()] == ["default_pg", "mesh_tp/0-1"]
    assert asked.asked_for_collectives == [False, True, False, False]


def test_first_of_two_groups_to_communicate_has_its_name() -> None:
    recorder, _, _ = recorder_of(dump_of(entry_of(0, 1), g0=status_of(1)), BOTH)
    assert [status.group for status in recorder.read_progress()] == ["default_pg"]


def test_full_dumps_for_names_are_bounded() -> None:
    recorder, asked, _ = recorder_of(dump_of(g0=status_of(5), g3=status_of(2)), BOTH)
    for _ in range(3 * NAME_DUMPS_MAX):
        assert [status.group for status in recorder.read_progress()] == ["#0", "#3"]
    assert sum(asked.asked_for_collectives) == NAME_DUMPS_MAX


def test_before_any_collective_there_is_no_progress() -> None:
    recorder, _, _ = recorder_of(dump_of(), {})
    assert recorder.read_progress() == ()


def test_pending_collectives_come_from_both_recorders() -> None:
    nccl = dump_of(entry_of(0, 9, pg_id=3, process_group=["7", "mesh_tp"], profiling_name="nccl:all_gather"))
    recorder, _, _ = recorder_of(dump_of(entry_of(0, 5)), BOTH, nccl=nccl)
    absent: dict[str, str] = {}
    found = recorder.read_pending(CREATED_WALL_NS, absent).collectives
    assert {(one.group, one.op, one.sequence) for one in found} == {
        ("default_pg", "all_reduce", 5),
        ("mesh_tp/0-1", "all_gather", 9),
    }
    assert absent == {}


def test_no_full_nccl_dump_during_graph_capture() -> None:
    nccl = dump_of(entry_of(0, 9), g0=status_of(9))
    recorder, _, device = recorder_of(dump_of(), {"0": WORLD}, nccl=nccl, capturing=True)
    absent: dict[str, str] = {}
    assert recorder.read_progress()[0].enqueued == 9
    assert recorder.read_pending(CREATED_WALL_NS, absent).collectives == ()
    assert absent == {"pending": "a CUDA graph is being captured"}
    assert True not in device.asked_for_collectives


def test_torch_without_a_recorder_has_a_reason() -> None:
    recorder = FlightRecorder(dict, GraphCaptures(), {})
    absent: dict[str, str] = {}
    assert (recorder.is_available, recorder.read_progress()) == (False, ())
    assert recorder.read_pending(0, absent).collectives == ()
    assert absent == {"pending": "this torch has no flight recorder that can be read"}


@pytest.mark.skipif(not hasattr(c10d, "_dump_fr_trace_json"), reason="this torch's recorder is not for the host")
def test_the_recorder_of_the_torch_that_is_installed_is_found() -> None:
    assert FlightRecorder(dict, GraphCaptures()).is_available
