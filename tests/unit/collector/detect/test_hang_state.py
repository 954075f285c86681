"""The state of a rank by its counters, its recorder and its sidecar."""

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


def test_rank_waits_in_the_first_incomplete_collective_per_group() -> None:
    rank = still({WORLD: (9, 6), "a": (3, 1)}, call(sequence=7), call(sequence=8), call("a", 2, "broadcast"))
    assert rank.waits == (Wait(WORLD, 7, "all_reduce"), Wait("a", 2, "broadcast"))
    assert rank.oldest == (WORLD, 7)


def test_first_collective_is_the_one_with_the_lowest_sequence() -> None:
    assert still({}, call(sequence=8), call(sequence=7)).waits == (Wait(WORLD, 7, "all_reduce"),)


@pytest.mark.parametrize(
    ("enqueued", "completed", "expected"),
    [
        (9, 6, (Wait(WORLD, 7),)),
        (1, 0, (Wait(WORLD, 1),)),
        # Without reported completions only the last one is known to be open.
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
def test_rank_that_is_not_stalled_has_no_waits(rank: RankHangState) -> None:
    assert (rank.waits, rank.transfers, rank.oldest) == ((), (), None)


def test_rank_stalled_when_it_fell_silent_still_waits() -> None:
    assert silent({WORLD: (8, 7)}, is_stalled=True).waits == (Wait(WORLD, 8),)


def test_sends_and_receives_are_no_collectives() -> None:
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
def test_point_to_point_calls_are_parsed_from_their_names(op: str, expected: PointToPoint | None) -> None:
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
        # Without the sidecar's counters: those that the rank reported before.
        (frozen({}), 7),
    ],
)
def test_how_far_a_rank_is_in_a_group(rank: RankHangState, expected: int | None) -> None:
    assert rank.enqueued_in(WORLD) == expected


def test_started_sequence_is_known_where_the_backend_reports_it() -> None:
    rank = RankHangState(progress=(GroupStatus(group="a", enqueued=3, started=2), GroupStatus(group="b", enqueued=3)))
    assert [rank.started_in(group) for group in ("a", "b", "c")] == [2, None, None]


def test_nothing_has_completed_until_it_is_reported() -> None:
    rank = RankHangState(progress=(GroupStatus(group="a", enqueued=3), GroupStatus(group="b", completed=2)))
    assert [rank.completed_in(group) for group in ("a", "b", "c")] == [0, 2, 0]


def test_sidecar_view_takes_precedence_over_the_rank() -> None:
    thread = KernelThread(thread=7, name="python", state="S", wait_channel="futex")
    seen = frozen({}, call(sequence=9), threads=[thread])
    rank = RankHangState(is_stalled=True, unresponsive=seen.unresponsive, stall=stall_of("data"))
    assert rank.activity is None
    assert not rank.is_excused
    assert rank.frames == ()
    assert [one.sequence for one in rank.pending] == [9]


def test_rank_without_a_stall_has_no_frames_and_nothing_pending() -> None:
    assert (moving().frames, moving().pending, moving().activity) == ((), (), None)
    assert still(stall=stall_of(line=None)).frames == ()


def test_an_excuse_holds_while_it_is_not_known_how_long_it_lasts() -> None:
    assert still(activity="compile", stalled_ns=None).is_excused
    assert not waits().is_excused
