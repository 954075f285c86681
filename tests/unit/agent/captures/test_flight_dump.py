"""Tests of parsing dumps of the flight recorder."""

from rankscope.agent.captures.flight_dump import PENDING_MAX, find_completed, find_names, find_pending, to_statuses
from rankscope.measure.stalls import GroupStatus
from tests.unit.agent.flight_dumps import CREATED_WALL_NS, dump_of, entry_of, status_of

LABELS = {0: "default_pg", 3: "mesh_tp/0-1"}
NOW_WALL_NS = CREATED_WALL_NS + 7_000


def test_pending_collective_has_all_its_fields() -> None:
    dump = dump_of(entry_of(0, 6, retired=True), entry_of(1, 7))
    (found,), left_out = find_pending([dump], LABELS, NOW_WALL_NS)
    assert (found.op, found.group, found.sequence, found.age_ns, left_out) == ("all_reduce", "default_pg", 7, 7_000, 0)
    # 777 floats of 4 bytes.
    assert (found.sizes, found.dtypes, found.bytes) == (((777,),), ("Float",), 3_108)
    assert found.timeout_ns == 600_000 * 1_000_000


def test_completed_state_of_nccl_is_not_pending() -> None:
    entries = [
        entry_of(0, 1, state="completed", profiling_name="nccl:all_gather"),
        entry_of(1, 2, state="started", profiling_name="nccl:all_gather"),
    ]
    pending = find_pending([dump_of(*entries)], LABELS, NOW_WALL_NS).collectives
    assert [(one.sequence, one.state) for one in pending] == [(2, "started")]


def test_the_oldest_are_kept_and_the_others_counted() -> None:
    entries = [entry_of(number, number, time_created_ns=CREATED_WALL_NS - number) for number in range(PENDING_MAX + 5)]
    pending, left_out = find_pending([dump_of(*entries)], LABELS, NOW_WALL_NS)
    assert (len(pending), left_out) == (PENDING_MAX, 5)
    assert pending[0].sequence == PENDING_MAX + 4


def test_one_entry_in_the_dumps_of_two_recorders_counts_once() -> None:
    dump = dump_of(entry_of(0, 6))
    assert len(find_pending([dump, dump], LABELS, NOW_WALL_NS).collectives) == 1


def test_point_to_point_has_a_sequence_of_its_own() -> None:
    entry = entry_of(0, 9, is_p2p=True, p2p_seq_id=4, profiling_name="nccl:send 0->1")
    (found,), _ = find_pending([dump_of(entry)], LABELS, NOW_WALL_NS)
    assert (found.sequence, found.op) == (4, "send 0->1")


def test_a_dump_without_entries_has_nothing_pending_and_no_names() -> None:
    dump = dump_of(g0=status_of(5))
    assert find_pending([dump], LABELS, NOW_WALL_NS) == ((), 0)
    assert find_names([dump]) == {}


def test_entries_tell_the_names_of_the_groups() -> None:
    dump = dump_of(entry_of(0, 1), entry_of(1, 1, pg_id=3, process_group=["7", "mesh_tp"]))
    assert find_names([dump]) == {0: "0", 3: "7"}


def test_status_is_how_far_each_group_is_and_missing_is_not_zero() -> None:
    dump = dump_of(g0=status_of(12, completed=10), g3=status_of(4, started=4, completed=3), g8=status_of(1))
    assert to_statuses([dump], LABELS) == (
        GroupStatus(group="default_pg", enqueued=12, started=None, completed=10),
        GroupStatus(group="mesh_tp/0-1", enqueued=4, started=4, completed=3),
        GroupStatus(group="#8", enqueued=1, started=None, completed=None),
    )


def test_more_advanced_status_of_two_recorders_counts() -> None:
    dumps = [dump_of(g0=status_of(3)), dump_of(g0=status_of(12)), dump_of(g0=status_of(-1))]
    assert [status.enqueued for status in to_statuses(dumps, LABELS)] == [12]


def test_collective_that_no_entry_shows_open_has_completed() -> None:
    done = [entry_of(number, sequence, retired=True) for number, sequence in enumerate((28, 29, 30))]
    assert find_completed([dump_of(*done)]) == {0: 30}
    assert find_completed([dump_of(*done, entry_of(3, 31))]) == {0: 30}
    assert find_completed([dump_of(entry_of(0, 29), entry_of(1, 30, retired=True))]) == {0: 28}
    # What NCCL has retired may have timed out.
    assert find_completed([dump_of(entry_of(0, 30, retired=True, profiling_name="nccl:all_reduce"))]) == {}


def test_status_that_stays_behind_the_entries_is_raised() -> None:
    dump = dump_of(g0=status_of(30, completed=29))
    assert [one.completed for one in to_statuses([dump], LABELS, {0: 30})] == [30]
    assert [one.completed for one in to_statuses([dump], LABELS, {0: 28})] == [29]
    # A later group of the same number has made fewer.
    assert [one.completed for one in to_statuses([dump], LABELS, {0: 900})] == [29]
