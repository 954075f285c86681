"""Steps with some operators and kernels shorter, on traces whose length then is counted by hand."""

from pathlib import Path

import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.report import ShortenedPath
from rankscope.measure.errors import SettingError
from tests.unit.collector.traces.test_critical_path import RECORDED, STEP, WAITS, rank_with_kernel
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json


def write(folder: Path, *ranks: list[Event]) -> str:
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": len(ranks), "pg_count": 1, "backend": "nccl"}
        head = {"distributedInfo": info, "baseTimeNanoseconds": 10**18, "host_name": "a"}
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **head))
    return str(folder)


def shortened(folder: Path, shares: dict[str, float], *ranks: list[Event]) -> ShortenedPath:
    path = analyze(write(folder, *ranks), critical_path=True, shorten=shares).critical_path
    assert path is not None
    assert path.shortened is not None
    return path.shortened


def lengths_us(found: ShortenedPath) -> tuple[float, float]:
    """Return the length of the steps before and after, to which the parts sum."""
    assert sum(one.total_ns for one in found.parts) + found.left_out_ns == found.after_ns
    return found.before_ns / 1000, found.after_ns / 1000


# `long` runs from 20 to 60 on stream 7, `short` from 22 to 52 on stream 9; `use` on stream 7 waits for both and begins
# at 64, 4 after the last of them. So the step is 54 long, from 20 to 74.
BRANCHES = [
    STEP, launch(5, 1), kernel("long", 20, 40, correlation=1), launch(7, 2),
    kernel("short", 22, 30, correlation=2, stream=9),
    event("cuda_runtime", "cudaEventRecord", 9, 1, correlation=20),
    event("cuda_runtime", "cudaStreamWaitEvent", 11, 1, correlation=21), {**RECORDED, "ts": 11},
    launch(13, 3), kernel("use", 64, 10, correlation=3),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "then_us"),
    [
        ({"long": 0.9}, 50),  # `long` ends at 56, still last
        ({"long": 0.25}, 46),  # it ends at 30; `short` ends at 52 and is followed by `use` from 56 to 66
        ({"long": 0.0}, 46),
        ({"short": 0.0}, 54),  # not on the path
        ({"long": 0.25, "short": 0.5}, 31),  # `short` ends at 37, `use` at 51
        ({"long|short": 0.5}, 34),  # both are halved: 40 and 37
        ({"long": 1.0}, 54),
    ],
)
def test_saving_is_limited_by_the_other_branch(tmp_path: Path, shares: dict[str, float], then_us: int) -> None:
    assert lengths_us(shortened(tmp_path, shares, BRANCHES)) == (54, then_us)


def test_path_that_is_the_longest_then_is_shown(tmp_path: Path) -> None:
    found = shortened(tmp_path, {"long": 0.25}, BRANCHES)
    parts = {(one.kind, one.name): one.total_ns / 1000 for one in found.parts}
    # From the begin of the step at 20 the host launches nothing more: 2 until `short` begins.
    assert parts == {
        ("launch", "short"): 2, ("compute", "short"): 30, ("unexplained", "use"): 4, ("compute", "use"): 10,
    }  # fmt: skip
    assert (found.matched_count, found.notes) == (1, [])


@pytest.mark.parametrize(
    ("shares", "then_us"),
    [
        # `gemm` 20 to 50, `relu` to 60, the host returns at 62, launches `add` at 80, which runs from 85 to 95.
        ({"relu": 0.0}, 65),  # the host returns at 52
        ({"aten::add": 0.5}, 70),  # 10 us of it are before the launch
        ({"gemm": 0.0}, 55),  # `relu` is launched at 30 and ends at 40, when the host begins to wait: it returns at 42
        ({"gemm|relu": 0.0}, 55),  # the host comes to its wait at 40, and it is over
        ({"cudaStreamSynchronize": 0.0}, 75),  # waiting is no work
        ({"add": 0.5}, 65),  # the kernel and the operator
    ],
)
def test_host_returns_earlier_from_what_it_waited_for(tmp_path: Path, shares: dict[str, float], then_us: int) -> None:
    assert lengths_us(shortened(tmp_path, shares, WAITS)) == (75, then_us)


def test_rank_that_entered_last_is_followed_by_the_others(tmp_path: Path) -> None:
    # Rank 1 enters at 90 after 70 us; with half of it at 55. The bytes take 10 us, then rank 0 works for 30: until 95.
    ranks = rank_with_kernel(20, 30), rank_with_kernel(70, 5)
    assert lengths_us(shortened(tmp_path, {"gemm": 0.5}, *ranks)) == (110, 75)
    # Only what is not waiting of the all-reduce is shorter.
    assert lengths_us(shortened(tmp_path, {"^all_reduce": 0.0}, *ranks)) == (110, 100)


def test_operators_of_a_cpu_are_shortened(tmp_path: Path) -> None:
    events = [STEP, event("cpu_op", "aten::mm", 10, 60), event("cpu_op", "aten::relu", 70, 20)]
    assert lengths_us(shortened(tmp_path, {"mm": 0.5}, events)) == (100, 70)


def test_name_that_nothing_has_is_noted(tmp_path: Path) -> None:
    found = shortened(tmp_path, {"nothing": 0.5}, BRANCHES)
    assert (found.matched_count, lengths_us(found)) == (0, (54, 54))
    assert found.notes == ["nothing has a name in which nothing is found, so nothing was shortened."]


def test_trace_without_known_work_has_nothing_to_shorten(tmp_path: Path) -> None:
    found = shortened(tmp_path, {"long": 0.5}, [STEP])
    assert (found.steps, found.parts, found.matched_count, lengths_us(found)) == ([], [], 0, (0, 0))


def test_tables_say_what_is_saved_and_that_it_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, BRANCHES)
    assert main(["analyze", path, "--critical-path", "--shorten", "long=0.25", "--shorten", "use=1"]) == 0
    text = capsys.readouterr().out
    assert "STEPS IF SOMETHING WERE SHORTER" in text
    assert "Simulated: the record is played again" in text
    report = analyze(path, critical_path=True, shorten={"long": 0.25})
    (row,) = next(one for one in build_sections(report, 20) if one.key == "shortened_steps").rows
    assert [cell.text for cell in row] == ["long to 25.0 %", "1", "0", "0.054", "0.046", "0.008", "14.8"]


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"long": 1.5}, "--shorten has 1.5 for 'long'; it is the share of the time left, from 0 to 1"),
        ({"long": float("nan")}, "--shorten has nan for 'long'; it is the share"),
        ({"(": 0.5}, "--shorten has '(', which is not a valid regular expression"),
    ],
)
def test_shares_that_make_no_sense_are_refused(tmp_path: Path, shares: dict[str, float], said: str) -> None:
    with pytest.raises(SettingError) as refused:
        analyze(write(tmp_path, BRANCHES), critical_path=True, shorten=shares)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("text", ["long", "=0.5", "long=half"])
def test_text_that_is_no_share_is_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", write(tmp_path, BRANCHES), "--critical-path", "--shorten", text]) == 2
    assert f"--shorten is {text!r}; it is a pattern and the share of the time left" in capsys.readouterr().err


def test_shorter_without_a_path_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", write(tmp_path, BRANCHES), "--shorten", "long=0.5"]) == 2
    assert "--shorten is given without --critical-path" in capsys.readouterr().err
