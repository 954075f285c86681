"""What a rank says of its captures, when it leaves one out for its price, and which step records it marks."""

import gzip
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankscope.agent.capture_settings import CaptureSteps, RecordOptions
from rankscope.agent.captures.captured_steps import TRACE_BYTES_MAX, CapturedTrace
from rankscope.agent.captures.trace_captures import BEHIND, FULL, WAITING_MAX, TraceCaptures, describe, read_trace
from rankscope.agent.captures.trace_files import Written
from rankscope.agent.captures.trace_recording import PAUSED, ProfilerSession
from rankscope.agent.config import YES, AgentConfig, read_config
from rankscope.agent.guard import Guard
from rankscope.agent.steps.graph_captures import GraphCaptures
from rankscope.measure.records import StepRecord
from tests.unit.agent.sidecar.ranks_of_a_node import identity_of

TEXT = '{"traceEvents": []}'


class Session:
    """A session of torch's profiler that records nothing, and writes `text`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def start(self) -> None: ...
    def step(self) -> None: ...
    def stop(self) -> None: ...

    def add_metadata_json(self, key: str, value: str) -> None: ...

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(self._text)


def configure(folder: Path, **settings: str) -> AgentConfig:
    given = {"capture_folder": str(folder), "capture_schedule": "wait=5, warmup=1, active=2, repeat=0", **settings}
    return read_config({f"RANKSCOPE_{name.upper()}": value for name, value in given.items()})


def make(folder: Path, rank: int = 0, text: str = TEXT, **settings: str) -> TraceCaptures:
    def make_session(_steps: CaptureSteps) -> ProfilerSession:
        return Session(text)

    return TraceCaptures(
        configure(folder, **settings), identity_of(rank, pid=1), {}, Guard(error_budget=9), GraphCaptures(),
        make_session=make_session,
    )  # fmt: skip


def run(captures: TraceCaptures, first_step: int, last_step: int) -> None:
    for step in range(first_step, last_step + 1):
        captures.recording.on_boundary(step)


def find_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gz"))


def test_rank_0_tells_expected_and_real_cost_of_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path)
    captures.events_a_step = 1000.0
    run(captures, 0, 8)
    captures.write()
    # 2 steps of 1,000 events at 2.5 + 1.7 us
    began, ended = capsys.readouterr().err.splitlines()
    assert began == "rankscope: capturing steps 6 to 7. It is expected to stop training for 0.0084 s"
    folder = tmp_path / identity_of(0, pid=1).run / "steps-6-7"
    assert ended.startswith(f"rankscope: captured steps 6 to 7 into {folder} (rank 0: 0 kB). Training stood still for ")
    assert ended.endswith(f" s. To read it: rankscope analyze {folder}")


def test_other_ranks_write_their_files_and_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path, rank=3)
    run(captures, 0, 8)
    captures.write()
    assert capsys.readouterr().err == ""
    assert [name.rpartition("/")[2] for name in find_files(tmp_path)] == ["rank-3.pt.trace.json.gz"]


def test_price_that_is_not_known_is_not_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(make(tmp_path), 0, 5)
    assert (
        "For how long it stops training is not known: no full window has been recorded yet" in capsys.readouterr().err
    )


def test_too_costly_capture_is_left_out_and_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path, capture_pause_s_max="0.5", capture_options="shapes")
    captures.events_a_step = 10_000.0
    captures.window_ns_an_event = 7_500.0  # three times as slow as where the costs were measured
    for first in (0, 8):
        run(captures, first, first + 7)
        captures.write()
    # 2 steps of 10,000 events at 3 x (8.1 + 2.8) us
    assert capsys.readouterr().err == (
        "rankscope: the capture of steps 6 to 7 was refused: it would stop training for about 0.65 s, and "
        "capture_pause_s_max is 0.5 s. Training is not affected\n"
    )
    assert find_files(tmp_path) == []


@pytest.mark.parametrize(("options", "is_taken"), [("modules", False), ("modules, stacks", True)])
def test_compiled_code_leaves_modules_to_the_stacks(
    options: str, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = SimpleNamespace(counters={"frames": {"ok": 1}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", compiled)
    captures = make(tmp_path, capture_options=options)
    run(captures, 0, 8)
    captures.write()
    assert len(find_files(tmp_path)) == is_taken


def test_price_of_the_next_capture_is_what_the_last_one_has_cost(tmp_path: Path) -> None:
    captures = make(tmp_path, capture_pause_s_max="600")
    captures.events_a_step = 1e9
    assert captures.expect_pause_ns(2, RecordOptions()) == 2 * 1e9 * 4_200
    run(captures, 0, 8)
    assert not find_files(tmp_path), "refused: it would stop training for hours"
    captures.events_a_step = None
    run(captures, 9, 16)
    captures.write()
    measured_ns = captures.expect_pause_ns(2, RecordOptions())
    assert measured_ns is not None
    assert 0 < measured_ns < 60e9


def test_no_capture_begins_while_two_wait_for_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path)
    run(captures, 0, 8 * (WAITING_MAX + 1))
    captures.write()
    assert len(find_files(tmp_path)) == WAITING_MAX
    assert f"the capture of steps 22 to 23 was refused: {BEHIND}" in capsys.readouterr().err


def test_no_capture_begins_once_files_reach_their_largest_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captures = make(tmp_path)
    captures._files.is_full = True
    run(captures, 0, 8)
    captures.write()
    assert f"was refused: {FULL}" in capsys.readouterr().err


def test_capture_that_cannot_be_written_is_said_to_be_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captures = make(tmp_path, text='{"traceEvents": [')
    run(captures, 0, 8)
    captures.write()
    said = capsys.readouterr().err
    assert "the capture of steps 6 to 7 was lost: its file was cut after 17 bytes" in said
    assert "Training stood still for" in said
    assert said.endswith(" s, and goes on\n")


def test_records_of_captured_steps_are_marked(tmp_path: Path) -> None:
    captures = make(tmp_path)
    run(captures, 0, 8)
    records = [StepRecord(step=step, start_host_ns=0, duration_ns=1, phases_ns={}) for step in range(4, 11)]
    assert [one.step for one in captures.mark(records) if one.captured] == [5, 6, 7, 8], "prepared in 5, ended in 8"


def test_next_boundary_is_that_of_the_schedule(tmp_path: Path) -> None:
    captures = make(tmp_path, capture_schedule="wait=5, warmup=1, active=2")
    assert captures.find_next(0) == 5
    run(captures, 0, 8)
    assert captures.find_next(8) > 10**9


def test_capture_of_one_step_is_one_of_a_step() -> None:
    assert describe(Written(CaptureSteps(7, 8, 8), "/c/steps-8-8/rank-0.gz", 1, 1_000_000), "").startswith(
        "captured step 8 into "
    )


def test_capture_that_ended_early_says_why() -> None:
    line = describe(Written(CaptureSteps(3, 4, 5), "/c/steps-4-5/rank-0.gz", 1, 1_000_000), PAUSED)
    assert f"(rank 0: 0 kB). It ended early: {PAUSED}. Training stood still for 0.001 s." in line


@pytest.mark.parametrize(
    ("options", "us_an_event"),
    [
        (RecordOptions(), 4.2),
        (RecordOptions(shapes=True), 10.9),
        (RecordOptions(stacks=True), 1.6 * 10.6),
        (RecordOptions(modules=True), 1.05 * 4.2),
    ],
)
def test_price_follows_the_options(options: RecordOptions, us_an_event: float) -> None:
    assert options.expect_pause_ns(1000) == pytest.approx(1e6 * us_an_event)
    # A window has taken 1.25 us an event, half as long as there; or a time that no machine takes.
    assert options.expect_pause_ns(1000, 1_250) == pytest.approx(1e6 * us_an_event / 2)
    assert options.expect_pause_ns(1000, 1e9) == pytest.approx(1e6 * us_an_event * 8)


@pytest.mark.parametrize(
    ("settings", "traces"),
    [
        ({"device_windows": "on_demand"}, 1),
        ({"device_windows": "on_demand", "capture_options": "shapes"}, 0),
        ({"device_windows": "on_demand", "full_windows": "0"}, 0),
        ({}, 0),
    ],
)
def test_traces_of_plain_captures_are_kept_if_ratios_need_them(
    tmp_path: Path, settings: dict[str, str], traces: int
) -> None:
    captures = make(tmp_path, 0, TEXT, **settings)
    run(captures, 0, 8)
    captures.write()
    found = captures.plain_traces
    assert [gzip.decompress(trace.data) for trace in found] == [TEXT.encode()] * traces
    assert [trace.steps for trace in found] == [CaptureSteps(5, 6, 7)] * traces


def test_trace_too_large_to_be_read_is_empty(tmp_path: Path) -> None:
    written = Written(CaptureSteps(5, 6, 7), str(tmp_path / "none"), TRACE_BYTES_MAX + 1, 0)
    assert read_trace(written, 5) == CapturedTrace(CaptureSteps(5, 6, 7), b"", 5)


def test_capture_before_the_first_graph_is_refused_with_reason(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    graphs = GraphCaptures(cuda_graphs=YES)
    captures = TraceCaptures(
        configure(tmp_path), identity_of(0, pid=1), {}, Guard(error_budget=9), graphs,
        make_session=lambda _steps: Session(TEXT),
    )  # fmt: skip
    run(captures, 0, 9)
    captures.write()
    assert "the capture of steps 6 to 7 was refused: cuda_graphs = yes, and a profiler" in capfd.readouterr().err
    assert find_files(tmp_path) == []
    graphs.wrap_begin(lambda: None)()
    graphs.wrap_end(lambda: None)()
    run(captures, 10, 19)
    captures.write()
    assert len(find_files(tmp_path)) == 1
