"""GroupProgress and ProcessGroups: members and progress of process groups, from torch's own structures."""

import gc
import json
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

from rankscope.agent.profiler import process_groups
from rankscope.agent.profiler.process_groups import (
    DEVICE_NUMBERS_FROM,
    UNRECORDED_NUMBERS_FROM,
    FlightEntry,
    GroupProgress,
    ProcessGroups,
    count_enqueued,
    has_peers,
)
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.identity import group_label
from rankscope.measure.records import GroupInfo

STATUS = {
    "0": {"last_enqueued_collective": 7, "last_started_collective": -1, "last_completed_collective": 6},
    "1": {"last_enqueued_collective": 3, "last_started_collective": -1, "last_completed_collective": 3},
}


def entry(
    record_id: int, group: tuple[int, str, str], sequence: int, name: str, **changes: object
) -> dict[str, object]:
    """Return an entry as torch 2.13's flight recorder writes it for gloo."""
    number, torch_name, description = group
    return {
        "collective_seq_id": sequence, "input_dtypes": ["Float"], "input_sizes": [[1000]], "is_p2p": False,
        "op_id": record_id, "output_dtypes": ["Float"], "output_sizes": [[1000]], "p2p_seq_id": 0, "pg_id": number,
        "process_group": [torch_name, description], "profiling_name": name, "record_id": record_id, "retired": True,
        "state": "scheduled", "time_created_ns": 1_000_000 + record_id, "time_discovered_completed_ns": 0,
        "time_discovered_started_ns": 0, "timeout_ms": 1_800_000,
    } | changes  # fmt: skip


class Recorder:
    """A flight recorder with given contents that records its calls."""

    def __init__(self, dump: dict[str, Any]) -> None:
        self.dump = dump
        self.asked_for_collectives: list[bool] = []

    def __call__(self, *, includeCollectives: bool) -> str:  # noqa: N803 - torch's own name
        self.asked_for_collectives.append(includeCollectives)
        left_out = () if includeCollectives else ("entries",)
        return json.dumps({name: value for name, value in self.dump.items() if name not in left_out})


def progress_with(monkeypatch: pytest.MonkeyPatch, dump: dict[str, Any]) -> tuple[GroupProgress, Recorder]:
    recorder = Recorder(dump)
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", recorder, raising=False)
    return GroupProgress(), recorder


# -- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_the_last_sequence_enqueued_in_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, recorder = progress_with(monkeypatch, {"pg_status": STATUS, "entries": []})
    assert progress.read_enqueued() == {0: 7, 1: 3}
    assert recorder.asked_for_collectives == [False], "the entries cost 15 us each and are not needed"


def test_before_the_first_collective_there_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, _ = progress_with(monkeypatch, {"version": "2.10"})
    assert (progress.read_enqueued(), progress.read_entries()) == ({}, ([], {}))


def test_entries_come_oldest_first_with_group_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, tensor = (0, "0", "default_pg"), (1, "1", "mesh_tp")
    dump = {"entries": [entry(9, tensor, 4, "gloo:all_gather"), entry(8, data, 5, "gloo:all_reduce")]}
    progress, _ = progress_with(monkeypatch, dump)
    assert progress.read_entries() == (
        [FlightEntry(0, 5, "all_reduce", 1_000_008), FlightEntry(1, 4, "all_gather", 1_000_009)],
        {0: ("0", "default_pg"), 1: ("1", "mesh_tp")},
    )


def test_entry_has_the_thread_that_enqueued_it(monkeypatch: pytest.MonkeyPatch) -> None:
    enqueued = entry(8, (0, "0", "default_pg"), 5, "gloo:all_reduce", thread_id="1405", thread_name="pt_gloo_runloop")
    (found,) = progress_with(monkeypatch, {"entries": [enqueued]})[0].read_entries()[0]
    assert (found.thread, found.thread_name) == (1405, "pt_gloo_runloop")


def test_point_to_point_entries_only_name_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = {"entries": [entry(1, (3, "pipe", "pp"), 0, "nccl:send 0->1", is_p2p=True)]}
    progress, _ = progress_with(monkeypatch, dump)
    assert progress.read_entries() == ([], {3: ("pipe", "pp")})


def test_torch_without_a_flight_recorder_has_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        monkeypatch.delattr(c10d, name, raising=False)
    progress = GroupProgress()
    assert not progress.is_available
    assert (progress.read_enqueued(), progress.read_entries()) == ({}, ([], {}))


# -- the recorder of NCCL ---------------------------------------------------------------------------------------------


def with_nccl(
    monkeypatch: pytest.MonkeyPatch, gloo: dict[str, Any], nccl: dict[str, Any], captures: GraphCaptures | None = None
) -> GroupProgress:
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", Recorder(gloo), raising=False)
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", Recorder(nccl), raising=False)
    return GroupProgress(captures=captures)


def test_the_recorder_of_nccl_counts_its_groups_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    of_nccl = {"0": {"last_enqueued_collective": 9}}
    progress = with_nccl(monkeypatch, {"pg_status": STATUS}, {"pg_status": of_nccl})
    assert progress.read_enqueued() == {0: 7, 1: 3, DEVICE_NUMBERS_FROM: 9}


def test_one_recorder_that_both_functions_read_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry(8, (0, "0", "default_pg"), 5, "nccl:all_reduce")]
    shared = {"pg_status": STATUS, "entries": entries}
    progress = with_nccl(monkeypatch, shared, shared)
    assert progress.read_enqueued() == {0: 7, 1: 3}
    assert [found.sequence for found in progress.read_entries()[0]] == [5]


def test_the_entries_of_two_recorders_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    gloo = {"entries": [entry(8, (0, "0", "default_pg"), 5, "gloo:all_reduce")]}
    nccl = {"entries": [entry(8, (0, "1", "mesh_tp"), 6, "nccl:all_gather")]}
    entries, names = with_nccl(monkeypatch, gloo, nccl).read_entries()
    assert [(found.group_number, found.op) for found in entries] == [
        (0, "all_reduce"), (DEVICE_NUMBERS_FROM, "all_gather")
    ]  # fmt: skip
    assert names == {0: ("0", "default_pg"), DEVICE_NUMBERS_FROM: ("1", "mesh_tp")}


def test_no_entry_is_read_while_a_graph_is_being_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = {"pg_status": STATUS, "entries": [entry(8, (0, "1", "mesh_tp"), 6, "nccl:all_gather")]}
    progress = with_nccl(monkeypatch, {}, nccl, GraphCaptures(lambda: True))
    assert progress.read_entries() == ([], {})
    assert progress.read_enqueued() == {DEVICE_NUMBERS_FROM: 7, DEVICE_NUMBERS_FROM + 1: 3}, "which queries no event"


def test_devices_are_dumped_unless_a_graph_is_being_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = {"entries": [entry(8, (0, "0", "default_pg"), 5, "nccl:all_reduce", duration_ms=1.25)]}
    assert json.loads(with_nccl(monkeypatch, {}, nccl).dump_devices() or "") == nccl
    assert with_nccl(monkeypatch, {}, nccl, GraphCaptures(lambda: True)).dump_devices() is None


def test_collectives_are_not_covered_once_a_graph_was_captured() -> None:
    captures = GraphCaptures()
    progress = GroupProgress(captures=captures, environment={"TORCH_NCCL_ENABLE_TIMING": "1"})
    progress.groups = {"0": GroupInfo(label="x", description="x", ranks=(0, 1), backend="nccl")}
    assert progress.records_devices
    captures.wrap_begin(lambda: None)()
    captures.wrap_end(lambda: None)()
    assert not progress.records_devices, "those in a graph are in no recorder"


def test_timed_collectives_are_not_read_where_that_is_unsafe() -> None:
    progress = GroupProgress(environment={"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_NCCL_CUDA_EVENT_CACHE": "0"})
    progress.groups = {"0": GroupInfo(label="x", description="x", ranks=(0, 1), backend="nccl")}
    assert not progress.records_devices


@pytest.mark.parametrize(
    ("setting", "backend", "expected"),
    [
        ("1", "nccl", True),
        ("TRUE", "nccl", True),
        ("0", "nccl", True),
        ("", "nccl", True),
        ("1", "gloo", False),
        ("0", "gloo", False),
        ("1", "cpu:gloo,cuda:nccl", True),
        ("1", "xccl", False),
    ],
)
def test_nccl_collectives_are_read_whether_timed_or_not(
    monkeypatch: pytest.MonkeyPatch, setting: str, backend: str, expected: bool
) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", object, raising=False)
    progress = GroupProgress(environment={"TORCH_NCCL_ENABLE_TIMING": setting})
    assert not progress.records_devices, "no group has been seen"
    progress.groups = {"0": GroupInfo(label="x", description="x", ranks=(0, 1), backend=backend)}
    assert progress.records_devices is expected


def test_untimed_collectives_of_a_rank_alone_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", object, raising=False)
    alone = {"0": GroupInfo(label="x", description="x", ranks=(0,), backend="nccl")}
    found = []
    for timing in ("0", "1"):
        progress = GroupProgress(environment={"TORCH_NCCL_ENABLE_TIMING": timing})
        progress.groups = alone
        found.append(progress.records_devices)
    assert found == [False, True]


def test_nothing_is_read_without_nccl_or_without_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = {"0": GroupInfo(label="x", description="x", ranks=(0, 1), backend="nccl")}
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", object, raising=False)
    switched_off = GroupProgress()
    monkeypatch.delattr(c10d, "ProcessGroupNCCL")
    without_nccl = GroupProgress(environment={})
    for progress in (switched_off, without_nccl):
        progress.groups = groups
        assert not progress.records_devices


def test_a_group_on_the_host_beside_nccl_does_not_end_timing() -> None:
    progress = GroupProgress(environment={"TORCH_NCCL_ENABLE_TIMING": "1"})
    progress.groups = {
        name: GroupInfo(label=name, description="x", ranks=(0, 1), backend=name) for name in ("nccl", "gloo")
    }
    assert progress.records_devices


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (["gloo"], True), (["nccl"], False), (["nccl", "gloo"], True), (["cpu:gloo,cuda:nccl"], False), ([], False),
        (["undefined"], False), (["mpi"], True), (["cpu:gloo,cuda:gloo"], True),
    ],
)  # fmt: skip
def test_host_communication_needs_a_host_only_group(backends: list[str], expected: bool) -> None:
    progress = GroupProgress()
    progress.groups = {
        str(number): GroupInfo(label="x", description="x", ranks=(0, 1), backend=backend)
        for number, backend in enumerate(backends)
    }
    assert progress.communicates_on_host is expected


@pytest.mark.skipif(not hasattr(c10d, "_dump_fr_trace_json"), reason="this torch's recorder is not for the host")
def test_empty_real_recorder_can_be_read() -> None:
    progress = GroupProgress()
    assert progress.is_available
    assert progress.read_enqueued() == {}


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world_of_four() -> Iterator[None]:
    """Rank 0 of four, with torch's process group that does not communicate."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_four")
def test_groups_are_kept_as_of_their_first_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", Recorder({"pg_status": STATUS}), raising=False)
    progress = GroupProgress(4)
    progress.read_enqueued()
    late_group = dist.new_group([0, 1], group_desc="late")
    progress.read_enqueued()
    assert late_group is not None
    assert [group.label for group in progress.groups.values()] == ["default_pg"], "asked once, not every time"


def test_before_init_process_group_there_are_no_groups() -> None:
    assert ProcessGroups(4).read() == {}


def test_a_process_without_torch_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d")
    assert ProcessGroups(1).read() == {}


@pytest.mark.usefixtures("world_of_four")
def test_the_whole_world_is_a_group_of_everybody() -> None:
    (group,) = ProcessGroups(4).read().values()
    assert (group.label, group.ranks, group.backend) == ("default_pg", (0, 1, 2, 3), "fake")


def test_group_without_a_named_backend_has_those_torch_chose() -> None:
    dist.init_process_group(store=c10d.HashStore(), rank=0, world_size=1)
    try:
        (group,) = ProcessGroups(1).read().values()
        assert "cpu:gloo" in group.backend.split(",")
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_four")
def test_group_label_has_description_and_members() -> None:
    dist.new_group([2, 0], group_desc="mesh_dp")
    dist.new_group([1, 3], group_desc="mesh_dp")  # rank 0 is no member of this one
    assert sorted(group.label for group in ProcessGroups(4).read().values()) == ["default_pg", "mesh_dp/0,2"]


@pytest.mark.usefixtures("world_of_four")
def test_groups_of_the_same_members_are_distinguished() -> None:
    kept = [dist.new_group([0, 1]) for _ in range(3)]
    groups = ProcessGroups(4)
    labels = [group.label for group in groups.read().values()]
    assert labels == ["default_pg", "undefined/0-1", "undefined/0-1#2", "undefined/0-1#3"]
    dist.destroy_process_group(kept[0])
    kept.append(dist.new_group([0, 1]))
    assert [group.label for group in groups.read().values()][1:] == [labels[2], labels[3], labels[1]]


def test_groups_can_be_read_before_any_line_that_changes_them() -> None:
    """As the agent's thread may: the training thread can lose the interpreter's lock before any line of torch's."""
    seen: set[tuple[str, ...]] = set()

    def read_groups(frame: FrameType, event: str, argument: object) -> Any:
        del event, argument
        if not frame.f_code.co_filename.endswith("distributed_c10d.py"):
            return None
        sys.settrace(None)  # reading is not what is interrupted
        seen.add(tuple(group.label for group in ProcessGroups(4).read().values()))
        sys.settrace(read_groups)
        return read_groups

    before = sys.gettrace()
    sys.settrace(read_groups)
    try:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        dist.destroy_process_group(dist.new_group([0, 1], group_desc="pair"))
        dist.destroy_process_group()
    finally:
        sys.settrace(before)
    assert seen == {(), ("default_pg",), ("default_pg", "pair/0-1")}


@pytest.mark.usefixtures("world_of_four")
def test_group_destroyed_while_it_is_described_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, read_ranks = dist.new_group([0, 1], group_desc="pair"), dist.get_process_group_ranks

    def read_ranks_and_destroy(group: Any) -> list[int]:
        ranks = read_ranks(group)
        if group is pair:
            dist.destroy_process_group(pair)
        return ranks

    monkeypatch.setattr(dist.distributed_c10d, "get_process_group_ranks", read_ranks_and_destroy)
    assert [group.label for group in ProcessGroups(4).read().values()] == ["default_pg"]


@pytest.mark.usefixtures("world_of_four")
def test_a_group_is_described_once_and_a_new_one_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    described = []

    def describe(description: str, ranks: Sequence[int], world_size: int) -> str:
        described.append(description)
        return group_label(description, ranks, world_size)

    monkeypatch.setattr(process_groups, "group_label", describe)
    groups = ProcessGroups(4)
    first = groups.read()
    dist.new_group([0, 1], group_desc="late")
    assert groups.read().items() > first.items()
    assert groups.read() == groups.read()
    assert described == ["default_pg", "late"]


def test_new_group_at_a_reused_address_is_described_anew() -> None:
    """A group is destroyed and made anew, under the same name and perhaps at the same address, as in an elastic
    restart.
    """
    groups, seen = ProcessGroups(4), []
    for size in (4, 2, 3):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        seen.append([group.ranks for group in groups.read().values()])
        dist.destroy_process_group()
        assert groups.read() == {}
    assert seen == [[(0, 1, 2, 3)], [(0, 1)], [(0, 1, 2)]]


@pytest.mark.usefixtures("world_of_four")
def test_destroyed_group_is_not_kept_alive() -> None:
    groups = ProcessGroups(4)
    group = dist.new_group([0, 1])
    groups.read()
    alive = weakref.ref(group)
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert alive() is None


# -- groups that are in no recorder -----------------------------------------------------------------------------------


class Group:
    """torch's object of a group, as far as it is used."""

    def __init__(self, name: str, description: str, count: int | None) -> None:
        self.group_name = name
        self.group_desc = description
        self._count = count

    def _get_sequence_number_for_group(self) -> int:
        if self._count is None:
            raise RuntimeError("this backend does not count")
        return self._count


@pytest.fixture
def unrecorded(monkeypatch: pytest.MonkeyPatch) -> dict[Group, tuple[str, None]]:
    """Process groups with their backends, without a recorder."""
    groups: dict[Group, tuple[str, None]] = {}
    torch_s = SimpleNamespace(_world=SimpleNamespace(pg_map=groups), get_process_group_ranks=lambda _group: [0, 1])
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", torch_s)
    return groups


def test_unrecorded_host_progress_is_read_from_groups(
    monkeypatch: pytest.MonkeyPatch, unrecorded: dict[Group, tuple[str, None]]
) -> None:
    unrecorded |= {
        Group("0", "default_pg", 13): ("cpu:gloo", None),
        Group("2", "idle", 0): ("gloo", None),
        Group("3", "on a device", 8): ("nccl", None),
        Group("4", "uncounted", None): ("mpi", None),
        Group("7", "mesh_tp", 5): ("gloo", None),
    }
    progress, _ = progress_with(monkeypatch, {"pg_status": {}})
    enqueued = progress.read_enqueued()
    entries, names = progress.read_entries()
    assert sorted(enqueued.values()) == [5, 13]
    assert {names[number]: count for number, count in enqueued.items()} == {
        ("0", "default_pg"): 13,
        ("7", "mesh_tp"): 5,
    }
    assert entries == []
    assert all(UNRECORDED_NUMBERS_FROM <= number < DEVICE_NUMBERS_FROM for number in enqueued)
    assert progress.communicates_on_host


def test_group_keeps_its_number(monkeypatch: pytest.MonkeyPatch, unrecorded: dict[Group, tuple[str, None]]) -> None:
    first, second = Group("0", "default_pg", 4), Group("1", "mesh_tp", 9)
    unrecorded |= {first: ("gloo", None), second: ("gloo", None)}
    progress, _ = progress_with(monkeypatch, {})
    (number,) = [number for number, count in progress.read_enqueued().items() if count == 9]
    del unrecorded[first]
    assert progress.read_enqueued() == {number: 9}


def test_groups_are_not_read_where_the_recorder_has_them(
    monkeypatch: pytest.MonkeyPatch, unrecorded: dict[Group, tuple[str, None]]
) -> None:
    unrecorded[Group("0", "default_pg", 99)] = ("gloo", None)
    progress, _ = progress_with(monkeypatch, {"pg_status": STATUS})
    assert progress.read_enqueued() == {0: 7, 1: 3}


# -- the difference ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, {}),
        ({0: 10}, {0: 14}, {0: (11, 14)}),
        ({0: 10, 1: 4}, {0: 10, 1: 5}, {1: (5, 5)}),
        ({0: 10}, {0: 10, 2: 3}, {2: (1, 3)}),  # a group made in between counts from 1
        ({0: 10, 1: 4}, {0: 11}, {0: (11, 11)}),  # one destroyed in between has no progress
    ],
)
def test_enqueued_collectives_are_counted_by_group(
    before: dict[int, int], after: dict[int, int], expected: dict[int, tuple[int, int]]
) -> None:
    assert count_enqueued(before, after) == expected


@pytest.mark.usefixtures("world_of_four")
def test_rank_of_a_larger_group_has_peers() -> None:
    assert has_peers()


def test_process_without_groups_has_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_peers()
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d")
    assert not has_peers()


def test_group_of_one_rank_has_no_peers() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        assert not has_peers()
    finally:
        dist.destroy_process_group()
