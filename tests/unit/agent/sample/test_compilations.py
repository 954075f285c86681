"""CompilationReader: torch's records become frames by step, guards, and what the first steps spent on them."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rankscope.agent.guard import Guard
from rankscope.agent.sample.compilations import FRAMES_MAX, CompilationReader
from rankscope.measure.records import NO_COMPILATIONS, Compilations, CompiledFrame, CompiledStart, StepRecord
from rankscope.measure.units import NS_PER_MS as MS
from rankscope.measure.units import NS_PER_S as S
from tests.unit.agent.sample.test_rank_samples import make_samples

WALL_S = 1_800_000_000
FORWARD = "train.py:24 (forward)"


class HostClock:
    """The wall clock is WALL_S ahead of the host's."""

    def monotonic_ns(self) -> Any:
        return 100 * S

    def wall_ns(self) -> Any:
        return (WALL_S + 100) * S


def record(begin_ms: float, for_ms: float, number: str = "0/0", **fields: Any) -> SimpleNamespace:
    """A record of torch 2.13 of what was compiled at this time of the host's clock."""
    begin_us = round(WALL_S * 1e6 + begin_ms * 1e3)
    known = {"co_name": "forward", "co_filename": "/home/me/train.py", "co_firstlineno": 24, "is_forward": True}
    times = {"compile_id": number, "start_time_us": begin_us, "end_time_us": begin_us + round(for_ms * 1e3)}
    return SimpleNamespace(**{**known, **times, **fields})


def backward(begin_ms: float, for_ms: float, number: str = "0/0") -> SimpleNamespace:
    return record(begin_ms, for_ms, number, co_name=None, co_filename=None, co_firstlineno=None, is_forward=False)


def step(number: int, begin_ms: float, end_ms: float) -> StepRecord:
    duration_ns = round((end_ms - begin_ms) * MS)
    return StepRecord(step=number, start_host_ns=round(begin_ms * MS), duration_ns=duration_ns, phases_ns={})


def make_reader() -> CompilationReader:
    return CompilationReader(HostClock(), Guard(error_budget=3))


def collect(records: list[SimpleNamespace], *steps: StepRecord, last: bool = False) -> Compilations:
    return make_reader().collect(records, steps, last=last)


def test_compilation_belongs_to_the_first_step_ending_after_it() -> None:
    records = [record(10, 80), record(210, 20, "0/1", recompile_reason="0/0: k == 4   # return x * k")]
    seen = collect(records, step(0, 0, 100), step(1, 100, 200), step(2, 200, 300))
    assert seen.frames == (
        CompiledFrame(step=0, frame=FORWARD, compiled=1, duration_ns=80 * MS),
        CompiledFrame(step=2, frame=FORWARD, compiled=1, recompiled=1, duration_ns=20 * MS, reason="k == 4"),
    )
    assert (seen.compiled, seen.recompiled, seen.duration_ns) == (2, 1, 100 * MS)


def test_its_backward_adds_time_and_is_no_frame_of_its_own() -> None:
    seen = collect([record(10, 30), backward(60, 20)], step(0, 0, 100))
    assert seen.frames == (CompiledFrame(step=0, frame=FORWARD, compiled=1, duration_ns=50 * MS),)


def test_compilation_waits_for_the_record_of_its_step() -> None:
    reader, records = make_reader(), [record(10, 80)]
    assert reader.collect(records, [], last=False).frames == ()
    assert [one.step for one in reader.collect(records, [step(0, 0, 100)], last=False).frames] == [0]
    assert reader.collect(records, [step(1, 100, 200)], last=False).frames == ()


def test_at_the_end_it_waits_no_more() -> None:
    assert [one.step for one in collect([record(110, 80)], step(0, 0, 100), last=True).frames] == [-1]


def test_start_reaches_to_the_last_step_made_longer_by_compiling() -> None:
    # 38 of the 50 s from the begin of step 0 to the end of step 1; 1 ms of 1 s in step 2 makes it no longer.
    records = [
        record(1_000, 30_000), record(31_000, 4_000, "1/0", co_firstlineno=60), record(42_000, 4_000, "0/1"),
        record(50_500, 1, "0/2"),
    ]  # fmt: skip
    seen = collect(records, step(0, 0, 40_000), step(1, 40_000, 50_000), step(2, 50_000, 51_000))
    assert seen.start == CompiledStart(last_step=1, elapsed_ns=50 * S, compile_ns=38 * S, frames=2)


def test_compilation_before_the_first_step_belongs_to_the_start() -> None:
    seen = collect([record(1_000, 3_000)], step(0, 5_000, 6_000))
    assert seen.start == CompiledStart(last_step=0, elapsed_ns=5 * S, compile_ns=3 * S, frames=1)


def test_frame_after_a_graph_break_is_named_by_the_break() -> None:
    seen = collect([record(10, 5, "1/0", co_name="torch_dynamo_resume_in_forward_at_31")], step(0, 0, 100))
    assert [one.frame for one in seen.frames] == ["train.py:31 (forward)"]


def test_torchs_limit_is_noted_and_is_no_compilation() -> None:
    gone = record(50, 3, "0/8", co_name=None, fail_type="Unsupported", fail_reason="Dynamo recompile limit exceeded")
    seen = collect([record(10, 5), gone], step(0, 0, 100))
    assert [(one.frame, one.compiled, one.gives_up) for one in seen.frames] == [(FORWARD, 1, True)]


def test_caches_are_counted_by_compilation() -> None:
    records = [
        record(10, 5, inductor_fx_local_cache_hit_count=3, aotautograd_local_cache_hit_count=1),
        record(20, 5, "1/0", inductor_fx_local_cache_miss_count=1, inductor_fx_local_cache_hit_count=1),
        record(30, 5, "2/0"),
    ]
    seen = collect(records, step(0, 0, 100))
    assert (seen.cached, seen.uncached) == (1, 1)


def test_record_of_an_earlier_torch_has_its_times_in_seconds() -> None:
    early = SimpleNamespace(
        co_name="forward", co_filename="/home/me/train.py", co_firstlineno=24, start_time=WALL_S + 0.01,
        entire_frame_compile_time_s=0.05,
    )  # fmt: skip
    (frame,) = collect([early], step(0, 0, 100)).frames
    assert frame.frame == FORWARD
    assert frame.duration_ns == 50 * MS


def test_more_than_torch_remembers_between_two_reports_is_said() -> None:
    reader = make_reader()
    reader.collect([record(1, 1)], [], last=False)
    later = [record(10 + place, 0.5, f"0/{place + 2}") for place in range(FRAMES_MAX)]
    assert reader.collect(later, [], last=False).unseen == 1
    assert reader.collect(later, [], last=False).unseen == 1


def test_metrics_that_the_script_has_cleared_are_not_unseen() -> None:
    reader = make_reader()
    reader.collect([record(1, 1)], [], last=False)
    assert reader.collect([], [], last=False).unseen == 0
    assert reader.collect([record(9, 1, "0/1")], [], last=False).compiled == 2


# -- where torch has no such records ----------------------------------------------------------------------------------


@pytest.fixture
def dynamo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("torch._dynamo.utils")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_process_without_the_compiler_has_compiled_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert make_samples().collect_compilations([], last=True) is NO_COMPILATIONS


def test_records_are_read_once_there_are_any(dynamo: ModuleType) -> None:
    samples = make_samples()
    dynamo.__dict__["_compilation_metrics"] = records = []
    assert samples.collect_compilations([], last=False) is NO_COMPILATIONS
    records.append(record(10, 80))
    seen = samples.collect_compilations([], last=True)
    assert seen is not None
    assert seen.compiled == 1


@pytest.mark.usefixtures("dynamo")
def test_torch_without_such_records_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKSCOPE_DEBUG", "1")
    samples = make_samples()
    assert [samples.collect_compilations([], last=last) for last in (False, True)] == [None, None]
    assert capsys.readouterr().err.count("does not tell what torch.compile has compiled") == 1


def test_records_of_another_shape_stop_only_this_part(dynamo: ModuleType) -> None:
    samples = make_samples()
    dynamo.__dict__["_compilation_metrics"] = 7
    assert [samples.collect_compilations([], last=False) for _ in range(4)] == [None] * 4
    assert samples._guard.errors["compilations"] == 3
