"""Hangs over time: when one has passed, is kept while the run ends, or is replaced by another."""

import msgspec

from rankscope.collector.detect.finding import STRAGGLER, Abstain, Finding
from rankscope.collector.detect.hang_state import RankHangState
from rankscope.collector.detect.hangs.detector import Hangs
from tests.unit.collector.detect.hang_states import (
    BEGAN_NS,
    LIMIT_NS,
    NOW_NS,
    WORLD,
    call,
    dead,
    ended,
    moving,
    silent,
    stall_of,
    still,
    view_on,
    waits,
)

Standings = dict[int, RankHangState]


def find(hang_states: Standings, *explained: Finding, groups: dict[str, tuple[int, ...]] | None = None) -> Finding:
    found = Hangs().find(view_on(hang_states, groups), explained)
    assert not isinstance(found, Abstain), found
    (candidate,) = found
    return candidate.finding


def opened(hang_states: Standings) -> Finding:
    return msgspec.structs.replace(find(hang_states), number=1)


def test_hang_has_passed_when_no_rank_is_stalled() -> None:
    finding = opened({0: waits(), 1: still({WORLD: (7, 7)})})
    assert Hangs().has_passed(view_on({0: moving(), 1: moving()}), finding, ())
    assert Hangs().has_passed(view_on({0: ended("failed"), 1: ended("finished")}), finding, ())


def test_a_hang_that_goes_on_has_not_passed() -> None:
    hang_states = {0: waits(), 1: still({WORLD: (7, 7)})}
    assert not Hangs().has_passed(view_on(hang_states), opened(hang_states), ())
    # The missing rank runs again, and the others have not reported yet: not known.
    assert not Hangs().has_passed(view_on({0: waits(), 1: moving()}), opened(hang_states), ())


def test_a_hang_makes_way_for_the_one_that_is_behind_it() -> None:
    before = opened({0: waits(), 1: still({}, stall=stall_of(absent={"pending": "no recorder"}))})
    now = view_on({0: waits(), 1: still({WORLD: (7, 7)})})
    assert Hangs().has_passed(now, before, ())


def test_open_hang_is_kept_when_ranks_end_because_of_it() -> None:
    finding = opened({0: waits(), 1: still({WORLD: (7, 7)}), 2: waits()})
    late_ns = BEGAN_NS + LIMIT_NS + 1
    for last in ({0: ended("collective_timeout", late_ns)}, {1: dead(ended_collector_ns=late_ns)}):
        hang_states: Standings = {0: waits(), 1: still({WORLD: (7, 7)}), 2: waits(), **last}
        assert Hangs().find(view_on(hang_states), [finding]) == ()
        assert not Hangs().has_passed(view_on(hang_states), finding, ())


def test_late_end_is_no_cause_without_an_open_finding() -> None:
    straggler = Finding(kind=STRAGGLER, ranks=(1,), cause="host_cpu", sentence="")
    late = dead(ended_collector_ns=BEGAN_NS + LIMIT_NS + 1)
    assert find({0: waits(), 1: still({WORLD: (7, 7)}), 2: late}, straggler).ranks == (1,)


def test_silent_rank_found_dead_later_is_the_same_finding() -> None:
    finding = opened({0: waits(), 1: silent()})
    now = find({0: waits(), 1: dead(ended_collector_ns=NOW_NS)}, finding)
    assert (finding.cause, now.cause) == ("silent_rank", "dead_rank")
    assert now.is_about_the_same(finding)


def test_finding_keeps_its_group_when_more_ranks_report() -> None:
    groups = {WORLD: (0, 1, 2, 3), "pair": (2, 3)}
    missing = still({WORLD: (7, 7), "pair": (3, 3)})
    before: Standings = {0: waits(), 1: waits(), 2: moving({WORLD: (7, 7), "pair": (4, 3)}), 3: missing}
    ahead = still({WORLD: (8, 7), "pair": (4, 3)}, call("pair", 4), call())
    after: Standings = {**before, 2: ahead}
    first = find(before, groups=groups)
    assert (first.ranks, first.group) == ((3,), WORLD)
    assert (find(after, groups=groups).ranks, find(after, groups=groups).group) == ((3,), "pair")
    then = find(after, first, groups=groups)
    assert (then.ranks, then.group) == ((3,), WORLD)
    assert then.is_about_the_same(first)


def test_so_does_one_that_names_no_rank() -> None:
    groups = {WORLD: (0, 1), "alone": (2, 3, 4)}
    first = find({0: waits(), 1: waits()}, groups=groups)
    more: Standings = {rank: waits("alone") for rank in (2, 3, 4)}
    now = find({0: waits(), 1: waits(), **more}, first, groups=groups)
    assert (first.group, now.group) == (WORLD, WORLD)


def test_dead_rank_without_waiting_ranks_stays_one_finding() -> None:
    first = find({0: still({WORLD: (7, 7)}), 1: dead()})
    now = find({0: waits(), 1: dead()}, first)
    assert (first.group, now.group, now.ranks) == (None, None, (1,))
    assert "all_reduce 8 of default_pg" in now.sentence
