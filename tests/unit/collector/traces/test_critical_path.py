"""The critical path of steps, on traces made with a known one."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rankscope.collector.commands.main import main
from rankscope.collector.reports.trace_tables import build_sections
from rankscope.collector.traces import analyze
from rankscope.collector.traces.critical_path import PARTS_MAX, Stretch, Walk, find_contradiction
from rankscope.collector.traces.path_record import Bounds, HostSegments, PathRecord, Waits
from rankscope.collector.traces.report import CriticalPath, CriticalStep
from rankscope.measure.kineto import NONE
from tests.pipelines import SCHEDULES, Job, write_traces
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

STEP = event("user_annotation", "ProfilerStep#1", 0, 100)
KINDS = ("host", "launch", "compute", "communication", "copy", "unexplained")


def path_of(folder: Path, *ranks: list[Event], **head: Any) -> CriticalPath:
    """Return the path of these traces, one for each rank, all on one host."""
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": len(ranks), "pg_count": 1, "backend": "nccl"}
        found = {"distributedInfo": info, "baseTimeNanoseconds": 10**18, "host_name": "a", **head}
        (folder / f"rank{rank}.json").write_bytes(to_json(*events, **found))
    report = analyze(str(folder), critical_path=True)
    assert (report.errors, report.critical_path is None) == ([], False)
    return report.critical_path or CriticalPath(steps=[], parts=[], left_out_ns=0, notes=[])


def times_us(step: CriticalStep) -> dict[str, float]:
    """Return the kinds that have time, in us; they sum to the step."""
    found = {kind: getattr(step, f"{kind}_ns") for kind in KINDS}
    assert sum(found.values()) == step.window_ns
    return {kind: ns / 1000 for kind, ns in found.items() if ns}


def parts_us(path: CriticalPath) -> dict[tuple[str, str, int | None], float]:
    return {(one.kind, one.name, one.rank): one.total_ns / 1000 for one in path.parts}


# -- one rank ---------------------------------------------------------------------------------------------------------

# By the device's clock the step is from 20 to 95. The last kernel was launched at 80, after the host had waited until
# 62 for `relu` to end at 60; `relu` waited for `gemm`, which began the step.
WAITS = [
    STEP,
    event("cpu_op", "aten::mm", 5, 10), launch(8, 1), kernel("gemm", 20, 30, correlation=1),
    launch(30, 2), kernel("relu", 50, 10, correlation=2),
    event("cuda_runtime", "cudaStreamSynchronize", 40, 22, correlation=9),
    event("cpu_op", "aten::add", 70, 12), launch(80, 3), kernel("add", 85, 10, correlation=3),
]  # fmt: skip


def test_path_leads_through_the_call_that_waited_for_the_device(tmp_path: Path) -> None:
    path = path_of(tmp_path, WAITS)
    (step,) = path.steps
    assert (step.step, step.rank, step.window_ns, step.rank_change_count) == (1, 0, 75_000, 0)
    assert times_us(step) == {"compute": 50, "launch": 5, "host": 20}
    assert parts_us(path) == {
        ("compute", "gemm", 0): 30, ("compute", "relu", 0): 10, ("compute", "add", 0): 10, ("launch", "add", 0): 5,
        ("host", "cudaStreamSynchronize", 0): 2, ("host", "no operator", 0): 8, ("host", "aten::add", 0): 10,
    }  # fmt: skip


def test_host_without_waiting_bounds_the_whole_step(tmp_path: Path) -> None:
    # Each kernel ends long before the next one is launched.
    events = [STEP, launch(8, 1), kernel("a", 20, 2, correlation=1), launch(60, 2), kernel("b", 66, 4, correlation=2)]
    (step,) = path_of(tmp_path, events).steps
    assert (step.window_ns, times_us(step)) == (50_000, {"host": 40, "launch": 6, "compute": 4})


def test_copy_from_pageable_memory_blocks_the_host(tmp_path: Path) -> None:
    # The call returns at 70 with its copy, which follows `gemm` on the stream; then `b` is launched.
    events = [
        STEP, launch(8, 1), kernel("gemm", 20, 30, correlation=1),
        event("cuda_runtime", "cudaMemcpyAsync", 30, 41, correlation=2),
        {**kernel("Memcpy DtoH (Device -> Pageable)", 50, 20, correlation=2), "cat": "gpu_memcpy"},
        launch(75, 3), kernel("b", 80, 10, correlation=3),
    ]  # fmt: skip
    (step,) = path_of(tmp_path, events).steps
    assert times_us(step) == {"compute": 40, "copy": 20, "host": 5, "launch": 5}


def test_wait_of_a_thread_without_launches_is_not_followed(tmp_path: Path) -> None:
    loader = event("cuda_runtime", "cudaEventSynchronize", 40, 22, correlation=9, tid=2)
    (step,) = path_of(tmp_path, [*(one for one in WAITS if one["name"] != "cudaStreamSynchronize"), loader]).steps
    assert times_us(step) == {"host": 60, "launch": 5, "compute": 10}


def test_work_launched_before_the_record_is_unexplained(tmp_path: Path) -> None:
    events = [STEP, launch(8, 1), kernel("a", 20, 10, correlation=1, stream=1), kernel("b", 50, 30, correlation=7)]
    (step,) = path_of(tmp_path, [*events, launch(11, 3), kernel("c", 80, 5, correlation=3)]).steps
    assert (step.window_ns, times_us(step)) == (65_000, {"compute": 35, "unexplained": 30})


def test_steps_end_where_the_next_one_begins_on_the_device(tmp_path: Path) -> None:
    second = [
        {**one, "ts": one["ts"] + 100, "args": {**one["args"], "correlation": 10 + one["args"].get("correlation", 0)}}
        for one in WAITS[1:]
    ]
    path = path_of(tmp_path, [*WAITS, event("user_annotation", "ProfilerStep#2", 100, 100), *second])
    assert [step.step for step in path.steps] == [1, 2]
    # From 20 to 120: the call at 108 launches the first work of the next step; 82 to 108 the host is in no operator.
    assert times_us(path.steps[0])["launch"] == 12
    assert path.steps[0].window_ns == 100_000


# -- the sum ----------------------------------------------------------------------------------------------------------


def walk_over(*work_us: tuple[int, int]) -> Walk:
    """Return a walk over one rank whose device works from and to these us."""
    count = len(work_us)
    none, no = np.full(count, NONE), np.zeros(count, dtype=np.int64)
    start_ns, end_ns = (np.array([one[side] for one in work_us], dtype=np.int64) * 1_000 for side in (0, 1))
    empty = np.empty(0, dtype=np.int64)
    record = PathRecord(
        names=["gemm"], start_ns=start_ns, end_ns=end_ns, kind=no, name=no, call_ns=none, before=none, other=none,
        is_inferred=no.astype(bool), collective=none, waits=Waits(empty, empty, empty),
        host=HostSegments(empty, empty, empty), steps=[],
    )  # fmt: skip
    return Walk([record], [0], {})


@pytest.mark.parametrize(
    ("stretches", "said"),
    [
        ([("compute", 0, 10), ("host", 10, 30), ("compute", 30, 40)], None),
        ([("compute", 0, 10), ("host", 12, 30), ("compute", 30, 40)], "its parts sum to 38.0 us, the step lasts 40.0"),
        # The device is idle from 10 to 30.
        ([("compute", 0, 20), ("host", 20, 40)], "it has 20.0 us of device work, and the device worked for 10.0 us"),
        # One piece of work twice on the path.
        ([("compute", 0, 10), ("compute", 0, 10), ("host", 20, 40)], "it has 20.0 us of device work, and the device"),
    ],
)  # fmt: skip
def test_path_is_held_against_the_work_of_the_device(stretches: list[tuple[str, int, int]], said: str | None) -> None:
    walk = walk_over((0, 10), (30, 40))
    path = [Stretch(0, kind, "gemm", 1_000 * start, 1_000 * end) for kind, start, end in stretches]
    found = find_contradiction(walk, Bounds(1, 0, 40_000), path)
    assert found == said if said is None else str(found).startswith(said)


def test_path_contradicting_the_device_is_left_out_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = Walk.follow
    monkeypatch.setattr(Walk, "follow", lambda walk, key, bounds: follow(walk, key, bounds)[1:])
    path = path_of(tmp_path, WAITS)
    assert (path.steps, path.parts) == ([], [])
    # Without its last piece of work, of 10 us.
    assert path.notes == ["The path of step 1 is left out: its parts sum to 65.0 us, the step lasts 75.0 us."]


def test_trace_without_steps_has_one_path(tmp_path: Path) -> None:
    path = path_of(tmp_path, WAITS[1:])
    assert [(step.step, step.window_ns) for step in path.steps] == [(None, 75_000)]


def test_trace_without_known_work_is_on_no_path(tmp_path: Path) -> None:
    path = path_of(tmp_path, [STEP])
    assert (path.steps, path.parts) == ([], [])
    assert path.notes == ["1 trace has no work that is recognized and is left out."]


# -- streams ----------------------------------------------------------------------------------------------------------

# `use` on stream 7 was launched at 30 and starts at 52, after `move` on stream 9 ended at 50; `first` ended at 25.
STREAMS = [
    STEP, launch(5, 1), kernel("first", 10, 15, correlation=1, stream=7),
    launch(12, 2), kernel("move", 20, 30, correlation=2, stream=9),
    event("cuda_runtime", "cudaEventRecord", 15, 1, correlation=20),
    event("cuda_runtime", "cudaStreamWaitEvent", 20, 1, correlation=21),
    launch(30, 3), kernel("use", 52, 8, correlation=3, stream=7),
]  # fmt: skip
RECORDED = event("cuda_sync", "Stream Wait Event", 20, 1, correlation=21, stream=7, device=0, wait_on_stream=9,
                 wait_on_cuda_event_record_corr_id=20)  # fmt: skip


def test_recorded_wait_of_a_stream_is_followed(tmp_path: Path) -> None:
    path = path_of(tmp_path, [*STREAMS, RECORDED])
    (step,) = path.steps
    # 52 to 60 `use`, 50 to 52 the stream resumes, 20 to 50 `move`, launched at 12 by the host.
    assert (times_us(step), step.inferred_count) == ({"compute": 38, "unexplained": 2, "launch": 8, "host": 2}, 0)
    assert path.notes == []


def test_wait_of_a_stream_is_inferred_from_the_order_and_said_so(tmp_path: Path) -> None:
    path = path_of(tmp_path, STREAMS)
    (step,) = path.steps
    assert (times_us(step), step.inferred_count) == ({"compute": 38, "unexplained": 2, "launch": 8, "host": 2}, 1)
    said = "1 move between streams is inferred from the order of work; record with enable_cuda_sync_events=True to "
    assert path.notes == [said + "know them."]


def test_inferred_waits_that_are_on_no_path_are_not_noted(tmp_path: Path) -> None:
    # Until 200 the host waits for nothing: the path never comes to the inferred wait of `use`.
    path = path_of(tmp_path, [event("user_annotation", "ProfilerStep#1", 0, 200), *STREAMS[1:], launch(150, 4),
                              kernel("last", 160, 40, correlation=4, stream=5)])  # fmt: skip
    assert (path.steps[0].inferred_count, path.notes) == (0, [])


def test_order_alone_shows_no_wait_without_a_call_for_one(tmp_path: Path) -> None:
    (step,) = path_of(tmp_path, [one for one in STREAMS if one["name"] != "cudaStreamWaitEvent"]).steps
    assert (times_us(step), step.inferred_count) == ({"compute": 8, "launch": 22, "host": 20}, 0)


@pytest.mark.parametrize(
    "wrong",
    [{"wait_on_stream": 8}, {"stream": 3}, {"wait_on_cuda_event_record_corr_id": 99}, {"wait_on_stream": "x"}],
)
def test_recorded_wait_for_what_is_not_there_is_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    kept = {**RECORDED, "args": {**RECORDED["args"], "wait_on_stream": 7, "stream": 9, "correlation": 98}}
    (step,) = path_of(tmp_path, [*STREAMS, kept, {**RECORDED, "args": {**RECORDED["args"], **wrong}}]).steps
    assert "unexplained" not in times_us(step)


# -- ranks ------------------------------------------------------------------------------------------------------------


def all_reduce(start_us: int, length_us: int, number: int) -> Event:
    arguments = {
        "Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]", "Group size": 2, "dtype": "Byte", "In msg nelems": 1000,
        "Out msg nelems": 1000, "Seq": number,
    }  # fmt: skip
    return kernel("ncclDevKernel_x", start_us, length_us, correlation=90 + number, stream=8, **arguments)


def rank_with_kernel(length_us: int, tail_us: int) -> list[Event]:
    """Work from 20, an all-reduce that all leave at 100 and that moves its bytes in 10 us, and work behind it."""
    end_us = 20 + length_us
    return [
        event("user_annotation", "ProfilerStep#1", 0, 150),
        launch(1, 1), kernel("gemm", 20, length_us, correlation=1),
        event("cuda_runtime", "cudaStreamWaitEvent", 3, 1, correlation=50),
        launch(4, 91), all_reduce(end_us, 100 - end_us, 1),
        event("cuda_runtime", "cudaStreamWaitEvent", 6, 1, correlation=51),
        launch(7, 2), kernel("optimizer", 100, tail_us, correlation=2),
    ]  # fmt: skip


def test_path_moves_to_the_rank_that_entered_last(tmp_path: Path) -> None:
    # Rank 0 ends last, at 130. It waited in the all-reduce from 40, rank 1 entered at 90 after 70 us of work.
    path = path_of(tmp_path, rank_with_kernel(20, 30), rank_with_kernel(70, 5))
    (step,) = path.steps
    assert (step.rank, step.window_ns, step.rank_change_count) == (0, 110_000, 1)
    assert (times_us(step), step.rank_ns) == ({"compute": 100, "communication": 10}, {"0": 40_000, "1": 70_000})
    assert parts_us(path) == {
        ("compute", "gemm", 1): 70, ("compute", "optimizer", 0): 30,
        ("communication", "all_reduce, 1,000 bytes", 0): 10,
    }  # fmt: skip


def test_path_stays_on_the_rank_that_entered_last_itself(tmp_path: Path) -> None:
    (step,) = path_of(tmp_path, rank_with_kernel(20, 5), rank_with_kernel(70, 30)).steps
    assert (step.rank, step.rank_change_count, step.rank_ns) == (1, 0, {"1": 110_000})
    assert times_us(step) == {"compute": 100, "communication": 10}


def test_path_stays_within_ranks_that_are_not_matched(tmp_path: Path) -> None:
    known = rank_with_kernel(70, 5)
    (call,) = (one["args"]["correlation"] for one in known if one["name"] == "ncclDevKernel_x")
    other = [one for one in known if one["args"].get("correlation") != call]
    path = path_of(tmp_path, rank_with_kernel(20, 30), other)
    assert [(step.rank, step.rank_change_count) for step in path.steps] == [(0, 0), (1, 0)]
    # Rank 0 is in the all-reduce from 40 to 100, and whether it waits there is not known.
    assert times_us(path.steps[0]) == {"compute": 50, "communication": 60}
    assert path.notes[0] == ("Paths stay within each rank: the traces have no synchronizing collective in common.")


def test_missing_ranks_are_said_to_be_missing(tmp_path: Path) -> None:
    info = {"rank": 0, "world_size": 4, "pg_count": 1, "backend": "nccl"}
    for rank in range(2):
        head = {"distributedInfo": {**info, "rank": rank}, "baseTimeNanoseconds": 10**18, "host_name": "a"}
        (tmp_path / f"rank{rank}.json").write_bytes(to_json(*rank_with_kernel(20 + 50 * rank, 5), **head))
    path = analyze(str(tmp_path), critical_path=True).critical_path
    assert path is not None
    assert path.notes[0].startswith("Traces of some ranks are missing: ")


def message(op: str, start_us: int, length_us: int, correlation: int, **peer: int) -> Event:
    arguments = {
        "Collective name": op, "Process Group Name": "1", "Group size": 2, "dtype": "Float", "In msg nelems": 8, **peer,
    }  # fmt: skip
    return kernel("ncclDevKernel_SendRecv", start_us, length_us, correlation=correlation, stream=8, **arguments)


def messaging_ranks(sent_us: int, received_us: int) -> tuple[list[Event], list[Event]]:
    """An all-reduce until 15, then work of rank 0 until it sends to rank 1, which receives after work of its own; both
    ends of the message end at 100, and 30 us of work follow on rank 1.
    """
    begin = [event("user_annotation", "ProfilerStep#1", 0, 150), launch(1, 91), all_reduce(5, 10, 1), launch(2, 1)]
    wait = event("cuda_runtime", "cudaStreamWaitEvent", 3, 1, correlation=50)
    sender = [
        *begin, kernel("before", 20, sent_us - 20, correlation=1), wait, launch(4, 2),
        message("send", sent_us, 100 - sent_us, 2, **{"Dst Rank": 1}),
    ]  # fmt: skip
    receiver = [
        *begin, kernel("before", 20, received_us - 20, correlation=1), wait, launch(4, 2),
        message("recv", received_us, 100 - received_us, 2, **{"Src Rank": 0}),
        {**wait, "ts": 6}, launch(8, 3), kernel("use", 100, 30, correlation=3),
    ]  # fmt: skip
    return sender, receiver


def test_path_moves_from_a_receive_to_the_send_that_began_later(tmp_path: Path) -> None:
    (step,) = path_of(tmp_path, *messaging_ranks(sent_us=90, received_us=30)).steps
    # Of rank 1 from 5 to 130: `use`, 10 us of the message, 70 us of `before` on rank 0, which was launched at 2.
    assert (step.rank, step.window_ns, step.rank_ns) == (1, 125_000, {"0": 85_000, "1": 40_000})
    assert times_us(step) == {"compute": 100, "communication": 10, "launch": 15}


def test_path_stays_with_a_receive_that_began_last(tmp_path: Path) -> None:
    (step,) = path_of(tmp_path, *messaging_ranks(sent_us=30, received_us=90)).steps
    assert (step.rank, step.rank_change_count, step.rank_ns) == (1, 0, {"1": 125_000})


def test_send_on_a_device_waits_for_its_receive(tmp_path: Path) -> None:
    sender, receiver = messaging_ranks(sent_us=30, received_us=90)
    after = [event("cuda_runtime", "cudaStreamWaitEvent", 6, 1, correlation=51), launch(8, 3)]
    longer = kernel("after", 100, 45, correlation=3)
    (step,) = path_of(tmp_path, [*sender, *after, longer], receiver).steps
    assert (step.rank, step.rank_ns) == (0, {"0": 55_000, "1": 85_000})


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("slow", [0, 2, 3])
def test_slow_stage_of_a_pipeline_has_most_of_the_path(tmp_path: Path, schedule: str, slow: int) -> None:
    write_traces(tmp_path, Job(schedule, 4, 8, {slow: 1.5}, jitter=0.05))
    path = analyze(str(tmp_path), critical_path=True).critical_path
    assert path is not None
    for step in path.steps:
        assert max(step.rank_ns, key=lambda rank: step.rank_ns[rank]) == str(slow)
        assert times_us(step).keys() == {"host", "communication"}


# -- a CPU ------------------------------------------------------------------------------------------------------------


def cpu_rank(work_us: int) -> list[Event]:
    """Forward from 0, gloo's all-reduce on a thread of its own behind it until 100, then the optimizer until 120."""
    return [
        event("user_annotation", "ProfilerStep#1", 0, 120),
        event("cpu_op", "forward", 0, work_us),
        event("user_annotation", "gloo:all_reduce", work_us, 100 - work_us, tid=2),
        event("cpu_op", "optimizer", 100, 20),
    ]


def test_cpu_path_has_host_and_communication_but_no_compute(tmp_path: Path) -> None:
    path = path_of(tmp_path, cpu_rank(30), cpu_rank(90))
    (step,) = path.steps
    assert (times_us(step), step.rank_ns) == ({"host": 110, "communication": 10}, {"0": 30_000, "1": 90_000})
    assert parts_us(path)["host", "forward", 1] == 90


# -- what is written --------------------------------------------------------------------------------------------------


def test_path_is_not_followed_unless_asked_for(tmp_path: Path) -> None:
    path_of(tmp_path, WAITS)
    assert analyze(str(tmp_path)).critical_path is None
    assert "critical_path" not in [one.key for one in build_sections(analyze(str(tmp_path)), 20)]


def test_command_prints_the_path_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = path_of(tmp_path, rank_with_kernel(20, 30), rank_with_kernel(70, 5))
    target, page = tmp_path / "out" / "report.json", tmp_path / "out" / "page.html"
    target.parent.mkdir()
    main(["analyze", str(tmp_path), "--critical-path", "--json-file", str(target), "--html", str(page)])
    assert "CRITICAL PATH OF THE STEPS" in capsys.readouterr().out
    assert msgspec.json.decode(target.read_bytes())["critical_path"] == msgspec.to_builtins(path)
    assert "Critical path of the steps" in page.read_text()


def test_traces_without_work_have_a_reason_and_note_in_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path_of(tmp_path, [STEP], [STEP])
    main(["analyze", str(tmp_path), "--critical-path"])
    out = capsys.readouterr().out
    assert "  No trace has work that is recognized.\n" in out
    assert "\n- 2 traces have no work that is recognized and are left out.\n" in out


def test_table_shows_the_ranks_of_the_path_by_their_share(tmp_path: Path) -> None:
    path_of(tmp_path, rank_with_kernel(20, 30), rank_with_kernel(70, 5))
    sections = {one.key: one for one in build_sections(analyze(str(tmp_path), critical_path=True), 20)}
    assert [cell.text for cell in sections["critical_path"].rows[0]] == [
        "1", "0", "1: 63.6 %, 0: 36.4 %", "0.110", "0.000", "0.000", "0.100", "0.010", "0.000", "0.000", "1", "2",
    ]  # fmt: skip


def test_parts_beyond_the_limit_keep_their_time(tmp_path: Path) -> None:
    count = PARTS_MAX + 5
    events = [event("user_annotation", "ProfilerStep#1", 0, 10 * count)]
    for number in range(count):
        events += [launch(number, number + 1), kernel(f"k{number}", 2000 + 3 * number, 3, correlation=number + 1)]
    path = path_of(tmp_path, events)
    assert (len(path.parts), path.left_out_ns) == (PARTS_MAX, 5 * 3000)


def test_frames_have_the_steps_and_the_parts(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path_of(tmp_path, WAITS)
    frames = analyze(str(tmp_path), critical_path=True).to_pandas()
    assert (len(frames["critical_steps"]), len(frames["critical_parts"])) == (1, 7)
