"""Signs of small traces: times in the events are microseconds, in the signs nanoseconds."""

import json
from typing import Any

import pytest

from rankscope.collector.traces.origin import read_origin
from rankscope.collector.traces.report import Signs
from rankscope.collector.traces.signs import find_signs
from rankscope.measure.kineto_columns import read_trace
from rankscope.measure.rank_view import RankView

Event = dict[str, Any]


def signs_of(*events: Event | list[Event], **head: Any) -> Signs:
    flat = [one for given in events for one in (given if isinstance(given, list) else [given])]
    trace = read_trace([json.dumps({"traceEvents": flat, **head}).encode()])
    return find_signs(RankView(trace), read_origin(trace.head, "trace.json").devices)


def on_host(cat: str, name: str, start_us: float, duration_us: float, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": duration_us, "args": args}


def call(name: str, start_us: float, duration_us: float, **args: Any) -> Event:
    return on_host("cuda_runtime", name, start_us, duration_us, **args)


def launched(number: int, call_us: tuple[float, float], work_us: tuple[float, float], **more: Any) -> list[Event]:
    """Return a call and the device work that it launched, both given as start and duration."""
    stream = more.pop("stream", 7)
    work = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": stream, "ts": work_us[0], "dur": work_us[1]}
    args = {"device": 0, "stream": stream, "correlation": number}
    return [call("cudaLaunchKernel", *call_us, correlation=number), {**work, **more, "args": args}]


FIRST = launched(1, (0, 5), (5, 10))
"""Runs from 5 to 15."""
LATE = launched(2, (40, 5), (50, 10))
"""Launched at 40, runs from 50 to 60: the device was idle for the 35 us from 15 on, and the window is 5 to 60."""


def test_gap_with_launch_inside_it_is_attributed_to_launch() -> None:
    signs = signs_of(FIRST, LATE)
    assert (signs.window_ns, signs.idle_ns, signs.idle_launch_ns) == (55_000, 35_000, 35_000)


def test_gap_before_a_queued_kernel_is_not_launch_time() -> None:
    queued = launched(2, (10, 4), (50, 10))
    signs = signs_of(FIRST, queued)
    assert (signs.idle_ns, signs.idle_launch_ns) == (35_000, 0)


def test_idle_time_inside_the_data_loader_is_not_launch_time() -> None:
    loader = on_host("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 10)
    signs = signs_of(FIRST, LATE, loader)
    assert (signs.idle_data_loader_ns, signs.idle_launch_ns) == (10_000, 25_000)
    assert signs.single_process_loader is True


def test_idle_time_while_device_memory_is_freed_is_allocation() -> None:
    signs = signs_of(FIRST, LATE, call("cudaFree", 20, 15))
    assert (signs.idle_allocation_ns, signs.idle_launch_ns) == (15_000, 20_000)


def test_pinning_host_memory_is_no_device_allocation() -> None:
    assert signs_of(FIRST, LATE, call("cudaMallocHost", 20, 15)).idle_allocation_ns == 0


def test_idle_time_inside_a_synchronizing_call_is_separate() -> None:
    # The call runs from 10 to 18: the device works until 15, so 3 us of it are idle and all 8 us block the host.
    signs = signs_of(FIRST, LATE, call("cudaStreamSynchronize", 10, 8))
    assert (signs.idle_synchronization_ns, signs.blocked_ns, signs.idle_launch_ns) == (3_000, 8_000, 32_000)


def test_call_that_finds_the_device_idle_does_not_block() -> None:
    assert signs_of(FIRST, LATE, call("cudaStreamSynchronize", 20, 8)).blocked_ns == 0


def test_last_device_synchronization_is_the_profilers() -> None:
    signs = signs_of(FIRST, LATE, call("cudaDeviceSynchronize", 55, 6))
    assert (signs.profiler_synchronization_ns, signs.blocked_ns) == (6_000, 0)


def test_synchronization_before_a_launch_is_the_scripts() -> None:
    signs = signs_of(FIRST, LATE, call("cudaDeviceSynchronize", 12, 4))
    assert (signs.profiler_synchronization_ns, signs.blocked_ns) == (None, 4_000)


def test_copy_whose_call_returns_after_its_end_blocks_the_host() -> None:
    # The copy runs from 15 to 25 and its call from 6 to 26: it began while the first kernel ran.
    copy = launched(3, (6, 20), (15, 10), cat="gpu_memcpy", name="Memcpy DtoH (Device -> Pageable)")
    assert signs_of(FIRST, copy, LATE).blocked_ns == 20_000


def test_kernels_shorter_than_their_call_are_counted() -> None:
    # The calls take 5 us; the kernels 10, 10 and 3.
    signs = signs_of(FIRST, LATE, launched(3, (60, 5), (66, 3)))
    assert (signs.launched_kernel_count, signs.short_kernel_count, signs.launch_call_ns) == (3, 1, 15_000)


def test_nested_copy_operators_count_once_for_the_outermost() -> None:
    outer = on_host("cpu_op", "aten::contiguous", 0, 20)
    signs = signs_of(outer, on_host("cpu_op", "aten::clone", 1, 18), launched(1, (2, 5), (5, 8)), LATE)
    assert (signs.copy_operator_device_ns, signs.copy_operator) == (8_000, "aten::contiguous")


def test_copy_from_the_host_is_not_redundant() -> None:
    to = on_host("cpu_op", "aten::_to_copy", 0, 20)
    copy = launched(1, (2, 5), (5, 8), cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)")
    assert signs_of(to, copy, LATE).copy_operator_device_ns == 0


@pytest.mark.parametrize(("stream", "shared_ns"), [(7, 6_000), (20, 0)])
def test_communication_is_shared_when_its_stream_computes_too(stream: int, shared_ns: int) -> None:
    reduces = launched(3, (60, 2), (70, 6), stream=stream, name="ncclDevKernel_AllReduce_Sum_f32")
    assert signs_of(FIRST, LATE, reduces).shared_stream_communication_ns == shared_ns


def test_largest_fp32_product_is_named_with_its_work() -> None:
    # 2 * 512 * 64 * 1000 = 65,536,000; the larger product is in bfloat16.
    shapes = {"Input Dims": [[1000], [512, 64], [64, 1000]], "Input type": ["float", "float", "float"]}
    larger = {"Input Dims": [[9000, 64], [64, 9000]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
    signs = signs_of(on_host("cpu_op", "aten::addmm", 0, 5, **shapes), on_host("cpu_op", "aten::mm", 6, 5, **larger))
    assert (signs.largest_fp32_gemm, signs.largest_fp32_gemm_flops) == ("512x64 @ 64x1000", 65_536_000)


def test_compute_capability_is_that_of_the_device_at_work() -> None:
    devices = [{"id": 0, "computeMajor": 8, "computeMinor": 6}, {"id": 1, "computeMajor": 7, "computeMinor": 0}]
    signs = signs_of(FIRST, deviceProperties=devices)
    assert (signs.compute_capability_major, signs.compute_capability_minor) == (8, 6)


@pytest.mark.parametrize("properties", [5, {"id": 0}, [None, {"id": [0]}, {"id": 0, "computeMajor": "8"}]])
def test_compute_capability_that_cannot_be_read_is_unknown(properties: Any) -> None:
    assert signs_of(FIRST, deviceProperties=properties).compute_capability_major is None


def test_trace_without_a_device_has_no_device_signs() -> None:
    signs = signs_of(on_host("cpu_op", "aten::clone", 0, 20))
    assert (signs.idle_ns, signs.blocked_ns, signs.launched_kernel_count) == (None, None, None)
    assert signs.copy_operator_host_ns == 20_000


def test_empty_trace_has_no_window() -> None:
    assert signs_of().window_ns is None


def test_outer_product_with_global_shapes_is_not_the_largest() -> None:
    # A DTensor of 4 ranks: 2 * 128 * 64 * 1000 of the 2 * 512 * 64 * 1000 operations are this rank's.
    def product(rows: int, start_us: int, length_us: int) -> Event:
        shapes = {"Input Dims": [[rows, 64], [64, 1000]], "Input type": ["float", "float"]}
        return on_host("cpu_op", "aten::mm", start_us, length_us, **shapes)

    signs = signs_of(product(512, 0, 10), on_host("cpu_op", "c10d::x", 1, 8), product(128, 2, 5))
    assert (signs.largest_fp32_gemm, signs.largest_fp32_gemm_flops) == ("128x64 @ 64x1000", 16_384_000)
