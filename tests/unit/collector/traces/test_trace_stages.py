"""The time of the steps by type of event, and by stage of the training step."""

import numpy as np
import pytest

from rankscope.collector.traces.stages import (
    KINDS,
    split_by_kind,
    sum_event_types,
    sum_stages,
)
from rankscope.measure.rank_view import RankView
from tests.unit.measure.written_traces import Event, event, kernel, launch, read_events

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#SGD.step"
ENGINE = "autograd::engine::evaluate_function: MmBackward0"


def view_of(*events: Event) -> RankView:
    return RankView(read_events(*events))


def step(number: int, start_us: int, duration_us: int) -> Event:
    return event("user_annotation", f"ProfilerStep#{number}", start_us, duration_us)


def annotation(name: str, start_us: int, duration_us: int) -> Event:
    return event("user_annotation", name, start_us, duration_us)


def kinds_in_us(*events: Event) -> dict[str, int]:
    return {row.kind: row.total_ns // 1_000 for row in sum_event_types(view_of(*events)).whole if row.total_ns}


def host_us(*events: Event) -> dict[str, int]:
    return {row.stage: row.host_ns // 1_000 for row in sum_stages(view_of(*events)) if row.host_ns}


def device_us(*events: Event) -> dict[str, int]:
    return {row.stage: row.device_ns // 1_000 for row in sum_stages(view_of(*events)) if row.device_ns}


# -- by type ----------------------------------------------------------------------------------------------------------


def test_first_active_type_counts_at_any_time() -> None:
    # 0-20 the step; 2-12 an operator, 3-4 a launch, 4-9 a kernel, 8-11 a copy.
    copy = {**kernel("Memcpy HtoD", 8, 3), "cat": "gpu_memcpy"}
    events = [step(1, 0, 20), event("cpu_op", "aten::mm", 2, 10), launch(3, 1), kernel("gemm", 4, 5), copy]
    assert kinds_in_us(*events) == {"kernel": 5, "memcpy": 2, "runtime": 1, "cpu_op": 2, "other": 10}


def test_communication_is_from_the_hosts_ranges() -> None:
    assert kinds_in_us(step(1, 0, 20), annotation("gloo:all_reduce", 2, 6)) == {"communication": 6, "other": 14}


def test_time_in_the_data_loader_comes_before_that_of_operators() -> None:
    events = [step(1, 0, 20), annotation(LOADER, 2, 6), event("cpu_op", "aten::stack", 3, 8)]
    assert kinds_in_us(*events) == {"data_loader": 6, "cpu_op": 3, "other": 11}


def test_without_steps_the_whole_trace_is_split() -> None:
    assert kinds_in_us(kernel("a", 0, 4), kernel("b", 6, 4)) == {"kernel": 8, "other": 2}


def test_trace_of_nothing_has_types_without_shares() -> None:
    rows = sum_event_types(view_of()).whole
    assert [(row.kind, row.total_ns, row.ratio) for row in rows] == [(kind, 0, None) for kind in KINDS]


def test_shares_are_of_the_steps() -> None:
    ratios = {row.kind: row.ratio for row in sum_event_types(view_of(step(1, 0, 20), kernel("a", 0, 5))).whole}
    assert (ratios["kernel"], ratios["other"]) == (0.25, 0.75)


def test_each_step_has_its_types() -> None:
    events = [step(4, 0, 20), step(5, 20, 10), kernel("a", 0, 5), event("cpu_op", "aten::mm", 18, 6)]
    first, second = sum_event_types(view_of(*events)).steps
    # Step 4: 5 us of the kernel, 18 to 20 of the operator; step 5: 20 to 24 of the operator.
    assert (first.step, first.kernel_ns, first.cpu_op_ns, first.other_ns) == (4, 5_000, 2_000, 13_000)
    assert (second.step, second.kernel_ns, second.cpu_op_ns, second.other_ns) == (5, 0, 4_000, 6_000)
    assert sum_event_types(view_of(kernel("a", 0, 5))).steps == []


def test_window_is_split_to_the_ns() -> None:
    kinds = [np.array([[0, 5]]), np.array([[3, 8], [12, 20]])]
    # Of 2 to 15: 3 of the first, 5 to 8 and 12 to 15 of the second, 8 to 12 of none.
    assert split_by_kind(kinds, 2, 15) == [3, 6, 4]


# -- by stage ---------------------------------------------------------------------------------------------------------


def test_without_steps_there_are_no_stages() -> None:
    assert sum_stages(view_of(kernel("a", 0, 4))) == []


def test_step_is_split_into_its_stages() -> None:
    events = [
        step(1, 0, 40),
        annotation(LOADER, 0, 5),
        event("cpu_op", "aten::mm", 6, 4),
        event("cpu_op", ENGINE, 12, 3, tid=2),
        event("cpu_op", ENGINE, 17, 3, tid=2),
        annotation(OPTIMIZER, 25, 6),
        event("cpu_op", "aten::add_", 26, 2),
        kernel("gemm", 8, 1),
    ]
    # Backward from 12 to 20, with the gap from 15 to 17; other 5-6, 10-12, 20-25 and 31-40.
    assert host_us(*events) == {"data_loader": 5, "forward": 4, "backward": 8, "optimizer": 6, "other": 17}


def test_optimizer_between_two_backwards_is_not_backward() -> None:
    engine = [event("cpu_op", ENGINE, start, 2, tid=2) for start in (0, 10)]
    assert host_us(step(1, 0, 12), *engine, annotation(OPTIMIZER, 4, 3)) == {"backward": 9, "optimizer": 3}


def test_pause_of_milliseconds_ends_a_backward() -> None:
    engine = [event("cpu_op", ENGINE, start, 1_000, tid=2) for start in (0, 3_000)]
    assert host_us(step(1, 0, 4_000), *engine) == {"backward": 2_000, "other": 2_000}


def test_lone_node_of_2021_is_backward() -> None:
    assert host_us(step(1, 0, 10), event("Operator", "MmBackward", 2, 3)) == {"backward": 3, "other": 7}


@pytest.mark.parametrize(("start_us", "stage"), [(1, "data_loader"), (6, "forward"), (12, "other")])
def test_device_time_belongs_to_the_stage_that_launched_it(start_us: int, stage: str) -> None:
    host = [step(1, 0, 20), annotation(LOADER, 0, 5), event("cpu_op", "aten::mm", 5, 5)]
    assert device_us(*host, launch(start_us, 1), kernel("gemm", 50, 7, correlation=1)) == {stage: 7}


def test_work_launched_outside_of_the_steps_is_in_no_stage() -> None:
    assert device_us(step(1, 0, 20), launch(25, 1), kernel("gemm", 50, 7, correlation=1)) == {}
