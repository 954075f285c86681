"""Windows on a real GPU beside torch's trace file of the same steps and CUDA's own events."""

import numpy as np
import pytest
import torch

from rankscope.agent.profiler.reduce_window import reduce_window
from rankscope.measure.traced_collectives import find_collectives
from rankscope.measure.units import NS_PER_MS
from tests.gpu.test_windows import check_parts, needs_gpu
from tests.unit.agent.profiler.saved_window import record_window

pytestmark = pytest.mark.gpu


@needs_gpu
def test_window_agrees_with_torchs_file_of_the_same_steps() -> None:
    window = record_window("cuda", 4)
    assert window.live.has_device
    assert window.file.has_device
    assert all(np.array_equal(*both) for both in zip(window.live.sets, window.file.sets, strict=True))
    assert np.array_equal(window.live.unit_starts_ns, window.file.unit_starts_ns)
    assert np.array_equal(window.live.work_by_call[1], window.file.work_by_call[1])
    assert find_collectives(window.live) == find_collectives(window.file) == []


@needs_gpu
def test_steps_that_wait_for_their_loss_are_whole_and_alike() -> None:
    answer = reduce_window(record_window("cuda", 4).request)
    assert ([found.first_step for found in answer.breakdowns], answer.steps_cut) == ([0, 1, 2], 0)
    check_parts(answer.breakdowns)
    assert len({found.operator_count for found in answer.breakdowns}) == 1


@needs_gpu
def test_the_time_of_a_kernel_is_what_cudas_own_events_measure() -> None:
    events = []
    torch.cuda._sleep(1)  # the first launch of a kernel loads it, which takes 10 ms between two events

    def sleep_on_device() -> None:
        around = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        around[0].record()
        torch.cuda._sleep(40_000_000)  # cycles: 20 to 40 ms, beside which the model's own kernels are nothing
        around[1].record()
        events.append(around)

    window = record_window("cuda", 4, sleep_on_device)
    torch.cuda.synchronize()
    slept_ns = [round(begin.elapsed_time(end) * NS_PER_MS) for begin, end in events]
    for found, expected_ns in zip(reduce_window(window.request).breakdowns, slept_ns, strict=False):
        assert abs(found.compute_ns - expected_ns) < 0.1 * expected_ns
