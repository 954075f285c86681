"""Which rank keeps the others waiting: one table for each cause."""

from dataclasses import replace

import msgspec
import pytest

from rankscope.collector.detect.finding import Abstain, Finding
from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.detector import Hangs, find_first_dead
from rankscope.collector.detect.view import RunView
from rankscope.measure.stalls import EXCUSED_FACTOR, StackFrame, StallSamples
from tests.unit.collector.detect.hang_states import (
    BEGAN_NS,
    COMPUTES,
    LIMIT_NS,
    MOVES,
    NOW_NS,
    STANDS,
    WORLD,
    Counters,
    S,
    busy,
    call,
    dead,
    ended,
    frozen,
    moving,
    silent,
    stall_of,
    still,
    stopped,
    view_on,
    waits,
)

TENSOR, DATA, PIPELINE = "mesh_tp/0-1", "mesh_dp/1-2", "mesh_pp/2-3"
CHAIN = {TENSOR: (0, 1), DATA: (1, 2), PIPELINE: (2, 3)}
"""Rank 0 works with 1, 1 with 2, 2 with 3."""

Standings = dict[int, RankHangState]


def find(view: RunView, *explained: Finding) -> Finding:
    found = Hangs().find(view, explained)
    assert not isinstance(found, Abstain), found
    (candidate,) = found
    assert_past(candidate.finding)
    assert candidate.lost_ns is None
    return candidate.finding


PRESENT = frozenset(
    {"pauses", "stand", "stands", "wait", "waits", "is", "do", "does", "has", "have", "keep", "hangs", "goes"}
)


def assert_past(finding: Finding) -> None:
    """A hang comes with its past form."""


def reason(view: RunView) -> str:
    found = Hangs().find(view, ())
    assert isinstance(found, Abstain), found
    return found.reason


def essence(finding: Finding) -> tuple[str, tuple[int, ...], str | None, str]:
    return finding.cause, finding.ranks, finding.group, finding.severity


IN_CHAIN = {
    0: waits(TENSOR),
    1: still({TENSOR: (7, 7), DATA: (3, 2)}, call(DATA, 3), activity="collective"),
    2: still({DATA: (2, 2), PIPELINE: (5, 4)}, call(PIPELINE, 5), activity="collective"),
}


# -- no hang ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hang_states",
    [
        {},
        {0: moving(), 1: moving()},
        # Asynchronous work is pending in every healthy run.
        {0: moving({WORLD: (9, 8)}), 1: moving({WORLD: (8, 8)})},
        {0: ended("finished"), 1: ended("finished")},
    ],
)
def test_no_hang_without_a_stalled_rank(hang_states: Standings) -> None:
    assert Hangs().find(view_on(hang_states, world=2), ()) == ()


def test_a_rank_that_runs_is_not_missing_yet() -> None:
    assert reason(view_on({0: waits(), 1: moving(), 2: waits()})) == "rank 1 is still running; ranks that wait: 2"


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        (
            still({WORLD: (7, 7)}, activity="data", stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1),
            "waiting for data in main at train.py:74",
        ),
        (
            busy(stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1),
            "busy without training in evaluate at train.py:55",
        ),
        (moving(), "still running"),
    ],
)
def test_after_ten_limits_it_is(origin: RankHangState, place: str) -> None:
    waiting = replace(waits(), stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1)
    finding = find(view_on({0: waiting, 1: origin}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")
    assert finding.what == f"rank 1 (node-a) {place}"


def test_work_after_the_training_of_the_others_is_no_hang() -> None:
    hang_states = {0: still({WORLD: (7, 7)}), 1: ended("finished")}
    assert reason(view_on(hang_states)) == "no rank waits in a collective; ranks that have ended: 1"


# -- ranks that are busy, or wait for data ----------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [MOVES, COMPUTES])
def test_rank_that_works_on_something_else_is_a_warning(samples: StallSamples) -> None:
    finding = find(view_on({0: waits(), 1: busy(samples), 2: waits()}))
    assert essence(finding) == ("busy_rank", (1,), WORLD, "warning")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 (node-a) busy without training in evaluate at train.py:55",
        "2 ranks waiting for it in all_reduce 8 of default_pg (4096 bytes)",
        ("last collective of rank 1 there: 7",),
    )


def test_rank_whose_cpu_clock_and_stack_stand_is_missing() -> None:
    finding = find(view_on({0: waits(), 1: busy(STANDS), 2: waits()}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")


@pytest.mark.parametrize("activity", ["collective", "process_group", "synchronize"])
def test_rank_that_spins_while_it_waits_is_not_busy(activity: str) -> None:
    assert find(view_on({0: waits(), 1: busy(COMPUTES, activity=activity)})).cause == "missing_rank"


def test_busy_rank_that_is_heard_of_no_more_is_missing() -> None:
    gone = replace(busy(), ended="silent")
    assert essence(find(view_on({0: waits(), 1: gone}))) == ("missing_rank", (1,), WORLD, "critical")


def test_busy_rank_is_not_named_beside_one_that_stands() -> None:
    assert find(view_on({0: waits(), 1: busy(), 2: still({WORLD: (7, 7)})})).ranks == (2,)


def test_rank_that_waits_for_data_is_told_at_the_first_limit() -> None:
    finding = find(view_on({0: waits(), 1: still({WORLD: (7, 7)}, activity="data"), 2: busy()}))
    assert essence(finding) == ("data_wait", (1,), WORLD, "warning")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 (node-a) waiting for data in main at train.py:74",
        "1 rank waiting for it in all_reduce 8 of default_pg (4096 bytes)",
        ("last collective of rank 1 there: 7",),
    )


@pytest.mark.parametrize(
    ("states", "cause", "what", "why"),
    [
        (
            [still(activity="data"), still(activity="data")],
            "data_wait",
            "ranks 0-1 waiting for data",
            "rank 0 in main at train.py:74",
        ),
        (
            [busy(), still(activity="data")],
            "data_wait",
            "rank 1 waiting for data in main at train.py:74",
            "",
        ),
        (
            [busy(msgspec.structs.replace(COMPUTES, frame=StackFrame("train.py", 9, "main")))] * 3,
            "busy_rank",
            "ranks 0-2 busy without training",
            "rank 0 in main at train.py:9",
        ),
        (
            [busy(msgspec.structs.replace(MOVES, frame=None))],
            "busy_rank",
            "rank 0 busy without training",
            "",
        ),
    ],
)
def test_pause_in_which_no_rank_waits_is_told(states: list[RankHangState], cause: str, what: str, why: str) -> None:
    finding = find(view_on(dict(enumerate(states))))
    assert essence(finding) == (cause, (), None, "warning")
    assert (finding.what, finding.why) == (what, why)
    assert finding.headline.startswith("Pause in step 7 for 40.0 s: ")


# -- ranks that compile, save or import -------------------------------------------------------------------------------


def saving(activity: str = "checkpoint") -> RankHangState:
    """A rank in work that may take long: the collector counts it as not stalled until ten limits have passed."""
    stall = stall_of(activity, samples=msgspec.structs.replace(STANDS, frame=StackFrame("train.py", 60, "save_all")))
    return replace(still({WORLD: (7, 7)}, stall=stall), is_stalled=False)


@pytest.mark.parametrize("activity", ["checkpoint", "compile", "import"])
def test_long_work_of_one_rank_is_a_warning_at_the_first_limit(activity: str) -> None:
    finding = find(view_on({0: waits(), 1: saving(activity), 2: waits()}))
    assert essence(finding) == ("busy_rank", (1,), WORLD, "warning")
    assert finding.what == f"rank 1 (node-a) busy without training in save_all at train.py:60 ({activity})"


def test_long_work_of_all_ranks_is_a_warning_about_none() -> None:
    finding = find(view_on({0: saving("compile"), 1: saving("compile")}))
    assert essence(finding) == ("busy_rank", (), None, "warning")
    assert (finding.what, finding.why, finding.also) == (
        "ranks 0-1 busy without training",
        "rank 0 in save_all at train.py:60 (compile)",
        (),
    )
    # Beside ranks that evaluate or wait for data it is the same pause.
    assert essence(find(view_on({0: saving(), 1: busy()}))) == ("busy_rank", (), None, "warning")
    assert essence(find(view_on({0: saving(), 1: still(activity="data")}))) == ("data_wait", (), None, "warning")


def test_long_work_is_nothing_while_other_ranks_train() -> None:
    assert Hangs().find(view_on({0: saving(), 1: moving()}), ()) == ()
    assert Hangs().find(view_on({0: saving(), 1: ended("finished")}), ()) == ()


def test_long_work_beside_a_rank_that_stands_is_not_judged() -> None:
    assert reason(view_on({0: saving(), 1: still()})).startswith("no rank waits in a collective; ranks that still run")


def test_pause_of_all_ranks_lasts_until_one_trains() -> None:
    finding = find(view_on({0: saving(), 1: saving()}))
    assert not Hangs().has_passed(view_on({0: saving(), 1: saving()}), finding, ())
    assert Hangs().has_passed(view_on({0: saving(), 1: moving()}), finding, ())


def test_long_work_of_a_rank_that_fell_silent_is_no_pause() -> None:
    gone = replace(saving(), ended="silent")
    assert find(view_on({0: waits(), 1: gone})).cause == "silent_rank"


def test_pause_is_told_once_all_ranks_are_in_it() -> None:
    assert reason(view_on({0: busy(), 1: moving()})) == (
        "no rank waits in a collective; ranks that still run or do work that may take long: 1 of 2"
    )


def test_rank_that_stands_beside_busy_ones_is_unattributed() -> None:
    assert essence(find(view_on({0: busy(), 1: still()}))) == ("unattributed", (), None, "warning")


# -- a missing rank ---------------------------------------------------------------------------------------------------


def test_missing_rank_is_named_with_its_line_and_the_collective() -> None:
    finding = find(view_on({0: waits(), 1: still({WORLD: (7, 7)}), 2: waits()}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 (node-a) stalled at train.py:74 (main)",
        "2 ranks waiting for it in all_reduce 8 of default_pg (4096 bytes)",
        ("last collective of rank 1 there: 7",),
    )
    assert finding.since_step == 7
    assert finding.evidence == {
        "stalled_ranks": 3,
        "waiting_ranks": 2,
        "stalled_ns": 40e9,
        "sequence": 8,
        "group_max_sequence": 8,
        "missing_sequence": 7,
        "waiting_bytes": 4_096,
    }
    assert list(finding.details) == ["stack of rank 1", "stack of rank 0, which waits"]


def test_counters_alone_are_enough() -> None:
    bare = {"line": None, "absent": {"pending": "no recorder", "stacks": "not allowed"}}
    waiting = still({WORLD: (8, 7)}, stall=stall_of("collective", **bare))  # type: ignore[arg-type]
    missing = RankHangState(is_stalled=True, progress=still({WORLD: (7, 7)}).progress)
    finding = find(view_on({0: waiting, 1: missing}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 (node-a) stalled",
        "1 rank waiting for it in collective 8 of default_pg",
        ("last collective of rank 1 there: 7",),
    )
    assert finding.details == {}


def test_rank_without_any_collective_is_missing_in_the_first() -> None:
    finding = find(view_on({0: waits(sequence=1), 1: still({})}))
    assert (finding.cause, finding.ranks, finding.evidence["missing_sequence"]) == ("missing_rank", (1,), 0)


def test_frozen_rank_is_missing_by_its_sidecar_counters() -> None:
    finding = find(view_on({0: waits(), 1: frozen({WORLD: (7, 7)})}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")
    assert finding.what == "rank 1 (node-a) not responding, its Python interpreter not running (state S)"


def test_ranks_that_are_missing_together_are_named_together() -> None:
    finding = find(view_on({0: still({WORLD: (7, 7)}), 1: waits(), 2: still({WORLD: (7, 7)})}))
    assert finding.ranks == (0, 2)
    assert finding.what == "ranks 0, 2 awaited by the others; rank 0 of these stalled at train.py:74 (main)"
    assert finding.why.startswith("1 rank waiting for them in all_reduce 8")


def test_waits_are_followed_through_three_groups_to_the_root() -> None:
    finding = find(view_on({**IN_CHAIN, 3: still({PIPELINE: (4, 4)})}, CHAIN))
    assert essence(finding) == ("missing_rank", (3,), PIPELINE, "critical")
    assert finding.why == "1 rank waiting for it in all_reduce 5 of mesh_pp/2-3 (4096 bytes)"
    assert "2 more ranks waiting in other collectives" in finding.also
    assert finding.evidence["waiting_ranks"] == 3


def test_rank_in_an_unrecorded_call_is_named_last() -> None:
    receives = still({WORLD: (7, 7)}, activity="collective")
    assert find(view_on({0: waits(), 1: receives, 2: still({WORLD: (7, 7)})})).ranks == (2,)
    assert essence(find(view_on({0: waits(), 1: receives}))) == ("missing_rank", (1,), WORLD, "critical")


def test_unrecorded_wait_is_not_named_before_all_ranks_stall() -> None:
    receives = still({WORLD: (7, 7)}, activity="collective")
    hang_states = {0: waits(), 1: receives, 2: moving({WORLD: (8, 8)})}
    assert reason(view_on(hang_states)) == "ranks that are not stalled: 1 of 3"
    hang_states[0] = replace(waits(), stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1)
    assert find(view_on(hang_states)).ranks == (1,)


def test_running_rank_is_not_named_beside_a_missing_one() -> None:
    assert find(view_on({0: waits(), 1: moving(), 2: still({WORLD: (7, 7)})})).ranks == (2,)


# -- ranks that are gone ----------------------------------------------------------------------------------------------


def test_killed_rank_is_distinguished_from_a_stuck_one() -> None:
    finding = find(view_on({0: waits(), 1: dead(), 2: still({WORLD: (7, 7)})}))
    assert essence(finding) == ("dead_rank", (1,), WORLD, "critical")
    assert finding.what == "rank 1 (node-a) ended: killed (SIGKILL)"
    assert finding.why.startswith("1 rank waiting for it in all_reduce 8 of default_pg")


def test_a_rank_that_died_inside_the_collective_is_named_too() -> None:
    assert find(view_on({0: waits(), 1: dead(counters={WORLD: (8, 7)})})).ranks == (1,)


def test_dead_rank_is_named_without_any_waiting_rank() -> None:
    finding = find(view_on({0: still({WORLD: (8, 8)}), 1: dead()}))
    assert essence(finding) == ("dead_rank", (1,), None, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 (node-a) ended: killed (SIGKILL)",
        "1 rank stalled",
        (),
    )


@pytest.mark.parametrize("how", ["finished", "terminated", "interrupted", "failed"])
def test_ended_rank_is_named_when_others_wait_for_it(how: str) -> None:
    assert essence(find(view_on({0: waits(), 1: ended(how)}))) == ("dead_rank", (1,), WORLD, "critical")


def test_rank_that_completed_before_its_end_is_not_missing() -> None:
    finding = find(view_on({0: waits(), 1: ended("finished", counters={WORLD: (8, 8)})}))
    assert essence(finding) == ("all_in_collective", (), WORLD, "critical")


def test_rank_that_failed_long_before_is_not_named() -> None:
    long_ago = dead(ended_collector_ns=BEGAN_NS - LIMIT_NS - 1, counters={"old": (1, 1)})
    hang_states = {0: waits("new"), 1: still({"new": (7, 7)}), 2: long_ago}
    assert find(view_on(hang_states, {"new": (0, 1), "old": (2,)})).ranks == (1,)


def test_a_rank_that_a_timeout_ended_had_waited_itself() -> None:
    hang_states = {0: waits(), 1: still({WORLD: (7, 7)}), 2: dead("collective_timeout", ended_collector_ns=BEGAN_NS)}
    hang_states[2] = replace(hang_states[2], failed_collector_ns=BEGAN_NS)
    assert find(view_on(hang_states)).ranks == (1,)


def test_a_rank_that_only_stopped_to_report_is_not_blamed() -> None:
    finding = find(view_on({0: waits(), 1: ended("stopped")}))
    assert (finding.cause, finding.ranks) == ("unattributed", ())


def test_when_no_clock_and_no_limit_is_known_a_death_counts() -> None:
    waiting = RankHangState(is_stalled=True, progress=waits().progress)
    assert find(view_on({0: waiting, 1: dead()})).cause == "dead_rank"


def test_aligned_clock_dates_the_stall() -> None:
    # By the clock it began 100 s ago: a death 40 s ago is a consequence.
    waiting = replace(waits(), since_collector_ns=NOW_NS - 100 * S)
    assert find(
        view_on({0: waiting, 1: dead(), 2: still({WORLD: (7, 7)}, since_collector_ns=NOW_NS - 99 * S)})
    ).ranks == (2,)


@pytest.mark.parametrize(
    ("failed", "first"),
    [
        # The killed one counts as 5 s earlier than its neighbor's exception.
        ({0: dead("failed", 100 * S), 1: dead("killed", 97 * S)}, [1]),
        ({0: dead("killed", 95 * S), 1: dead("crashed", 99 * S)}, [0, 1]),
        ({0: dead("killed", 95 * S), 1: dead("crashed", 101 * S)}, [0]),
        ({0: dead("failed", 95 * S), 1: dead("failed", 96 * S)}, [0]),
    ],
)
def test_first_deaths_are_the_cause_of_the_later_ones(failed: Standings, first: list[int]) -> None:
    assert find_first_dead(failed) == first


# -- silent ranks -----------------------------------------------------------------------------------------------------


def test_silent_rank_is_not_called_dead() -> None:
    finding = find(view_on({0: waits(), 1: silent()}))
    assert essence(finding) == ("silent_rank", (1,), WORLD, "critical")
    assert finding.what.endswith("not reporting (whether its process is alive: not known)")


def test_rank_stalled_outside_before_it_fell_silent_is_missing() -> None:
    assert find(view_on({0: waits(), 1: silent({WORLD: (7, 7)}, is_stalled=True)})).cause == "missing_rank"


def test_a_silent_rank_that_had_entered_is_not_blamed() -> None:
    hang_states = {0: waits(), 1: silent({WORLD: (8, 7)}, is_stalled=True), 2: still({WORLD: (7, 7)})}
    assert find(view_on(hang_states)).ranks == (2,)


def test_silent_rank_has_entered_what_its_peers_completed() -> None:
    # It last reported in the 5th, stalled there; the others have completed the 7th since.
    last = still({WORLD: (5, 4)}, activity="collective")
    finding = find(view_on({0: waits(), 1: replace(last, ended="silent"), 2: waits()}))
    assert essence(finding) == ("silent_rank", (1,), WORLD, "critical")
    assert finding.why == "2 ranks waiting for it in all_reduce 8 of default_pg (4096 bytes)"
    assert finding.also == ()


# -- a rank whose process is stopped ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reported",
    [
        {WORLD: (5, 4)},  # its last report fell into the 5th; the others have completed the 7th since
        {WORLD: (8, 7)},  # it fell into the 8th, which all have entered
        {WORLD: (7, 7)},
        {"#0": (5, 4)},
        {},
    ],
)
@pytest.mark.parametrize("state", ["T", "t", "D"])
def test_stopped_rank_is_named_whatever_it_last_reported(reported: Counters, state: str) -> None:
    finding = find(view_on({0: waits(), 1: stopped(reported, state), 2: waits()}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")
    assert finding.why == "2 ranks waiting for it in all_reduce 8 of default_pg (4096 bytes)"
    assert finding.also == ()
    assert "missing_sequence" not in finding.evidence


def test_frozen_rank_with_old_counters_caught_up_with_its_peers() -> None:
    # It sleeps with the lock of its interpreter held, and no worker server tells its counters.
    finding = find(view_on({0: waits(), 1: stopped({WORLD: (5, 4)}, "S"), 2: waits()}))
    assert essence(finding) == ("missing_rank", (1,), WORLD, "critical")


def test_frozen_rank_with_new_counters_inside_is_not_blamed() -> None:
    inside = frozen({WORLD: (8, 7)}, call(), state="D")
    assert find(view_on({0: waits(), 1: inside, 2: still({WORLD: (7, 7)})})).ranks == (2,)


def test_frozen_rank_before_its_first_collective_is_missing() -> None:
    finding = find(view_on({0: waits(sequence=1), 1: frozen({}, reported={})}))
    assert (finding.cause, finding.ranks, finding.evidence["missing_sequence"]) == ("missing_rank", (1,), 0)


# -- no rank is missing -----------------------------------------------------------------------------------------------


def test_ranks_waiting_for_each_other_are_in_a_deadlock() -> None:
    first, second = "mesh_a", "mesh_b"
    hang_states = {
        0: still({first: (3, 2), second: (5, 5)}, call(first, 3), activity="collective"),
        1: still({first: (2, 2), second: (6, 5)}, call(second, 6, "all_gather"), activity="collective"),
    }
    finding = find(view_on(hang_states, {first: (0, 1), second: (0, 1)}))
    assert essence(finding) == ("deadlock", (0, 1), None, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "ranks 0-1 waiting for each other",
        "rank 0 in all_reduce 3 of mesh_a for rank 1, rank 1 in all_gather 6 of mesh_b for rank 0",
        (),
    )


def test_receiver_of_what_nobody_sends_is_not_blamed_alone() -> None:
    # Over gloo: rank 0 has left out its send and gone on to the 8th collective.
    receives = still({WORLD: (7, 7)}, call(WORLD, 0, "recv 1<-0"), activity="collective")
    finding = find(view_on({0: waits(), 1: receives, 2: waits()}))
    assert essence(finding) == ("deadlock", (0, 1), None, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "ranks 0-1 waiting for each other",
        "rank 0 in all_reduce 8 of default_pg for rank 1, rank 1 in recv 1<-0 of default_pg for rank 0",
        (),
    )


def test_transfer_without_its_other_end_names_both_ranks() -> None:
    # Over NCCL: the receiver's host has enqueued the 8th as well, so that the sender waits for nobody there.
    pipe, groups = "pp/0-1", {WORLD: (0, 1), "pp/0-1": (0, 1)}
    receives = still({WORLD: (8, 7), pipe: (4, 3)}, call(pipe, 4, "recv 1<-0"), call())
    finding = find(view_on({0: waits(), 1: receives}, groups))
    assert essence(finding) == ("unmatched_transfer", (0, 1), pipe, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "rank 1 waiting in recv 1<-0 4 of pp/0-1",
        "rank 0 waiting in all_reduce 8 of default_pg, without having called the matching send or receive",
        (),
    )


def test_sender_elsewhere_is_missing_for_its_receiver() -> None:
    receives = still({WORLD: (7, 7)}, call(WORLD, 0, "recv 1<-0"), activity="collective")
    finding = find(view_on({0: still({WORLD: (7, 7)}), 1: receives, 2: waits()}))
    assert (finding.cause, finding.ranks) == ("missing_rank", (0,))
    assert finding.why == "1 rank waiting for it in recv 1<-0 of default_pg (4096 bytes)"
    assert finding.also == ("1 more rank waiting in other collectives",)


def test_ranks_behind_a_circle_are_not_part_of_it() -> None:
    groups = {"behind": (0, 1), "a": (1, 2), "b": (1, 2)}
    hang_states = {
        0: waits("behind"),
        1: still({"behind": (7, 7), "a": (3, 2), "b": (5, 5)}, call("a", 3)),
        2: still({"a": (2, 2), "b": (6, 5)}, call("b", 6)),
    }
    assert find(view_on(hang_states, groups)).ranks == (1, 2)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (waits(op="broadcast"), "all_reduce of 4096 bytes on rank 0, broadcast of 4096 bytes on rank 1"),
        (waits(size=8), "all_reduce of 4096 bytes on rank 0, all_reduce of 8 bytes on rank 1"),
        (waits(op="all_gather"), "all_reduce of 4096 bytes on rank 0, all_gather on rank 1"),
    ],
)
def test_different_calls_at_one_place_are_a_mismatch(other: RankHangState, told: str) -> None:
    finding = find(view_on({0: waits(), 1: other}))
    assert essence(finding) == ("order_mismatch", (), WORLD, "critical")
    assert (finding.what, finding.why) == ("collective 8 of default_pg not the same on all ranks", told)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (waits(), waits(size=None)),
        # Sizes of these may differ by right.
        (waits(op="all_to_all"), waits(op="all_to_all", size=8)),
        (waits(), waits()),
    ],
)
def test_collective_entered_by_all_points_at_the_network(one: RankHangState, other: RankHangState) -> None:
    finding = find(view_on({0: one, 1: other}))
    assert essence(finding) == ("all_in_collective", (), WORLD, "critical")
    assert finding.what.endswith(" not completed")
    assert finding.why == "all 2 ranks of the group have entered it"
    assert "missing_sequence" not in finding.evidence


def test_entered_collective_is_told_when_all_members_stall() -> None:
    # Rank 1 has entered the 8th too, and it is not known yet what it has called there.
    hang_states = {0: waits(), 1: moving({WORLD: (8, 7)}), 2: moving({WORLD: (8, 7)})}
    assert reason(view_on(hang_states)) == "ranks that are not stalled: 2 of 3"
    finding = find(view_on({0: waits(), 1: waits(op="broadcast"), 2: moving({WORLD: (8, 7)})}))
    assert essence(finding) == ("order_mismatch", (), WORLD, "critical")
    hang_states[0] = replace(waits(), stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1)
    assert find(view_on(hang_states)).cause == "all_in_collective"


@pytest.mark.parametrize("before", [busy(counters={WORLD: (8, 7)}), still({WORLD: (8, 7)}, activity="data")])
def test_rank_entering_at_its_pauses_end_has_not_hung_there(before: RankHangState) -> None:
    # Its stall is that of the pause, its counters are newer.
    assert reason(view_on({0: before, 1: waits(), 2: waits()})) == "ranks that are not stalled: 1 of 3"
    for_long = replace(before, stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1)
    assert find(view_on({0: for_long, 1: waits(), 2: waits()})).cause == "all_in_collective"


@pytest.mark.parametrize("last", [waits(), busy(counters={WORLD: (8, 7)}), moving({WORLD: (8, 7)})])
def test_collective_hangs_a_limit_after_its_last_member_entered(last: RankHangState) -> None:
    # The others have waited for ten limits: for this rank, which was busy elsewhere.
    long_ns = EXCUSED_FACTOR * LIMIT_NS + 1
    for_long = replace(waits(), stalled_ns=long_ns, progress_unchanged_ns=long_ns)
    entered = replace(last, progress_unchanged_ns=LIMIT_NS - 1)
    said = reason(view_on({0: for_long, 1: for_long, 2: entered}))
    assert said == "the last member of default_pg has entered its collective 8 less than the limit of a stall ago"
    stays = replace(last, progress_unchanged_ns=LIMIT_NS)
    assert find(view_on({0: for_long, 1: for_long, 2: stays})).cause == "all_in_collective"


def test_progress_in_another_group_hides_no_hang() -> None:
    # Another thread of rank 1 communicates in a group of its own every few seconds.
    beside = replace(waits(), progress_unchanged_ns=1, group_unchanged_ns={WORLD: LIMIT_NS})
    assert find(view_on({0: waits(), 1: beside})).cause == "all_in_collective"
    entered = replace(beside, group_unchanged_ns={WORLD: LIMIT_NS - 1})
    assert reason(view_on({0: waits(), 1: entered})).endswith("less than the limit of a stall ago")


def test_busy_rank_with_counters_behind_its_peers_is_waited_for() -> None:
    hang_states = {0: waits(sequence=9), 1: busy(counters={WORLD: (8, 7)}), 2: waits(sequence=9)}
    assert essence(find(view_on(hang_states))) == ("busy_rank", (1,), WORLD, "warning")
    for_long = {rank: replace(one, stalled_ns=EXCUSED_FACTOR * LIMIT_NS + 1) for rank, one in hang_states.items()}
    assert essence(find(view_on(for_long))) == ("missing_rank", (1,), WORLD, "critical")


def test_group_without_known_members_has_not_been_entered_by_all() -> None:
    # Its last report had no name for the group, and nobody tells its counters of now.
    hang_states = {0: stopped({"#0": (5, 4)}, "S"), 1: still({})}
    assert essence(find(view_on(hang_states))) == ("unattributed", (), "#0", "critical")


def test_ranks_of_another_group_may_still_move() -> None:
    groups = {DATA: (1, 2), WORLD: (0, 1, 2)}
    hang_states = {0: moving({WORLD: (7, 7)}), 1: waits(DATA), 2: waits(DATA)}
    assert essence(find(view_on(hang_states, groups))) == ("all_in_collective", (), DATA, "critical")


def test_collective_incomplete_on_one_rank_names_it() -> None:
    # Rank 1 has gone on, and waits in a group of its own for the network as well.
    hang_states = {0: waits(), 1: still({WORLD: (8, 8)}, call("alone", 1))}
    finding = find(view_on(hang_states, {WORLD: (0, 1), "alone": (1,)}))
    assert finding.group == WORLD
    assert finding.what.endswith(" not completed on rank 0")


def test_rank_waiting_elsewhere_makes_no_collective_incomplete() -> None:
    # Both have enqueued the world's 8, but rank 1's device is held up by rank 2 in another group.
    groups = {WORLD: (0, 1), DATA: (1, 2)}
    held = still({WORLD: (8, 7), DATA: (3, 2)}, call(DATA, 3), call())
    assert find(view_on({0: waits(), 1: held, 2: still({DATA: (2, 2)})}, groups)).ranks == (2,)


# -- waits without a record -------------------------------------------------------------------------------------------


def in_store(line: int = 30) -> RankHangState:
    """A rank that waits for a key of the store; all its collectives have completed."""
    return still({WORLD: (7, 7)}, stall=stall_of("store", line=line))


@pytest.mark.parametrize("activity", ["store", "collective", "process_group"])
def test_rank_in_no_wait_is_awaited_by_those_in_unrecorded_ones(activity: str) -> None:
    waiting = still({WORLD: (7, 7)}, stall=stall_of(activity, line=30))
    finding = find(view_on({0: waiting, 1: still({WORLD: (7, 7)}), 2: waiting}))
    assert essence(finding) == ("missing_rank", (1,), None, "critical")
    assert (finding.what, finding.why) == (
        "rank 1 (node-a) stalled at train.py:74 (main)",
        f"waiting for it: ranks 0, 2 stalled in {activity} at train.py:30 (main)",
    )
    assert (finding.evidence["stalled_ranks"], finding.evidence["waiting_ranks"]) == (3, 2)
    assert list(finding.details) == ["stack of rank 1", "stack of rank 0, which waits"]


@pytest.mark.parametrize(("awaited", "cause"), [(busy(), "busy_rank"), (still(activity="data"), "data_wait")])
def test_pause_that_unrecorded_waits_are_for_is_a_warning(awaited: RankHangState, cause: str) -> None:
    assert essence(find(view_on({0: in_store(), 1: awaited}))) == (cause, (1,), None, "warning")
    # One that stands is named first.
    assert essence(find(view_on({0: in_store(), 1: awaited, 2: still()}))) == ("missing_rank", (2,), None, "critical")


def test_nobody_is_named_where_all_wait_without_a_record() -> None:
    finding = find(view_on({0: in_store(), 1: in_store(31), 2: in_store()}))
    assert essence(finding) == ("unattributed", (), None, "warning")
    assert finding.what == "3 ranks stalled, in no known collective"
    assert finding.why == (
        "ranks 0, 2 stalled in store at train.py:30 (main), rank 1 stalled in store at train.py:31 (main)"
    )


def test_rank_with_unknown_pending_collectives_is_not_awaited() -> None:
    quiet = still({WORLD: (7, 7)}, stall=stall_of("other", absent={"pending": "this torch has no flight recorder"}))
    assert essence(find(view_on({0: in_store(), 1: quiet}))) == ("unattributed", (), None, "warning")


def test_unrecorded_waits_are_not_judged_until_all_ranks_stall() -> None:
    assert reason(view_on({0: in_store(), 1: still(), 2: moving()})).endswith("that may take long: 1 of 3")


def test_places_of_stalled_ranks_are_told_up_to_three() -> None:
    states = {rank: still({WORLD: (7, 7)}, stall=stall_of(line=rank)) for rank in range(5)}
    assert find(view_on(states)).why.endswith("rank 2 stalled at train.py:2 (main), 2 more places")


# -- what is not known ------------------------------------------------------------------------------------------------


def test_member_without_counters_is_not_blamed() -> None:
    quiet = still({}, stall=stall_of("other", absent={"pending": "this torch has no flight recorder"}))
    finding = find(view_on({0: waits(), 1: quiet}))
    assert essence(finding) == ("unattributed", (), WORLD, "critical")
    assert (finding.what, finding.why, finding.also) == (
        "1 rank waiting in all_reduce 8 of default_pg (4096 bytes)",
        "which rank they wait for is not known, nor is the progress of rank 1 in the group",
        (),
    )


def test_rank_receiving_from_an_unknown_peer_is_not_blamed() -> None:
    receives = still({WORLD: (7, 7)}, call("mesh_pp", 3, "recv anysource"), activity="collective")
    finding = find(view_on({0: waits(), 1: receives}))
    assert (finding.cause, finding.ranks) == ("unattributed", ())


def test_a_member_that_has_never_joined_is_not_blamed() -> None:
    finding = find(view_on({0: waits()}, {WORLD: (0, 1)}))
    assert (finding.cause, finding.ranks) == ("unattributed", ())


def test_reports_of_other_ranks_are_used_beside_a_missing_one() -> None:
    quiet = still({}, stall=stall_of("other", absent={"pending": "this torch has no flight recorder"}))
    assert find(view_on({0: waits(), 1: quiet, 2: still({WORLD: (7, 7)})})).ranks == (2,)


def test_single_stalled_rank_is_unattributed() -> None:
    finding = find(view_on({0: still({}, last_step=None)}))
    assert essence(finding) == ("unattributed", (), None, "warning")
    assert (finding.what, finding.why, finding.also) == (
        "1 rank stalled, in no known collective",
        "rank 0 stalled at train.py:74 (main)",
        (),
    )
    assert (finding.since_step, list(finding.details)) == (None, ["stack of rank 0"])


def test_rank_alone_in_its_group_waits_for_its_device() -> None:
    assert find(view_on({0: waits()})).cause == "all_in_collective"
