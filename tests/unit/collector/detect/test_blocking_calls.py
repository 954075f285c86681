"""Blocking calls of several windows as one: sums, the most kinds, and numbers of a hostile rank."""

import pytest

from rankscope.collector.detect.blocking_calls import add_synchronisations, find_costliest
from rankscope.measure.codec import decode, encode
from rankscope.measure.messages import Report
from rankscope.measure.records import (
    CALLS_MAX,
    OTHER_CALLS,
    SYNCHRONISATIONS_MAX,
    Synchronisation,
    WindowSynchronisations,
)

CALL = "cudaStreamSynchronize"


def kind(line: str | None, waits_ns: int, idle_ns: int = 0, *, count: int = 1, call: str = CALL) -> Synchronisation:
    return Synchronisation(
        call=call,
        operator="aten::item",
        line=line,
        count=count,
        waits_ns=waits_ns,
        longest_ns=waits_ns,
        idle_ns=idle_ns,
    )


def window(*kinds: Synchronisation, first_step: int = 4) -> WindowSynchronisations:
    return WindowSynchronisations(
        first_step=first_step,
        step_count=2,
        call_ns={CALL: sum(one.waits_ns for one in kinds)},
        idle_ns=sum(one.idle_ns for one in kinds),
        kinds=kinds,
    )


def test_windows_add_up_by_kind() -> None:
    first = window(kind("a.py:1 (f)", 50, 5, count=2), kind(None, 7, 7))
    second = window(kind("a.py:1 (f)", 30, 1), kind("a.py:2 (f)", 40), first_step=36)
    assert add_synchronisations([first, second]) == WindowSynchronisations(
        first_step=4,
        step_count=4,
        call_ns={CALL: 127},
        idle_ns=13,
        kinds=(
            Synchronisation(
                call=CALL, operator="aten::item", line="a.py:1 (f)", count=3, waits_ns=80, longest_ns=50, idle_ns=6
            ),
            kind("a.py:2 (f)", 40),
            kind(None, 7, 7),
        ),
    )  # fmt: skip


def test_no_window_is_none_and_a_window_without_calls_is_itself() -> None:
    assert add_synchronisations([]) is None
    empty = WindowSynchronisations(first_step=4, step_count=2)
    assert add_synchronisations([empty]) == empty


def test_only_the_longest_kinds_are_kept_and_all_count() -> None:
    kinds = [kind(f"a.py:{number} (f)", number) for number in range(1, 13)]
    added = add_synchronisations([window(*kinds[:6]), window(*kinds[6:])])
    assert added is not None
    assert [one.waits_ns for one in added.kinds] == list(range(12, 12 - SYNCHRONISATIONS_MAX, -1))
    assert added.call_ns == {CALL: 78}


def test_calls_of_many_names_are_bounded() -> None:
    many = [
        WindowSynchronisations(first_step=4, step_count=1, call_ns={f"call{number}": 1})
        for number in range(CALLS_MAX + 9)
    ]
    added = add_synchronisations(many)
    assert added is not None
    assert (len(added.call_ns), added.call_ns[OTHER_CALLS]) == (CALLS_MAX + 1, 9)


def test_numbers_that_no_rank_can_have_still_can_be_sent() -> None:
    huge = 2**63 - 1
    added = add_synchronisations([window(kind("a.py:1 (f)", huge, huge, count=huge), first_step=huge)] * 3)
    assert added is not None
    report = Report(sequence=1, host_ns=0, synchronisations=(added,))
    assert decode(encode(report)) == report


@pytest.mark.parametrize("windows", [[], [window()], [window(kind("a.py:1 (f)", 5))]])
def test_without_idle_time_no_call_is_costly(windows: list[WindowSynchronisations]) -> None:
    assert find_costliest(windows) is None


def test_idle_time_whose_kinds_are_not_reported_has_no_costliest() -> None:
    assert find_costliest([WindowSynchronisations(first_step=4, step_count=2, idle_ns=9)]) is None


def test_the_costliest_is_by_idle_time_and_has_a_line_if_any_has() -> None:
    found = find_costliest([window(kind("a.py:1 (f)", 90, 10), kind("a.py:2 (f)", 40, 30), kind(None, 60, 60))])
    assert found == (kind("a.py:2 (f)", 40, 30), 0.3)
