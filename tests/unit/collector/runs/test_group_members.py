"""Who is in each process group, within bounds."""

from rankscope.collector.runs.attempt import MEMBERSHIPS_MIN, MEMBERSHIPS_PER_RANK_MAX, GroupMembers
from rankscope.measure.records import GroupInfo


def group(label: str, *ranks: int) -> GroupInfo:
    """A group as a rank tells it."""
    return GroupInfo(label=label, description="dp", ranks=ranks, backend="nccl")


def test_members_are_sorted_and_kept_by_label() -> None:
    known = GroupMembers(4)
    assert known.record(group("dp", 2, 0)) == (0, 2)
    assert known.record(group("tp", 1, 3)) == (1, 3)
    assert known.by_label == {"dp": (0, 2), "tp": (1, 3)}


def test_first_report_of_a_group_counts_unless_sizes_differ() -> None:
    known = GroupMembers(4)
    known.record(group("dp", 0, 1))
    assert known.record(group("dp", 2, 3)) == (0, 1)
    assert known.record(group("dp", 2, 3, 1)) == (1, 2, 3)


def test_what_there_is_no_room_for_is_not_known_and_counted() -> None:
    known = GroupMembers(1)
    wide = range(MEMBERSHIPS_MIN - 1)
    assert known.record(group("wide", *wide)) == tuple(wide)  # a group takes one place more than its members
    assert known.record(group("more")) is None
    assert known.dropped == 1
    assert known.record(group("wide", 1, 2)) == (1, 2)  # a smaller one makes room
    assert known.record(group("more", 5)) == (5,)


def test_a_large_run_has_room_for_each_of_its_ranks_groups() -> None:
    world_size = 128
    known = GroupMembers(world_size)
    whole = tuple(range(world_size))
    assert all(known.record(group(f"g{number}", *whole)) for number in range(MEMBERSHIPS_PER_RANK_MAX - 1))
    assert known.record(group("one too many", *whole)) is None
