"""Blocking calls of several windows as one: sums, the most kinds, and numbers of a hostile rank."""

import pytest

from rankscope.collector.detect.blocking_calls import add_synchronizations, find_costliest, find_excess
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    CALLS_MAX,
    OTHER_CALLS,
    SYNCHRONIZATIONS_MAX,
    Synchronization,
    WindowSynchronizations,
)

CALL = "cudaStreamSynchronize"


def kind(line: str | None, waits_ns: int, idle_ns: int = 0, *, count: int = 1, call: str = CALL) -> Synchronization:
    return Synchronization(
        call=call,
        operator="aten::item",
        line=line,
        count=count,
        waits_ns=waits_ns,
        longest_ns=waits_ns,
        idle_ns=idle_ns,
    )


def window(*kinds: Synchronization, first_step: int = 4) -> WindowSynchronizations:
    return WindowSynchronizations(
        first_step=first_step,
        step_count=2,
        call_ns={CALL: sum(one.waits_ns for one in kinds)},
        idle_ns=sum(one.idle_ns for one in kinds),
        kinds=kinds,
    )


def test_windows_add_up_by_kind() -> None:
    first = window(kind("a.py:1 (f)", 50, 5, count=2), kind(None, 7, 7))
    second = window(kind("a.py:1 (f)", 30, 1), kind("a.py:2 (f)", 40), first_step=36)
    assert add_synchronizations([first, second]) == WindowSynchronizations(
        first_step=4,
        step_count=4,
        call_ns={CALL: 127},
        idle_ns=13,
        kinds=(
            Synchronization(
                call=CALL, operator="aten::item", line="a.py:1 (f)", count=3, waits_ns=80, longest_ns=50, idle_ns=6
            ),
            kind("a.py:2 (f)", 40),
            kind(None, 7, 7),
        ),
    )  # fmt: skip


def test_no_window_is_none_and_a_window_without_calls_is_itself() -> None:
    assert add_synchronizations([]) is None
    empty = WindowSynchronizations(first_step=4, step_count=2)
    assert add_synchronizations([empty]) == empty


def test_only_the_longest_kinds_are_kept_and_all_count() -> None:
    kinds = [kind(f"a.py:{number} (f)", number) for number in range(1, 13)]
    added = add_synchronizations([window(*kinds[:6]), window(*kinds[6:])])
    assert added is not None
    assert [one.waits_ns for one in added.kinds] == list(range(12, 12 - SYNCHRONIZATIONS_MAX, -1))
    assert added.call_ns == {CALL: 78}


def test_calls_of_many_names_are_bounded() -> None:
    many = [
        WindowSynchronizations(first_step=4, step_count=1, call_ns={f"call{number}": 1})
        for number in range(CALLS_MAX + 9)
    ]
    added = add_synchronizations(many)
    assert added is not None
    assert (len(added.call_ns), added.call_ns[OTHER_CALLS]) == (CALLS_MAX + 1, 9)


def test_numbers_that_no_rank_can_have_still_can_be_sent() -> None:
    huge = 2**63 - 1
    added = add_synchronizations([window(kind("a.py:1 (f)", huge, huge, count=huge), first_step=huge)] * 3)
    assert added is not None
    report = Report(sequence=1, host_ns=0, synchronizations=(added,))
    assert decode(encode(report)) == report


@pytest.mark.parametrize("windows", [[], [window()], [window(kind("a.py:1 (f)", 5))]])
def test_without_idle_time_no_call_is_costly(windows: list[WindowSynchronizations]) -> None:
    assert find_costliest(windows) is None


def test_idle_time_whose_kinds_are_not_reported_has_no_costliest() -> None:
    assert find_costliest([WindowSynchronizations(first_step=4, step_count=2, idle_ns=9)]) is None


@pytest.mark.parametrize(
    ("why", "kinds", "found"),
    [
        ("longest idle time", [kind("a.py:1 (f)", 90, 30), kind("a.py:2 (f)", 40, 70)], ("a.py:2 (f)", 0.7)),
        ("a line by chance", [kind("a.py:1 (f)", 1, 1), kind(None, 90, 75), kind("b.py:1 (f)", 9, 24)], (None, 0.75)),
        ("a line of half as much", [kind("a.py:1 (f)", 30, 30), kind(None, 90, 60), kind("b.py:1 (f)", 10, 10)],
         ("a.py:1 (f)", 0.3)),
        ("a line of another call", [kind("a.py:1 (f)", 40, 40, call="cudaMemcpy"), kind(None, 60, 60)], (None, 0.6)),
        ("as much with as without", [kind(None, 50, 50), kind("a.py:1 (f)", 50, 50)], ("a.py:1 (f)", 0.5)),
    ],
)  # fmt: skip
def test_the_costliest_is_by_idle_time(why: str, kinds: list[Synchronization], found: tuple[str | None, float]) -> None:
    costliest = find_costliest([window(*kinds)])
    assert costliest is not None
    assert (costliest[0].line, costliest[1]) == found, why


def test_times_and_shares_of_a_hostile_rank_stay_in_their_range() -> None:
    below = WindowSynchronizations(first_step=4, step_count=1, call_ns={CALL: -5}, idle_ns=-5)
    added = add_synchronizations([below, window(kind("a.py:1 (f)", -7, -9, count=-1))])
    assert added is not None
    assert (added.call_ns, added.idle_ns) == ({CALL: 0}, 0)
    assert added.kinds == (kind("a.py:1 (f)", 0, count=0),)
    more_than_all = WindowSynchronizations(first_step=4, step_count=1, idle_ns=1, kinds=(kind("a.py:1 (f)", 9, 9),))
    assert find_costliest([more_than_all]) == (kind("a.py:1 (f)", 9, 9), 1.0)


# -- what the peers lack: windows are of two steps --------------------------------------------------------------------

ALL_HAVE = kind("train.py:50 (main)", 60, 60)


@pytest.mark.parametrize(
    ("why", "mine", "peer", "line", "above_ns"),
    [
        ("a line that they lack", [ALL_HAVE, kind("debug.py:80 (log)", 40, 40)], [ALL_HAVE], "debug.py:80 (log)", 20),
        ("more of the same line", [kind("train.py:50 (main)", 90, 90)], [ALL_HAVE], "train.py:50 (main)", 15),
        ("theirs may be at this line", [ALL_HAVE, kind(None, 40, 40)], [kind(None, 60, 60)], None, 20),
        ("at several lines", [kind("a.py:1 (f)", 20, 20), kind("a.py:2 (f)", 20, 20)], [], None, 20),
    ],
)
def test_the_line_with_most_idle_time_above_the_peers_is_found(
    why: str, mine: list[Synchronization], peer: list[Synchronization], line: str | None, above_ns: float
) -> None:
    found = find_excess([window(*mine)], [[window(*peer)], [window(*peer)]], 15)
    assert found == (Synchronization(call=CALL, operator="aten::item", line=line), above_ns), why


def test_line_of_less_than_the_least_is_not_found() -> None:
    assert find_excess([window(kind("a.py:1 (f)", 28, 28))], [[window()]], 15) is None


def test_line_is_compared_with_the_median_of_the_peers() -> None:
    # 40 a step; the peers have 0, 10 and 100.
    peers = [[window(*([kind("a.py:1 (f)", ns, ns)] if ns else []))] for ns in (0, 20, 200)]
    found = find_excess([window(kind("a.py:1 (f)", 80, 80))], peers, 15)
    assert found is not None
    assert found[1] == 30


def test_negative_idle_time_of_a_rank_is_none() -> None:
    assert find_excess([window(kind("a.py:1 (f)", 40, 40))], [[window(kind("a.py:1 (f)", 9, -99))]], 21) is None
