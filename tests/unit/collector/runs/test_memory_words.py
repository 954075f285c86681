"""How much memory a rank has left, in words."""

import pytest

from rankscope.collector.publish.api.rank_views import show_rank
from rankscope.collector.reports.status_text import render_one_rank
from rankscope.collector.runs.memory_words import describe_memory
from rankscope.collector.runs.snapshot import RankSnapshot, RunSnapshot
from rankscope.measure.records import AllocatorSample, DeviceSample, HostSample, NodeSample
from tests.unit.collector.runs.run_snapshots import rank_of

GIB = 2**30
DEVICE = DeviceSample(host_ns=0, uuid="GPU", memory_used_bytes=70 * GIB, memory_total_bytes=80 * GIB)
ALLOCATOR = AllocatorSample(host_ns=0, reserved_bytes=66 * GIB, allocated_bytes=61 * GIB)
HOST = HostSample(host_ns=0, resident_bytes=5 * GIB)
NODE = NodeSample(host_ns=0, memory_available_bytes=200 * GIB)
WHOLE = rank_of(1, devices=(DEVICE,), allocator=ALLOCATOR, host=HOST)
READER = rank_of(0, node=NODE)
# 80 - 70 of the device, and 66 - 61 of torch.
SAID = (
    "GPU: 61.0 GiB allocated, 15.0 GiB left for tensors of 80.0 GiB; host: 5.0 GiB resident, 200.0 GiB available on "
    "its machine"
)


def test_memory_of_a_rank_is_that_of_its_gpu_process_and_machine() -> None:
    assert describe_memory(WHOLE, (READER, WHOLE)) == SAID


@pytest.mark.parametrize(
    ("rank", "said"),
    [
        (rank_of(1), ""),
        (rank_of(1, host=HostSample(host_ns=0)), ""),
        (rank_of(1, host=HOST), "host: 5.0 GiB resident"),
        (rank_of(1, node=NODE), "host: 200.0 GiB available on its machine"),
        (rank_of(1, devices=(DEVICE,)), "GPU: 10.0 GiB left for tensors of 80.0 GiB"),
        (rank_of(1, devices=(DeviceSample(host_ns=0, uuid="GPU"),), allocator=ALLOCATOR), "GPU: 61.0 GiB allocated"),
        (rank_of(1, allocator=AllocatorSample(host_ns=0)), ""),
        (
            rank_of(1, allocator=AllocatorSample(host_ns=0, allocated_bytes=0, allocated_peak_bytes=0)),
            "GPU: 0 bytes allocated",
        ),
    ],
)
def test_what_is_not_known_is_left_out(rank: RankSnapshot, said: str) -> None:
    assert describe_memory(rank, (rank,)) == said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((4799, 4820), "peak 70.0 GiB (reached between the ends of steps 4799 and 4820)"),
        ((4799, None), "peak 70.0 GiB (reached after the end of step 4799)"),
        ((None, 12), "peak 70.0 GiB (reached before the end of step 12)"),
        ((None, None), "peak 70.0 GiB"),
    ],
)
def test_peak_is_said_with_the_steps_in_which_it_was_reached(steps: tuple[int | None, int | None], said: str) -> None:
    after, by = steps
    allocator = AllocatorSample(
        host_ns=0, allocated_peak_bytes=70 * GIB, allocated_peak_after_step=after, allocated_peak_by_step=by
    )
    rank = rank_of(1, devices=(DEVICE,), allocator=allocator)
    assert describe_memory(rank, (rank,)) == f"GPU: {said}, 10.0 GiB left for tensors of 80.0 GiB"


def test_status_and_page_of_a_rank_say_it() -> None:
    run = RunSnapshot(run="bert", run_id="bert", world_size=2, restart_count=0, ranks=(READER, WHOLE))
    assert f"  memory: {SAID}" in render_one_rank(run, WHOLE, None).splitlines()
    answer = show_rank(run, 1, None)
    assert answer is not None
    assert answer.memory_said == SAID
    unmeasured = RunSnapshot(run="bert", run_id="bert", world_size=1, restart_count=0, ranks=(rank_of(1),))
    assert "memory:" not in render_one_rank(unmeasured, rank_of(1), None)
