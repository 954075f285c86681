"""The tables of one trace: device work, communication, operators, ranges, waiting for the device."""

from pathlib import Path
from typing import Any

import pytest

from rankscope.collector.traces import analyze, tables
from rankscope.collector.traces.origin import read_origin
from rankscope.collector.traces.rank_analysis import reduce_trace
from rankscope.collector.traces.report import DeviceReport
from rankscope.collector.traces.user_ranges import sum_user_ranges
from rankscope.collector.traces.windows import break_down_steps, draw_timeline, find_overlaps, summarize_devices
from rankscope.measure.errors import TraceError
from rankscope.measure.rank_view import RankView
from rankscope.measure.traced_collectives import Collective, find_collectives
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events, to_json

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
WORLD = {"Process Group Name": "0", "Process Group Description": "default_pg", "Group size": 4}


def view_of(*events: Any, **head: Any) -> RankView:
    return RankView(read_events(*events, **head))


def copy(name: str, start_us: int, duration_us: int, **args: Any) -> Event:
    return {**kernel(name, start_us, duration_us, **args), "cat": "gpu_memcpy"}


def annotation(name: str, start_us: int, duration_us: int, **args: Any) -> Event:
    return event("user_annotation", name, start_us, duration_us, **args)


def operator(name: str, start_us: int, duration_us: int, **args: Any) -> Event:
    return event("cpu_op", name, start_us, duration_us, **args)


def collectives_of(*events: Event, **head: Any) -> list[Collective]:
    view = view_of(*events, **head)
    origin = read_origin(view.trace.head, "trace.json")
    return find_collectives(view, origin.base_ns, origin.only_group_size)


def devices_of(*events: Event, **head: Any) -> list[DeviceReport]:
    view = view_of(*events, **head)
    return summarize_devices(view, read_origin(view.trace.head, "trace.json").devices)


def only_collective(*events: Event, **head: Any) -> Collective:
    found = collectives_of(*events, **head)
    assert len(found) == 1
    return found[0]


# -- device work ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("category", ["cpu_op", "cuda_sync", "cuda_runtime", "gpu_user_annotation"])
def test_event_with_a_stream_but_no_device_is_no_work(category: str) -> None:
    view = view_of(event(category, "x", 1, 5, stream=7, device=0))
    assert (view.has_device, len(view.work)) == (False, 0)


def test_kernels_are_summed_by_name_with_their_share() -> None:
    first, second = tables.sum_kernels(view_of(kernel("a", 1, 2), kernel("a", 5, 4), kernel("b", 9, 2)))
    assert (first.name, first.count, first.total_ns, first.mean_ns) == ("a", 2, 6_000, 3_000)
    assert (first.min_ns, first.max_ns, first.pct, second.pct) == (2_000, 4_000, 75.0, 25.0)


def test_kernels_without_length_have_no_share() -> None:
    assert tables.sum_kernels(view_of(kernel("a", 1, 0)))[0].pct == 0.0


def test_copies_with_known_bytes_have_a_rate() -> None:
    # 4,000 bytes in 2 us.
    row = tables.sum_copies(view_of(copy("Memcpy HtoD", 1, 2, bytes=4_000)))[0]
    assert (row.bytes, row.bytes_per_s) == (4_000, 2e9)


@pytest.mark.parametrize("args", [{}, {"bytes": "many"}])
def test_copies_with_unknown_bytes_have_no_sum(args: dict[str, str]) -> None:
    row = tables.sum_copies(view_of(copy("Memcpy HtoD", 1, 2, bytes=4_000), copy("Memcpy HtoD", 5, 2, **args)))[0]
    assert (row.count, row.bytes, row.bytes_per_s) == (2, None, None)


def test_copies_without_length_have_no_rate() -> None:
    assert tables.sum_copies(view_of(copy("Memcpy HtoD", 1, 0, bytes=4)))[0].bytes_per_s is None


def test_each_device_of_a_file_has_a_report_of_its_own() -> None:
    first, second = devices_of(kernel("a", 0, 6), kernel("a", 4, 4, device=1))
    # Both over 0 to 8 us.
    assert (first.device, first.compute_ns, first.idle_ns) == (0, 6_000, 2_000)
    assert (second.device, second.compute_ns, second.idle_ns) == (1, 4_000, 4_000)


def test_several_devices_in_one_file_are_a_warning() -> None:
    report = reduce_trace(read_events(kernel("a", 0, 6), kernel("a", 4, 4, device=1)), "a.json").report
    assert report.warnings[0] == "2 devices in one file: the totals are sums over all of them, see devices"


@pytest.mark.parametrize("told", [5, "x", {"id": 0}, [3], [{"id": "0", "name": "A"}], [{"id": 0}], None])
def test_device_whose_properties_are_broken_has_no_name(told: Any) -> None:
    assert devices_of(kernel("a", 0, 6), deviceProperties=told)[0].name is None


def test_device_has_the_name_of_its_properties() -> None:
    assert devices_of(kernel("a", 0, 6), deviceProperties=[{"id": 0, "name": "A100"}])[0].name == "A100"


def test_work_without_a_device_has_a_report_without_number() -> None:
    assert devices_of(kernel("a", 0, 6, device="none"))[0].device is None


def test_kernels_of_one_graph_launch_belong_to_it() -> None:
    kernels = [kernel("a", 10 + 2 * place, 1, correlation=5) for place in range(300)]
    step = annotation("ProfilerStep#1", 0, 8)
    view = view_of(step, operator("graph", 1, 5), launch(2, 5, "cudaGraphLaunch"), *kernels)
    launched = break_down_steps(view)[0].launched
    assert launched is not None
    assert (launched.kernel_count, launched.busy_ns) == (300, 300_000)
    assert tables.sum_operators(view)[0].device_total_ns == 300_000


# -- communication ----------------------------------------------------------------------------------------------------


def test_launching_range_names_the_operation() -> None:
    within = annotation("nccl:_all_gather_base", 0, 10)
    assert only_collective(within, launch(2, 5), kernel(SEND_RECV, 20, 5, correlation=5)).op == "all_gather"


def test_innermost_range_names_the_operation() -> None:
    ranges = [annotation("nccl:coalesced", 0, 10), annotation("nccl:reduce_scatter", 1, 5)]
    assert only_collective(*ranges, launch(2, 5), kernel(SEND_RECV, 20, 5, correlation=5)).op == "reduce_scatter"


def test_range_of_another_thread_is_ignored() -> None:
    within = annotation("nccl:all_gather", 0, 10, tid=2)
    assert only_collective(within, launch(2, 5), kernel(SEND_RECV, 20, 5, correlation=5)).op == "send_recv"


@pytest.mark.parametrize(("name", "op"), [(SEND_RECV, "send_recv"), ("ncclDevKernel_Generic_1", "?")])
def test_without_a_range_the_kernel_name_is_used(name: str, op: str) -> None:
    assert only_collective(launch(2, 5), kernel(name, 20, 5, correlation=5)).op == op


def test_arguments_of_a_kernel_precede_its_range() -> None:
    told = {"Collective name": "_allgather_base", "correlation": 5, **WORLD}
    one = only_collective(annotation("nccl:all_reduce", 0, 10), launch(2, 5), kernel(SEND_RECV, 20, 5, **told))
    assert (one.op, one.group, one.group_size) == ("all_gather", "default_pg", 4)


def test_kernel_with_a_collective_argument_communicates() -> None:
    assert only_collective(kernel("my_kernel", 20, 5, **{"Collective name": "allreduce"})).op == "all_reduce"


def test_bytes_are_of_the_larger_side() -> None:
    told = {"Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16"}
    assert only_collective(kernel(SEND_RECV, 20, 5, **told)).bytes == 80


@pytest.mark.parametrize("told", [{"In msg nelems": 10}, {"In msg nelems": 10, "dtype": "?"}, {"dtype": "Float"}])
def test_unknown_bytes_are_missing(told: dict[str, Any]) -> None:
    assert only_collective(kernel(SEND_RECV, 20, 5, **{"Collective name": "allreduce", **told})).bytes is None


def test_collective_on_the_host_is_the_range_of_its_backend() -> None:
    shapes = {"Input Dims": [[10]], "Input type": ["float"]}
    one = only_collective(annotation("gloo:all_reduce", 3, 5, **shapes))
    assert (one.op, one.bytes, one.start_ns, one.duration_ns, one.group) == ("all_reduce", 40, 3_000, 5_000, "unknown")


def test_all_gather_on_the_host_counts_what_it_gathers() -> None:
    shapes = {"Input Dims": [[10]], "Input type": ["float"]}
    head = {"distributedInfo": {"world_size": 4, "pg_count": 1}}
    assert only_collective(annotation("gloo:all_gather", 3, 5, **shapes), **head).bytes == 160
    assert only_collective(annotation("gloo:all_gather", 3, 5, **shapes)).bytes is None


@pytest.mark.parametrize("shapes", [{"Input Dims": "x", "Input type": "float"}, {"Input Dims": [[1]]}])
def test_shapes_without_bytes_are_missing(shapes: dict[str, Any]) -> None:
    assert only_collective(annotation("gloo:all_reduce", 3, 5, **shapes)).bytes is None


def test_collectives_are_summed_by_group_operation_and_type() -> None:
    told = {"Collective name": "allreduce", "In msg nelems": 10, "dtype": "Float", **WORLD}
    found = collectives_of(kernel(SEND_RECV, 1, 5, **told), kernel(SEND_RECV, 9, 3, **told))
    row = tables.sum_collectives(found)[0]
    assert (row.group, row.group_size, row.op, row.dtype, row.count) == ("default_pg", 4, "all_reduce", "Float", 2)
    assert (row.bytes, row.total_ns, row.mean_ns) == (80, 8_000, 4_000)


# -- the host ---------------------------------------------------------------------------------------------------------


def test_operators_have_self_and_total_time() -> None:
    events = [operator("outer", 0, 10), operator("inner", 2, 3), launch(3, 1), launch(7, 2)]
    work = [kernel("a", 20, 4, correlation=1), kernel("b", 30, 1, correlation=2)]
    by_name = {row.name: row for row in tables.sum_operators(view_of(*events, *work))}
    outer, inner = by_name["outer"], by_name["inner"]
    assert (outer.host_total_ns, outer.host_self_ns, inner.host_total_ns) == (10_000, 7_000, 3_000)
    assert (outer.device_total_ns, outer.device_self_ns, inner.device_total_ns) == (5_000, 1_000, 4_000)


def test_user_ranges_are_summed_on_host_and_device() -> None:
    on_device = event("gpu_user_annotation", "mine", 20, 3)
    only_there = event("gpu_user_annotation", "graph", 30, 1)
    rows = sum_user_ranges(view_of(annotation("mine", 0, 5), annotation("mine", 8, 1), on_device, only_there))
    assert [(row.name, row.count, row.host_total_ns, row.device_total_ns) for row in rows] == [
        ("mine", 2, 6_000, 3_000),
        ("graph", 0, 0, 1_000),
    ]


def test_range_without_device_counterpart_has_what_it_launched() -> None:
    # "mine" launches 5 + 7 us, of which "inner" 7, the second "mine" 2; "a" is launched outside of all.
    events = [annotation("mine", 0, 10), annotation("inner", 4, 4), annotation("mine", 5, 1), annotation("mine", 20, 5)]
    calls = [launch(1, 1), launch(5, 2), launch(15, 3), launch(21, 4)]
    work = [
        kernel(name, 30 + 10 * n, us, correlation=n)
        for n, (name, us) in enumerate(zip("bcad", (5, 7, 9, 2), strict=True), 1)
    ]
    rows = sum_user_ranges(view_of(*events, *calls, *work))
    assert [(row.name, row.count, row.device_total_ns, row.device_from) for row in rows] == [
        ("mine", 3, 14_000, "launches"),
        ("inner", 1, 7_000, "launches"),
    ]


def test_range_around_a_backward_has_autograds_launches() -> None:
    engine = operator("autograd::engine::evaluate_function: MmBackward0", 12, 6, tid=2)
    step = annotation("ProfilerStep#3", 0, 30)
    events = [step, annotation("backward", 10, 10), engine, launch(13, 1, tid=2), kernel("k", 20, 4, correlation=1)]
    (row,) = sum_user_ranges(view_of(*events))
    assert (row.name, row.device_total_ns) == ("backward", 4_000)


@pytest.mark.parametrize("work", [[], [kernel("k", 5, 4)]], ids=["no device", "no launches"])
def test_device_time_of_a_range_is_unknown_without(work: list[Event]) -> None:
    (row,) = sum_user_ranges(view_of(annotation("mine", 0, 10), *work))
    assert (row.device_total_ns, row.device_from) == (None, None)


@pytest.mark.parametrize("name", ["ProfilerStep#3", "nccl:all_reduce"])
def test_steps_and_collectives_are_no_ranges_of_the_user(name: str) -> None:
    assert sum_user_ranges(view_of(annotation(name, 0, 5), event("gpu_user_annotation", name, 1, 1))) == []


def test_wait_is_attributed_to_the_host_value_operator() -> None:
    events = [operator("aten::item", 0, 10), operator("aten::_local_scalar_dense", 1, 8)]
    row = tables.sum_synchronizations(view_of(*events, launch(3, 1, "cudaStreamSynchronize")))[0]
    assert (row.name, row.count, row.total_ns, row.operator) == ("cudaStreamSynchronize", 1, 1_000, "aten::item")


def test_wait_outside_of_operators_has_none() -> None:
    row = tables.sum_synchronizations(view_of(launch(3, 1, "hipDeviceSynchronize"), launch(5, 2)))[0]
    assert (row.name, row.operator, row.source) == ("hipDeviceSynchronize", None, None)


def test_source_of_a_wait_is_the_users_innermost_line() -> None:
    frames = ["train.py(9): main", "train.py(54): step", "/x/torch/_tensor.py(3): item", "<built-in method item>"]
    events = [event("python_function", name, depth, 20 - 2 * depth, tid=9) for depth, name in enumerate(frames)]
    row = tables.sum_synchronizations(view_of(*events, launch(8, 1, "cudaStreamSynchronize")))[0]
    assert row.source == "train.py(54): step"


def test_without_frames_the_operators_stack_has_the_source() -> None:
    stack = {"Call stack": "/x/torch/_tensor.py(3): item;train.py(54): step;train.py(9): main"}
    events = [operator("aten::item", 0, 10, **stack), launch(3, 1, "cudaStreamSynchronize")]
    assert tables.sum_synchronizations(view_of(*events))[0].source == "train.py(54): step"


def test_copy_that_blocks_is_a_synchronization_point() -> None:
    # The first call returns when its copy of 70 us has ended at 75, the second when its copy has not begun.
    events = [
        operator("aten::copy_", 0, 90),
        event("cuda_runtime", "cudaMemcpyAsync", 1, 77, correlation=1),
        copy("Memcpy DtoH (Device -> Pageable)", 5, 70, correlation=1),
        event("cuda_runtime", "cudaMemcpyAsync", 80, 2, correlation=2),
        copy("Memcpy HtoD (Pinned -> Device)", 85, 70, correlation=2),
        event("cuda_runtime", "cudaMemcpyAsync", 200, 9, correlation=3),
        copy("Memcpy DtoD (Device -> Device)", 203, 2, correlation=3),
    ]
    (row,) = tables.sum_synchronizations(view_of(*events))
    assert (row.name, row.count, row.total_ns, row.operator) == ("cudaMemcpyAsync", 1, 77_000, "aten::copy_")


# -- who and when -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [{}, {"distributedInfo": 5}, {"distributedInfo": {"rank": "2", "world_size": None}}])
def test_without_distributed_info_the_name_has_the_rank(head: dict[str, Any]) -> None:
    report = reduce_trace(read_events(kernel("a", 1, 1), **head), "run/rank3.json").report
    assert (report.rank, report.world_size, report.backend) == (3, None, None)


def test_trace_without_device_is_broken_down_by_its_operators() -> None:
    report = reduce_trace(read_events(operator("aten::mm", 0, 6), annotation("gloo:send", 8, 2)), "a.json").report
    assert (report.device, report.compute_ns, report.communication_ns, report.idle_ns) == ("CPU", 6_000, 2_000, 2_000)


def test_kernels_of_the_users_pattern_communicate(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(to_json(kernel("my_ring_exchange<float>", 0, 4), kernel("gemm", 4, 5)))
    assert analyze(str(path)).ranks[0].communication_ns == 0
    report = analyze(str(path), communication_kernels="^my_ring").ranks[0]
    assert (report.communication_ns, report.compute_ns) == (4_000, 5_000)
    assert [row.is_communication for row in report.kernels] == [False, True]


def test_ascend_trace_is_broken_down_by_its_devices_work() -> None:
    task = {"cat": "", "args": {"Task Type": "AI_CORE", "Stream Id": 2}}
    events = [
        operator("ProfilerStep#3", 0, 20),
        {**kernel("MatMul", 2, 6), **task},
        {**kernel("hcom_allReduce__123_0_1", 6, 4), "cat": "", "args": {"connection_id": 5}},
    ]
    report = reduce_trace(read_events(*events), "a.json").report
    assert (report.device, report.window_ns, report.compute_ns, report.communication_ns, report.overlap_ns) == (
        "Ascend NPU", 8_000, 6_000, 4_000, 2_000,
    )  # fmt: skip
    assert [(one.op, one.group) for one in report.collectives] == [("all_reduce", "unknown")]


@pytest.mark.parametrize("category", ["hpu_op", "privateuse1_kernel", "of_tomorrow"])
def test_unknown_device_is_never_called_cpu(category: str) -> None:
    events = [annotation("ProfilerStep#3", 0, 20), operator("aten::mm", 0, 20), event(category, "k", 2, 6)]
    report = reduce_trace(read_events(*events), "a.json").report
    assert (report.device, report.compute_ns, report.busy_ratio, report.steps) == ("unknown device", 0, None, [])
    assert report.warnings == [
        f"1 events are not counted: their category {category!r} is not known",
        "a device was used, but the trace has no work of a known device: its time is not broken down",
    ]


def test_launches_without_kernels_are_no_trace_of_a_cpu() -> None:
    report = reduce_trace(read_events(operator("aten::mm", 0, 20), launch(1, 1)), "a.json").report
    assert (report.device, report.compute_ns, report.kernel_count) == ("unknown device", 0, 0)


def test_unknown_categories_beside_a_known_device_are_told() -> None:
    others = [event(f"kind{place}", "k", 2, 6) for place in range(7)]
    report = reduce_trace(read_events(kernel("a", 0, 20), *others), "a.json").report
    assert (report.device, report.compute_ns) == ("unnamed device", 20_000)
    assert report.warnings[4:6] == [
        "1 events are not counted: their category 'kind4' is not known",
        "2 more events of other unknown categories are not counted",
    ]


def test_operators_on_the_threads_of_a_backend_are_not_computing() -> None:
    events = [
        operator("aten::mm", 0, 6),
        annotation("gloo:all_reduce", 8, 4, tid=2),
        operator("aten::add_", 9, 1, tid=2),
    ]
    assert reduce_trace(read_events(*events), "a.json").report.compute_ns == 6_000


def test_work_that_overlaps_on_one_stream_is_told() -> None:
    # Stream 7 is at work for 12 us, in which "long" and "b" ran 10 + 4 us; on stream 8 nothing overlaps.
    events = [kernel("long", 0, 10), kernel("b", 8, 4), kernel("c", 12, 1), kernel("d", 3, 4, stream=8)]
    (warning,) = find_overlaps(view_of(*events))
    assert warning.startswith("work on one stream overlaps by 2.0 us; this is counted twice in times summed by name. ")
    assert warning.endswith("Longest such kernel or copy: long (10.0 us)")
    assert find_overlaps(view_of(kernel("a", 0, 3), kernel("b", 2, 3, stream=8))) == []


def test_trace_of_nothing_has_no_window() -> None:
    report = reduce_trace(read_events(event("Trace", "PyTorch Profiler (0)", 0, 5)), "a.json").report
    assert (report.window_ns, report.busy_ratio, report.timeline, report.steps) == (0, None, None, [])
    assert report.warnings[0] == "no device work, and no operators either: nothing to break down"


def test_step_lasts_until_the_next_one_begins() -> None:
    steps = [annotation("ProfilerStep#4", 0, 5), annotation("ProfilerStep#5", 8, 4)]
    found = break_down_steps(view_of(*steps, kernel("a", 6, 3)))
    assert [(step.step, step.window_ns, step.compute_ns) for step in found] == [(4, 8_000, 2_000), (5, 4_000, 1_000)]


def test_steps_are_chosen_by_their_numbers() -> None:
    trace = read_events(*(annotation(f"ProfilerStep#{number}", 10 * number, 5) for number in range(5)))
    assert [step.number for step in RankView(trace, (1, 3)).steps] == [1, 2]
    assert [step.number for step in RankView(trace, (3, None)).steps] == [3, 4]


def test_range_without_a_step_is_refused_with_the_known_steps() -> None:
    trace = read_events(operator("a", 0, 9), *(annotation(f"ProfilerStep#{number}", number, 1) for number in (3, 4, 5)))
    for steps, said in (((7, 9), "7:9"), ((7, None), "7:"), ((None, 3), ":3")):
        with pytest.raises(TraceError, match=rf"^none of its steps is in {said}; it has 3 steps from 3 to 5$"):
            reduce_trace(trace, "a.json", steps)
    alone = read_events(operator("a", 0, 9), annotation("ProfilerStep#3", 1, 1))
    with pytest.raises(TraceError, match=r"^none of its steps is in 7:9; it has step 3$"):
        reduce_trace(alone, "a.json", (7, 9))
    with pytest.raises(TraceError, match=r"^it has no steps to choose from: profiler\.step\(\) was not called"):
        reduce_trace(read_events(operator("a", 0, 9)), "a.json", (7, 9))


def test_step_that_two_threads_note_counts_once() -> None:
    noted = [annotation("ProfilerStep#4", 0, 5), annotation("ProfilerStep#4", 1, 5, tid=2)]
    assert [step.start_ns for step in view_of(*noted).steps] == [0]


def test_step_number_that_comes_again_later_is_told() -> None:
    noted = [
        annotation("ProfilerStep#4", 0, 5),
        annotation("ProfilerStep#4", 1, 5, tid=2),
        annotation("ProfilerStep#4", 5, 5),
    ]
    report = reduce_trace(read_events(*noted, kernel("a", 0, 9)), "a.json").report
    assert len(report.steps) == 1
    assert (
        "1 steps repeat the number of an earlier step and are left out. Does the file have several recordings?"
        in report.warnings
    )


def test_timeline_shows_each_bin() -> None:
    # Of 8 us: 4 of computing, then one more while communicating, two of communicating alone, one of copying.
    events = [kernel("a", 0, 5), kernel(SEND_RECV, 4, 3), copy("Memcpy HtoD", 6, 2)]
    timeline = draw_timeline(view_of(*events), bins=4)
    assert timeline is not None
    assert (timeline.bin_ns, timeline.compute) == (2_000, [2_000, 2_000, 0, 0])
    assert (timeline.overlap, timeline.communication) == ([0, 0, 1_000, 0], [0, 0, 1_000, 1_000])
    assert timeline.copy == [0, 0, 0, 1_000]
