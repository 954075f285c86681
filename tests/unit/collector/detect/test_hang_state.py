"""What one rank's counters, its recorder and its sidecar say of where it stands."""

import pytest

from rankscope.collector.detect.hang_state import PointToPoint, RankHangState, Wait, parse_point_to_point
from rankscope.measure.stalls import GroupStatus, KernelThread
from tests.unit.collector.detect.hang_states import (
    WORLD,
    call,
    ended,
    frozen,
    moving,
    silent,
    stall_of,
    still,
    waits,
)

PIPE = "mesh_pp/0-1"


def test_a_rank_waits_in_the_first_collective_of_each_group_that_has_not_completed() -> None:
    rank = still({WORLD: (9, 6), "a": (3, 1)}, call(sequence=7), call(sequence=8), call("a", 2, "broadcast"))
    assert rank.waits == (Wait(WORLD, 7, "all_reduce"), Wait("a", 2, "broadcast"))
    assert rank.oldest == (WORLD, 7)


def test_the_first_is_the_one_with_the_lowest_number_whatever_the_order() -> None:
    assert still({}, call(sequence=8), call(sequence=7)).waits == (Wait(WORLD, 7, "all_reduce"),)


@pytest.mark.parametrize(
    ("enqueued", "completed", "expected"),
    [
        (9, 6, (Wait(WORLD, 7),)),
        (1, 0, (Wait(WORLD, 1),)),
        # A backend that tells no completions leaves only the last one.
        (9, None, (Wait(WORLD, 9),)),
        (9, 9, ()),
        (None, None, ()),
    ],
)
def test_without_a_recorder_the_counters_tell_where_it_waits(
    enqueued: int | None, completed: int | None, expected: tuple[Wait, ...]
) -> None:
    rank = still({WORLD: (enqueued, completed)})
    assert rank.waits == expected
    assert rank.oldest == ((expected[0].group, expected[0].sequence) if expected else None)


@pytest.mark.parametrize("rank", [moving({WORLD: (9, 8)}), ended("failed", counters={WORLD: (9, 8)}), silent()])
def test_a_rank_that_does_not_stand_still_waits_for_nobody_known(rank: RankHangState) -> None:
    assert (rank.waits, rank.transfers, rank.oldest) == ((), (), None)


def test_a_rank_that_was_stalled_when_it_fell_silent_still_waits_there() -> None:
    assert silent({WORLD: (8, 7)}, is_stalled=True).waits == (Wait(WORLD, 8),)


def test_sends_and_receives_are_no_collectives_and_their_group_s_counters_tell_nothing() -> None:
    rank = still({PIPE: (5, 4)}, call(PIPE, 5, "recv 1<-0"))
    assert rank.waits == ()
    assert [handover for _, handover in rank.transfers] == [PointToPoint(is_send=False, peer=0)]


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("all_reduce", None),
        ("sendrecv", None),
        ("send 0->12", PointToPoint(is_send=True, peer=12)),
        ("recv 3<-2", PointToPoint(is_send=False, peer=2)),
        ("recv anysource", PointToPoint(is_send=False, peer=None)),
        ("send", PointToPoint(is_send=True, peer=None)),
    ],
)
def test_point_to_point_calls_are_told_by_their_names(op: str, expected: PointToPoint | None) -> None:
    assert parse_point_to_point(call(op=op)) == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (still({WORLD: (7, 7)}), 7),
        # It mentions other groups, all by name: in this one it has done nothing.
        (still({"other": (7, 7)}), 0),
        (still({WORLD: (None, None)}), 0),
        # One of its groups is only known by its number: it may be this one.
        (still({"#3": (7, 7)}), None),
        # It has a recorder and no group: it has made no collective yet.
        (still({}), 0),
        (still({}, stall=stall_of(absent={"pending": "no recorder"})), None),
        (RankHangState(is_stalled=False), None),
        (frozen({WORLD: (6, 6)}), 6),
        # Its sidecar could not ask: what it had said itself before.
        (frozen({}), 7),
    ],
)
def test_how_far_a_rank_is_in_a_group(rank: RankHangState, expected: int | None) -> None:
    assert rank.enqueued_in(WORLD) == expected


def test_what_a_device_has_begun_is_known_where_the_backend_tells() -> None:
    rank = RankHangState(progress=(GroupStatus(group="a", enqueued=3, started=2), GroupStatus(group="b", enqueued=3)))
    assert [rank.started_in(group) for group in ("a", "b", "c")] == [2, None, None]


def test_what_has_completed_is_nothing_until_it_is_told() -> None:
    rank = RankHangState(progress=(GroupStatus(group="a", enqueued=3), GroupStatus(group="b", completed=2)))
    assert [rank.completed_in(group) for group in ("a", "b", "c")] == [0, 2, 0]


def test_the_sidecar_s_view_comes_before_what_the_rank_wrote_down_before() -> None:
    thread = KernelThread(thread=7, name="python", state="S", wait_channel="futex")
    seen = frozen({}, call(sequence=9), threads=[thread])
    rank = RankHangState(is_stalled=True, unresponsive=seen.unresponsive, stall=stall_of("data"))
    assert rank.activity is None
    assert not rank.is_excused
    assert rank.frames == ()
    assert [one.sequence for one in rank.pending] == [9]


def test_a_rank_without_a_stall_has_no_frames_and_nothing_pending() -> None:
    assert (moving().frames, moving().pending, moving().activity) == ((), (), None)
    assert still(stall=stall_of(line=None)).frames == ()


def test_an_excuse_holds_while_it_is_not_known_how_long_it_lasts() -> None:
    assert still(activity="compile", stalled_ns=None).is_excused
    assert not waits().is_excused
