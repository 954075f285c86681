"""What a report says only where the trace has it: lost work, long steps, waits, polling, numbers that are no ranks."""

import random
from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.reports.trace_text import render_text
from rankscope.collector.traces import analyze
from rankscope.collector.traces.net import attempt
from rankscope.collector.traces.report import Advice, TraceReport
from rankscope.measure.errors import SettingError, TraceError
from rankscope.measure.kineto_json import EVENT_BYTES_MAX, TraceBlocks
from tests.unit.measure.written_traces import Event, event, kernel, launch, to_json

STEP_US = 10_000
BASE_NS = 10**18


def step_of(number: int, start_us: float, length_us: float = STEP_US) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, length_us)


def rank_of(
    steps: int = 5, *, compute_us: float = 6_000, reduce_ends_us: float = 8_000, lost: tuple[int, ...] = ()
) -> list[Event]:
    """Return steps of 10 ms: a product from 0.1 ms on, then an all-reduce until `reduce_ends_us`. The work of the steps
    in `lost` is not in the trace.
    """
    events = []
    for number in range(steps):
        at, call = number * STEP_US, 10 * number
        shapes = {"Collective name": "allreduce", "In msg nelems": 1_000, "Out msg nelems": 1_000, "dtype": "Float"}
        group = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": number}
        reduce_us = reduce_ends_us - 100 - compute_us
        events += [step_of(number, at), launch(at + 10, call + 1), launch(at + 20, call + 2)]
        if number not in lost:
            events.append(kernel("sgemm", at + 100, compute_us, correlation=call + 1))
            reduce = {"stream": 20, "correlation": call + 2, **shapes, **group}
            events.append(kernel("ncclDevKernel_AllReduce", at + 100 + compute_us, reduce_us, **reduce))
    return events


def write(folder: Path, *ranks: list[Event], name: str = "rank{}.json", **head: Any) -> str:
    folder.mkdir(exist_ok=True)
    for rank, events in enumerate(ranks):
        info = {"rank": rank, "world_size": len(ranks), "pg_count": 1, "backend": "nccl"}
        known = {"distributedInfo": info, "baseTimeNanoseconds": BASE_NS, "host_name": "a", **head}
        (folder / name.format(rank)).write_bytes(to_json(*events, **known))
    return str(folder)


def advice_of(report: TraceReport, key: str) -> Advice | None:
    return next((one for one in report.advice if one.key == key), None)


# -- a net ------------------------------------------------------------------------------------------------------------


def test_fault_becomes_a_reason_and_user_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKSCOPE_DEBUG", raising=False)
    assert attempt(lambda: 1 // 0, len) > 0
    with pytest.raises(SettingError):
        attempt(_raise_setting_error, len)
    monkeypatch.setenv("RANKSCOPE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        attempt(lambda: 1 // 0, len)


def _raise_setting_error() -> int:
    raise SettingError("for the user")


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.rest("more of the same chance")) for seed in range(1, 12))]
)
def test_changed_traces_never_end_in_a_traceback(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    odd: list[Any] = [None, -1, 0, "x", 1e18, [], {}, True, 7, "[0, 9]", 0.5]
    ranks = [rank_of(3), rank_of(3, compute_us=7_000)]
    for one in [one for events in ranks for one in events if chance.random() < 0.3]:
        place = one if chance.random() < 0.5 or not one["args"] else one["args"]
        place[chance.choice([*place, "Call stack", "Input Dims", "blocks per SM"])] = chance.choice(odd)
    report = analyze(
        write(tmp_path, *ranks),
        critical_path=True,
        shorten={".": 0.5},
        all_to_all=True,
        against=str(tmp_path),
        calls=True,
    )
    assert "Traceback" not in render_text(report, 20)
    assert not any(
        "rankscope failed" in text
        for text in map(
            str, (report.errors, report.abstained, report.cross_rank, report.critical_path, report.comparison)
        )
    )


def test_numbers_of_unlisted_groups_leave_the_peers_unknown(tmp_path: Path) -> None:
    # Groups {0, 2} and {1, 3}: each rank is 0 or 1 in its own, and no kernel says of which ranks it is.
    ranks = []
    for rank in range(4):
        own, peer = (0, 1) if rank < 2 else (1, 0)
        inside = [event("user_annotation", f"nccl:send {own}->{peer}", 8_500, 20), launch(8_505, 90)]
        ranks.append([*rank_of(1), *inside, kernel("ncclDevKernel_SendRecv", 8_600, 30, stream=21, correlation=90)])
    report = analyze(write(tmp_path, *ranks))
    assert report.cross_rank is not None
    assert (report.cross_rank.pipeline, report.errors) == (None, [])


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_saving_by_overlap_is_of_the_transfer_alone(tmp_path: Path) -> None:
    # Rank 1 computes for 6.9 of 7.9 ms, rank 0 for 3: of its 4.9 ms of communication 3.9 wait, and 1 in 7.9 is moved.
    report = analyze(write(tmp_path, rank_of(compute_us=3_000), rank_of(compute_us=6_900)))
    signs = report.ranks[0].signs
    assert (signs.exposed_wait_ns, report.ranks[0].exposed_communication_ns) == (5 * 3_900_000, 5 * 4_900_000)
    advice = advice_of(report, "serial_communication")
    assert advice is not None
    assert advice.evidence["hideable_ns"] == 5 * 1_000_000
    assert "waits for other ranks not counted" in advice.sentence


def test_lone_rank_is_not_said_to_save_what_may_be_waiting(tmp_path: Path) -> None:
    write(tmp_path, rank_of(compute_us=3_000), rank_of())
    advice = advice_of(analyze(str(tmp_path / "rank0.json")), "serial_communication")
    assert advice is not None
    assert "would save" not in advice.sentence
    assert "How much of it is waiting for other ranks, which overlap does not save, is not known" in advice.sentence


@pytest.mark.parametrize("key", ["serial_communication", "communication_bound"])
def test_waits_for_untraced_ranks_are_not_said_to_be_left_out(tmp_path: Path, key: str) -> None:
    # Of 3 ranks 2 are here: what both wait for the third is in no trace.
    group = {"Process Group Ranks": "[0, 1, 2]", "Group size": 3}
    ranks = [
        [{**one, "args": {**one["args"], **group}} if "Seq" in one.get("args", {}) else one for one in events]
        for events in (rank_of(), rank_of(compute_us=5_900))
    ]
    write(tmp_path, *ranks, distributedInfo={"rank": 0, "world_size": 3, "pg_count": 1, "backend": "nccl"})
    report = analyze(str(tmp_path), rank_from=r"rank(\d+)")
    advice = advice_of(report, key)
    assert advice is not None
    assert advice.sentence.count("Some of it may still be waits for ranks whose traces are missing.") == 1


def test_kernels_of_ranks_are_compared_over_the_same_steps(tmp_path: Path) -> None:
    # Rank 1 computes 6.9 ms a step, rank 0 3 ms with its first two steps lost: 5 products beside 3, one a step.
    report = analyze(write(tmp_path, rank_of(compute_us=3_000, lost=(0, 1)), rank_of(compute_us=6_900)))
    assert report.cross_rank is not None
    assert [(one.rank, one.cause) for one in report.cross_rank.findings] == [(1, "gpu_compute")]


def test_difference_of_microseconds_is_not_said_to_be_nothing(tmp_path: Path) -> None:
    # The same steps a thousand times as short: 3.9 us more in each.
    def shrink(events: list[Event]) -> list[Event]:
        return [{**one, "ts": one["ts"] / 1000, "dur": one["dur"] / 1000} for one in events]

    report = analyze(write(tmp_path, shrink(rank_of(compute_us=3_000)), shrink(rank_of(compute_us=6_900))))
    assert report.cross_rank is not None
    assert ["3.9 us more per step on its GPU" in one.sentence for one in report.cross_rank.findings] == [True]


def test_difference_has_a_row_of_waiting_for_the_late_rank(tmp_path: Path) -> None:
    even = write(
        tmp_path / "even",
        rank_of(compute_us=3_000, reduce_ends_us=4_100),
        rank_of(compute_us=3_000, reduce_ends_us=4_100),
    )
    late = write(tmp_path / "late", rank_of(compute_us=3_000), rank_of(compute_us=6_900))
    comparison = analyze(late, against=even).comparison
    assert comparison is not None
    rows = {(row.kind, row.name): row.step_ns - row.against_step_ns for row in comparison.tables[0].rows}
    # In the mean of both ranks: rank 0 waits 3.9 ms, rank 1 computes 3.9 ms more; the transfer is 1 ms on both sides.
    assert rows["waiting", "waiting for rank 1"] == 3_900_000 // 2
    assert rows["compute", "sgemm"] == 3_900_000 // 2
    assert rows["communication", "ncclDevKernel_AllReduce"] == 0


def test_imbalance_within_the_noise_of_the_steps_is_no_finding(tmp_path: Path) -> None:
    def of(*lengths_us: int) -> list[Event]:
        return [one for place, us in enumerate(lengths_us) for one in _step_with(place, us)]

    def _step_with(place: int, length_us: int) -> list[Event]:
        found = rank_of(place + 1, compute_us=length_us)
        return [one for one in found if STEP_US * place <= one["ts"] < STEP_US * (place + 1)]

    steady = analyze(write(tmp_path / "a", of(6_000, 6_000, 6_000), of(3_000, 3_000, 3_000)))
    noisy = analyze(write(tmp_path / "b", of(7_800, 1_000, 7_800), of(3_000, 3_000, 3_000)))
    assert {one.key for one in steady.advice} & {"straggler", "load_imbalance"}
    assert advice_of(noisy, "load_imbalance") is None


# -- what the trace does not have -------------------------------------------------------------------------------------


def test_steps_whose_kernels_are_lost_are_not_judged(tmp_path: Path) -> None:
    report = analyze(write(tmp_path, rank_of(lost=(0, 1)), rank_of(lost=(0, 1))))
    rank = report.ranks[0]
    assert [step.is_judged for step in rank.steps] == [False, False, True, True, True]
    assert [step.lost_launch_count for step in rank.steps] == [2, 2, 0, 0, 0]
    # Step 2 is judged from its first work on, 0.1 ms after its start.
    assert (rank.signs.step_count, rank.signs.window_ns) == (3, (3 * STEP_US - 100) * 1_000)
    text = " ".join(render_text(report, 5).split())
    assert (
        "8 of 20 launches have no work in the traces: the profiler lost it, or it went into graphs that were captured. "
        "Not judged, and not compared: steps 0, 1." in text
    )
    assert report.cross_rank is not None
    assert [one.step_count for one in report.cross_rank.standings] == [3, 3]


def test_idle_time_of_a_trace_lacking_kernels_is_not_judged(tmp_path: Path) -> None:
    report = analyze(write(tmp_path, [*rank_of(3, lost=(0, 1, 2)), kernel("sgemm", 100, 5, correlation=1)]))
    reasons = {one.key: one.reason for one in report.abstained}
    assert reasons["low_gpu_utilization"] == "5 of 6 launches have no work in the trace: its idle time is not known"


def test_one_long_step_does_not_stand_for_the_trace(tmp_path: Path) -> None:
    # Step 0 lasts 3 s longer, in a compiled region.
    later = [{**one, "ts": one["ts"] + 3_000_000} for one in rank_of(6)]
    later[0] = step_of(0, 0, 3_000_000 + STEP_US)
    events = [*later, event("user_annotation", "Torch-Compiled Region: 0/0", 5, 2_999_000)]
    report = analyze(write(tmp_path, events))
    (long,) = report.ranks[0].signs.long_steps
    assert (long.step, long.window_ns, long.range_name) == (0, 3_010_000_000, "Torch-Compiled Region: 0/0")
    assert advice_of(report, "low_gpu_utilization") is None
    advice = advice_of(report, "long_step")
    assert advice is not None
    assert (advice.evidence["step"], advice.evidence["step_ratio"], advice.evidence["long_step_count"]) == (0, 301, 1)
    assert advice.evidence["range"] == long.range_name
    # The others are idle for 2.1 of 10 ms, as the device works from 0.1 to 8 ms.
    assert "other 5 only; there the GPU was idle 21 % of the time" in advice.sentence


@pytest.mark.parametrize(("long_count", "told_count"), [(2, 2), (3, 0)])
def test_a_third_of_the_steps_may_be_long(tmp_path: Path, long_count: int, told_count: int) -> None:
    events = rank_of(6)
    for number in range(long_count):
        end_us = events[0]["ts"] + number * (3_000_000 + STEP_US) + STEP_US
        events = [{**one, "ts": one["ts"] + 3_000_000} if one["ts"] >= end_us else one for one in events]
        events = [
            {**one, "dur": one["dur"] + 3_000_000} if one["name"] == f"ProfilerStep#{number}" else one
            for one in events
        ]  # fmt: skip
    (rank,) = analyze(write(tmp_path, events)).ranks
    assert len(rank.signs.long_steps) == told_count


def test_work_at_zero_is_left_out_also_as_the_majority(tmp_path: Path) -> None:
    shifted = [{**one, "ts": one["ts"] + 3e12} for one in rank_of(3)]
    zeros = [kernel("sgemm", 0, 5, correlation=900 + place) for place in range(40)]
    (rank,) = analyze(write(tmp_path, shifted + zeros)).ranks
    assert rank.window_ns == (2 * STEP_US + 7_900) * 1_000
    assert "40 events left out: a time of zero" in rank.warnings


def test_device_whose_work_has_no_length_is_not_said_to_be_idle(tmp_path: Path) -> None:
    # 20 steps of 6 ms of computing and 1.9 ms of communication in 10 ms; of every other one all lengths are 0.
    def lose(one: Event) -> Event:
        return {**one, "dur": 0} if one["cat"] == "kernel" and int(one["ts"] // STEP_US) % 2 else one

    (rank,) = analyze(write(tmp_path, [lose(one) for one in rank_of(20)])).ranks
    assert "20 events left out: device work of no length, of which there is too much to be short" in rank.warnings
    assert advice_of(analyze(str(tmp_path)), "low_gpu_utilization") is None
    assert [step.is_judged for step in rank.steps] == [True, False] * 10
    assert {step.compute_ns for step in rank.steps if step.is_judged} == {6_000_000}


def test_some_work_of_no_length_is_short_work(tmp_path: Path) -> None:
    shorts = [kernel("short", 100 + number, 0) for number in range(9)]
    (rank,) = analyze(write(tmp_path, [*rank_of(2), *shorts])).ranks
    assert rank.kernel_count == 13
    assert not [one for one in rank.warnings if "left out" in one]


@pytest.mark.parametrize("length_us", [500_000, 90_000_000, 10**12])  # beyond the host by a minute; over a day
def test_spilled_length_ends_where_the_stream_went_on(tmp_path: Path, length_us: int) -> None:
    events = rank_of(3)
    (first, *_) = [one for one in events if one["name"] == "sgemm"]
    first["dur"] = length_us
    (rank,) = analyze(write(tmp_path, events)).ranks
    # It ends where the product of the next step begins, at 10.1 ms.
    assert (rank.compute_ns, rank.window_ns) == ((10_000 + 2 * 6_000) * 1_000, (2 * STEP_US + 7_900) * 1_000)
    assert "1 piece of device work lasts beyond the next one of its stream: it ends there" in rank.warnings
    assert not [one for one in rank.warnings if "left out" in one]


@pytest.mark.parametrize("rank_names", [("node3_1.json", "node3_2.json"), ("gpu-worker3_a.json", "gpu-worker3_b.json")])
def test_number_in_several_names_is_no_rank(tmp_path: Path, rank_names: tuple[str, str]) -> None:
    for name in rank_names:
        (tmp_path / name).write_bytes(to_json(*rank_of(2), note=name))
    report = analyze(str(tmp_path))
    assert [one.rank for one in report.ranks] == [None]
    assert "it names no rank" in report.errors[0].reason


def test_several_traces_in_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "both.json").write_bytes(to_json(*rank_of(1)) + to_json(*rank_of(1)))
    (error,) = analyze(str(tmp_path / "both.json")).errors
    assert error.reason.startswith("it holds several traces, one behind the other")


# -- one rank ---------------------------------------------------------------------------------------------------------


def test_rank_without_a_finding_is_told_first_where_time_went(tmp_path: Path) -> None:
    events = rank_of(4, compute_us=7_800, reduce_ends_us=8_000)
    report = analyze(write(tmp_path, events))
    assert report.advice == []
    first = " ".join(render_text(report, 5).partition("[note] ")[2].split()).partition(" [note]")[0]
    # 31.2 of 37.9 ms computed, 0.4 communicating, 6.3 idle.
    assert first == (
        "time: Of 37.9 ms, the device was 82.3 % computing (100.0 % of the kernels' time in gemm kernels; the longest "
        "in total is sgemm); 1.1 % communicating and not computing, waits included; 16.6 % idle."
    )


def test_only_device_of_the_file_has_its_name_by_another_number(tmp_path: Path) -> None:
    events = [kernel("Cijk_MI16x16x1", 100, 50, device=2, correlation=1), launch(5, 1, "hipExtModuleLaunchKernel")]
    properties = [{"id": 0, "name": "AMD Instinct MI300X"}]
    (rank,) = analyze(write(tmp_path, events, deviceProperties=properties)).ranks
    assert [(one.device, one.name) for one in rank.devices] == [(2, "AMD Instinct MI300X")]
    others = [*properties, {"id": 1, "name": "AMD Instinct MI210"}]
    (rank,) = analyze(write(tmp_path, events, deviceProperties=others)).ranks
    assert rank.device == "unnamed device"


@pytest.mark.parametrize("polls", ["silence", "queries", "silence, then work", "silence, then Python"])
def test_host_that_polls_for_the_device_is_not_on_the_path(tmp_path: Path, polls: str) -> None:
    # The dispatch runs from 0.1 to 9 ms, and the host reads its flag, or asks for its event, until 9.005 ms.
    inside = [event("user_annotation", "dispatch", 10, 8_995), launch(20, 1)]
    if polls == "queries":
        inside = [launch(20, 1), *(launch(1_000 * at + 4, 50 + at, "cudaEventQuery") for at in range(1, 10))]
    elif polls == "silence, then work":
        more = [event("cpu_op", "aten::empty", 9_005, 10), launch(9_020, 3)]
        inside = [event("cpu_op", "dispatch", 10, 9_060), launch(20, 1), *more]
        inside.append(kernel("deep_ep::intranode::dispatch<8>", 9_050, 20, correlation=3, stream=20))
    elif polls == "silence, then Python":
        inside = [event("user_annotation", "dispatch", 10, 9_050), launch(20, 1)]
    work = [kernel("deep_ep::intranode::notify_dispatch<8>", 100, 8_900, correlation=1, stream=20)]
    after = [launch(9_100, 2), kernel("sgemm", 9_200, 700, correlation=2)]
    path = analyze(write(tmp_path, [step_of(0, 0), *inside, *work, *after]), critical_path=True).critical_path
    assert path is not None
    (step,) = path.steps
    assert step.communication_ns == 8_900_000
    assert step.host_ns < 500_000


def test_host_work_during_device_communication_is_on_the_path(tmp_path: Path) -> None:
    # The kernel ends in the middle of the silence: what the host did until 9 ms was no waiting for it.
    events = [event("user_annotation", "dispatch", 10, 8_995), launch(20, 1), launch(9_100, 2)]
    work = [
        kernel("deep_ep::intranode::dispatch<8>", 100, 4_000, correlation=1),
        kernel("sgemm", 9_200, 700, correlation=2),
    ]
    path = analyze(write(tmp_path, [step_of(0, 0), *events, *work]), critical_path=True).critical_path
    assert path is not None
    assert path.steps[0].host_ns == 9_000_000


def test_other_ascend_task_types_are_work_of_their_own_lane(tmp_path: Path) -> None:
    def task(kind: str, start_us: int) -> Event:
        return {
            "ph": "X",
            "name": "MatMul",
            "pid": 8,
            "tid": 3,
            "ts": start_us,
            "dur": 100,
            "args": {"Task Type": kind},
        }

    def lane(length_us: int) -> Event:
        return {"ph": "X", "name": "Computing", "pid": 9, "tid": 0, "ts": 0, "dur": length_us, "args": {}}

    tasks = [task("Other", 0), task("AI_CPU", 200), task("NOTIFY_WAIT_SQE", 400), step_of(0, 0, 500)]
    (rank,) = analyze(write(tmp_path, [*tasks, lane(200)])).ranks
    assert (rank.compute_ns, any("own lane" in one for one in rank.warnings)) == (200_000, False)
    (rank,) = analyze(write(tmp_path, [*tasks, lane(500)])).ranks
    assert any(one.startswith("the file's own lane 'Computing' has 500.0 us") for one in rank.warnings)


# -- hostile input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "filling", [b" ", *(pytest.param(one, marks=pytest.mark.rest("the same limit")) for one in (b"[", b'\\"'))]
)
def test_bytes_without_the_end_of_an_event_are_given_up(filling: bytes) -> None:
    blocks = TraceBlocks()
    chunk = filling * ((4 << 20) // len(filling))
    chunks = [b'{"traceEvents":[{"ph":"X","name":"', *[chunk] * (3 * EVENT_BYTES_MAX // len(chunk))]
    with pytest.raises(TraceError, match="no event ends within"):
        list(blocks.read(chunks))


def test_blanks_behind_the_events_are_not_kept() -> None:
    blocks = TraceBlocks(block_bytes=64)
    list(blocks.feed(to_json(kernel("k", 0, 1), kernel("k", 2, 1))[:-1]))
    list(blocks.feed(b" " * (1 << 20)))
    list(blocks.feed(b"}"))
    list(blocks.finish())
    assert blocks.warnings == []


def test_name_of_a_megabyte_is_shortened_and_stays_distinct(tmp_path: Path) -> None:
    long = "a_" * (1 << 19)
    events = [kernel(f"{long}{number}{long}", 10 * number, 5, correlation=number) for number in range(2)]
    (rank,) = analyze(write(tmp_path, events)).ranks
    assert len({row.name for row in rank.kernels}) == 2
    assert all(len(row.name) < 4_100 and "2,097,153 characters" in row.name for row in rank.kernels)


@pytest.mark.parametrize(
    ("asked", "more"), [({}, 0), ({"critical_path": True, "modules": True, "sequences": 4, "nest": True}, 5)]
)
def test_progress_counts_what_is_read_and_the_tables_made(tmp_path: Path, asked: dict[str, Any], more: int) -> None:
    write(tmp_path, rank_of(2))
    told: list[float] = []
    analyze(str(tmp_path / "rank0.json"), progress=lambda done, of: told.append(done / of), **asked)
    # Read whole it is four fifths of the work; each table is an equal part of the last one, and the file ends it.
    tables = 17 + more
    assert set(told[: -tables - 1]) == {0.8}
    assert told[-tables - 1 :] == pytest.approx([*(0.8 + 0.2 * (place + 1) / tables for place in range(tables)), 1])


def test_rank_whose_work_is_all_lost_is_on_no_path_of_the_others(tmp_path: Path) -> None:
    # Rank 1 enters every all-reduce last, and of what it did before nothing is known.
    lost = [one for one in rank_of(2, compute_us=7_000) if one["name"] != "sgemm"]
    path = analyze(write(tmp_path, rank_of(2), lost), critical_path=True).critical_path
    assert path is not None
    assert {step.rank for step in path.steps} == {0}


def test_kernel_with_an_old_stack_and_no_operator_has_no_source(tmp_path: Path) -> None:
    stack = {"Call stack": "train.py(3): step"}
    (rank,) = analyze(write(tmp_path, [launch(1, 1), kernel("k", 5, 5, correlation=1, **stack)])).ranks
    assert rank.kernels[0].sources == []


def test_steps_of_an_unknown_device_are_not_said_to_be_missing(tmp_path: Path) -> None:
    report = analyze(write(tmp_path, [one for one in rank_of(3) if one["cat"] != "kernel"]))
    reasons = {one.key: one.reason for one in report.abstained}
    assert reasons["data_bound"] == "no device work in the trace"
    assert render_text(report, 10, 120).startswith("1 rank of 1, 9 events; nccl on unknown device\n")
