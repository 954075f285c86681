"""Calls of two traces matched one by one, on steps whose calls are counted by hand."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze, call_matching, call_trees
from rankscope.collector.traces.call_matching import align
from rankscope.collector.traces.report import CallMatching
from rankscope.measure.errors import SettingError
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json


def step_of(number: int, *calls: tuple[str, int, int], length_us: int = 1_000, tid: int = 1) -> list[Event]:
    """A step from 1,000 times its number on, with calls of these names, starts within it, and lengths."""
    begin_us = 1_000 * number
    return [
        event("user_annotation", f"ProfilerStep#{number}", begin_us, length_us),
        *(event("cpu_op", name, begin_us + start, length, tid=tid) for name, start, length in calls),
    ]


def write(folder: Path, side: str, *events: Event) -> str:
    (folder / side).mkdir(exist_ok=True)
    (folder / side / "rank0.json").write_bytes(to_json(*events))
    return str(folder / side)


def matched(folder: Path, here: list[Event], there: list[Event]) -> CallMatching:
    comparison = analyze(write(folder, "here", *here), against=write(folder, "there", *there), calls=True).comparison
    assert comparison is not None
    assert comparison.calls is not None
    return comparison.calls


def times_us(found: CallMatching, kind: str) -> dict[str, tuple[float, float]]:
    """Return of each call of this kind its host time here and there, in us."""
    return {row.path: (row.host_ns / 1000, row.against_host_ns / 1000) for row in found.rows if row.kind == kind}


LINEAR = [("aten::linear", 0, 100), ("aten::addmm", 10, 80)]


def test_calls_are_matched_in_their_order_with_their_own_times(tmp_path: Path) -> None:
    there = step_of(1, *LINEAR, ("aten::relu", 110, 20), ("aten::linear", 200, 100), ("aten::addmm", 210, 80))
    here = step_of(1, *LINEAR, ("aten::relu", 110, 20), ("aten::linear", 200, 150), ("aten::addmm", 210, 120))
    found = matched(tmp_path, here, there)
    assert (found.matched_count, found.added_count, found.removed_count, found.notes) == (5, 0, 0, [])
    # The second addmm takes 40 longer, its linear by itself 150 - 120 = 30 instead of 20.
    assert list(times_us(found, "matched").items())[:2] == [
        ("aten::linear #2 > aten::addmm", (120, 80)), ("aten::linear #2", (30, 20)),
    ]  # fmt: skip


def test_new_and_gone_calls_are_told_with_what_they_call(tmp_path: Path) -> None:
    there = step_of(1, ("aten::mm", 0, 50), ("aten::gelu", 60, 40), ("aten::tanh", 70, 10), ("aten::mm", 200, 50))
    here = step_of(1, ("aten::mm", 0, 50), ("aten::relu", 60, 10), ("aten::mm", 200, 50), ("aten::mm", 300, 50))
    found = matched(tmp_path, here, there)
    assert times_us(found, "added") == {"aten::relu": (10, 0), "aten::mm #3": (50, 0)}
    assert times_us(found, "removed") == {"aten::gelu": (0, 40)}
    assert [row.call_count for row in found.rows if row.kind == "removed"] == [2]
    assert times_us(found, "matched") == {"aten::mm #1": (50, 50), "aten::mm #2": (50, 50)}


def test_device_work_counts_for_the_call_that_launched_it(tmp_path: Path) -> None:
    def events(work_us: int) -> list[Event]:
        return [*step_of(1, *LINEAR), launch(1_020, 1), kernel("gemm", 1_030, work_us, correlation=1)]

    found = matched(tmp_path, events(300), events(200))
    rows = [(row.path, row.device_ns, row.against_device_ns, row.device_difference_ns) for row in found.rows]
    assert rows[0] == ("aten::linear > aten::addmm", 300_000, 200_000, 100_000)
    assert rows[1] == ("aten::linear", 0, 0, 0)


def test_step_of_median_difference_is_matched(tmp_path: Path) -> None:
    # All are 1,000 long there. Here step 1 is 100 longer, step 2 500 shorter, step 3 as long: it is the middle one.
    def steps(*starts_us: int) -> list[Event]:
        return [
            one
            for number, (begin, end) in enumerate(pairwise(starts_us), 1)
            for one in (
                event("user_annotation", f"ProfilerStep#{number}", begin, end - begin),
                event("cpu_op", "aten::mm", begin, 10),
            )
        ]

    found = matched(tmp_path, steps(0, 1_100, 1_600, 2_600), steps(0, 1_000, 2_000, 3_000))
    assert {(row.step, row.against_step) for row in found.rows} == {(3, 3)}


def test_steps_without_a_common_number_are_matched_in_order(tmp_path: Path) -> None:
    found = matched(tmp_path, step_of(7, *LINEAR), step_of(2, *LINEAR))
    assert {(row.step, row.against_step) for row in found.rows} == {(7, 2)}


def test_backward_is_in_the_tree_and_other_threads_are_not(tmp_path: Path) -> None:
    engine = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        *step_of(1, ("aten::mm", 0, 50)),
        event("cpu_op", engine, 1_100, 50, tid=2), event("cpu_op", "aten::t", 1_110, 10, tid=2),
        event("cpu_op", "aten::stack", 1_100, 50, tid=3),
    ]  # fmt: skip
    found = matched(tmp_path, events, events)
    assert set(times_us(found, "matched")) == {"aten::mm", engine, f"{engine} > aten::t"}


def test_lists_that_differ_too_much_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_matching, "DIFFERENCES_MAX", 2)
    there = step_of(1, *LINEAR, ("aten::relu", 200, 10))
    here = step_of(1, *LINEAR, ("a", 200, 10), ("b", 220, 10), ("c", 240, 10))
    found = matched(tmp_path, here, there)
    assert found.notes == ["rank 0: 1 list of calls not matched, since the two sides differ too much"]
    assert (found.matched_count, found.added_count, found.removed_count) == (0, 4, 2)


def test_steps_beyond_the_most_calls_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_trees, "CALLS_MAX", 3)
    events = [*step_of(1, *LINEAR), *step_of(2, *LINEAR)]
    found = matched(tmp_path, events, events)
    assert found.notes == ["rank 0: too many calls, 1 step left out"]
    assert found.matched_count == 2


def test_steps_of_several_threads_have_no_calls(tmp_path: Path) -> None:
    events = [*step_of(1, *LINEAR), {**step_of(2, *LINEAR)[0], "tid": 5}]
    found = matched(tmp_path, events, events)
    assert found.notes == ["rank 0: no step on both sides, or several threads run the steps"]


def test_tables_are_there_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = write(tmp_path, "here", *step_of(1, *LINEAR, ("aten::relu", 200, 10)))
    there = write(tmp_path, "there", *step_of(1, *LINEAR))
    assert main(["analyze", here, "--against", there]) == 0
    assert "CALLS, " not in capsys.readouterr().out
    assert main(["analyze", here, "--against", there, "--calls"]) == 0
    assert "No calls are removed." in capsys.readouterr().out
    sections = build_sections(analyze(here, against=there, calls=True), 1)
    counts = {one.key: (len(one.rows), one.left_out) for one in sections if one.key.startswith("calls_")}
    assert counts == {"calls_matched": (1, 1), "calls_added": (1, 0), "calls_removed": (0, 0)}


def test_calls_without_another_side_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--calls is given without --against"):
        analyze(write(tmp_path, "here", *step_of(1, *LINEAR)), calls=True)


def test_tables_have_time_at_the_call_and_the_difference(tmp_path: Path) -> None:
    here = write(tmp_path, "here", *step_of(1, ("aten::mm", 0, 60), ("aten::relu", 100, 10)))
    there = write(tmp_path, "there", *step_of(1, ("aten::mm", 0, 100), ("aten::gelu", 100, 30)))
    sections = build_sections(analyze(here, against=there, calls=True), 20)
    cells = [[cell.text for cell in one.rows[0]] for one in sections if one.key.startswith("calls_")]
    assert cells == [
        ["aten::mm", "0", "1", "1", "0.060", "-0.040", "0.000", "0.000"],
        ["aten::relu", "0", "1", "1", "0.010", "0.010", "0.000", "0.000"],
        ["aten::gelu", "0", "1", "1", "0.030", "-0.030", "0.000", "0.000"],
    ]


# -- the alignment ----------------------------------------------------------------------------------------------------


def count_common(ours: str, theirs: str) -> int:
    """Return the length of the longest common subsequence, by the table of all prefixes."""
    row = [0] * (len(theirs) + 1)
    for one in ours:
        before = row
        row = [0]
        for place, other in enumerate(theirs):
            row.append(before[place] + 1 if one == other else max(before[place + 1], row[-1]))
    return row[-1]


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_alignment_has_as_many_names_as_possible(ours: str, theirs: str) -> None:
    found = align(ours, theirs, 99)
    assert found is not None
    assert len(found) == count_common(ours, theirs)
    assert all(ours[one] == theirs[other] for one, other in found)
    assert all(one < after[0] and other < after[1] for (one, other), after in pairwise(found))


@pytest.mark.parametrize(("most", "is_found"), [(3, False), (4, True)])
def test_alignment_is_given_up_beyond_the_most_differences(most: int, *, is_found: bool) -> None:
    assert (align("axxb", "ayyb", most) is not None) == is_found
