"""Sequences of kernels that repeat on a stream."""

import json
from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze, kernel_sequences
from rankscope.collector.traces.report import SequenceRow
from rankscope.collector.traces.timeline import merge
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

TRACES = Path(__file__).parents[3] / "traces"
Found = list[tuple[str, int, int | None, int | None]]


def play(names: str, start_us: int = 0, every_us: int = 10, length_us: int = 6, **args: int) -> list[Event]:
    """Kernels with these names of one letter, one behind the other with gaps of 4 us."""
    return [kernel(name, start_us + place * every_us, length_us, **args) for place, name in enumerate(names)]


def write(folder: Path, *events: Event) -> str:
    (folder / "rank0.json").write_bytes(to_json(*events))
    return str(folder)


def rows_of(folder: Path, *events: Event, length: int = 8) -> list[SequenceRow]:
    return analyze(write(folder, *events), sequences=length).ranks[0].kernel_sequences or []


def found_in(folder: Path, *events: Event, length: int = 8) -> Found:
    """Name, count, us of work and us of gaps of each sequence."""
    rows = rows_of(folder, *events, length=length)
    return [("".join(row.names), row.count, row.total_ns // 1_000, row.gap_ns // 1_000) for row in rows]


def test_longest_repeat_is_one_row(tmp_path: Path) -> None:
    assert found_in(tmp_path, *play("abcxabcyabcz")) == [("abc", 3, 54, 24)]


def test_repetition_of_a_sequence_is_shown_as_that(tmp_path: Path) -> None:
    assert found_in(tmp_path, *play("abababab")) == [("ab", 4, 48, 16)]


def test_one_kernel_over_and_over_is_a_sequence(tmp_path: Path) -> None:
    assert found_in(tmp_path, *play("aaaaaaaa"), length=4) == [("aaaa", 2, 48, 24)]


def test_costliest_sequence_is_taken_first_and_work_counts_once(tmp_path: Path) -> None:
    # bc begins 4 times, ab twice: bc takes its work, and what is left of ab is nothing.
    assert found_in(tmp_path, *play("abcxbcyabczbc"), length=2) == [("bc", 4, 48, 16)]


def test_sequence_that_lost_some_work_waits_for_its_turn(tmp_path: Path) -> None:
    # Of length 2: ab 3 times (36 + 12 us), bc 2 times but with 100 us each; without its work ab is left once.
    events = [*play("ab"), kernel("c", 20, 100), *play("ab", 200), kernel("c", 220, 100), *play("xab", 400)]
    assert found_in(tmp_path, *events, length=2) == [("bc", 2, 212, 8)]


def test_length_is_the_most_kernels_in_a_sequence(tmp_path: Path) -> None:
    names = [("".join(row.names), row.count) for row in rows_of(tmp_path, *play("abcdxabcdy"), length=3)]
    assert names == [("abc", 2)]


def test_streams_and_devices_are_apart(tmp_path: Path) -> None:
    other = [*play("b", 5, stream=20), *play("b", 25, device=1), *play("a", 45, stream=20), *play("b", 55, stream=20)]
    assert found_in(tmp_path, *play("a"), *other, *play("ab", 100)) == [("ab", 2, 24, 8)]


def test_steps_are_apart(tmp_path: Path) -> None:
    steps = [event("user_annotation", f"ProfilerStep#{number}", 100 * number, 100) for number in range(3)]
    launches = [launch(at, place + 1) for place, at in enumerate((10, 110, 120, 210))]
    # a is launched in step 0, b a in step 1, b in step 2: no ab within one.
    work = [kernel(name, 150 + 10 * place, 6, correlation=place + 1) for place, name in enumerate("abab")]
    assert found_in(tmp_path, *steps, *launches, *work) == []


def test_collective_ends_a_sequence(tmp_path: Path) -> None:
    events = [*play("a"), kernel("ncclDevKernel_AllReduce", 10, 6), *play("b", 20)]
    again = [{**one, "ts": one["ts"] + 100} for one in events]
    assert found_in(tmp_path, *events, *again) == []


def test_gaps_are_those_of_the_device(tmp_path: Path) -> None:
    # Another stream works from 6 to 8 us, in the gap of the first pair.
    assert found_in(tmp_path, *play("abxaby"), kernel("other", 6, 2, stream=20)) == [("ab", 2, 24, 6)]


def test_launches_are_counted_and_a_graph_is_one(tmp_path: Path) -> None:
    graph = [launch(0, 1, "cudaGraphLaunch"), *play("ab", 10, correlation=1), *play("x", 40)]
    single = [launch(50, 2), launch(52, 3), *play("a", 60, correlation=2), *play("b", 70, correlation=3)]
    assert [row.launch_count for row in rows_of(tmp_path, *graph, *single)] == [3]
    assert [row.launch_count for row in rows_of(tmp_path, *play("abxab"))] == [None]


def test_trace_without_a_device_has_no_sequences(tmp_path: Path) -> None:
    assert rows_of(tmp_path, event("cpu_op", "aten::mm", 0, 5)) == []


def test_number_of_rows_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sequences, "SEQUENCES_MAX", 2)
    assert len(rows_of(tmp_path, *play("abxabycdxcdyefxefy"), length=2)) == 2


def test_rows_share_no_work_and_count_each_piece_once() -> None:
    (rank,) = analyze(str(TRACES / "a100_nccl_2ranks_r0.json.gz"), sequences=8).ranks
    rows = rank.kernel_sequences or []
    of_name = {row.name: row.count for row in rank.kernels} | {row.name: row.count for row in rank.copies}
    for name, count in of_name.items():
        assert sum(row.count * row.names.count(name) for row in rows) <= count
    assert all(row.count > 1 and 2 <= len(row.names) <= 8 for row in rows)


# -- the command ------------------------------------------------------------------------------------------------------


def test_table_is_there_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, *play("abcxabc"))
    assert analyze(path).ranks[0].kernel_sequences is None
    assert main(["analyze", path]) == 0
    assert "SEQUENCES OF KERNELS" not in capsys.readouterr().out
    assert main(["analyze", path, "--sequences"]) == 0
    assert "a > b > c" in capsys.readouterr().out
    assert main(["analyze", "--sequences", "2", "--", path]) == 0
    assert "a > b > c" not in capsys.readouterr().out


def test_length_out_of_range_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", write(tmp_path, *play("ab")), "--sequences", "1"]) == 2
    assert "--sequences is 1; it is the most kernels in a sequence, from 2 to 32" in capsys.readouterr().err


def test_path_behind_the_option_is_not_taken_for_its_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["analyze", "--sequences", write(tmp_path, *play("ab"))])
    assert "is no number; put PATH in front of --sequences" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([event("cpu_op", "aten::mm", 0, 5)], "No device work: there are no kernels in the traces."),
        (play("abc"), "No sequence of kernels repeats."),
    ],
)
def test_table_without_sequences_says_why(tmp_path: Path, events: list[Event], reason: str) -> None:
    sections = build_sections(analyze(write(tmp_path, *events), sequences=8), 20)
    assert [one.reason for one in sections if one.key == "kernel_sequences"] == [reason]


def test_different_kernels_with_one_short_name_stay_apart(tmp_path: Path) -> None:
    one, other, end = "void n::k<float>(int)", "void n::k<half>(int)", "end"
    names = [one, end, "x", other, end, "y", one, end, "z", other, end]
    events = [kernel(name, 10 * place, 5) for place, name in enumerate(names)]
    (found,) = (
        section
        for section in build_sections(analyze(write(tmp_path, *events), sequences=2), 20)
        if section.key == "kernel_sequences"
    )
    assert [row[0].text for row in found.rows] == ["k > end", "k > end ~2"]


# -- in the merged timeline -------------------------------------------------------------------------------------------


def read_spans(folder: Path, *events: Event, length: int = 8) -> list[tuple[str, str, float, float]]:
    """Line, name, start and length in us of each sequence that the timeline marks; the first event begins at 0."""
    path = write(folder, *events)
    merge(path, folder / "merged.json", sequences=length)
    found = json.loads((folder / "merged.json").read_text())["traceEvents"]
    drawn = [one for one in found if one.get("cat") == "kernel_sequence"]
    lines = {
        one["tid"]: one["args"]["name"]
        for one in found
        if one["name"] == "thread_name" and drawn and one["pid"] == drawn[0]["pid"]
    }
    return [(lines[one["tid"]], one["name"], one["ts"], one["dur"]) for one in drawn]


def test_timeline_marks_each_time_that_a_sequence_runs(tmp_path: Path) -> None:
    # abc from 0 to 26 and from 40 to 66, with 18 us of work and 8 us of gaps each: the first of the table.
    events = [*play("abcxabcy"), *play("dezde", 3, every_us=4, length_us=1, stream=20)]
    assert read_spans(tmp_path, *events) == [
        ("GPU 0, stream 7", "sequence 1", 0, 26),
        ("GPU 0, stream 7", "sequence 1", 40, 26),
        ("GPU 0, stream 20", "sequence 2", 3, 5),
        ("GPU 0, stream 20", "sequence 2", 15, 5),
    ]
    (first, _) = rows_of(tmp_path, *events)
    assert first.names == ["a", "b", "c"]


def test_marks_of_a_stream_do_not_overlap(tmp_path: Path) -> None:
    # The work of a stream that overlaps in the trace: the second b of the first pair lasts into the second pair.
    events = [*play("a"), kernel("b", 10, 14), *play("ab", 20), *play("x", 60), *play("ab", 70)]
    spans = read_spans(tmp_path, *events, length=2)
    assert [(start, length) for _, _, start, length in spans] == [(0, 20), (20, 16), (70, 16)]


def test_timeline_without_the_option_or_a_device_marks_nothing(tmp_path: Path) -> None:
    assert read_spans(tmp_path, event("cpu_op", "aten::mm", 0, 5)) == []
    merge(write(tmp_path, *play("abcxabc")), tmp_path / "merged.json")
    assert "kernel_sequence" not in (tmp_path / "merged.json").read_text()


def test_merge_takes_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write(tmp_path, *play("abcxabc")), tmp_path / "merged.json"
    assert main(["merge", path, "-o", str(out), "--sequences"]) == 0
    assert out.read_text().count('"cat":"kernel_sequence"') == 2
    assert main(["merge", path, "-o", str(out), "--sequences", "1"]) == 2
    assert "--sequences is 1; it is the most kernels in a sequence, from 2 to 32" in capsys.readouterr().err
