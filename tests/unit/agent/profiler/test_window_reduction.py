"""WindowReduction: group, step and sequence of collectives, and the breakdown of steps.

Steps last 1,000 ticks on the host clock. Kineto writes wall time, which is `WALL` ahead of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from msgspec import structs

from rankscope.agent.profiler.process_groups import DEVICE_NUMBERS_FROM, UNRECORDED_NUMBERS_FROM, FlightEntry
from rankscope.agent.profiler.reduction_process import ReductionProcesses
from rankscope.agent.profiler.window_reading import BATCH_EVENTS, read_window
from rankscope.agent.profiler.window_reduction import GroupSource, WindowReduction, parse_bytes
from rankscope.agent.profiler.window_scheduler import RawWindow
from rankscope.agent.steps.host_transfers import Transfer, WaitedTransfer
from rankscope.measure.records import CollectiveRecord, GroupInfo, StepRecord, WindowBreakdown
from tests.unit.agent.traced_activities import TracedActivity

WALL = 1_700_000_000_000_000_000
STEP = 1_000
EVENTS_MAX = 2_000

WORLD = GroupInfo(label="default_pg", description="default_pg", ranks=(0, 1, 2, 3), backend="gloo")
TENSOR = GroupInfo(label="mesh_tp/0-1", description="mesh_tp", ranks=(0, 1), backend="gloo")
GROUPS = {"0": WORLD, "17": TENSOR}
"""By torch's own name. Group number 0 is named "0", number 1 is named "17"."""
NAMES = {0: ("0", "default_pg"), 1: ("17", "mesh_tp")}

MAIN, AUTOGRAD, WORKER_A, WORKER_B, WORKER_C = 100, 101, 201, 202, 203
FLOATS_10 = (
    '"Record function id": 0, "Input type": ["float"], "Input Strides": [[1]], "Input Dims": [[10]], "Ev Idx": 0'
)


@dataclass
class FakeActivity:
    """Kineto's activity of one range or operator."""

    label: str
    start: int
    ticks: int
    thread: int
    metadata: str = ""
    kind: str = "user_annotation"

    def name(self) -> str:
        return self.label

    def type(self) -> str:
        return self.kind

    def timestamp(self) -> int:
        return self.start + WALL

    def duration(self) -> int:
        return self.ticks

    def resource_id(self) -> int:
        return self.thread

    def metadata_json(self) -> str:
        return self.metadata


def gloo(op: str, start: int, ticks: int = 50, thread: int = WORKER_A, metadata: str = FLOATS_10) -> FakeActivity:
    return FakeActivity(f"gloo:{op}", start, ticks, thread, metadata)


def operator(name: str, start: int, ticks: int, thread: int = MAIN) -> FakeActivity:
    return FakeActivity(name, start, ticks, thread, kind="cpu_op")


@dataclass
class World:
    """The groups and the flight recorder, with a count of reads."""

    groups: dict[str, GroupInfo] = field(default_factory=lambda: dict(GROUPS))
    entries: list[FlightEntry] = field(default_factory=list)
    entries_read: int = 0
    transfers: list[WaitedTransfer] | None = None
    backward_ends: list[int] = field(default_factory=list)

    def source(self) -> GroupSource:
        return GroupSource(
            lambda: dict(self.groups),
            self._read_entries,
            lambda _begin, _end: self.transfers,
            lambda begin, end: [one for one in self.backward_ends if begin <= one < end],
        )

    def _read_entries(self) -> tuple[list[FlightEntry], dict[int, tuple[str, str]]]:
        self.entries_read += 1
        return list(self.entries), dict(NAMES)


def window(
    activities: Sequence[FakeActivity],
    enqueued: dict[int, tuple[int, int]],
    *,
    first_step: int = 5,
    steps: int = 2,
    full: bool = False,
) -> RawWindow:
    """A window of whole steps. `enqueued` is, by group number, the first and last sequence enqueued in it."""
    records = [
        StepRecord(step=first_step + i, start_host_ns=(first_step + i) * STEP, duration_ns=STEP, phases_ns={})
        for i in range(steps)
    ]
    return RawWindow(
        full=full,
        steps=tuple(records),
        result=SimpleNamespace(trace_activities=lambda: list(activities)),
        wall_minus_host_ns=WALL,
        enqueued_before={number: first - 1 for number, (first, _) in enqueued.items()},
        enqueued_after={number: last for number, (_, last) in enqueued.items()},
        training_cost_ns=0,
    )


def reduction(world: World, yield_gil: Callable[[], None] = lambda: None) -> WindowReduction:
    return WindowReduction(
        world.source(),
        ReductionProcesses(),
        events_max=EVENTS_MAX,
        yield_gil=yield_gil,
    )


def break_down(world: World, window: RawWindow) -> list[WindowBreakdown]:
    """Return the breakdown of each step of a full window."""
    reducing = reduction(world)
    assert reducing.reduce(window).breakdowns == [], "they come later"
    (reduced,) = reducing.collect()
    return reduced.breakdowns


def only_world() -> World:
    return World(groups={"0": WORLD})


def placed(records: Sequence[CollectiveRecord]) -> list[tuple[str, int, int | None]]:
    """Return group, step and sequence of each record."""
    return [(record.group, record.step, record.sequence) for record in records]


# -- one group --------------------------------------------------------------------------------------------------------


def test_a_collective_has_its_operation_time_size_and_step() -> None:
    reduced = reduction(only_world()).reduce(window([gloo("all_reduce", 5_400, ticks=70)], {0: (9, 9)}))
    assert reduced.collectives == [
        CollectiveRecord(
            step=5,
            group="default_pg",
            op="all_reduce",
            start_host_ns=5_400,
            duration_ns=70,
            sequence=9,
            bytes=40,  # 10 floats of 4 bytes
            exposed_ns=70,
        )
    ]
    assert (reduced.covered_steps, reduced.breakdowns) == ((5, 6), [])


# Two workers: the third bucket waits in the queue for the end of the first one, at 5,400, whenever it was enqueued.
BUCKETS = [
    gloo("all_reduce", 5_100, ticks=300),
    gloo("all_reduce", 5_150, ticks=350, thread=WORKER_B),
    gloo("all_reduce", 5_400, ticks=200),
]


def find_exposed_ns(world: World) -> list[int | None]:
    reduced = reduction(world).reduce(window(BUCKETS, {0: (1, 3)}))
    return [one.exposed_ns for one in reduced.collectives]


def test_collective_is_exposed_from_last_start_before_its_end() -> None:
    assert find_exposed_ns(only_world()) == [5_400 - 5_150, 5_500 - 5_400, 200]


def test_collective_is_hidden_until_backwards_own_work_ends() -> None:
    world = World(groups={"0": WORLD}, backward_ends=[5_380])
    assert find_exposed_ns(world) == [5_400 - 5_380, 5_500 - 5_400, 200]


def test_group_that_is_not_on_the_host_alone_has_no_exposed_part() -> None:
    world = World(groups={"0": structs.replace(WORLD, backend="cpu:gloo,cuda:nccl")}, backward_ends=[5_380])
    assert find_exposed_ns(world) == [None] * 3


def test_end_of_another_backward_exposes_no_later_collective() -> None:
    world = World(groups={"0": WORLD}, backward_ends=[5_050, 6_050])
    assert find_exposed_ns(world) == [250, 100, 200]


def test_sequences_follow_the_begin_of_operations() -> None:
    activities = [
        gloo("all_reduce", 6_100, thread=WORKER_B),
        gloo("all_reduce", 5_100, thread=WORKER_A),
        gloo("all_reduce", 5_200, thread=WORKER_B),
    ]
    reduced = reduction(only_world()).reduce(window(activities, {0: (3, 5)}))
    assert placed(reduced.collectives) == [("default_pg", 5, 3), ("default_pg", 5, 4), ("default_pg", 6, 5)]


def test_single_group_needs_no_flight_recorder() -> None:
    world = only_world()
    reduction(world).reduce(window([gloo("all_reduce", 5_100)], {0: (1, 1)}))
    assert world.entries_read == 0


def test_when_an_operation_is_missing_none_has_a_sequence() -> None:
    activities = [gloo("all_reduce", 5_100), gloo("all_reduce", 6_100)]
    reduced = reduction(only_world()).reduce(window(activities, {0: (3, 5)}))  # three were enqueued
    assert placed(reduced.collectives) == [("default_pg", 5, None), ("default_pg", 6, None)]


def test_operation_outside_steps_only_advances_the_sequence() -> None:
    activities = [gloo("broadcast", 4_900), gloo("all_reduce", 5_100), gloo("all_reduce", 7_000)]
    reduced = reduction(only_world()).reduce(window(activities, {0: (3, 5)}))
    assert placed(reduced.collectives) == [("default_pg", 5, 4)]


@pytest.mark.parametrize("full", [False, True])
def test_enqueueing_of_a_device_backend_is_no_collective(full: bool) -> None:
    enqueued = [FakeActivity("nccl:all_reduce", 5_100, 20, MAIN, FLOATS_10), gloo("all_reduce", 5_200)]
    reduced = reduction(only_world()).reduce(window(enqueued, {0: (4, 4), DEVICE_NUMBERS_FROM: (9, 9)}, full=full))
    assert [record.start_host_ns for record in reduced.collectives] == [5_200]


def test_a_window_without_communication_covers_its_steps() -> None:
    reduced = reduction(World()).reduce(window([FakeActivity("Optimizer.step#SGD.step", 5_100, 10, MAIN)], {}))
    assert (reduced.collectives, reduced.covered_steps) == ([], (5, 6))


def test_window_without_a_whole_step_is_empty() -> None:
    reduced = reduction(only_world()).reduce(window([gloo("all_reduce", 5_100)], {0: (1, 1)}, steps=0))
    assert (reduced.collectives, reduced.breakdowns, reduced.covered_steps) == ([], [], None)


# -- sends and receives -----------------------------------------------------------------------------------------------


def waited(op: str, start_ns: int, wait_ns: int, end_ns: int, group: str = "0") -> WaitedTransfer:
    """A transfer of 40 bytes with the next place of the group."""
    return WaitedTransfer(Transfer(op, group, 1, 40, start_ns), wait_ns, end_ns, MAIN)


TRANSFERS = [gloo("recv", 5_050, thread=MAIN), gloo("all_reduce", 5_400), gloo("send", 6_100, thread=MAIN)]
TRANSFERS_ENQUEUED = {0: (8, 10)}
"""gloo counts sends and receives as well."""


def test_transfer_is_exposed_while_it_is_waited_for() -> None:
    transfers = [waited("recv", 5_050, 5_200, 5_300), waited("send", 5_900, 6_100, 6_150)]
    reduced = reduction(World({"0": WORLD}, transfers=transfers)).reduce(window(TRANSFERS, TRANSFERS_ENQUEUED))
    facts = [
        (one.op, one.step, one.start_host_ns, one.duration_ns, one.exposed_ns, one.bytes) for one in reduced.collectives
    ]
    assert facts == [
        ("all_reduce", 5, 5_400, 50, 50, 40),
        ("recv", 5, 5_050, 250, 100, 40),
        ("send", 6, 5_900, 250, 50, 40),  # begun in step 5 and waited for in step 6
    ]
    assert reduced.covered_steps == (5, 6)
    # Members of the group may have sent more or less, so that its counter does not number collectives.
    assert {one.sequence for one in reduced.collectives} == {None}


def test_window_with_unknown_transfers_covers_no_step() -> None:
    reducing = reduction(World({"0": WORLD}, transfers=None))
    reduced = reducing.reduce(window(TRANSFERS, TRANSFERS_ENQUEUED))
    assert (reduced.collectives, reduced.covered_steps) == ([], None)
    assert reducing.skipped == {"transfers_unknown": 1}


def test_transfer_of_an_unknown_group_covers_no_step() -> None:
    reducing = reduction(World({"0": WORLD}, transfers=[waited("recv", 5_050, 5_200, 5_300, group="9")]))
    assert reducing.reduce(window(TRANSFERS, TRANSFERS_ENQUEUED)).covered_steps is None
    assert reducing.skipped == {"transfers_unknown": 1}


def test_transfer_between_steps_is_in_none() -> None:
    transfers = [waited("recv", 4_000, 4_100, 4_200)]
    reduced = reduction(World({"0": WORLD}, transfers=transfers)).reduce(
        window([gloo("all_reduce", 5_400)], {0: (8, 8)})
    )
    assert [one.op for one in reduced.collectives] == ["all_reduce"]


def test_window_where_the_recorder_begins_to_count_has_no_steps() -> None:
    # Sequence 600 of a group of which the recorder knew nothing, since it had only sent and received.
    reducing = reduction(World({"0": WORLD}, transfers=[]))
    switching = window([gloo("barrier", 5_400)], {0: (1, 601)})._replace(enqueued_before={UNRECORDED_NUMBERS_FROM: 600})
    assert reducing.reduce(switching).covered_steps is None
    assert reducing.skipped == {"collectives_unplaced": 1}


# -- several groups ---------------------------------------------------------------------------------------------------

TWO_GROUPS = [
    gloo("all_reduce", 5_100, thread=WORKER_A),
    gloo("all_gather", 5_200, thread=WORKER_C),
    gloo("all_reduce", 5_300, thread=WORKER_B),
]
TWO_GROUPS_ENTRIES = [
    FlightEntry(0, 2, "all_reduce", WALL + 4_000),  # before the window
    FlightEntry(0, 3, "all_reduce", WALL + 5_090),
    FlightEntry(1, 8, "all_gather", WALL + 5_190),
    FlightEntry(0, 4, "all_reduce", WALL + 5_290),
]
TWO_GROUPS_ENQUEUED = {0: (3, 4), 1: (8, 8)}


def test_workers_of_groups_are_learned_from_the_recorder() -> None:
    world = World(entries=TWO_GROUPS_ENTRIES)
    reduced = reduction(world).reduce(window(TWO_GROUPS, TWO_GROUPS_ENQUEUED))
    assert placed(reduced.collectives) == [("default_pg", 5, 3), ("default_pg", 5, 4), ("mesh_tp/0-1", 5, 8)]


def test_workers_are_learned_once() -> None:
    world = World(entries=TWO_GROUPS_ENTRIES)
    reducing = reduction(world)
    reducing.reduce(window(TWO_GROUPS, TWO_GROUPS_ENQUEUED))
    world.entries, world.groups = [], {}  # the script has destroyed its groups
    later = [gloo("all_gather", 7_200, thread=WORKER_C), gloo("all_reduce", 7_100, thread=WORKER_B)]
    reduced = reducing.reduce(window(later, {0: (5, 5), 1: (9, 9)}, first_step=7))
    assert placed(reduced.collectives) == [("default_pg", 7, 5), ("mesh_tp/0-1", 7, 9)]
    assert world.entries_read == 1


def test_lost_operation_keeps_the_other_groups_sequences() -> None:
    world = World(entries=TWO_GROUPS_ENTRIES)
    reducing = reduction(world)
    reducing.reduce(window(TWO_GROUPS, TWO_GROUPS_ENQUEUED))
    later = [gloo("all_gather", 7_200, thread=WORKER_C), gloo("all_reduce", 7_100, thread=WORKER_B)]
    reduced = reducing.reduce(window(later, {0: (5, 6), 1: (9, 9)}, first_step=7))
    assert placed(reduced.collectives) == [("default_pg", 7, None), ("mesh_tp/0-1", 7, 9)]


def test_operations_unlike_the_recorder_cover_no_step() -> None:
    reducing = reduction(World(entries=TWO_GROUPS_ENTRIES[:-1]))  # one entry less than there are operations
    reduced = reducing.reduce(window(TWO_GROUPS, TWO_GROUPS_ENQUEUED))
    assert (reduced.collectives, reduced.covered_steps) == ([], None)
    assert reducing.skipped == {"collectives_unplaced": 3}


def test_a_worker_that_would_belong_to_two_groups_is_not_learned() -> None:
    # Enqueued in the order 0, 1, 0, 1; the third began before the second, so that the position would give the wrong
    # group.
    enqueued_order = [(0, 1), (1, 1), (0, 2), (1, 2)]
    entries = [FlightEntry(g, sequence, "all_reduce", WALL + 5_000) for g, sequence in enqueued_order]
    began = [(5_100, WORKER_A), (5_200, WORKER_A), (5_210, WORKER_C), (5_300, WORKER_C)]
    reducing = reduction(World(entries=entries))
    activities = [gloo("all_reduce", start, thread=thread) for start, thread in began]
    assert reducing.reduce(window(activities, {0: (1, 2), 1: (1, 2)})).covered_steps is None


def test_a_worker_that_is_known_is_never_learned_anew() -> None:
    world = World(entries=TWO_GROUPS_ENTRIES)
    reducing = reduction(world)
    reducing.reduce(window(TWO_GROUPS, TWO_GROUPS_ENQUEUED))
    world.entries = [FlightEntry(1, 9, "all_reduce", WALL), FlightEntry(0, 5, "all_reduce", WALL)]
    swapped = [gloo("all_reduce", 7_100, thread=WORKER_A), gloo("all_reduce", 7_200, thread=WORKER_C + 1)]
    assert reducing.reduce(window(swapped, {0: (5, 5), 1: (9, 9)}, first_step=7)).covered_steps is None
    world.entries = [FlightEntry(0, 6, "all_reduce", WALL), FlightEntry(1, 10, "all_reduce", WALL)]
    reduced = reducing.reduce(window(swapped, {0: (6, 6), 1: (10, 10)}, first_step=7))
    assert placed(reduced.collectives) == [("default_pg", 7, 6), ("mesh_tp/0-1", 7, 10)]


def test_collectives_of_unknown_groups_cover_no_step() -> None:
    reducing = reduction(World(groups={}))
    reduced = reducing.reduce(window([gloo("all_reduce", 5_100)], {0: (1, 1)}))
    assert (reduced.collectives, reduced.covered_steps, reducing.skipped) == ([], None, {"collectives_unplaced": 1})


# -- sizes ------------------------------------------------------------------------------------------------------------


def test_all_gather_size_is_that_of_all_ranks() -> None:
    reduced = reduction(only_world()).reduce(window([gloo("all_gather", 5_100)], {0: (1, 1)}))
    assert reduced.collectives[0].bytes == 10 * 4 * 4  # 10 floats of each of 4 ranks


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ('"Input type": ["float"], "Input Dims": [[131584]]', 131_584 * 4),
        ('"Input type": ["c10::BFloat16", "long int"], "Input Dims": [[4, 8], [3]]', 4 * 8 * 2 + 3 * 8),
        ('"Input type": ["double"], "Input Dims": [[]]', 8),  # a tensor of one number
        ('"Input type": ["float"], "Input Dims": [[0]]', 0),  # measured, and nothing
        ('"Record function id": 0, "Ev Idx": 0', None),  # a barrier
        ('"Input type": ["GenericList"], "Input Dims": [[[2], [3]]]', None),
        ('"Input type": ["float"], "Input Dims": [[1], [2]]', None),
        ("", None),
        ("not JSON", None),
    ],
)
def test_bytes_are_those_of_the_inputs_or_not_known(metadata: str, expected: int | None) -> None:
    assert parse_bytes(metadata) == expected


def test_full_windows_tell_no_sizes() -> None:
    reduced = reduction(only_world()).reduce(window([gloo("all_reduce", 5_100)], {0: (1, 1)}, full=True))
    assert reduced.collectives[0].bytes is None


# -- limits -----------------------------------------------------------------------------------------------------------


def test_light_events_per_step_count_all_activities() -> None:
    reducing = reduction(only_world())
    assert reducing.light_events_a_step is None
    seen = [gloo("all_reduce", 5_100), operator("FSDP::pre_forward", 5_200, 10), operator("FSDP::wait", 6_100, 10)]
    reducing.reduce(window(seen, {0: (1, 1)}, steps=2))
    assert reducing.light_events_a_step == 3 / 2
    reducing.reduce(window([*seen, *seen], {0: (2, 3)}, full=True))
    assert reducing.light_events_a_step == 3 / 2, "of a full one it says nothing"


def test_a_window_of_too_many_events_is_skipped_and_counted() -> None:
    reducing = reduction(only_world())
    many = [gloo("all_reduce", 5_100)] * (EVENTS_MAX + 1)
    reduced = reducing.reduce(window(many, {0: (1, EVENTS_MAX + 1)}, full=True))
    assert (reduced.collectives, reduced.breakdowns, reduced.covered_steps) == ([], [], None)
    assert reducing.skipped == {"events_max": 1}


def test_a_window_of_exactly_as_many_events_as_allowed_is_read() -> None:
    reducing = reduction(only_world())
    many = [gloo("all_reduce", 5_100)] * EVENTS_MAX
    assert len(reducing.reduce(window(many, {0: (1, EVENTS_MAX)})).collectives) == EVENTS_MAX
    assert reducing.skipped == {}


def test_gil_is_released_after_each_batch_of_events() -> None:
    let_go: list[None] = []
    reducing = reduction(only_world(), yield_gil=lambda: let_go.append(None))
    reducing.reduce(window([operator("aten::add", 5_100, 1)] * (3 * BATCH_EVENTS), {}, full=True))
    assert len(let_go) == 3


def test_operators_around_calls_fill_batches_and_are_held_once() -> None:
    # Two calls of one operator, as a copy and a wait: each call is two readings, so a batch has half as many.
    around = TracedActivity("aten::_local_scalar_dense", "cpu_op", 5_100, 9, 7)
    calls = [
        TracedActivity("cudaStreamSynchronize", "cuda_runtime", around.start_ns + number, 1, 7, linked=around)
        for number in range(BATCH_EVENTS)
    ]
    let_go: list[None] = []
    window = RawWindow(True, (), None, 0, {}, {}, 0, on_device=True)
    columns = read_window(window, calls, lambda: let_go.append(None)).columns
    assert columns is not None
    assert (len(let_go), len(columns)) == (2, BATCH_EVENTS + 1)


# -- the breakdown of full windows ------------------------------------------------------------------------------------


def test_breakdown_has_compute_overlap_exposed_and_idle() -> None:
    #            5000      5100      5200      5300      5400      5500 ... 6000
    # compute     |  linear 5050-5250  |         backward 5350-5450
    # gloo                  all_reduce 5200-5400
    activities = [
        operator("aten::linear", 5_050, 200),
        operator("autograd::engine", 5_350, 100, thread=AUTOGRAD),
        gloo("all_reduce", 5_200, ticks=200),
    ]
    first, second = break_down(only_world(), window(activities, {0: (1, 1)}, full=True))
    assert (first.first_step, first.step_count, first.window_ns) == (5, 1, 1_000)
    assert (first.compute_ns, first.communication_ns) == (200 + 100, 200)
    assert first.overlap_ns == 50 + 50  # 5200-5250 and 5350-5400
    assert first.exposed_communication_ns == 100  # 5250-5350
    assert first.idle_ns == 1_000 - 300 - 100
    assert (second.first_step, second.idle_ns, second.operator_count) == (6, 1_000, 0)


def test_nested_operators_count_once() -> None:
    activities = [
        operator("aten::linear", 5_100, 100),
        operator("aten::addmm", 5_110, 80),
        operator("aten::expand", 5_120, 10),
        operator("aten::relu", 5_200, 20),  # begins where linear ends
        operator("aten::add", 5_150, 20, thread=AUTOGRAD),  # inside linear's time, but on another thread
    ]
    breakdown = break_down(World(), window(activities, {}, full=True))[0]
    assert (breakdown.compute_ns, breakdown.operator_count) == (120, 3)


def test_gloo_workers_and_enqueueing_are_no_compute() -> None:
    activities = [
        operator("c10d::allreduce_", 5_100, 100),
        operator("aten::copy_", 5_300, 100, thread=WORKER_A),
        gloo("all_reduce", 5_300, ticks=100),
    ]
    breakdown = break_down(only_world(), window(activities, {0: (1, 1)}, full=True))[0]
    assert (breakdown.compute_ns, breakdown.operator_count, breakdown.communication_ns) == (0, 0, 100)


def test_a_send_on_the_training_thread_does_not_make_it_a_worker() -> None:
    activities = [operator("aten::linear", 5_100, 200), gloo("send", 5_400, ticks=10, thread=MAIN)]
    breakdown = break_down(World(), window(activities, {}, full=True))[0]
    assert (breakdown.compute_ns, breakdown.communication_ns) == (200, 10)


def test_unplaced_communication_counts_in_the_breakdown() -> None:
    seen = window([gloo("all_reduce", 5_100)], {0: (1, 1)}, full=True)
    assert break_down(World(groups={}), seen)[0].communication_ns == 50
