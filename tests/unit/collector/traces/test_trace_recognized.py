"""What trace files are recognized as by their heads and names, before they are read whole."""

import json
import re
from pathlib import Path

import pytest

from rankscope.collector.traces.analysis import analyze
from rankscope.collector.traces.files import find_traces
from rankscope.collector.traces.recognized import (
    check_output,
    choose_cycle,
    choose_files,
    compile_kernels,
    read_head,
    recognize,
)
from rankscope.collector.traces.spans import read_span
from rankscope.collector.traces.timeline import merge
from rankscope.measure.errors import TraceError, UnavailableError
from tests.unit.measure.written_traces import event, kernel


def write(folder: Path, name: str, rank: int | None = None, start_us: int = 1) -> str:
    head = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
    path = folder / name
    path.write_text(json.dumps({**head, "traceEvents": [event("cpu_op", "a", start_us, 1), kernel("k", start_us, 1)]}))
    return str(path)


@pytest.fixture
def cycles(tmp_path: Path) -> Path:
    """Two ranks in containers with one worker name, three cycles of rank 0 and two of rank 1."""
    for place, rank in enumerate((0, 1, 0, 1, 0)):
        write(tmp_path, f"localhost_1.170000000{place}.pt.trace.json", rank, start_us=place + 1)
    return tmp_path


def test_files_that_differ_in_the_time_are_cycles_of_their_rank(cycles: Path) -> None:
    found = recognize(find_traces([str(cycles)]))
    assert [(one.rank, one.cycle, one.cycles) for one in found] == [
        (0, 1, 3), (1, 1, 2), (0, 2, 3), (1, 2, 2), (0, 3, 3),
    ]  # fmt: skip


def test_last_cycle_of_each_rank_is_used_with_a_note(cycles: Path) -> None:
    kept, notes = choose_cycle(recognize(find_traces([str(cycles)])), None)
    assert [(one.rank, one.cycle) for one in kept] == [(1, 2), (0, 3)]
    assert notes[kept[1].file.path] == "the last of 3 cycles of this rank is used; --cycle N chooses another (1 to 3)"


def test_cycle_that_the_user_names_is_used_without_a_note(cycles: Path) -> None:
    kept, notes = choose_cycle(recognize(find_traces([str(cycles)])), 1)
    assert ([(one.rank, one.cycle) for one in kept], notes) == ([(0, 1), (1, 1)], {})


def test_cycle_that_no_rank_has_is_an_error(cycles: Path) -> None:
    with pytest.raises(UnavailableError, match=r"--cycle is 4; the cycles here are 1 to 3"):
        choose_cycle(recognize(find_traces([str(cycles)])), 4)


def test_report_of_a_cycle_says_which_it_is(cycles: Path) -> None:
    report = analyze(str(cycles))
    assert ([one.rank for one in report.ranks], report.errors) == ([0, 1], [])
    assert report.ranks[0].warnings[-1].startswith("the last of 3 cycles")


def test_rank_without_a_trace_is_an_error_that_names_the_others(cycles: Path) -> None:
    with pytest.raises(UnavailableError, match=r"^no trace of rank 7; there are those of 0, 1$"):
        analyze(str(cycles), rank=7)
    (cycles / "other").mkdir()
    path = write(cycles / "other", "a.json")
    with pytest.raises(UnavailableError, match=r"^no trace of rank 7 among these files$"):
        analyze(path, rank=7)


def test_empty_pattern_of_communication_kernels_is_none() -> None:
    # Every name has the empty text: all kernels would communicate.
    assert compile_kernels("") is None


# -- what merge and analyze have written ------------------------------------------------------------------------------


def test_merged_timeline_beside_its_traces_is_no_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path, f"r{rank}.json", rank)
    merge(str(tmp_path), tmp_path / "merged.json")
    report = analyze(str(tmp_path))
    assert ([one.rank for one in report.ranks], report.errors) == ([0, 1], [])
    assert [one.is_no_trace for one in recognize(find_traces([str(tmp_path)]))] == [True, False, False]


def test_merged_timeline_that_is_named_is_refused(tmp_path: Path) -> None:
    merge(write(tmp_path, "r0.json", 0), tmp_path / "merged.json")
    report = analyze(str(tmp_path / "merged.json"))
    said = "it is a merged timeline itself, not a Kineto trace of one rank: name the traces that it was made from"
    assert ([one.reason for one in report.errors], report.ranks) == ([said], [])
    assert read_span(str(tmp_path / "merged.json")) == said


def test_output_is_refused_where_it_would_cost_a_trace(tmp_path: Path) -> None:
    trace = Path(write(tmp_path, "r0.json", 0))
    merge(str(trace), tmp_path / "merged.json")
    (tmp_path / "report.json").write_text("{}")
    for name in ("merged.json", "report.json", "new.json"):
        check_output(tmp_path / name, "--json")
    with pytest.raises(
        UnavailableError,
        match=r"it is a trace, which would be lost\. Name another file",
    ):
        check_output(trace, "--json")


def test_output_without_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"\(from --html\) cannot be written: there is no folder "):
        check_output(tmp_path / "no" / "page.html", "--html")
    with pytest.raises(UnavailableError, match=r"\(from --html\) cannot be written: it is a folder"):
        check_output(tmp_path, "--html")


def test_cycles_of_a_process_without_a_rank_are_found(tmp_path: Path) -> None:
    paths = [write(tmp_path, f"host_7.170000000{place}.pt.trace.json", None, place + 1) for place in range(2)]
    found = recognize(find_traces(paths))
    assert [(one.rank, one.rank_from, one.cycle) for one in found] == [(None, None, 1), (None, None, 2)]


def test_same_content_counts_once_and_is_told(tmp_path: Path) -> None:
    first, second = write(tmp_path, "a.json", 0), write(tmp_path, "b.json", 0)
    write(tmp_path, "c.json", 1)
    report = analyze(str(tmp_path))
    assert ([one.file for one in report.ranks], report.errors) == ([first, str(tmp_path / "c.json")], [])
    assert report.ranks[0].warnings[-1] == f"{second} has the same content and is not used"


def test_files_of_one_size_and_other_content_are_two(tmp_path: Path) -> None:
    write(tmp_path, "a.json", 0, start_us=1)
    write(tmp_path, "b.json", 1, start_us=2)
    assert [one.same_as for one in recognize(find_traces([str(tmp_path)]))] == [None, None]


def test_rank_is_from_the_pattern_then_the_trace_then_the_name(tmp_path: Path) -> None:
    paths = [write(tmp_path, "n9_rank3.json", 2), write(tmp_path, "x_rank4.json", 5), write(tmp_path, "y_rank6.json")]
    found = recognize(find_traces(paths), re.compile(r"n(\d+)_"))
    assert [(one.rank, one.rank_from) for one in found] == [
        (9, "--rank-from"), (5, "the trace"), (6, "the file's name"),
    ]  # fmt: skip
    assert [one.file.rank for one in found] == [9, None, None]


def test_rank_of_the_pattern_goes_before_that_of_the_trace(tmp_path: Path) -> None:
    report = analyze([write(tmp_path, "n9.json", 2)], rank_from=r"n(\d+)")
    assert report.ranks[0].rank == 9


def test_only_files_of_the_wanted_rank_are_read(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, f"{rank}.json", rank, start_us=rank)
    kept, _ = choose_files(find_traces([str(tmp_path)]), 1, None, None)
    assert [Path(one.path).name for one in kept] == ["1.json"]


def test_file_that_cannot_be_read_has_the_reason(tmp_path: Path) -> None:
    (tmp_path / "rank1.json").write_text("prose")
    (tmp_path / "other.json").write_text('{"a": 1}')
    other, broken = recognize(find_traces([str(tmp_path)]))
    assert (broken.rank, broken.is_no_trace, str(broken.refusal)[:9]) == (1, False, "not JSON:")
    assert (other.rank, other.is_no_trace) == (None, True)


def test_head_is_read_without_the_events(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", 3)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: whole.index(b"cpu_op")])
    assert read_head(path) == {"distributedInfo": {"rank": 3, "world_size": 2}}
    Path(path).write_text("[]")
    assert read_head(path) == {}
    Path(path).write_text("")
    with pytest.raises(TraceError, match="the file is empty"):
        read_head(path)
